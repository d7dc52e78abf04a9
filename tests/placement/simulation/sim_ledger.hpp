#pragma once

// A ledger on a simulated disk: real frames, one flush at a time, and crashes that tear them.
//
// **Threads:** one.
// **Invariants:** what `durable` says survives every crash; what was in flight survives whole, in
// part, or not at all.

#include "placement/ledger.hpp"
#include "runtime/base/rng.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::placement::simulation {

class SimLedger {
 public:
  SimLedger();
  /// Queues records up to number `last`, or a snapshot of everything up to it.
  void append(std::vector<LedgerRecord> records, std::uint64_t last);
  void replace(std::vector<LedgerRecord> snapshot, std::uint64_t last);
  /// Starts a flush of what is queued; false when there is nothing, or one is under way.
  bool start_flush();
  /// Ends it: the number up to which records are durable now.
  std::uint64_t finish_flush();
  /// The process died: the flush under way leaves anything from nothing to all of it behind.
  void crash(Rng& rng);
  /// Reads the file as a starting head does.
  result<LedgerState> open();
  /// Of records that are durable or were so before a restart.
  const LedgerState& durable() const { return durable_; }
  std::size_t bytes() const { return file_.size(); }

 private:
  struct Batch {
    std::optional<std::vector<LedgerRecord>> snapshot;
    std::vector<LedgerRecord> records;
    std::uint64_t last = 0;
  };
  static void apply(LedgerState& state, const Batch& batch);
  std::vector<std::byte> file_after(const Batch& batch) const;

  std::vector<std::byte> file_;
  std::uint64_t next_frame_ = 0;
  LedgerState durable_;
  std::optional<Batch> queued_;
  std::optional<Batch> flushing_;
};

}  // namespace troupe::placement::simulation
