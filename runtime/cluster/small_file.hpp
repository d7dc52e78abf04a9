#pragma once

// Reading the kernel's small text files, in which "not there" is a normal answer.
//
// **Threads:** pure functions over files.

#include <charconv>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::runtime {

/// The file's text (at most 1 MiB) without white space at its end; empty optional when it cannot be
/// read.
inline std::optional<std::string> read_small_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::string text(std::size_t{1} << 20, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return std::nullopt;
  text.resize(static_cast<std::size_t>(in.gcount()));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

/// A whole decimal number; empty for anything else.
inline std::optional<std::int64_t> parse_whole(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

/// The number that stands alone in a file.
inline std::optional<std::int64_t> read_number_file(const std::string& path) {
  const auto text = read_small_file(path);
  return text ? parse_whole(*text) : std::nullopt;
}

}  // namespace troupe::runtime
