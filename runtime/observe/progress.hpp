#pragma once

// One line that says how a run is doing: rewritten in place on a terminal, one plain line per
// step elsewhere (log files, pipes).
//
// Ownership: borrows the stream.
// **Threads:** one thread at a time.
// **Invariants:** a line is never wider than the terminal, holds no control characters but its
// own, and does not end inside a character.

#include "runtime/base/clock.hpp"

#include <cstdint>
#include <cstdio>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::runtime {

struct ProgressReport {
  std::string label = "train";
  std::int64_t step = 0;
  std::int64_t steps_total = 0;  ///< 0: unknown
  std::optional<double> reward = {};
  std::optional<double> response_length = {};  ///< tokens
  std::optional<double> tokens_per_second = {};
  std::optional<double> loss = {};
  std::string note = {};  ///< e.g. `val 0.83`
};

/// The line's text: what fits into `columns`, most important first. Pure.
std::string progress_text(const ProgressReport& report, std::optional<Duration> left, int columns);

/// `3 s`, `2 m 05 s`, `1 h 02 m`, `3 d 04 h`.
std::string duration_text(Duration span);

/// `text` cut to `columns` characters, the last an ellipsis when cut; control characters become
/// spaces. Counts code points.
std::string fitted(std::string_view text, int columns);

class ProgressLine {
 public:
  struct Options {
    bool live = false;  ///< rewrite in place
    int columns = 80;
  };
  /// Looks at the stream: live when it is a terminal (and TERM is not `dumb`), with its width.
  static Options options_for(std::FILE* stream);

  ProgressLine(std::FILE* stream, Options options, const Clock& clock);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { finish(); }

  void update(const ProgressReport& report);
  /// A lasting line, above the live one.
  void say(std::string_view line);
  /// Ends the live line, so that what follows starts on its own.
  void finish();

 private:
  std::optional<Duration> time_left(const ProgressReport& report);

  std::FILE* stream_;
  const Options options_;
  const Clock& clock_;
  std::deque<std::pair<std::int64_t, TimePoint>> recent_;  // of the last 20 steps
  std::string shown_;
};

}  // namespace troupe::runtime
