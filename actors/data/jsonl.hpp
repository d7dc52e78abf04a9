#pragma once

// Reading and writing files of one JSON value per line.
//
// Ownership: a reader owns its file. **Threads:** a reader belongs to one thread.
// **Invariants:** a line longer than the bound is an error before it is held in memory whole;
// blank lines are skipped and counted; a UTF-8 byte order mark and `\r\n` line ends are accepted.
// **Cost:** one line in memory at a time.

#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace troupe::actors {

struct JsonLinesOptions {
  std::size_t line_bytes_max = std::size_t{4} << 20;
};

struct JsonLine {
  std::string text;
  std::int64_t number = 0;  ///< from 1
  std::string place;        ///< `path:number`, for messages
};

class JsonLinesReader {
 public:
  /// kNotFound or kIo names the path.
  static result<JsonLinesReader> open(const std::string& path,
                                      const JsonLinesOptions& options = {});

  /// The next line that is not blank; empty at the end of the file. kCorrupt for a line over the
  /// bound, kIo when the file cannot be read.
  result<std::optional<JsonLine>> next();

 private:
  JsonLinesReader(std::string path, std::ifstream file, const JsonLinesOptions& options);

  std::string path_;
  std::ifstream file_;
  JsonLinesOptions options_;
  std::int64_t number_ = 0;
};

/// Replaces `path` by the lines, atomically; makes missing folders. kIo names the path.
result<void> write_lines(const std::string& path, std::span<const std::string> lines);

}  // namespace troupe::actors
