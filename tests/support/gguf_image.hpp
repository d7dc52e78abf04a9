#pragma once

// GGUF files made in memory, right or wrong, for tests of their reader.
//
// **Ownership:** a value type.
// **Threads:** one object, one thread.

#include "actors/model/gguf.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe::testing {

/// Little-endian bytes of a number.
template <class T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

/// A string as the format has it: its size, then its bytes.
inline std::string raw_text(std::string_view text) {
  return raw(std::uint64_t{text.size()}) + std::string(text);
}

inline std::string raw_kind(actors::GgufKind kind) { return raw(static_cast<std::uint32_t>(kind)); }

template <class T>
constexpr actors::GgufKind kind_of() {
  using actors::GgufKind;
  if constexpr (std::is_same_v<T, bool>) return GgufKind::kBool;
  if constexpr (std::is_same_v<T, std::uint32_t>) return GgufKind::kU32;
  if constexpr (std::is_same_v<T, std::int32_t>) return GgufKind::kI32;
  if constexpr (std::is_same_v<T, std::int64_t>) return GgufKind::kI64;
  if constexpr (std::is_same_v<T, std::uint64_t>) return GgufKind::kU64;
  if constexpr (std::is_same_v<T, std::uint8_t>) return GgufKind::kU8;
  if constexpr (std::is_same_v<T, std::int8_t>) return GgufKind::kI8;
  if constexpr (std::is_same_v<T, std::uint16_t>) return GgufKind::kU16;
  if constexpr (std::is_same_v<T, std::int16_t>) return GgufKind::kI16;
  if constexpr (std::is_same_v<T, float>) return GgufKind::kF32;
  if constexpr (std::is_same_v<T, double>) return GgufKind::kF64;
}

class GgufImage {
 public:
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;  ///< what `bytes` pads to; set general.alignment to match

  /// A pair with these bytes after its key; replaces an earlier one.
  GgufImage& set_raw(std::string_view key, std::string value) {
    const auto same = [key](const auto& pair) { return pair.first == key; };
    const auto found = std::find_if(pairs_.begin(), pairs_.end(), same);
    if (found != pairs_.end())
      found->second = std::move(value);
    else
      pairs_.emplace_back(key, std::move(value));
    return *this;
  }
  template <class T>
  GgufImage& set(std::string_view key, T value) {
    if constexpr (std::is_convertible_v<T, std::string_view>)
      return set_raw(key, raw_kind(actors::GgufKind::kString) + raw_text(value));
    else
      return set_raw(key, raw_kind(kind_of<T>()) + raw(value));
  }
  template <class T>
  GgufImage& set_list(std::string_view key, const std::vector<T>& items) {
    using Kind = actors::GgufKind;
    std::string value = raw_kind(Kind::kArray);
    if constexpr (std::is_same_v<T, std::string>) {
      value += raw_kind(Kind::kString) + raw(std::uint64_t{items.size()});
      for (const std::string& item : items) value += raw_text(item);
    } else {
      value += raw_kind(kind_of<T>()) + raw(std::uint64_t{items.size()});
      for (const T item : items) value += raw(item);
    }
    return set_raw(key, std::move(value));
  }
  GgufImage& erase(std::string_view key) {
    std::erase_if(pairs_, [key](const auto& pair) { return pair.first == key; });
    return *this;
  }
  /// A pair that may be there already.
  GgufImage& append(std::string_view key, std::string value) {
    pairs_.emplace_back(key, std::move(value));
    return *this;
  }

  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> sizes;  ///< innermost first, as in the file
    std::uint32_t type = 0;
    std::string data;
  };
  /// Behind the others, at the next padded offset.
  GgufImage& add(Tensor tensor) {
    tensors_.push_back(std::move(tensor));
    return *this;
  }
  /// An F32 tensor of this row-major shape, all elements `value`.
  GgufImage& add_f32(std::string_view name, std::vector<std::uint64_t> shape, float value) {
    std::uint64_t count = 1;
    for (const std::uint64_t size : shape) count *= size;
    std::string data;
    for (std::uint64_t i = 0; i < count; ++i) data += raw(value);
    std::reverse(shape.begin(), shape.end());
    return add({std::string(name), std::move(shape), 0, std::move(data)});
  }
  GgufImage& erase_tensor(std::string_view name) {
    std::erase_if(tensors_, [name](const Tensor& tensor) { return tensor.name == name; });
    return *this;
  }
  Tensor& tensor(std::string_view name) {
    return *std::find_if(tensors_.begin(), tensors_.end(),
                         [name](const Tensor& tensor) { return tensor.name == name; });
  }

  std::string bytes() const {
    std::string image = "GGUF" + raw(version) + raw(std::uint64_t{tensors_.size()}) +
                        raw(std::uint64_t{pairs_.size()});
    for (const auto& [key, value] : pairs_) image += raw_text(key) + value;
    std::string data;
    for (const Tensor& tensor : tensors_) {
      image += raw_text(tensor.name) + raw(static_cast<std::uint32_t>(tensor.sizes.size()));
      for (const std::uint64_t size : tensor.sizes) image += raw(size);
      image += raw(tensor.type) + raw(std::uint64_t{data.size()});
      data += tensor.data;
      pad(data);
    }
    pad(image);
    return image + data;
  }

 private:
  void pad(std::string& text) const {
    text.append((alignment - text.size() % alignment) % alignment, '\0');
  }
  std::vector<std::pair<std::string, std::string>> pairs_;
  std::vector<Tensor> tensors_;
};

inline std::span<const std::byte> image_bytes(const std::string& image) {
  return std::as_bytes(std::span(image));
}

}  // namespace troupe::testing
