#pragma once

// `ProcessTable::Loop`: the thread behind a ProcessTable. Private to process*.cpp.
//
// **Threads:** `post` and the counters from any thread; everything else on the loop's own.
// **Invariants:** a child leaves the table when it is reaped and its pipes are closed or drained.

#include "runtime/cluster/cgroup.hpp"
#include "runtime/cluster/process.hpp"
#include "runtime/cluster/process_child.hpp"

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe::runtime {

class ProcessTable::Loop {
 public:
  explicit Loop(ProcessTableOptions options);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Opens epoll and the wake-up, then starts the thread.
  result<void> start();
  result<Key> spawn(ProcessSpec spec, ProcessEvents events);
  void stop(Key key, Duration grace, std::string reason);
  void signal(Key key, int signal);
  std::size_t size() const { return live_.load(std::memory_order_acquire); }

 private:
  struct Child {
    Key key = 0;
    ProcessSpec spec;
    ProcessEvents events;
    StartedChild started;
    std::unique_ptr<ChildCgroup> cgroup;
    TimePoint since{};
    std::int64_t oom_kills_before = 0;
    Bytes own_memory_at_start;  ///< of this process: a lower bound of the child's counter
    bool running = false;       ///< exec succeeded
    bool reaped = false;
    ProcessExit exit;
  };
  enum class Source : std::uint8_t { kWake, kReport, kOut, kError, kOver };
  enum class TimerKind : std::uint8_t { kKill, kDrained };
  using Timer = std::pair<TimePoint, std::pair<Key, TimerKind>>;
  struct Command {
    enum class Kind : std::uint8_t { kSpawn, kStop, kSignal } kind = Kind::kSpawn;
    Key key = 0;
    std::unique_ptr<Child> child;
    Duration grace{};
    std::string reason;
    int signal = 0;
  };

  void post(Command command);
  void run();
  bool done();
  int wait_ms() const;
  void handle(Source source, Key key);
  void take_commands();
  void take_timers();
  void start_one(std::unique_ptr<Child> child);
  void fail_start(Child& child, const std::string& why);
  void read_report(Child& child);
  /// Whether something came; closes the pipe at its end.
  bool read_output(Child& child, std::size_t stream);
  void reap(Child& child);
  void finish_if_over(Key key, bool drained);
  void kill_group(const Child& child, int signal) const;
  void kill_now(Child& child);
  void apply_stop(Child& child, Duration grace, const std::string& reason);
  bool watch(int file, Source source, Key key);

  ProcessTableOptions options_;
  Cgroups cgroups_;
  FileHandle epoll_;
  FileHandle wake_;
  std::vector<char> buffer_;

  std::unordered_map<Key, std::unique_ptr<Child>> children_;
  std::set<Timer> timers_;
  bool killed_all_ = false;  ///< the table closes

  std::atomic<std::size_t> live_{0};
  std::mutex mutex_;  // guards the following three
  std::deque<Command> commands_;
  Key last_key_ = 0;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace troupe::runtime
