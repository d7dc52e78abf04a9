// Proves the checksum against published vectors and against its definition bit by bit, and that the
// two implementations and any cut into pieces agree.

#include "runtime/batch/checksum.hpp"

#include "tests/runtime/batch/batch_support.hpp"

namespace troupe::runtime {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

/// One bit at a time, straight from the polynomial.
std::uint32_t slow_crc32c(std::span<const std::byte> bytes) {
  std::uint32_t state = ~0U;
  for (const std::byte byte : bytes) {
    state ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1U) != 0 ? 0x82F63B78U : 0U);
  }
  return ~state;
}

TEST(Checksum, MatchesThePublishedVectors) {
  // RFC 3720 appendix B.4, and the usual check value.
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283U);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32)), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xFF})), 0x62A8AB43U);
  EXPECT_EQ(crc32c({}), 0U);
}

TEST(Checksum, BothImplementationsAndAnyCutAgreeWithTheDefinition) {
  for_seeds(300, [](Rng& rng) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(pick(rng, 200)));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
    const std::uint32_t wanted = slow_crc32c(bytes);
    EXPECT_EQ(crc32c(bytes), wanted);
    EXPECT_EQ(crc32c_by_table(bytes), wanted);
    const auto cut = static_cast<std::size_t>(pick(rng, std::ssize(bytes) + 1));
    const std::span<const std::byte> all(bytes);
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), wanted);
    EXPECT_EQ(crc32c_by_table(all.subspan(cut), crc32c_by_table(all.first(cut))), wanted);
  });
}

}  // namespace
}  // namespace troupe::runtime
