#pragma once

// The few character classes that tokenizers ask for; stepping is in runtime/base/utf8.hpp.
//
// **Threads:** pure functions.

#include "runtime/base/utf8.hpp"

#include <string_view>

namespace troupe::actors {

bool is_white_space(char32_t code_point);  ///< Unicode property White_Space
bool is_numeric(char32_t code_point);      ///< general categories Nd, Nl, No
bool is_word(char32_t code_point);         ///< letters, marks, numbers, connectors: regex \w

/// All of `text` without white space at both ends, as Python's `str.strip()`.
std::string_view strip_white_space(std::string_view text);

}  // namespace troupe::actors
