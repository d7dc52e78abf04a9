#include "runtime/group/plan_round.hpp"

#include <algorithm>

namespace troupe::runtime {

std::uint64_t PlanRound::begin() {
  open_ = true;
  decided_ = false;
  again_ = false;
  last_begun_ = CallId{0};
  for (State& rank : ranks_) rank.held = false;
  return ++round_;
}

std::optional<std::uint64_t> PlanRound::want() {
  if (!open_) return begin();
  if (decided_) again_ = true;
  return std::nullopt;
}

bool PlanRound::complete() const {
  return open_ && !decided_ && std::all_of(ranks_.begin(), ranks_.end(), [](const State& rank) {
           return rank.held || rank.gone;
         });
}

bool PlanRound::held(RankId rank, std::uint64_t round, CallId last_begun) {
  State& state = ranks_[static_cast<std::size_t>(rank.value)];
  if (!open_ || round != round_ || state.held) return false;
  state.held = true;
  last_begun_ = std::max(last_begun_, last_begun);
  return complete();
}

bool PlanRound::gone(RankId rank) {
  State& state = ranks_[static_cast<std::size_t>(rank.value)];
  if (state.gone) return false;
  state.gone = true;
  return complete();
}

std::optional<std::uint64_t> PlanRound::told() {
  open_ = false;
  if (!again_) return std::nullopt;
  return begin();
}

}  // namespace troupe::runtime
