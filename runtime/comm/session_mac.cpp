#include "runtime/comm/session_mac.hpp"

#include <bit>
#include <cstdint>
#include <cstring>

namespace troupe::runtime {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie");

std::uint64_t word_at(const std::byte* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

class SipState {
 public:
  explicit SipState(std::span<const std::byte, 16> key) {
    const std::uint64_t k0 = word_at(key.data());
    const std::uint64_t k1 = word_at(key.data() + 8);
    v0_ = k0 ^ 0x736f6d6570736575;
    v1_ = k1 ^ 0x646f72616e646f6d ^ 0xee;  // 0xee marks the 128-bit variant
    v2_ = k0 ^ 0x6c7967656e657261;
    v3_ = k1 ^ 0x7465646279746573;
  }
  void add(std::uint64_t word) {
    v3_ ^= word;
    rounds(2);
    v0_ ^= word;
  }
  std::uint64_t finish(std::uint64_t tweak_v2, std::uint64_t tweak_v1) {
    v2_ ^= tweak_v2;
    v1_ ^= tweak_v1;
    rounds(4);
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0_ += v1_;
      v1_ = std::rotl(v1_, 13) ^ v0_;
      v0_ = std::rotl(v0_, 32);
      v2_ += v3_;
      v3_ = std::rotl(v3_, 16) ^ v2_;
      v0_ += v3_;
      v3_ = std::rotl(v3_, 21) ^ v0_;
      v2_ += v1_;
      v1_ = std::rotl(v1_, 17) ^ v2_;
      v2_ = std::rotl(v2_, 32);
    }
  }
  std::uint64_t v0_, v1_, v2_, v3_;
};

}  // namespace

SessionMac session_mac(std::span<const std::byte, 16> key, std::span<const std::byte> head,
                       std::span<const std::byte> tail) {
  SipState state(key);
  std::array<std::byte, 8> block{};
  std::size_t filled = 0;
  for (std::span<const std::byte> part : {head, tail}) {
    while (!part.empty()) {
      if (filled == 0 && part.size() >= 8) {
        state.add(word_at(part.data()));
        part = part.subspan(8);
        continue;
      }
      block[filled++] = part.front();
      part = part.subspan(1);
      if (filled == 8) {
        state.add(word_at(block.data()));
        filled = 0;
      }
    }
  }
  std::uint64_t last = static_cast<std::uint64_t>(head.size() + tail.size()) << 56;
  for (std::size_t i = 0; i < filled; ++i) last |= static_cast<std::uint64_t>(block[i]) << (8 * i);
  state.add(last);
  SessionMac mac;
  const std::uint64_t low = state.finish(0xee, 0);
  const std::uint64_t high = state.finish(0, 0xdd);
  std::memcpy(mac.data(), &low, 8);
  std::memcpy(mac.data() + 8, &high, 8);
  return mac;
}

bool same_mac(std::span<const std::byte, 16> a, std::span<const std::byte, 16> b) {
  const std::uint64_t differs =
      (word_at(a.data()) ^ word_at(b.data())) | (word_at(a.data() + 8) ^ word_at(b.data() + 8));
  return differs == 0;
}

}  // namespace troupe::runtime
