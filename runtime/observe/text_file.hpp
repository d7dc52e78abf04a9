#pragma once

// Whole files of text, written so that a reader sees the old or the new one, never a torn one.
//
// **Threads:** any; two writers of one path race for the last word, both leave a whole file.

#include "runtime/base/result.hpp"

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe::runtime {

/// Writes a temporary sibling, syncs it, and renames it over `path`. kIo names path and reason.
result<void> write_text_file(const std::string& path, std::string_view text);

/// kNotFound, kIo, or kResourceExhausted above `bytes_max`.
result<std::string> read_text_file(const std::string& path, std::size_t bytes_max);

/// `text` with bytes that are not UTF-8 replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

}  // namespace troupe::runtime
