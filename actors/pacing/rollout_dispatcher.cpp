#include "actors/pacing/rollout_dispatcher.hpp"

#include "actors/pacing/dispatch_machine.hpp"

#include <utility>

namespace troupe::actors {
namespace {

struct CountOption {
  const char* name;
  std::int64_t value;
  std::int64_t low;
};
constexpr std::int64_t kCountMax = std::int64_t{1} << 31;

}  // namespace

result<void> DispatchOptions::check() const {
  for (const CountOption& one :
       {CountOption{"group_size", group_size, 1}, CountOption{"samples_extra", samples_extra, 0},
        CountOption{"tail_round_groups", tail_round_groups, 0},
        CountOption{"retries_max", retries_max, 0},
        CountOption{"rank_losses_max", rank_losses_max, 1},
        CountOption{"overtakes_max", overtakes_max, 0},
        CountOption{"new_tokens_max", new_tokens_max, 1},
        CountOption{"repack_below", repack_below, 0}, CountOption{"moves_max", moves_max, 0},
        CountOption{"refills_max", refills_max, 0}, CountOption{"groups_max", groups_max, 1},
        CountOption{"ranks_max", ranks_max, 1}})
    if (one.value < one.low || one.value > kCountMax)
      return fail(ErrorCode::kInvalidArgument, "rollout dispatcher: {} is {}, wanted {} to {}",
                  one.name, one.value, one.low, kCountMax);
  for (const auto& [name, value] :
       {std::pair{"hedge_after", hedge_after}, std::pair{"sample_deadline", sample_deadline},
        std::pair{"stall_after", stall_after}, std::pair{"score_deadline", score_deadline},
        std::pair{"stop_within", stop_within}})
    if (value < Duration::zero() || value > std::chrono::hours(24 * 365))
      return fail(ErrorCode::kInvalidArgument,
                  "rollout dispatcher: {} is {:.3f} s, wanted 0 to a year", name, seconds(value));
  if (stop_within == Duration::zero())
    return fail(ErrorCode::kInvalidArgument, "rollout dispatcher: stop_within is 0, wanted more");
  if (tail_round_groups > 0 && (!rounds || cut == CutAction::kDrop))
    return fail(ErrorCode::kInvalidArgument, "rollout dispatcher: tail_round_groups is {}, but {}",
                tail_round_groups,
                rounds ? "groups that are cut are dropped" : "there are no rounds");
  if (drop_zero_variance && group_size < 2)
    return fail(ErrorCode::kInvalidArgument,
                "rollout dispatcher: drop_zero_variance with groups of {} sample", group_size);
  return {};
}

result<RolloutDispatcher> RolloutDispatcher::create(const DispatchOptions& options) {
  TROUPE_TRY_VOID(options.check());
  return RolloutDispatcher(std::make_unique<DispatchMachine>(options));
}

RolloutDispatcher::RolloutDispatcher(std::unique_ptr<DispatchMachine> machine)
    : machine_(std::move(machine)) {}
RolloutDispatcher::~RolloutDispatcher() = default;
RolloutDispatcher::RolloutDispatcher(RolloutDispatcher&&) noexcept = default;
RolloutDispatcher& RolloutDispatcher::operator=(RolloutDispatcher&&) noexcept = default;

DispatchEffects RolloutDispatcher::step(const DispatchEvent& event, TimePoint now) {
  return machine_->step(event, now);
}
std::optional<TimePoint> RolloutDispatcher::next_wake() const { return machine_->next_wake(); }
DispatchCounts RolloutDispatcher::counts() const { return machine_->counts(); }
const TokenAccount& RolloutDispatcher::tokens() const { return machine_->tokens(); }
const LengthBias& RolloutDispatcher::length_bias() const { return machine_->length_bias(); }
std::string RolloutDispatcher::explain(TimePoint now) const { return machine_->explain(now); }
void RolloutDispatcher::check_invariants() const { machine_->check_invariants(); }

}  // namespace troupe::actors
