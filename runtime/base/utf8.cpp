#include "runtime/base/utf8.hpp"

#include <algorithm>
#include <cstdint>

namespace troupe {
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

}  // namespace troupe
