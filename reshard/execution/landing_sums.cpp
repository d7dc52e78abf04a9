#include "reshard/execution/landing_sums.hpp"

#include "reshard/execution/piece_sums.hpp"

#include <algorithm>

namespace troupe::reshard {

void LandingSums::add(const OpPiece& piece, std::span<const std::byte> place) {
  Piece& one = pieces_[place.data()];
  one.piece = piece;
  one.place = place;
}

void LandingSums::landed(std::span<const std::byte> bytes) {
  auto next = pieces_.upper_bound(bytes.data());
  if (next != pieces_.begin()) --next;
  for (; next != pieces_.end() && !bytes.empty(); ++next) {
    Piece& one = next->second;
    const std::byte* end = one.place.data() + one.place.size();
    const std::byte* from = std::max(bytes.data(), one.place.data());
    const std::byte* until = std::min(bytes.data() + bytes.size(), end);
    if (from >= until) continue;
    const Op& op = plan_->op(one.piece.op);
    const std::span<const std::byte> some(from, until);
    one.sum.fetch_add(
        sum_bytes_of(op, plan_->tensor_of(op), one.piece, from - one.place.data(), some));
    one.told.fetch_add(until - from);
    if (until == bytes.data() + bytes.size()) return;
  }
}

std::optional<std::uint64_t> LandingSums::take(std::span<const std::byte> place) const {
  const auto found = pieces_.find(place.data());
  if (found == pieces_.end()) return std::nullopt;
  const Piece& one = found->second;
  if (one.told.load() != static_cast<std::int64_t>(one.place.size())) return std::nullopt;
  return one.sum.load();
}

}  // namespace troupe::reshard
