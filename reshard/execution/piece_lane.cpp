#include "reshard/execution/piece_lane.hpp"

#include "runtime/base/check.hpp"

#include <utility>

namespace troupe::reshard {
namespace {

class TransportLane final : public PieceLane {
 public:
  explicit TransportLane(runtime::Transport& transport) : transport_(transport) {}

  runtime::pending<void> fetch(std::uint64_t epoch, const MemberAddress& from,
                               std::span<const LanePart> parts, std::shared_ptr<const void> keep,
                               Deadline deadline,
                               std::shared_ptr<runtime::LandingWatch> watch) override {
    TROUPE_CHECK(parts.size() <= kLanePartsMax, "lane: {} parts of {}, at most {}", parts.size(),
                 member_text(from.member), kLanePartsMax);
    runtime::PullRequest request;
    request.owner = from.address;
    request.keep = std::move(keep);
    request.watch = std::move(watch);
    for (const LanePart& part : parts) {
      const PieceColumn column{.kind = part.kind, .epoch = epoch, .op = part.piece.op};
      request.parts.push_back({.column = encode_column(column),
                               .first_row = part.piece.first,
                               .rows = part.piece.count,
                               .into = part.into});
    }
    return transport_.pull(std::move(request), deadline);
  }

 private:
  runtime::Transport& transport_;
};

}  // namespace

std::unique_ptr<PieceLane> transport_lane(WeightPort& port) {
  TROUPE_CHECK(port.transport() != nullptr, "lane: the port has no transport");
  return std::make_unique<TransportLane>(*port.transport());
}

}  // namespace troupe::reshard
