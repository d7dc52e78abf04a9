#pragma once

// The target side of publications: a rollout rank that pulls its slice of the plan into a sink.
//
// Boxes come in buckets, two of them under way at a time: while one is checked and unpacked the
// next is on its way. What lies in this process is read where it lies; contiguous regions of plain
// buffers are written in place; the rest goes through the buckets.
// Ownership: the sink and the port are the caller's and outlive this.
// **Threads:** `handle` from any, one command at a time but for kAbort, which ends a running
// kReceive from another thread. kReceive blocks its thread for as long as the transfer takes.
// **Invariants:** until commit the old version serves; an old epoch is refused; every wait ends by
// the command's `within`. Extra memory: two buckets.

#include "reshard/execution/messages.hpp"
#include "reshard/execution/publication_plan.hpp"
#include "reshard/execution/weight_port.hpp"
#include "reshard/execution/weight_sink.hpp"

#include <cstdint>
#include <functional>
#include <memory>

namespace troupe::reshard {

class PieceLane;

struct TargetOptions {
  std::int64_t bucket_bytes = std::int64_t{8} << 20;  ///< 64 B..1 GiB; two are allocated
  bool permit_views = false;                          ///< offers `WeightSink::adopt`
  /// What brings bytes from other processes; empty: the port's transport, if it has one.
  std::function<std::unique_ptr<PieceLane>(WeightPort&)> lane = {};
};

class PublicationTarget {
 public:
  PublicationTarget(std::shared_ptr<const PublicationPlan> plan, std::int32_t rank,
                    WeightSink& sink, WeightPort& port, const TargetOptions& options = {});
  ~PublicationTarget();
  PublicationTarget(const PublicationTarget&) = delete;
  PublicationTarget& operator=(const PublicationTarget&) = delete;

  /// Carries out a command and says what became of it.
  Reply handle(const Command& command);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace troupe::reshard
