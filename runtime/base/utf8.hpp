#pragma once

// UTF-8: stepping and repair of invalid bytes, for text that may hold anything.
//
// **Threads:** pure functions.
// **Invariants:** a bad part is maximal in the sense of Unicode 15 §3.9 (U+FFFD substitution): the
// longest start of a sequence that could have been completed, else one byte. Python and Rust agree.

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe {

struct Utf8Step {
  char32_t code_point = 0;  ///< U+FFFD when not valid
  std::size_t length = 0;   ///< bytes of the character, or of the bad part; 0 at the end of text
  bool is_valid = true;
  bool is_cut_off = false;  ///< not valid, only because the text ends inside the character
};

/// The character at the start of `text`.
Utf8Step next_character(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

bool is_valid_utf8(std::string_view text);

/// Every bad part becomes one U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

/// Bytes at the end of `text` that begin a character but do not finish it: 0 to 3.
std::size_t unfinished_suffix(std::string_view text);

bool is_ascii(std::string_view text);

}  // namespace troupe
