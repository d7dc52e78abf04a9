#include "actors/rollout/write_coverage.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <bit>

namespace troupe::actors {
namespace {

constexpr std::int64_t kWordBits = 64;

/// The bits of word `word` that lie in [begin, end), which overlaps it.
std::uint64_t mask_of(std::int64_t word, std::int64_t begin, std::int64_t end) {
  const std::int64_t first = std::max<std::int64_t>(0, begin - word * kWordBits);
  const std::int64_t last = std::min(kWordBits, end - word * kWordBits);
  const std::uint64_t below =
      last == kWordBits ? ~std::uint64_t{0} : (std::uint64_t{1} << last) - 1;
  return below & (~std::uint64_t{0} << first);
}

}  // namespace

WriteCoverage::WriteCoverage(std::span<const WeightSlot> slots) {
  std::int64_t bits = 0;
  for (const WeightSlot& slot : slots) {
    areas_.push_back(Area{.held = slot.held, .first_bit = bits, .marked = 0});
    if (!slot.held.empty()) bits += slot.held.elements();
  }
  words_.resize(static_cast<std::size_t>((bits + kWordBits - 1) / kWordBits), 0);
}

void WriteCoverage::clear() {
  std::ranges::fill(words_, 0);
  for (Area& area : areas_) area.marked = 0;
}

/// Runs of bits: one for a box of full width, else one per row. `visit` returns false to stop.
template <class Visit>
void WriteCoverage::for_each_run(const Area& area, const reshard::Box& box, Visit visit) const {
  const std::int64_t width = area.held.cols();
  const std::int64_t first = area.first_bit + (box.row_begin - area.held.row_begin) * width +
                             (box.col_begin - area.held.col_begin);
  if (box.cols() == width) {
    visit(first, first + box.elements());
    return;
  }
  for (std::int64_t row = 0; row < box.rows(); ++row)
    if (!visit(first + row * width, first + row * width + box.cols())) return;
}

std::optional<std::int64_t> WriteCoverage::first_set(std::int64_t begin, std::int64_t end) const {
  for (std::int64_t word = begin / kWordBits; word * kWordBits < end; ++word) {
    const std::uint64_t hit = words_[static_cast<std::size_t>(word)] & mask_of(word, begin, end);
    if (hit != 0) return word * kWordBits + std::countr_zero(hit);
  }
  return std::nullopt;
}

void WriteCoverage::set(std::int64_t begin, std::int64_t end) {
  for (std::int64_t word = begin / kWordBits; word * kWordBits < end; ++word)
    words_[static_cast<std::size_t>(word)] |= mask_of(word, begin, end);
}

reshard::Box WriteCoverage::number_at(const Area& area, std::int64_t bit) {
  const std::int64_t row = area.held.row_begin + (bit - area.first_bit) / area.held.cols();
  const std::int64_t col = area.held.col_begin + (bit - area.first_bit) % area.held.cols();
  return {row, row + 1, col, col + 1};
}

std::optional<reshard::Box> WriteCoverage::claim(std::size_t slot, const reshard::Box& box) {
  Area& area = areas_[slot];
  TROUPE_DCHECK(area.held.contains(box), "write coverage: {} in {}", reshard::box_text(box),
                reshard::box_text(area.held));
  std::optional<std::int64_t> taken;
  for_each_run(area, box, [&](std::int64_t begin, std::int64_t end) {
    taken = first_set(begin, end);
    return !taken.has_value();
  });
  if (taken) return number_at(area, *taken);
  for_each_run(area, box, [&](std::int64_t begin, std::int64_t end) {
    set(begin, end);
    return true;
  });
  area.marked += box.elements();
  return std::nullopt;
}

std::int64_t WriteCoverage::missing(std::size_t slot) const {
  const Area& area = areas_[slot];
  return area.held.empty() ? 0 : area.held.elements() - area.marked;
}

reshard::Box WriteCoverage::first_missing(std::size_t slot) const {
  const Area& area = areas_[slot];
  const std::int64_t end = area.first_bit + area.held.elements();
  for (std::int64_t bit = area.first_bit; bit < end;) {
    const std::int64_t word = bit / kWordBits;
    const std::uint64_t open = ~words_[static_cast<std::size_t>(word)] & mask_of(word, bit, end);
    if (open != 0) return number_at(area, word * kWordBits + std::countr_zero(open));
    bit = (word + 1) * kWordBits;
  }
  TROUPE_CHECK(false, "write coverage: slot {} is complete", slot);
  return {};
}

}  // namespace troupe::actors
