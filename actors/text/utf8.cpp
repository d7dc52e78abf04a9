#include "actors/text/utf8.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>

namespace troupe::actors {
namespace {

constexpr char32_t kReplacement = 0xfffd;

/// What a first byte announces: bytes in all, and the range its second byte must be in.
struct Lead {
  std::size_t length;
  unsigned char second_min;
  unsigned char second_max;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2) return {0, 0, 0};  // a continuation, or an overlong form
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};  // not overlong
  if (byte == 0xed) return {3, 0x80, 0x9f};  // no surrogates
  if (byte < 0xf0) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};  // not overlong
  if (byte < 0xf4) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};  // up to U+10FFFF
  return {0, 0, 0};
}

utf8proc_category_t category_of(char32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

}  // namespace

Utf8Step next_character(std::string_view text) {
  if (text.empty()) return {};
  const auto byte_at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const Lead lead = lead_of(byte_at(0));
  if (lead.length == 1) return {.code_point = byte_at(0), .length = 1};
  if (lead.length == 0) return {.code_point = kReplacement, .length = 1, .is_valid = false};
  char32_t code_point = byte_at(0) & (0x7fU >> lead.length);
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (i == text.size())
      return {.code_point = kReplacement, .length = i, .is_valid = false, .is_cut_off = true};
    const unsigned char low = i == 1 ? lead.second_min : 0x80;
    const unsigned char high = i == 1 ? lead.second_max : 0xbf;
    if (byte_at(i) < low || byte_at(i) > high)
      return {.code_point = kReplacement, .length = i, .is_valid = false};
    code_point = (code_point << 6) | (byte_at(i) & 0x3fU);
  }
  return {.code_point = code_point, .length = lead.length};
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto add = [&](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) return add(code_point);
  if (code_point < 0x800) {
    add(0xc0U | (code_point >> 6));
  } else if (code_point < 0x10000) {
    add(0xe0U | (code_point >> 12));
    add(0x80U | ((code_point >> 6) & 0x3fU));
  } else {
    add(0xf0U | (code_point >> 18));
    add(0x80U | ((code_point >> 12) & 0x3fU));
    add(0x80U | ((code_point >> 6) & 0x3fU));
  }
  add(0x80U | (code_point & 0x3fU));
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = next_character(text);
    if (!step.is_valid) return false;
    text.remove_prefix(step.length);
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string repaired;
  repaired.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = next_character(text);
    if (step.is_valid)
      repaired.append(text.substr(0, step.length));
    else
      append_utf8(repaired, kReplacement);
    text.remove_prefix(step.length);
  }
  return repaired;
}

std::size_t unfinished_suffix(std::string_view text) {
  const std::size_t longest = std::min<std::size_t>(3, text.size());
  for (std::size_t length = longest; length > 0; --length) {
    // The longest start wins: inside it the later bytes are only continuations.
    const Utf8Step step = next_character(text.substr(text.size() - length));
    if (step.is_cut_off && step.length == length) return length;
  }
  return 0;
}

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
