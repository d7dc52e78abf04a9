#include "reshard/execution/checksum.hpp"

#include "reshard/execution/checksum_paths.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace troupe::reshard {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::int64_t kWord = 4;

/// Odd, so that no change of a block's sum is lost.
std::uint64_t block_weight(std::int64_t block) {
  std::uint64_t x = (static_cast<std::uint64_t>(block) + 1) * 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return (x ^ (x >> 31)) | 1U;
}

std::uint64_t weight_of(std::int64_t word) {
  return word_weights()[static_cast<std::size_t>(word % kBlockWords)] *
         block_weight(word / kBlockWords);
}

/// Bytes of one word, at `position` of the tensor.
std::uint64_t sum_part(const std::byte* data, std::int64_t position, std::int64_t bytes) {
  std::uint32_t word = 0;
  std::memcpy(reinterpret_cast<std::byte*>(&word) + position % kWord, data,
              static_cast<std::size_t>(bytes));
  return word * weight_of(position / kWord);
}

void check_width(std::int64_t element) {
  TROUPE_CHECK(element == 1 || element == 2 || element == 4 || element == 8,
               "checksum: elements of {} bytes", element);
}

}  // namespace

std::uint64_t sum_by_path(const SumPath& path, std::byte* to, const std::byte* data,
                          std::int64_t position, std::int64_t bytes, bool stream) {
  std::uint64_t sum = 0;
  const auto pass = [&](std::int64_t some) {
    data += some;
    if (to != nullptr) to += some;
    position += some;
    bytes -= some;
  };
  const auto part = [&](std::int64_t some) {
    sum += sum_part(data, position, some);
    if (to != nullptr) std::memcpy(to, data, static_cast<std::size_t>(some));
    pass(some);
  };
  if (position % kWord != 0 && bytes > 0) part(std::min(bytes, kWord - position % kWord));
  while (bytes >= kWord) {
    const std::int64_t word = position / kWord;
    std::int64_t count = std::min(bytes / kWord, kBlockWords - word % kBlockWords);
    const std::uint32_t* weights = word_weights().data() + word % kBlockWords;
    bool around = stream && to != nullptr;
    if (around) {
      // A line is written whole: what comes before the first one goes by itself.
      const auto into_line = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) % 64);
      around = into_line == 0;
      if (into_line % kWord == 0 && into_line != 0)
        count = std::min(count, (64 - into_line) / kWord);
    }
    const std::uint64_t some = to == nullptr ? path.sum(data, weights, count)
                               : around      ? path.stream(to, data, weights, count)
                                             : path.copy(to, data, weights, count);
    sum += some * block_weight(word / kBlockWords);
    pass(count * kWord);
  }
  if (bytes > 0) part(bytes);
  return sum;
}

std::uint64_t sum_elements(const std::byte* data, std::int64_t element, std::int64_t index,
                           std::int64_t count) {
  check_width(element);
  return sum_by_path(sum_paths().back(), nullptr, data, index * element, count * element, false);
}

std::uint64_t copy_and_sum(std::byte* to, const std::byte* data, std::int64_t element,
                           std::int64_t index, std::int64_t count, bool stream) {
  check_width(element);
  return sum_by_path(sum_paths().back(), to, data, index * element, count * element, stream);
}

std::uint64_t sum_box(const Box& box, std::int64_t tensor_cols, const std::byte* data,
                      std::int64_t row_stride, std::int64_t element) {
  if (box.empty()) return 0;
  if (box.cols() == tensor_cols && row_stride == tensor_cols)
    return sum_elements(data, element, box.row_begin * tensor_cols, box.elements());
  std::uint64_t sum = 0;
  for (std::int64_t row = box.row_begin; row < box.row_end; ++row) {
    sum += sum_elements(data, element, row * tensor_cols + box.col_begin, box.cols());
    data += row_stride * element;
  }
  return sum;
}

std::uint64_t sum_elements_slowly(const std::byte* data, std::int64_t element, std::int64_t index,
                                  std::int64_t count) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < count * element; ++i) {
    const std::int64_t position = index * element + i;
    const auto shifted = std::to_integer<std::uint64_t>(data[i]) << (8 * (position % kWord));
    sum += weight_of(position / kWord) * shifted;
  }
  return sum;
}

}  // namespace troupe::reshard
