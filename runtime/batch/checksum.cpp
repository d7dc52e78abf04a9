#include "runtime/batch/checksum.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace troupe::runtime {
namespace {

static_assert(std::endian::native == std::endian::little, "formats are little-endian as written");

constexpr std::uint32_t kReflectedPolynomial = 0x82F63B78;

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

/// tables[k][b]: effect of byte b that is followed by k zero bytes.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit)
      value = (value >> 1) ^ ((value & 1) != 0 ? kReflectedPolynomial : 0);
    tables[0][byte] = value;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t shorter = tables[k - 1][byte];
      tables[k][byte] = (shorter >> 8) ^ tables[0][shorter & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint64_t load_word(const std::byte* data) {
  std::uint64_t word = 0;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_by_instruction(
    std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint64_t state = ~before;
  const std::byte* data = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, data += 8) state = __builtin_ia32_crc32di(state, load_word(data));
  auto narrow = static_cast<std::uint32_t>(state);
  for (; left > 0; --left, ++data)
    narrow = __builtin_ia32_crc32qi(narrow, static_cast<unsigned char>(*data));
  return ~narrow;
}
#endif

}  // namespace

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint32_t state = ~before;
  const std::byte* data = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, data += 8) {
    const std::uint64_t word = load_word(data) ^ state;
    state = 0;
    for (std::size_t k = 0; k < 8; ++k) state ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; left > 0; --left, ++data)
    state = (state >> 8) ^ kTables[0][(state ^ static_cast<std::uint32_t>(*data)) & 0xFF];
  return ~state;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc32c_by_instruction(bytes, before);
#endif
  return crc32c_by_table(bytes, before);
}

}  // namespace troupe::runtime
