#pragma once

// `LogPrinter`: writes lines of ranks where people read them, without keeping anybody waiting.
//
// A terminal may block for as long as somebody holds Ctrl-S; the lines wait here in a bounded queue
// instead of on the link's I/O thread.
// **Threads:** `add` from any thread; `write` runs on the printer's own.
// **Invariants:** at most `bytes_max` wait; what does not fit is counted and the count is printed;
// destruction prints what is queued and then stops.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace troupe::runtime {

class LogPrinter {
 public:
  /// Standard error when `write` is empty.
  explicit LogPrinter(std::function<void(std::string_view)> write = {},
                      std::size_t bytes_max = std::size_t{4} << 20);
  ~LogPrinter();
  LogPrinter(const LogPrinter&) = delete;
  LogPrinter& operator=(const LogPrinter&) = delete;

  /// Whole lines.
  void add(std::string_view lines);

 private:
  void run();

  const std::function<void(std::string_view)> write_;
  const std::size_t bytes_max_;
  std::mutex mutex_;  // guards the following four
  std::condition_variable changed_;
  std::string queue_;
  std::uint64_t bytes_dropped_ = 0;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace troupe::runtime
