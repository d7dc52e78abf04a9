// Rosters come from other processes: whatever they say, `plan` must answer with an error or with a
// plan that writes each number of each target segment exactly once, from where its source has it.
//
// The bytes choose tensors, how each side cuts them and who holds which part; then they may change
// a few fields to anything. Without such a start hardly an input would pass the checks.

#include "reshard/plan.hpp"
#include "runtime/base/check.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace troupe::reshard;

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::int64_t next() { return at_ < size_ ? data_[at_++] : 0; }
  std::int64_t below(std::int64_t bound) { return next() % bound; }
  /// A small number, or any at all.
  std::int64_t wild() {
    const std::int64_t byte = next();
    if (byte < 200) return byte % 16 - 1;
    std::uint64_t any = 0;
    for (int i = 0; i < 8; ++i) any = any << 8U | static_cast<std::uint64_t>(next());
    return static_cast<std::int64_t>(any);
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

std::int32_t narrow(std::int64_t value) { return static_cast<std::int32_t>(value); }

std::vector<TensorInfo> read_tensors(Bytes& in) {
  std::vector<TensorInfo> tensors;
  const std::int64_t count = 1 + in.below(3);
  for (std::int64_t t = 0; t < count; ++t)
    tensors.push_back({.name = std::string(1, static_cast<char>('a' + t)),
                       .dtype = static_cast<DType>(in.below(8)),
                       .rows = 1 + in.below(6),
                       .cols = 1 + in.below(4),
                       .layer = narrow(in.below(3))});
  return tensors;
}

void cut(Bytes& in, const Box& box, int depth, std::vector<Box>& parts) {
  const std::int64_t choice = in.below(4);
  Box a = box;
  Box b = box;
  if (depth > 0 && choice == 1 && box.rows() > 1) {
    a.row_end = b.row_begin = box.row_begin + 1 + in.below(box.rows() - 1);
  } else if (depth > 0 && choice == 2 && box.cols() > 1) {
    a.col_end = b.col_begin = box.col_begin + 1 + in.below(box.cols() - 1);
  } else {
    parts.push_back(box);
    return;
  }
  cut(in, a, depth - 1, parts);
  cut(in, b, depth - 1, parts);
}

/// One buffer for each tensor; each part goes to the ranks that a mask of bits names.
Roster read_roster(Bytes& in, const std::vector<TensorInfo>& tensors) {
  Roster roster{.tensors = tensors, .ranks = {}};
  const std::int64_t ranks = 1 + in.below(5);
  const std::int32_t first_rank = narrow(in.below(6));
  const std::int32_t per_node = narrow(1 + in.below(3));
  for (std::int32_t r = first_rank; r < first_rank + ranks; ++r)
    roster.ranks.push_back({.rank = r,
                            .node = r / per_node,
                            .segments = {},
                            .buffer_elements = std::vector<std::int64_t>(tensors.size(), 0)});
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::vector<Box> parts;
    cut(in, whole(tensors[t]), 3, parts);
    for (const Box& box : parts) {
      const auto mask = static_cast<std::uint64_t>(in.next()) | std::uint64_t{1} << in.below(ranks);
      for (std::size_t r = 0; r < roster.ranks.size(); ++r) {
        if ((mask >> r & 1U) == 0) continue;
        std::int64_t& size = roster.ranks[r].buffer_elements[t];
        const std::int64_t stride = box.cols() + in.below(2);
        roster.ranks[r].segments.push_back({.tensor = narrow(static_cast<std::int64_t>(t)),
                                            .box = box,
                                            .buffer = narrow(static_cast<std::int64_t>(t)),
                                            .offset = size,
                                            .row_stride = stride});
        size += box.rows() * stride;
      }
    }
  }
  return roster;
}

void change_segment(Bytes& in, Segment& segment) {
  std::int64_t* const fields[] = {&segment.box.row_begin, &segment.box.row_end,
                                  &segment.box.col_begin, &segment.box.col_end,
                                  &segment.offset,        &segment.row_stride};
  const std::int64_t choice = in.below(8);
  const std::int64_t value = in.wild();
  if (choice == 6)
    segment.tensor = narrow(value);
  else if (choice == 7)
    segment.buffer = narrow(value);
  else
    *fields[choice] = value;
}

/// One field of the roster becomes something else.
void change(Bytes& in, Roster& roster) {
  TensorInfo& tensor = roster.tensors[static_cast<std::size_t>(
      in.below(static_cast<std::int64_t>(roster.tensors.size())))];
  RankLayout& rank = roster.ranks[static_cast<std::size_t>(
      in.below(static_cast<std::int64_t>(roster.ranks.size())))];
  const std::int64_t choice = in.below(8);
  const std::int64_t value = in.wild();
  if (choice == 0) tensor.rows = value;
  if (choice == 1) tensor.cols = value;
  if (choice == 2) tensor.layer = narrow(value);
  if (choice == 3) tensor.name = std::string(static_cast<std::size_t>(value & 3), 'a');
  if (choice == 4) rank.rank = narrow(value);
  if (choice == 5) rank.node = narrow(value);
  if (choice == 6) rank.buffer_elements[0] = value;
  if (choice == 7 && !rank.segments.empty())
    change_segment(in, rank.segments[static_cast<std::size_t>(
                           in.below(static_cast<std::int64_t>(rank.segments.size())))]);
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
  const std::vector<TensorInfo> tensors = read_tensors(in);
  Roster source = read_roster(in, tensors);
  Roster target = read_roster(in, tensors);
  for (std::int64_t changes = in.below(4); changes > 0; --changes)
    change(in, in.below(2) == 0 ? source : target);
  const auto planned = plan(source, target, options);
  if (planned) check_plan(*planned, source, target);
  TROUPE_CHECK(plan_digest(source, target, options) == plan_digest(source, target, options),
               "a digest that changes");
  return 0;
}
