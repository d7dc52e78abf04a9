#pragma once

// What a target has received, given on to its takers: peers on its node, or targets of other nodes.
//
// Bytes come from the sink's own memory where that is plain, else from the buckets, which are then
// kept until every taker has said that it is past them. Nobody waits in a call: takers ask how far
// this rank is, and the receiver asks whether a bucket is free.
// Ownership: shared by the port and the receiver; holds the buckets that it gives out.
// **Threads:** any.
// **Invariants:** nothing is given out before it was checked.

#include "reshard/execution/bucket.hpp"
#include "reshard/execution/weight_port.hpp"
#include "reshard/execution/weight_sink.hpp"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace troupe::reshard {

/// The memory of one bucket.
using BucketMemory = std::shared_ptr<std::vector<std::byte>>;

class HandOn final : public PieceGiver, public std::enable_shared_from_this<HandOn> {
 public:
  /// `plain`: the sink's memory serves, so that buckets need not be kept.
  HandOn(std::shared_ptr<const PublicationPlan> plan, std::int32_t rank, WeightSink& sink,
         bool plain);

  const PublicationPlan& plan() const override { return *plan_; }
  result<runtime::Pinned> read(const OpPiece& piece) override;
  std::int64_t progress(std::int32_t taker, std::int64_t taken) override;

  /// The piece, element `begin` of the receive order, is checked and unpacked, and may be taken.
  void delivered(const BucketPiece& one, std::int64_t begin, const BucketMemory& memory);
  /// Waits until every taker is past element `end` of the receive order; false at the deadline.
  bool wait_taken(std::int64_t end, Deadline deadline);
  /// The taker that has taken least; -1 when there is none.
  std::int32_t last_taker();

 private:
  struct Run {
    std::int64_t end = 0;  ///< in elements of the receive order
    std::int64_t element = 0;
    BucketMemory memory;
    const std::byte* data = nullptr;
  };
  void drop_taken();

  std::shared_ptr<const PublicationPlan> plan_;
  std::int32_t rank_;
  WeightSink& sink_;
  bool plain_;
  std::mutex mutex_;  ///< guards the following
  std::condition_variable moved_;
  std::int64_t delivered_ = 0;
  std::map<std::int32_t, std::int64_t> taken_;
  std::map<std::int64_t, Run> kept_;  ///< by the first element in receive order
};

}  // namespace troupe::reshard
