#include "actors/text/utf8.hpp"

#include <utf8proc.h>

namespace troupe::actors {
namespace {

utf8proc_category_t category_of(char32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

}  // namespace

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_numeric(char32_t code_point) {
  const utf8proc_category_t category = category_of(code_point);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool is_word(char32_t code_point) {
  switch (category_of(code_point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return code_point == 0x200c || code_point == 0x200d;  // joiners
  }
}

std::string_view strip_white_space(std::string_view text) {
  // Python counts the separators U+001C..U+001F as space, too.
  const auto is_stripped = [](char32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); };
  while (!text.empty()) {
    const Utf8Step step = next_character(text);
    if (!step.is_valid || !is_stripped(step.code_point)) break;
    text.remove_prefix(step.length);
  }
  std::size_t end = 0;  // after the last character that stays
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = next_character(text.substr(i));
    i += step.length;
    if (!step.is_valid || !is_stripped(step.code_point)) end = i;
  }
  return text.substr(0, end);
}

}  // namespace troupe::actors
