#pragma once

// A plan with the layouts it was made from: what every rank of a publication must know, worked out
// by each alone and kept between publications.
//
// Also the order in which each target receives. Operations are taken by the index of the one at the
// head of their chain (`Op::after`), so that who hands on and who is handed on agree on the order
// and bounded buffers cannot wait for each other in a circle.
// **Threads:** immutable once made; share it.

#include "reshard/plan.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace troupe::reshard {

/// What one target receives, in its order. `begins[i]` is the number of elements before ops[i], the
/// coordinate in which it tells others how far it is.
struct ReceiveOrder {
  std::vector<std::int32_t> ops;
  std::vector<std::int64_t> begins;  ///< one more than ops
  std::int64_t total() const { return begins.back(); }
};

class PublicationPlan {
 public:
  static result<std::shared_ptr<const PublicationPlan>> make(Roster source, Roster target,
                                                             const PlanOptions& options = {});

  const Plan& plan() const { return plan_; }
  const Roster& source() const { return source_; }
  const Roster& target() const { return target_; }
  /// Null for a rank that is not on that side.
  const RankLayout* source_layout(std::int32_t rank) const;
  const RankLayout* target_layout(std::int32_t rank) const;
  const Op& op(std::int32_t index) const { return plan_.ops[static_cast<std::size_t>(index)]; }
  const TensorInfo& tensor_of(const Op& op) const {
    return plan_.tensors[static_cast<std::size_t>(op.tensor)];
  }
  /// The operation at the head of the chain that ends with `index`: its source holds the weights.
  const Op& root_of(std::int32_t index) const;
  /// Empty order for a rank that receives nothing.
  const ReceiveOrder& receive_order(std::int32_t target_rank) const;
  /// Where the bytes of operation `index` begin in the order of the target that hands them on.
  std::int64_t begin_at_sender(std::int32_t index) const;
  /// Ranks to whom target `rank` hands on, ascending.
  std::span<const std::int32_t> takers_of(std::int32_t rank) const;

 private:
  PublicationPlan() = default;
  void order();

  Roster source_, target_;
  Plan plan_;
  std::map<std::int32_t, const RankLayout*> source_ranks_, target_ranks_;
  std::map<std::int32_t, ReceiveOrder> orders_;
  std::map<std::int32_t, std::vector<std::int32_t>> takers_;
  std::vector<std::int64_t> begin_of_op_;  ///< in its target's order
};

}  // namespace troupe::reshard
