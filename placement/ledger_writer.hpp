#pragma once

// `LedgerWriter`: makes records durable, one flush for all that came meanwhile.
//
// Where flushes are quick (memory, disks with a cache of their own) the caller does them: two
// changes of thread cost more. Where they are not, a thread does, and the caller goes on.
//
// Ownership: owns the ledger file; made by PlacementService, which it calls back.
// **Threads:** `append` from one thread; callbacks on that one, from inside the call, or on the
// writer's.
// **Invariants:** records become durable in order; `durable(n)` means that all up to number n are.
// After an error nothing more is written and `failed` was called once. The destructor writes what
// was appended before.
// **Cost:** a batch is one write and one flush. The caller waits for nothing unless the last flush
// was quick; then for a flush.

#include "placement/ledger.hpp"
#include "placement/ledger_file.hpp"
#include "runtime/base/clock.hpp"

#include <chrono>
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
  static constexpr Duration kQuickFlush = std::chrono::microseconds(100);

  struct Callbacks {
    std::function<void(std::uint64_t records)> durable;
    std::function<void(const Error&)> failed;
  };

  /// Flushes that take less than `quick_flush` are quick; 0: none is.
  LedgerWriter(LedgerFile file, Callbacks callbacks, Duration quick_flush = kQuickFlush);
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
  /// What is next, when the caller may write it: the thread has nothing to do and flushes are
  /// quick.
  std::optional<Batch> take_quick();
  /// Writes the batch and tells of it. False after an error.
  bool finish(const Batch& batch);
  result<void> write(const Batch& batch);

  LedgerFile file_;
  Callbacks callbacks_;
  Duration quick_flush_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  Batch next_;
  bool has_next_ = false;
  bool writing_ = false;  // somebody does; only they touch the file
  bool quick_ = false;
  bool failed_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

/// Frames of at most kFramePayloadBytesMax for these records.
result<std::vector<std::vector<std::byte>>> encode_frames(std::span<const LedgerRecord> records);

}  // namespace troupe::placement
