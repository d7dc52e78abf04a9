#pragma once

// Sums pieces as their bytes land in place, on the threads that bring them, and in the same walk as
// the last copy where there is one.
//
// **Threads:** `landed` and `bring` on any; `take` when the pull is over.
// **Invariants:** a sum is given only when every byte of the piece was told exactly once.

#include "reshard/execution/publication_plan.hpp"
#include "reshard/execution/weight_port.hpp"
#include "runtime/comm/transport.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>

namespace troupe::reshard {

class LandingSums final : public runtime::LandingWatch {
 public:
  explicit LandingSums(std::shared_ptr<const PublicationPlan> plan) : plan_(std::move(plan)) {}

  /// Before the pull begins. Places do not overlap.
  void add(const OpPiece& piece, std::span<const std::byte> place);
  void landed(std::span<const std::byte> bytes) override;
  void bring(std::byte* target, std::span<const std::byte> bytes) override;
  /// The tensor's sum of the piece at that place, when all of it was told.
  std::optional<std::uint64_t> take(std::span<const std::byte> place) const;

 private:
  struct Piece {
    OpPiece piece;
    std::span<const std::byte> place;
    std::atomic<std::uint64_t> sum{0};
    std::atomic<std::int64_t> told{0};
  };

  /// Bytes whose place is `place`; copied to `to`, which is the same, unless that is null.
  void take_in(std::byte* to, std::span<const std::byte> bytes, const std::byte* place);

  std::shared_ptr<const PublicationPlan> plan_;
  std::map<const std::byte*, Piece> pieces_;  ///< by where they begin; fixed once a pull runs
};

}  // namespace troupe::reshard
