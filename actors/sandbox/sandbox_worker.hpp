#pragma once

// A seat in a pool: at most one process at a time, the lines that it was sent and has not answered,
// and what came of them.
//
// **Ownership:** owns its process.
// **Threads:** one at a time; the pool lends it to one call.
// **Invariants:** answers come in the order of the lines; a line that was sent to a process that
// failed behind another line is given back, never lost.

#include "actors/sandbox/sandbox_process.hpp"
#include "runtime/base/clock.hpp"

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors::sandbox {

/// What happened to a line.
struct WorkerNews {
  std::size_t line = 0;
  SandboxAnswer answer{};
};

class Worker {
 public:
  explicit Worker(const SandboxOptions& options) : options_(options) {}

  bool running() const { return process_ != nullptr; }
  bool asked_nothing() const { return asked_.empty(); }
  std::size_t asked() const { return asked_.size(); }
  /// Lines that it would take now.
  std::size_t room() const;
  SandboxProcess& process() { return *process_; }

  /// A fresh process in this seat; `serial` is its own among all processes of the pool.
  result<void> start(bool isolate, std::int64_t serial);
  /// Of the process that is there, or was there last.
  std::int64_t serial() const { return serial_; }
  /// Queues a line for the process. `last`: its input ends behind it.
  void ask(std::size_t line, std::string_view text, bool last);
  /// To be called after a round of `ask`: the CPU that these lines may use.
  void begin_work();
  /// No more lines for now.
  void rest();

  /// Descriptors to wait for.
  void add_waits(std::vector<pollfd>& waits) const;
  /// The next moment at which a line is late.
  std::optional<TimePoint> late_at() const;

  /// Moves bytes both ways; answers go to `news`. True: the process must go; see `failure`.
  bool advance(TimePoint now, std::vector<WorkerNews>& news);
  /// Ends the process. Lines that are still open: the first gets the failure (all of them when a
  /// whole batch failed), the others go to `again`.
  void fail_front(std::vector<WorkerNews>& news, std::vector<std::size_t>& again);
  /// Ends the process after it has answered all.
  void retire();

  bool answered_any() const { return answered_any_; }
  /// Had its number of samples.
  bool used_up() const { return served_ >= options_.samples_per_worker; }
  /// What the helper refused, once that is known: the sandbox's failure, not a sample's.
  std::optional<NoticeRecord> refused() const { return refused_; }
  /// True when it wrote a line that nobody had asked for.
  bool wrote_surplus() const { return surplus_; }

 private:
  void write_input();
  /// The process closed its input: lines that it cannot have read go elsewhere.
  void retract_unread();
  bool read_output(TimePoint now, std::vector<WorkerNews>& news);
  bool take_lines(TimePoint now, std::vector<WorkerNews>& news);
  void read_errors();
  void give(TimePoint now, std::string_view line, std::vector<WorkerNews>& news);
  void set_failure(SandboxFailure failure, std::string detail);
  /// From what the helper said: a limit, a signal, a status.
  void explain_ending(const Notices& notices);

  const SandboxOptions& options_;
  std::unique_ptr<SandboxProcess> process_;
  std::int64_t serial_ = 0;
  std::deque<std::size_t> asked_;
  std::deque<std::size_t> retracted_;
  std::string to_write_;
  std::size_t written_ = 0;
  bool close_after_ = false;
  std::string read_;
  std::size_t scanned_ = 0;
  std::string errors_;  // the end of standard error
  TimePoint front_since_{};
  std::int64_t served_ = 0;
  bool answered_any_ = false;
  bool surplus_ = false;
  bool deaf_ = false;  // closed its input
  std::optional<SandboxFailure> failure_;
  std::string detail_;
  std::optional<NoticeRecord> refused_;
};

}  // namespace troupe::actors::sandbox
