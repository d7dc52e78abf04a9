#include "reshard/execution/piece.hpp"

#include "reshard/execution/checksum_paths.hpp"
#include "runtime/base/check.hpp"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace troupe::reshard {
namespace {

/// From this size on a copy goes around the caches, as memcpy does for one that is large in one
/// piece: without, every line of the target is read before it is written, 1.5 times the traffic.
constexpr std::int64_t kStreamBytes = std::int64_t{1} << 20;
constexpr std::int64_t kStreamRowBytes = 512;

#if defined(__x86_64__)
void stream_copy(std::byte* target, const std::byte* source, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kAhead = 3072;
  const std::size_t into_line = reinterpret_cast<std::uintptr_t>(target) % kLine;
  const std::size_t head = std::min(bytes, (kLine - into_line) % kLine);
  std::memcpy(target, source, head);
  target += head, source += head, bytes -= head;
  for (; bytes >= kLine; target += kLine, source += kLine, bytes -= kLine) {
    // Asked for ahead: the core waits for memory otherwise. Past the end it has no effect.
    _mm_prefetch(reinterpret_cast<const char*>(source) + kAhead, _MM_HINT_T0);
    for (std::size_t i = 0; i < kLine; i += sizeof(__m128i)) {
      const __m128i word = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + i), word);
    }
  }
  std::memcpy(target, source, bytes);
}
#else
void stream_copy(std::byte* target, const std::byte* source, std::size_t bytes) {
  std::memcpy(target, source, bytes);
}
#endif

/// Calls `run(first byte in the buffer, bytes)` for each contiguous run of the piece.
template <class Run>
void for_each_run(const Region& region, std::int64_t element, std::int64_t first,
                  std::int64_t count, Run run) {
  if (region.contiguous()) {
    run((region.offset + first) * element, count * element);
    return;
  }
  while (count > 0) {
    const std::int64_t row = first / region.cols;
    const std::int64_t col = first % region.cols;
    const std::int64_t take = std::min(count, region.cols - col);
    run((region.offset + row * region.row_stride + col) * element, take * element);
    first += take;
    count -= take;
  }
}

}  // namespace

void check_region(std::size_t buffer_bytes, const Region& region, std::int64_t element,
                  std::int64_t first, std::int64_t count) {
  const std::int64_t last =
      region.rows == 0 ? region.offset
                       : region.offset + (region.rows - 1) * region.row_stride + region.cols;
  TROUPE_CHECK(first >= 0 && count >= 0 && first + count <= region.rows * region.cols,
               "piece: elements {}+{} of {} x {}", first, count, region.rows, region.cols);
  TROUPE_CHECK(last * element <= static_cast<std::int64_t>(buffer_bytes),
               "piece: region ends at byte {} of {}", last * element, buffer_bytes);
}

bool copies_around_caches(std::int64_t row_bytes, std::int64_t bytes) {
  return row_bytes >= kStreamRowBytes && bytes >= kStreamBytes;
}

std::vector<std::span<const std::byte>> piece_spans(std::span<const std::byte> buffer,
                                                    const Region& region, std::int64_t element,
                                                    std::int64_t first, std::int64_t count) {
  check_region(buffer.size(), region, element, first, count);
  std::vector<std::span<const std::byte>> spans;
  for_each_run(region, element, first, count, [&](std::int64_t at, std::int64_t bytes) {
    spans.push_back(buffer.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(bytes)));
  });
  return spans;
}

void scatter_piece(std::span<const std::byte> dense, std::span<std::byte> buffer,
                   const Region& region, std::int64_t element, std::int64_t first,
                   std::int64_t count) {
  check_region(buffer.size(), region, element, first, count);
  TROUPE_CHECK(static_cast<std::int64_t>(dense.size()) == count * element,
               "piece: {} bytes for {} elements of {}", dense.size(), count, element);
  const std::byte* from = dense.data();
  const bool stream =
      !region.contiguous() && copies_around_caches(region.cols * element, count * element);
  for_each_run(region, element, first, count, [&](std::int64_t at, std::int64_t bytes) {
    if (stream)
      stream_copy(buffer.data() + at, from, static_cast<std::size_t>(bytes));
    else
      std::memcpy(buffer.data() + at, from, static_cast<std::size_t>(bytes));
    from += bytes;
  });
  if (stream) end_stream();
}

void copy_rows(std::byte* target, std::int64_t target_stride, const std::byte* source,
               std::int64_t source_stride, std::int64_t rows, std::int64_t row_bytes) {
  if (target_stride == row_bytes && source_stride == row_bytes) {
    row_bytes *= rows;
    rows = 1;
  }
  const bool stream = copies_around_caches(row_bytes, rows * row_bytes);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::byte* to = target + row * target_stride;
    const std::byte* from = source + row * source_stride;
    if (stream)
      stream_copy(to, from, static_cast<std::size_t>(row_bytes));
    else
      std::memcpy(to, from, static_cast<std::size_t>(row_bytes));
  }
  if (stream) end_stream();
}

}  // namespace troupe::reshard
