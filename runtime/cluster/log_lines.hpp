#pragma once

// `LogLines`: the output of one rank as lines fit for a terminal. Pure core of log forwarding.
//
// Bytes of both streams are split at line ends (`\n`, `\r`, `\r\n`), long lines are cut, what is
// not printable UTF-8 is escaped (`\x1b`), partial lines come out after a while, repeats are
// counted (`repeated 41×`), floods are thinned to a rate with a count of what was dropped, and the
// last lines are kept for the death report.
// **Threads:** none of its own; one owner.
// **Invariants:** memory is bounded by the options whatever comes in; every byte ends in a line, a
// cut or a count; nothing is invented.
// **Cost:** ~1 ns a byte; lines over the rate cost their scan and their place in the ring.

#include "runtime/base/clock.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

struct LogLimits {
  std::size_t line_bytes_max = 4096;  ///< longer lines are cut, with a mark
  Duration partial_after = std::chrono::milliseconds(250);
  Duration repeats_after = std::chrono::seconds(5);  ///< how long a count of repeats is held back
  std::size_t lines_per_second = 1000;
  std::size_t bytes_per_second = 256 << 10;
  double burst_seconds = 2.0;  ///< how much of the rate may be saved up
  std::size_t ring_lines = 50;
};

/// Makes bytes printable: valid UTF-8 and tabs stay, the rest becomes `\xNN`.
std::string escape_line(std::string_view bytes);

class LogLines {
 public:
  explicit LogLines(LogLimits limits = {});

  /// Takes output of stream 0 or 1 and appends the lines that may be forwarded to `out`.
  void feed(std::size_t stream, std::string_view bytes, TimePoint now,
            std::vector<std::string>& out);
  /// Lets partial lines, counts of repeats and of drops out when their time has come.
  void tick(TimePoint now, std::vector<std::string>& out);
  /// The end: everything that was held back.
  void finish(TimePoint now, std::vector<std::string>& out);
  /// When `tick` has something to do; TimePoint::max() when never.
  TimePoint next_tick() const;

  /// The last lines, oldest first, also those that were not forwarded.
  std::vector<std::string> last_lines() const;
  std::uint64_t lines_dropped() const { return lines_dropped_; }

 private:
  struct Partial {
    std::string bytes;
    std::uint64_t bytes_cut = 0;  ///< of this line, beyond line_bytes_max
    bool after_return = false;    ///< the last byte was `\r`
    TimePoint since{};
  };
  void end_line(Partial& partial, TimePoint now, std::vector<std::string>& out);
  void take_line(std::string line, TimePoint now, std::vector<std::string>& out);
  void forward(std::string line, TimePoint now, std::vector<std::string>& out);
  void say_repeats(TimePoint now, std::vector<std::string>& out);
  void say_dropped(TimePoint now, std::vector<std::string>& out);
  void refill(TimePoint now);

  LogLimits limits_;
  std::array<Partial, 2> partial_;
  std::vector<std::string> ring_;  ///< ring_lines slots, reused
  std::uint64_t lines_seen_ = 0;
  std::string last_line_;  ///< the one that repeats are counted of
  bool has_last_ = false;
  std::uint64_t repeats_ = 0;
  TimePoint repeats_since_{};
  double line_tokens_ = 0;
  double byte_tokens_ = 0;
  TimePoint refilled_at_{};
  bool refilled_once_ = false;
  std::uint64_t dropped_now_ = 0;  ///< since the last count was let out
  std::uint64_t dropped_bytes_now_ = 0;
  TimePoint dropped_since_{};
  std::uint64_t lines_dropped_ = 0;
};

}  // namespace troupe::runtime
