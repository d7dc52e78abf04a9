#pragma once

// `LogForwarder`: the output of many ranks, gathered into batches per job. Shell around LogLines.
//
// An agent's sink sends the batches to the controllers; a launcher in the controller's own process
// prints them. Lines wait in a queue per job until the sink takes them.
// **Threads:** any thread may call; the sink runs on the forwarder's thread or on the one that
// calls `close`, one call at a time, and must not block.
// **Invariants:** bounded by the options whatever comes in; what does not fit is counted and the
// count reaches the sink with the next batch; lines of one rank stay in order.

#include "runtime/base/clock.hpp"
#include "runtime/cluster/log_lines.hpp"
#include "runtime/cluster/node_protocol.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

struct LogForwarderOptions {
  std::string node;
  LogLimits limits;
  Duration flush_every = std::chrono::milliseconds(100);
  std::size_t batch_bytes = 64 << 10;        ///< a fuller queue is sent at once
  std::size_t queue_bytes_max = 1024 << 10;  ///< of one job
};

class LogForwarder {
 public:
  using Id = std::uint64_t;
  /// False: not now; the batch stays queued.
  using Sink = std::function<bool(const std::string& job, const LogBatch& batch)>;

  LogForwarder(LogForwarderOptions options, Sink sink);
  ~LogForwarder();
  LogForwarder(const LogForwarder&) = delete;
  LogForwarder& operator=(const LogForwarder&) = delete;

  Id open(const std::string& job, const std::string& group, RankId rank);
  void feed(Id id, std::size_t stream, std::string_view bytes);
  std::vector<std::string> last_lines(Id id) const;
  /// The rank's output is over: what was held back goes out, and the job's queue to the sink.
  /// Returns the last lines.
  std::vector<std::string> close(Id id);
  /// Forgets what a job has queued.
  void drop_job(const std::string& job);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// `[gpu-1 policy/3] text` and a line break for every line, and one for a count of dropped lines.
std::string to_text(const LogBatch& batch);

}  // namespace troupe::runtime
