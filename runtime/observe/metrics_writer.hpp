#pragma once

// metrics.jsonl: one JSON object per training step, `{"step":3,"actor/pg_loss":0.12,…}`.
//
// Numbers are JSON numbers that read back to the same bits; NaN and infinities, which JSON lacks,
// are the strings "NaN", "Infinity" and "-Infinity". A line reaches the operating system whole
// before `write` returns.
// Ownership: owns the file descriptor.
// **Threads:** one thread at a time.
// **Invariants:** steps increase from line to line. After `open` for a resumed run the file holds
// exactly the lines up to the resumed step, so that it ends as if the run had never stopped; a
// last line torn by a kill is removed.

#include "runtime/base/result.hpp"
#include "runtime/observe/metrics.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::runtime {

using MetricValues = std::vector<std::pair<std::string, double>>;

class MetricsWriter {
 public:
  /// `resumed_step` empty: starts a new file. Else keeps the lines of steps ≤ it. kCorrupt names a
  /// line that is not a metrics line; kIo otherwise.
  static result<MetricsWriter> open(const std::string& path,
                                    std::optional<std::int64_t> resumed_step = std::nullopt);
  MetricsWriter(MetricsWriter&& other) noexcept;
  MetricsWriter& operator=(MetricsWriter&& other) noexcept;
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;
  ~MetricsWriter();

  /// Every metric that has a value, in name order. kInvalidArgument unless `step` is above the
  /// last one written.
  result<void> write(std::int64_t step, const Metrics& metrics);
  result<void> write(std::int64_t step, const MetricValues& values);
  /// Waits until the lines are on disk; before a checkpoint's marker is written.
  result<void> sync();

  std::int64_t last_step() const { return last_step_; }  ///< -1 in an empty file

 private:
  MetricsWriter(std::string path, int fd, std::int64_t last_step)
      : path_(std::move(path)), fd_(fd), last_step_(last_step) {}

  std::string path_;
  int fd_;
  std::int64_t last_step_;
};

/// One line, without its end. Values of one name twice keep the last.
std::string metrics_line(std::int64_t step, const MetricValues& values);

struct MetricsRow {
  std::int64_t step = 0;
  std::map<std::string, double, std::less<>> values = {};
};

/// Reads a line; values that are not numbers are left out. kCorrupt begins with `place`.
result<MetricsRow> parse_metrics_line(std::string_view line, std::string_view place);

/// All rows of a file of up to 1 GiB; a torn last line is left out.
result<std::vector<MetricsRow>> read_metrics(const std::string& path);

}  // namespace troupe::runtime
