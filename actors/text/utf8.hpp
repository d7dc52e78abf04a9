#pragma once

// UTF-8: stepping, repair of invalid bytes, and the few character classes tokenizers ask for.
//
// **Threads:** pure functions.
// **Invariants:** a bad part is maximal in the sense of Unicode 15 §3.9 (U+FFFD substitution): the
// longest start of a sequence that could have been completed, else one byte. Python and Rust agree.

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe::actors {

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
bool is_white_space(char32_t code_point);  ///< Unicode property White_Space
bool is_numeric(char32_t code_point);      ///< general categories Nd, Nl, No
bool is_word(char32_t code_point);         ///< letters, marks, numbers, connectors: regex \w

/// All of `text` without white space at both ends, as Python's `str.strip()`.
std::string_view strip_white_space(std::string_view text);

}  // namespace troupe::actors
