#pragma once

// `LedgerWriter`: a thread that makes records durable, one flush for all that came meanwhile.
//
// Ownership: owns the ledger file; made by PlacementService, which it calls back.
// **Threads:** `append` from one thread; callbacks on the writer's thread.
// **Invariants:** records become durable in order; `durable(n)` means that all up to number n are.
// After an error nothing more is written and `failed` was called once. The destructor writes what
// was appended before.
// **Cost:** the caller encodes nothing and waits for nothing; a batch is one write and one flush.

#include "placement/ledger.hpp"
#include "placement/ledger_file.hpp"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace troupe::placement {

class LedgerWriter {
 public:
  struct Callbacks {
    std::function<void(std::uint64_t records)> durable;
    std::function<void(const Error&)> failed;
  };

  LedgerWriter(LedgerFile file, Callbacks callbacks);
  ~LedgerWriter();
  LedgerWriter(const LedgerWriter&) = delete;
  LedgerWriter& operator=(const LedgerWriter&) = delete;

  /// `last` is the number of the last record.
  void append(std::vector<LedgerRecord> records, std::uint64_t last);
  /// The file becomes these records; everything appended before is in them.
  void replace(std::vector<LedgerRecord> snapshot, std::uint64_t last);

 private:
  struct Batch {
    std::optional<std::vector<LedgerRecord>> snapshot;
    std::vector<LedgerRecord> records;  // behind the snapshot
    std::uint64_t last = 0;
  };
  void run();
  result<void> write(const Batch& batch);

  LedgerFile file_;
  Callbacks callbacks_;
  std::mutex mutex_;  // guards next_, has_next_, stopping_
  std::condition_variable changed_;
  Batch next_;
  bool has_next_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

/// Frames of at most kFramePayloadBytesMax for these records.
result<std::vector<std::vector<std::byte>>> encode_frames(std::span<const LedgerRecord> records);

}  // namespace troupe::placement
