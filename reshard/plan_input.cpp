#include "reshard/plan_input.hpp"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_map>

namespace troupe::reshard {
namespace {

using NameIndex = std::unordered_map<std::string_view, std::int32_t>;

constexpr std::size_t kRanksMax = std::size_t{1} << 20;
constexpr std::size_t kSegmentsMax = std::size_t{1} << 30;

NameIndex index_names(const Roster& roster) {
  NameIndex names;
  names.reserve(roster.tensors.size());
  for (std::size_t i = 0; i < roster.tensors.size(); ++i)
    names.emplace(roster.tensors[i].name, static_cast<std::int32_t>(i));
  return names;
}

/// Finds for each target tensor the source tensor that feeds it.
class Matcher {
 public:
  Matcher(const Roster& source, const Roster& target, const PlanOptions& options)
      : source_(source),
        target_(target),
        options_(options),
        source_names_(index_names(source)),
        target_names_(index_names(target)),
        feeder_(target.tensors.size(), -1),
        is_used_(source.tensors.size(), false) {}

  result<void> match(PlanInput& input) {
    TROUPE_TRY_VOID(take_declarations());
    for (std::size_t t = 0; t < target_.tensors.size(); ++t) TROUPE_TRY_VOID(match_target(t));
    for (std::size_t s = 0; s < source_.tensors.size(); ++s) {
      if (!is_used_[s])
        return fail(ErrorCode::kNotFound,
                    "tensor {}: the source has it and the target lacks it; declare it source_only "
                    "if so meant",
                    source_.tensors[s].name);
    }
    list(input);
    return {};
  }

 private:
  static constexpr std::int32_t kKept = -2;  // target_only

  result<void> take_declarations() {
    for (const std::string& name : options_.source_only) {
      const auto found = source_names_.find(name);
      if (found == source_names_.end())
        return fail(ErrorCode::kNotFound, "tensor {}: declared source_only, the source lacks it",
                    name);
      if (target_names_.contains(name))
        return fail(ErrorCode::kConflict, "tensor {}: declared source_only, the target has it",
                    name);
      is_used_[static_cast<std::size_t>(found->second)] = true;
    }
    for (const std::string& name : options_.target_only) {
      const auto found = target_names_.find(name);
      if (found == target_names_.end())
        return fail(ErrorCode::kNotFound, "tensor {}: declared target_only, the target lacks it",
                    name);
      if (source_names_.contains(name))
        return fail(ErrorCode::kConflict, "tensor {}: declared target_only, the source has it",
                    name);
      feeder_[static_cast<std::size_t>(found->second)] = kKept;
    }
    for (const TensorAlias& alias : options_.aliases) TROUPE_TRY_VOID(take_alias(alias));
    return {};
  }

  result<void> take_alias(const TensorAlias& alias) {
    const auto from = source_names_.find(alias.source);
    const auto to = target_names_.find(alias.target);
    if (from == source_names_.end())
      return fail(ErrorCode::kNotFound, "tensor {}: alias of {}, which the source lacks",
                  alias.target, alias.source);
    if (to == target_names_.end())
      return fail(ErrorCode::kNotFound, "tensor {}: alias of {}, but the target lacks it",
                  alias.target, alias.source);
    std::int32_t& feeder = feeder_[static_cast<std::size_t>(to->second)];
    if (feeder != -1 || source_names_.contains(alias.target))
      return fail(ErrorCode::kConflict, "tensor {}: alias of {}, and fed otherwise as well",
                  alias.target, alias.source);
    feeder = from->second;
    return {};
  }

  result<void> match_target(std::size_t t) {
    const TensorInfo& wanted = target_.tensors[t];
    if (feeder_[t] == kKept) return {};
    if (feeder_[t] == -1) {
      const auto found = source_names_.find(wanted.name);
      if (found == source_names_.end())
        return fail(ErrorCode::kNotFound,
                    "tensor {}: the target has it and the source lacks it; alias it or declare it "
                    "target_only if so meant",
                    wanted.name);
      feeder_[t] = found->second;
    }
    const auto s = static_cast<std::size_t>(feeder_[t]);
    const TensorInfo& given = source_.tensors[s];
    is_used_[s] = true;
    if (given.rows != wanted.rows || given.cols != wanted.cols)
      return fail(ErrorCode::kConflict,
                  "tensor {}: the source has shape {} x {}, the target {} x {}", wanted.name,
                  given.rows, given.cols, wanted.rows, wanted.cols);
    if (given.dtype != wanted.dtype)
      return fail(ErrorCode::kConflict,
                  "tensor {}: the source has {}, the target {}; plans do not convert", wanted.name,
                  dtype_name(given.dtype), dtype_name(wanted.dtype));
    return {};
  }

  void list(PlanInput& input) const {
    for (std::size_t t = 0; t < feeder_.size(); ++t) {
      if (feeder_[t] >= 0) input.target_index.push_back(static_cast<std::int32_t>(t));
    }
    std::sort(input.target_index.begin(), input.target_index.end(),
              [this](std::int32_t a, std::int32_t b) {
                const TensorInfo& left = target_.tensors[static_cast<std::size_t>(a)];
                const TensorInfo& right = target_.tensors[static_cast<std::size_t>(b)];
                if (left.layer != right.layer) return left.layer < right.layer;
                return left.name < right.name;
              });
    for (const std::int32_t t : input.target_index) {
      input.tensors.push_back(target_.tensors[static_cast<std::size_t>(t)]);
      input.source_index.push_back(feeder_[static_cast<std::size_t>(t)]);
    }
  }

  const Roster& source_;
  const Roster& target_;
  const PlanOptions& options_;
  NameIndex source_names_;
  NameIndex target_names_;
  std::vector<std::int32_t> feeder_;
  std::vector<bool> is_used_;
};

result<void> add_ranks(const Roster& source, const Roster& target, PlanInput& input) {
  std::unordered_map<std::int32_t, std::size_t> known;
  for (const RankLayout& layout : source.ranks) {
    known.emplace(layout.rank, input.ranks.size());
    input.ranks.push_back(
        {.rank = layout.rank, .node = layout.node, .source = &layout, .target = nullptr});
  }
  for (const RankLayout& layout : target.ranks) {
    const auto [found, is_new] = known.emplace(layout.rank, input.ranks.size());
    if (is_new) {
      input.ranks.push_back(
          {.rank = layout.rank, .node = layout.node, .source = nullptr, .target = &layout});
      continue;
    }
    PlanRank& both = input.ranks[found->second];
    if (both.node != layout.node)
      return fail(ErrorCode::kConflict, "rank {}: on node {} as source, on node {} as target",
                  layout.rank, both.node, layout.node);
    both.target = &layout;
  }
  if (input.ranks.size() > kRanksMax)
    return fail(ErrorCode::kUnsupported, "plan: {} ranks, at most {}", input.ranks.size(),
                kRanksMax);
  std::sort(input.ranks.begin(), input.ranks.end(), [](const PlanRank& a, const PlanRank& b) {
    return a.node != b.node ? a.node < b.node : a.rank < b.rank;
  });
  return {};
}

/// Counting sort of all segments of one side by tensor; ranks stay in order.
result<HoldingIndex> index_holdings(const std::vector<PlanRank>& ranks,
                                    const RankLayout* PlanRank::*layout, std::size_t tensors) {
  HoldingIndex index;
  index.begin.assign(tensors + 1, 0);
  std::size_t total = 0;
  for (const PlanRank& rank : ranks) {
    if (rank.*layout == nullptr) continue;
    total += (rank.*layout)->segments.size();
    if (total > kSegmentsMax)
      return fail(ErrorCode::kUnsupported, "plan: more than {} segments", kSegmentsMax);
    for (const Segment& segment : (rank.*layout)->segments)
      ++index.begin[static_cast<std::size_t>(segment.tensor) + 1];
  }
  std::partial_sum(index.begin.begin(), index.begin.end(), index.begin.begin());
  index.list.resize(total);
  std::vector<std::int32_t> next(index.begin.begin(), index.begin.end() - 1);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].*layout == nullptr) continue;
    const auto& segments = (ranks[r].*layout)->segments;
    for (std::size_t s = 0; s < segments.size(); ++s) {
      std::int32_t& at = next[static_cast<std::size_t>(segments[s].tensor)];
      index.list[static_cast<std::size_t>(at++)] = {static_cast<std::int32_t>(r),
                                                    static_cast<std::int32_t>(s)};
    }
  }
  return index;
}

}  // namespace

result<PlanInput> match_rosters(const Roster& source, const Roster& target,
                                const PlanOptions& options) {
  TROUPE_TRY_VOID(validate(source, Side::kSource));
  TROUPE_TRY_VOID(validate(target, Side::kTarget));
  PlanInput input;
  TROUPE_TRY_VOID(Matcher(source, target, options).match(input));
  TROUPE_TRY_VOID(add_ranks(source, target, input));
  TROUPE_TRY(input.source, index_holdings(input.ranks, &PlanRank::source, source.tensors.size()));
  TROUPE_TRY(input.target, index_holdings(input.ranks, &PlanRank::target, target.tensors.size()));
  return input;
}

}  // namespace troupe::reshard
