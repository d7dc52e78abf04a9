// Rosters come from other processes: whatever they say, `plan` must answer with an error or with a
// plan that writes each number of each target segment exactly once, from where its source has it.
//
// The bytes are read as small numbers, so that valid rosters are not rare.

#include "reshard/plan.hpp"
#include "runtime/base/check.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace {

using namespace troupe::reshard;

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  /// 0 up to bound − 1; now and then any number, for the checks of ranges.
  std::int64_t below(std::int64_t bound) {
    const std::int64_t byte = next();
    if (byte < 255) return byte % bound;
    std::uint64_t wild = 0;
    for (int i = 0; i < 8; ++i) wild = wild << 8U | static_cast<std::uint64_t>(next());
    return static_cast<std::int64_t>(wild);
  }
  std::int64_t next() { return at_ < size_ ? data_[at_++] : 0; }
  bool empty() const { return at_ >= size_; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

std::int32_t narrow(std::int64_t value) { return static_cast<std::int32_t>(value); }

Roster read_roster(Bytes& in) {
  Roster roster;
  const std::int64_t tensors = 1 + in.next() % 3;
  for (std::int64_t t = 0; t < tensors; ++t)
    roster.tensors.push_back({.name = std::string(1, static_cast<char>('a' + t)),
                              .dtype = static_cast<DType>(in.next() % 8),
                              .rows = in.below(6),
                              .cols = in.below(4),
                              .layer = narrow(in.below(3))});
  const std::int64_t ranks = in.next() % 5;
  for (std::int64_t r = 0; r < ranks; ++r) {
    RankLayout rank{.rank = narrow(in.below(8)),
                    .node = narrow(in.below(3)),
                    .segments = {},
                    .buffer_elements = {in.below(64), in.below(64)}};
    const std::int64_t segments = in.next() % 6;
    for (std::int64_t s = 0; s < segments; ++s)
      rank.segments.push_back({.tensor = narrow(in.below(3)),
                               .box = {in.below(4), in.below(6), in.below(3), in.below(4)},
                               .buffer = narrow(in.below(2)),
                               .offset = in.below(64),
                               .row_stride = in.below(6)});
    roster.ranks.push_back(std::move(rank));
  }
  return roster;
}

const RankLayout& layout_of(const Roster& roster, std::int32_t rank) {
  for (const RankLayout& layout : roster.ranks) {
    if (layout.rank == rank) return layout;
  }
  TROUPE_CHECK(false, "an operation of rank {}, which has no layout", rank);
  return roster.ranks.front();
}

void check_plan(const Plan& plan, const Roster& source, const Roster& target) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> written;  // target rank, segment
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    TROUPE_CHECK(op.after < static_cast<std::int32_t>(i), "operation {} after {}", i, op.after);
    const RankLayout& from = layout_of(op.hands_on() ? target : source, op.source_rank);
    const RankLayout& to = layout_of(target, op.target_rank);
    const auto& read = from.segments.at(static_cast<std::size_t>(op.source_segment));
    const auto& write = to.segments.at(static_cast<std::size_t>(op.target_segment));
    TROUPE_CHECK(read.box.contains(op.box()) && write.box.contains(op.box()), "box {}",
                 box_text(op.box()));
    TROUPE_CHECK(source_region(op, from).rows == target_region(op, to).rows, "rows");
    written[{op.target_rank, op.target_segment}] += op.elements();
  }
  for (const RankLayout& rank : target.ranks) {
    for (std::size_t s = 0; s < rank.segments.size(); ++s) {
      const std::int64_t moved = written[{rank.rank, narrow(static_cast<std::int64_t>(s))}];
      TROUPE_CHECK(moved == rank.segments[s].box.elements(), "{} numbers into {}", moved,
                   box_text(rank.segments[s].box));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes in(data, size);
  PlanOptions options{.cell_bytes_max = 1 + in.next(), .ops_max = 4096};
  options.relay = static_cast<RelayMode>(in.next() % 3);
  const Roster source = read_roster(in);
  const bool same = in.next() % 2 == 0;  // plans that succeed are rare otherwise
  const Roster target = same ? source : read_roster(in);
  const auto planned = plan(source, target, options);
  if (planned) check_plan(*planned, source, target);
  TROUPE_CHECK(plan_digest(source, target, options) == plan_digest(source, target, options),
               "a digest that changes");
  return 0;
}
