#include "reshard/execution/publication_plan.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace troupe::reshard {

result<std::shared_ptr<const PublicationPlan>> PublicationPlan::make(Roster source, Roster target,
                                                                     const PlanOptions& options) {
  std::shared_ptr<PublicationPlan> made(new PublicationPlan());
  TROUPE_TRY(made->plan_, reshard::plan(source, target, options));
  made->source_ = std::move(source);
  made->target_ = std::move(target);
  for (const RankLayout& layout : made->source_.ranks) made->source_ranks_[layout.rank] = &layout;
  for (const RankLayout& layout : made->target_.ranks) made->target_ranks_[layout.rank] = &layout;
  made->order();
  return std::shared_ptr<const PublicationPlan>(std::move(made));
}

void PublicationPlan::order() {
  const std::vector<Op>& ops = plan_.ops;
  std::vector<std::int32_t> heads(ops.size());
  std::map<std::int32_t, std::set<std::int32_t>> takers;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    TROUPE_CHECK(ops[i].after < index, "plan: operation {} comes after {}", i, ops[i].after);
    heads[i] = ops[i].after < 0 ? index : heads[static_cast<std::size_t>(ops[i].after)];
    if (ops[i].hands_on()) takers[ops[i].source_rank].insert(ops[i].target_rank);
  }
  for (const auto& [rank, set] : takers) takers_[rank].assign(set.begin(), set.end());
  begin_of_op_.assign(ops.size(), 0);
  for (const auto& [rank, layout] : target_ranks_) {
    ReceiveOrder& order = orders_[rank];
    const auto receives = plan_.receives_of(rank);
    order.ops.assign(receives.begin(), receives.end());
    std::stable_sort(order.ops.begin(), order.ops.end(), [&](std::int32_t a, std::int32_t b) {
      return heads[static_cast<std::size_t>(a)] < heads[static_cast<std::size_t>(b)];
    });
    std::int64_t before = 0;
    for (const std::int32_t index : order.ops) {
      order.begins.push_back(before);
      begin_of_op_[static_cast<std::size_t>(index)] = before;
      before += op(index).elements();
    }
    order.begins.push_back(before);
  }
}

const RankLayout* PublicationPlan::source_layout(std::int32_t rank) const {
  const auto place = source_ranks_.find(rank);
  return place == source_ranks_.end() ? nullptr : place->second;
}

const RankLayout* PublicationPlan::target_layout(std::int32_t rank) const {
  const auto place = target_ranks_.find(rank);
  return place == target_ranks_.end() ? nullptr : place->second;
}

const Op& PublicationPlan::root_of(std::int32_t index) const {
  while (op(index).after >= 0) index = op(index).after;
  return op(index);
}

const ReceiveOrder& PublicationPlan::receive_order(std::int32_t target_rank) const {
  static const ReceiveOrder nothing{.ops = {}, .begins = {0}};
  const auto place = orders_.find(target_rank);
  return place == orders_.end() ? nothing : place->second;
}

std::int64_t PublicationPlan::begin_at_sender(std::int32_t index) const {
  const Op& one = op(index);
  TROUPE_CHECK(one.hands_on(), "plan: operation {} is not handed on", index);
  return begin_of_op_[static_cast<std::size_t>(one.after)];
}

std::span<const std::int32_t> PublicationPlan::takers_of(std::int32_t rank) const {
  const auto place = takers_.find(rank);
  if (place == takers_.end()) return {};
  return place->second;
}

}  // namespace troupe::reshard
