// Conversions between fp32 and the narrow floating-point types of weight files.

#include "actors/model/safetensors.hpp"

#include <bit>
#include <cstring>

namespace troupe::actors {
namespace {

template <class Stored, class Upcast>
void convert_each(std::span<const std::byte> bytes, std::span<float> target, Upcast upcast) {
  for (std::size_t i = 0; i < target.size(); ++i) {
    Stored value;
    std::memcpy(&value, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    target[i] = upcast(value);
  }
}

}  // namespace

std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U)
    return static_cast<std::uint16_t>((bits >> 16) | 0x0040U);  // quiet, or rounding makes it inf
  const std::uint32_t odd = (bits >> 16) & 1U;
  return static_cast<std::uint16_t>((bits + 0x7fffU + odd) >> 16);
}

float bf16_to_f32(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U)
    return static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
  if (magnitude >= 0x47800000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // ≥ 65536
  if (magnitude >= 0x38800000U) {  // normal in f16: at least 2^-14
    // Rebias the exponent (127 → 15) and round; a carry may rightly reach infinity.
    const std::uint32_t odd = (magnitude >> 13) & 1U;
    const std::uint32_t rounded = magnitude - 0x38000000U + 0xfffU + odd;
    return static_cast<std::uint16_t>(sign | (rounded >> 13));
  }
  if (magnitude <= 0x33000000U) return static_cast<std::uint16_t>(sign);  // ≤ 2^-25: to zero
  // Subnormal: count units of 2^-24 in the significand, to nearest even.
  const std::uint32_t significand = (magnitude & 0x7fffffU) | 0x800000U;
  const std::uint32_t shift = 126U - (magnitude >> 23);  // 14 to 24
  const std::uint32_t kept = significand >> shift;
  const std::uint32_t dropped = significand & ((1U << shift) - 1U);
  const std::uint32_t half = 1U << (shift - 1U);
  const bool up = dropped > half || (dropped == half && (kept & 1U) != 0);
  return static_cast<std::uint16_t>(sign | (kept + (up ? 1U : 0U)));
}

float f16_to_f32(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;  // exact, zero included
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide = exponent == 0x1fU ? 0xffU : exponent + 112U;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

result<void> convert_to_f32(TensorType type, std::span<const std::byte> bytes,
                            std::span<float> target) {
  if (bytes.size() != target.size() * tensor_type_bytes(type))
    return fail(ErrorCode::kInvalidArgument, "{} bytes of {} are not {} elements", bytes.size(),
                tensor_type_name(type), target.size());
  switch (type) {
    case TensorType::kF32:
      if (!bytes.empty()) std::memcpy(target.data(), bytes.data(), bytes.size());
      return {};
    case TensorType::kBf16:
      convert_each<std::uint16_t>(bytes, target, bf16_to_f32);
      return {};
    case TensorType::kF16:
      convert_each<std::uint16_t>(bytes, target, f16_to_f32);
      return {};
    case TensorType::kF64:
      convert_each<double>(bytes, target, [](double value) { return static_cast<float>(value); });
      return {};
    default:
      break;
  }
  return fail(ErrorCode::kInvalidArgument, "{} is not a floating-point type",
              tensor_type_name(type));
}

}  // namespace troupe::actors
