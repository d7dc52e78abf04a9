#include "reshard/execution/landing_sums.hpp"

#include "reshard/execution/piece_sums.hpp"

#include <algorithm>
#include <cstring>

namespace troupe::reshard {

void LandingSums::add(const OpPiece& piece, std::span<const std::byte> place) {
  Piece& one = pieces_[place.data()];
  one.piece = piece;
  one.place = place;
}

void LandingSums::landed(std::span<const std::byte> bytes) {
  take_in(nullptr, bytes, bytes.data());
}

void LandingSums::bring(std::byte* target, std::span<const std::byte> bytes) {
  take_in(target, bytes, target);
}

void LandingSums::take_in(std::byte* to, std::span<const std::byte> bytes, const std::byte* place) {
  const std::byte* const place_end = place + bytes.size();
  auto next = pieces_.upper_bound(place);
  if (next != pieces_.begin()) --next;
  const auto pass = [&](const std::byte* until) {
    const auto some = static_cast<std::size_t>(until - place);
    if (to != nullptr) to += some;
    bytes = bytes.subspan(some);
    place = until;
  };
  for (; next != pieces_.end() && place < place_end; ++next) {
    Piece& one = next->second;
    const std::byte* from = std::max<const std::byte*>(place, one.place.data());
    const std::byte* until =
        std::min<const std::byte*>(place_end, one.place.data() + one.place.size());
    if (from >= until) continue;
    if (to != nullptr && from > place)
      std::memcpy(to, bytes.data(), static_cast<std::size_t>(from - place));
    pass(from);
    const Op& op = plan_->op(one.piece.op);
    one.sum.fetch_add(sum_bytes_of(op, plan_->tensor_of(op), one.piece, from - one.place.data(),
                                   bytes.first(static_cast<std::size_t>(until - from)), to));
    one.told.fetch_add(until - from);
    pass(until);
  }
  if (to != nullptr && !bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
}

std::optional<std::uint64_t> LandingSums::take(std::span<const std::byte> place) const {
  const auto found = pieces_.find(place.data());
  if (found == pieces_.end()) return std::nullopt;
  const Piece& one = found->second;
  if (one.told.load() != static_cast<std::int64_t>(one.place.size())) return std::nullopt;
  return one.sum.load();
}

}  // namespace troupe::reshard
