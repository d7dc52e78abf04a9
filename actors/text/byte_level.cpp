#include "actors/text/byte_level.hpp"

#include "actors/text/utf8.hpp"

#include <array>

namespace troupe::actors {
namespace {

constexpr bool stands_for_itself(unsigned int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

constexpr std::array<char32_t, 256> make_alphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 0x100;
  for (unsigned int byte = 0; byte < 256; ++byte)
    alphabet[byte] = stands_for_itself(byte) ? byte : next++;
  return alphabet;
}
constexpr std::array<char32_t, 256> kAlphabet = make_alphabet();

constexpr std::array<int, 0x100 + 68> make_inverse() {
  std::array<int, 0x100 + 68> inverse{};
  inverse.fill(-1);
  for (int byte = 0; byte < 256; ++byte) inverse[kAlphabet[static_cast<std::size_t>(byte)]] = byte;
  return inverse;
}
constexpr std::array<int, 0x100 + 68> kInverse = make_inverse();

}  // namespace

char32_t byte_level_character(unsigned char byte) { return kAlphabet[byte]; }

std::string to_byte_level(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) append_utf8(text, kAlphabet[static_cast<unsigned char>(c)]);
  return text;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const Utf8Step step = next_character(text);
    if (!step.is_valid || step.code_point >= kInverse.size() || kInverse[step.code_point] < 0)
      return std::nullopt;
    bytes.push_back(static_cast<char>(kInverse[step.code_point]));
    text.remove_prefix(step.length);
  }
  return bytes;
}

}  // namespace troupe::actors
