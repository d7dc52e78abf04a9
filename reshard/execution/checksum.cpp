#include "reshard/execution/checksum.hpp"

#include "reshard/execution/checksum_paths.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

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

/// Walks over bytes at their position in the tensor, and copies them on the way unless `to_` is
/// null.
class Walk {
 public:
  Walk(const SumPath& path, std::byte* to, const std::byte* data, std::int64_t position,
       std::int64_t bytes)
      : path_(path), to_(to), data_(data), position_(position), bytes_(bytes) {}

  std::uint64_t run(bool stream) {
    if (position_ % kWord != 0) part(std::min(bytes_, kWord - position_ % kWord));
    if (stream && to_ != nullptr && line_offset() % kWord == 0) {
      // Twice where two blocks meet before the first line.
      while (line_offset() != 0 && bytes_ >= kWord)
        words(std::min(bytes_, kLine - line_offset()) / kWord, path_.copy);
      while (bytes_ >= kLine) lines();
    }
    while (bytes_ >= kWord) words(bytes_ / kWord, path_.copy);
    part(bytes_);
    return sum_;
  }

 private:
  using Copy = decltype(SumPath::copy);
  static constexpr std::int64_t kLine = 64;

  std::int64_t line_offset() const {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to_) % kLine);
  }
  std::int64_t words_in_block() const { return kBlockWords - position_ / kWord % kBlockWords; }
  const std::uint32_t* weights() const {
    return word_weights().data() + position_ / kWord % kBlockWords;
  }
  void pass(std::int64_t bytes) {
    data_ += bytes;
    if (to_ != nullptr) to_ += bytes;
    position_ += bytes;
    bytes_ -= bytes;
  }
  /// Less than a word.
  void part(std::int64_t bytes) {
    if (bytes == 0) return;
    sum_ += sum_part(data_, position_, bytes);
    if (to_ != nullptr) std::memcpy(to_, data_, static_cast<std::size_t>(bytes));
    pass(bytes);
  }
  /// At most `count` of one block.
  void words(std::int64_t count, Copy copy) {
    count = std::min(count, words_in_block());
    const std::uint64_t sum =
        to_ == nullptr ? path_.sum(data_, weights(), count) : copy(to_, data_, weights(), count);
    sum_ += sum * block_weight(position_ / kWord / kBlockWords);
    pass(count * kWord);
  }
  /// Whole lines of the target; one where two blocks meet is written in one piece all the same.
  void lines() {
    constexpr std::int64_t kLineWords = kLine / kWord;
    const std::int64_t count = std::min(bytes_ / kLine, words_in_block() / kLineWords);
    if (count > 0) return words(count * kLineWords, path_.stream);
    path_.stream(to_, data_, word_weights().data(), kLineWords);
    std::byte* const target = std::exchange(to_, nullptr);
    const std::int64_t first = words_in_block();
    words(first, nullptr);
    words(kLineWords - first, nullptr);
    to_ = target + kLine;
  }

  const SumPath& path_;
  std::byte* to_;
  const std::byte* data_;
  std::int64_t position_;
  std::int64_t bytes_;
  std::uint64_t sum_ = 0;
};

}  // namespace

std::uint64_t sum_by_path(const SumPath& path, std::byte* to, const std::byte* data,
                          std::int64_t position, std::int64_t bytes, bool stream) {
  return Walk(path, to, data, position, bytes).run(stream);
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
