#include "actors/model/dequantize.hpp"

#include "actors/model/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace troupe::actors {
namespace {

constexpr std::size_t kSmallBlock = 32;
constexpr std::size_t kLargeBlock = 256;

/// One block, and where reading in it goes on.
class BlockBytes {
 public:
  explicit BlockBytes(const std::byte* at) : at_(at) {}
  /// The next `Count` bytes.
  template <std::size_t Count>
  std::array<std::uint8_t, Count> take() {
    std::array<std::uint8_t, Count> bytes;
    std::memcpy(bytes.data(), at_, Count);
    at_ += Count;
    return bytes;
  }
  float take_half() {
    std::uint16_t bits = 0;
    std::memcpy(&bits, at_, sizeof bits);
    at_ += sizeof bits;
    return f16_to_f32(bits);
  }
  std::uint32_t take_bits() {
    std::uint32_t bits = 0;
    std::memcpy(&bits, at_, sizeof bits);
    at_ += sizeof bits;
    return bits;
  }

 private:
  const std::byte* at_;
};

unsigned int low_nibble(std::uint8_t byte) { return byte & 0x0FU; }
unsigned int high_nibble(std::uint8_t byte) { return byte >> 4U; }
float signed_byte(std::uint8_t byte) { return static_cast<float>(static_cast<std::int8_t>(byte)); }
/// An unsigned number of a few bits that stands for `code - zero`.
float centred(unsigned int code, int zero) {
  return static_cast<float>(static_cast<int>(code) - zero);
}

/// Low nibbles are the first half of a block, high ones the second.
std::array<unsigned int, kSmallBlock> nibble_codes(
    const std::array<std::uint8_t, kSmallBlock / 2>& bytes) {
  std::array<unsigned int, kSmallBlock> codes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    codes[i] = low_nibble(bytes[i]);
    codes[i + bytes.size()] = high_nibble(bytes[i]);
  }
  return codes;
}

/// The same with a fifth bit each.
std::array<unsigned int, kSmallBlock> five_bit_codes(BlockBytes& block) {
  const std::uint32_t fifth = block.take_bits();
  auto codes = nibble_codes(block.take<kSmallBlock / 2>());
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] |= ((fifth >> i) & 1U) << 4U;
  return codes;
}

void decode_q4_0(BlockBytes block, float* out) {
  const float scale = block.take_half();
  for (const unsigned int code : nibble_codes(block.take<16>())) *out++ = scale * centred(code, 8);
}

void decode_q4_1(BlockBytes block, float* out) {
  const float scale = block.take_half();
  const float offset = block.take_half();
  for (const unsigned int code : nibble_codes(block.take<16>()))
    *out++ = scale * centred(code, 0) + offset;
}

void decode_q5_0(BlockBytes block, float* out) {
  const float scale = block.take_half();
  for (const unsigned int code : five_bit_codes(block)) *out++ = scale * centred(code, 16);
}

void decode_q5_1(BlockBytes block, float* out) {
  const float scale = block.take_half();
  const float offset = block.take_half();
  for (const unsigned int code : five_bit_codes(block)) *out++ = scale * centred(code, 0) + offset;
}

void decode_q8_0(BlockBytes block, float* out) {
  const float scale = block.take_half();
  for (const std::uint8_t byte : block.take<32>()) *out++ = scale * signed_byte(byte);
}

/// 2-bit codes of a large block: four planes of 32 numbers in each 32 bytes.
unsigned int two_bit_code(const std::array<std::uint8_t, 64>& bytes, std::size_t index) {
  const std::size_t byte = index / 128 * 32 + index % 32;
  const std::size_t plane = index / 32 % 4;
  return (static_cast<unsigned int>(bytes[byte]) >> (2 * plane)) & 3U;
}

void decode_q2_k(BlockBytes block, float* out) {
  const auto scales = block.take<16>();
  const auto codes = block.take<64>();
  const float scale = block.take_half();
  const float offset = block.take_half();
  for (std::size_t i = 0; i < kLargeBlock; ++i) {
    const std::uint8_t both = scales[i / 16];
    const float scaled = scale * centred(low_nibble(both), 0);
    const float shift = offset * centred(high_nibble(both), 0);
    out[i] = scaled * centred(two_bit_code(codes, i), 0) - shift;
  }
}

/// 16 scales of 6 bits: low nibbles in 8 bytes, then their upper two bits in 4.
unsigned int six_bit_scale(const std::array<std::uint8_t, 12>& bytes, std::size_t index) {
  const std::uint8_t low = bytes[index % 8];
  const unsigned int nibble = index < 8 ? low_nibble(low) : high_nibble(low);
  const unsigned int upper = static_cast<unsigned int>(bytes[8 + index % 4]) >> (2 * (index / 4));
  return nibble | ((upper & 3U) << 4U);
}

void decode_q3_k(BlockBytes block, float* out) {
  const auto third = block.take<32>();
  const auto codes = block.take<64>();
  const auto scales = block.take<12>();
  const float scale = block.take_half();
  for (std::size_t i = 0; i < kLargeBlock; ++i) {
    const float scaled = scale * centred(six_bit_scale(scales, i / 16), 32);
    const unsigned int bit = (static_cast<unsigned int>(third[i % 32]) >> (i / 32)) & 1U;
    out[i] = scaled * centred(two_bit_code(codes, i) | (bit << 2U), 4);
  }
}

/// Scale and offset of 8 sub-blocks, 6 bits each, in 12 bytes: four low pairs whole, and above them
/// the upper bits of the other four, whose nibbles follow.
struct SubScale {
  unsigned int scale;
  unsigned int offset;
};
SubScale sub_scale(const std::array<std::uint8_t, 12>& bytes, std::size_t index) {
  const std::size_t j = index % 4;
  if (index < 4) return {bytes[j] & 0x3FU, bytes[4 + j] & 0x3FU};
  return {low_nibble(bytes[8 + j]) | ((unsigned{bytes[j]} >> 6U) << 4U),
          high_nibble(bytes[8 + j]) | ((unsigned{bytes[4 + j]} >> 6U) << 4U)};
}

/// Q4_K and Q5_K: nibbles in pairs of sub-blocks that share 32 bytes, and perhaps a fifth bit.
template <bool HasFifthBit>
void decode_q45_k(BlockBytes block, float* out) {
  const float scale = block.take_half();
  const float offset = block.take_half();
  const auto scales = block.take<12>();
  std::array<std::uint8_t, 32> fifth{};
  if constexpr (HasFifthBit) fifth = block.take<32>();
  const auto codes = block.take<128>();
  for (std::size_t sub = 0; sub < 8; ++sub) {
    const SubScale own = sub_scale(scales, sub);
    const float scaled = scale * centred(own.scale, 0);
    const float shift = offset * centred(own.offset, 0);
    for (std::size_t i = 0; i < 32; ++i) {
      const std::uint8_t both = codes[sub / 2 * 32 + i];
      unsigned int code = sub % 2 == 0 ? low_nibble(both) : high_nibble(both);
      code |= ((static_cast<unsigned int>(fifth[i]) >> sub) & 1U) << 4U;
      out[sub * 32 + i] = scaled * centred(code, 0) - shift;
    }
  }
}

void decode_q6_k(BlockBytes block, float* out) {
  const auto low = block.take<128>();
  const auto high = block.take<64>();
  const auto scales = block.take<16>();
  const float scale = block.take_half();
  for (std::size_t i = 0; i < kLargeBlock; ++i) {
    const float scaled = scale * signed_byte(scales[i / 16]);
    const std::uint8_t both = low[i / 128 * 64 + i % 64];
    const unsigned int nibble = i / 64 % 2 == 0 ? low_nibble(both) : high_nibble(both);
    out[i] = scaled * centred(nibble | (two_bit_code(high, i) << 4U), 32);
  }
}

void decode_f32(BlockBytes block, float* out) {
  const auto bytes = block.take<4>();
  std::memcpy(out, bytes.data(), bytes.size());
}
void decode_f16(BlockBytes block, float* out) { *out = block.take_half(); }
void decode_bf16(BlockBytes block, float* out) {
  std::uint16_t bits = 0;
  const auto bytes = block.take<2>();
  std::memcpy(&bits, bytes.data(), bytes.size());
  *out = bf16_to_f32(bits);
}

struct TypeInfo {
  GgmlType type;
  std::string_view name;
  std::size_t elements;
  std::size_t bytes;
  void (*decode)(BlockBytes, float*);
};
constexpr std::array kTypes = {
    TypeInfo{GgmlType::kF32, "F32", 1, 4, decode_f32},
    TypeInfo{GgmlType::kF16, "F16", 1, 2, decode_f16},
    TypeInfo{GgmlType::kBf16, "BF16", 1, 2, decode_bf16},
    TypeInfo{GgmlType::kQ4_0, "Q4_0", kSmallBlock, 18, decode_q4_0},
    TypeInfo{GgmlType::kQ4_1, "Q4_1", kSmallBlock, 20, decode_q4_1},
    TypeInfo{GgmlType::kQ5_0, "Q5_0", kSmallBlock, 22, decode_q5_0},
    TypeInfo{GgmlType::kQ5_1, "Q5_1", kSmallBlock, 24, decode_q5_1},
    TypeInfo{GgmlType::kQ8_0, "Q8_0", kSmallBlock, 34, decode_q8_0},
    TypeInfo{GgmlType::kQ2_K, "Q2_K", kLargeBlock, 84, decode_q2_k},
    TypeInfo{GgmlType::kQ3_K, "Q3_K", kLargeBlock, 110, decode_q3_k},
    TypeInfo{GgmlType::kQ4_K, "Q4_K", kLargeBlock, 144, decode_q45_k<false>},
    TypeInfo{GgmlType::kQ5_K, "Q5_K", kLargeBlock, 176, decode_q45_k<true>},
    TypeInfo{GgmlType::kQ6_K, "Q6_K", kLargeBlock, 210, decode_q6_k}};

struct ForeignType {
  std::uint32_t number;
  std::string_view name;
};
constexpr std::array kForeignTypes = {
    ForeignType{9, "Q8_1"},    ForeignType{15, "Q8_K"},    ForeignType{16, "IQ2_XXS"},
    ForeignType{17, "IQ2_XS"}, ForeignType{18, "IQ3_XXS"}, ForeignType{19, "IQ1_S"},
    ForeignType{20, "IQ4_NL"}, ForeignType{21, "IQ3_S"},   ForeignType{22, "IQ2_S"},
    ForeignType{23, "IQ4_XS"}, ForeignType{24, "I8"},      ForeignType{25, "I16"},
    ForeignType{26, "I32"},    ForeignType{27, "I64"},     ForeignType{28, "F64"},
    ForeignType{29, "IQ1_M"},  ForeignType{34, "TQ1_0"},   ForeignType{35, "TQ2_0"},
    ForeignType{39, "MXFP4"}};

const TypeInfo& info_of(GgmlType type) {
  return *std::find_if(kTypes.begin(), kTypes.end(),
                       [type](const TypeInfo& info) { return info.type == type; });
}

}  // namespace

std::string_view ggml_type_name(GgmlType type) { return info_of(type).name; }
std::size_t ggml_block_elements(GgmlType type) { return info_of(type).elements; }
std::size_t ggml_block_bytes(GgmlType type) { return info_of(type).bytes; }

std::optional<GgmlType> ggml_type_of(std::uint32_t number) {
  for (const TypeInfo& info : kTypes)
    if (static_cast<std::uint32_t>(info.type) == number) return info.type;
  return std::nullopt;
}

std::string_view foreign_ggml_type_name(std::uint32_t number) {
  for (const ForeignType& type : kForeignTypes)
    if (type.number == number) return type.name;
  return {};
}

result<void> dequantize(GgmlType type, std::span<const std::byte> bytes, std::span<float> target) {
  const TypeInfo& info = info_of(type);
  const std::size_t blocks = target.size() / info.elements;
  if (target.size() % info.elements != 0 || bytes.size() / info.bytes != blocks ||
      bytes.size() % info.bytes != 0)
    return fail(ErrorCode::kInvalidArgument, "{} bytes of {} are not {} elements", bytes.size(),
                info.name, target.size());
  for (std::size_t block = 0; block < blocks; ++block)
    info.decode(BlockBytes(bytes.data() + block * info.bytes),
                target.data() + block * info.elements);
  return {};
}

}  // namespace troupe::actors
