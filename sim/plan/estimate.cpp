#include "sim/plan/estimate.hpp"

#include "sim/plan/role_times.hpp"

#include <algorithm>

namespace troupe::sim {

double step_of(SimMode mode, std::int64_t staleness, const Estimate& parts, double reward_s) {
  const double train = parts.score_s + parts.pass_s + parts.update_s;
  switch (mode) {
    case SimMode::kSynchronous:
      return parts.generate_s + reward_s + train + parts.publish_s;
    case SimMode::kOneStepOff:  // samples under way end before weights move
      return std::max(parts.generate_s, train) + parts.publish_s;
    case SimMode::kAsynchronous:
    case SimMode::kPipelined: {
      const double ahead = static_cast<double>(staleness) + 1;
      const double longest = (parts.longest_s + train + parts.publish_s) / ahead;
      return std::max({parts.steady_s, train + parts.publish_s, longest});
    }
  }
  return 0;
}

double objective_of(const PlanRequest& request, double step_s, double price_per_hour) {
  return request.objective == PlanObjective::kTime ? step_s : step_s / 3600 * price_per_hour;
}

namespace {

/// What the trained and frozen roles of one set come to.
struct SetSum {
  double pass_s = 0;
  double score_s = 0;
  double update_s = 0;
  double kept_bytes = 0;
  double extra_bytes = 0;  ///< most that one role takes beside what it keeps
};

result<SetSum> sum_of(RoleTimes& times, const Candidate& candidate, const PlannedSet& set) {
  SetSum sum;
  for (const PlanRole role : set.roles) {
    if (role == PlanRole::kRollout) continue;
    const TrainLayout& layout = candidate.layouts[static_cast<std::size_t>(role)];
    TROUPE_TRY(const LayoutTimes one,
               times.known_times_of(role, {set.offer, candidate.strategy}, layout));
    (role == PlanRole::kRewardModel ? sum.score_s : sum.pass_s) += one.pass_s;
    sum.update_s += one.update_s;
    sum.kept_bytes += one.kept_bytes;
    sum.extra_bytes = std::max(sum.extra_bytes, one.work_bytes - one.kept_bytes);
  }
  return sum;
}

}  // namespace

result<Estimate> estimate(RoleTimes& times, const Candidate& candidate) {
  const PlanRequest& request = times.request();
  Estimate all;
  double price = 0;
  for (const PlannedSet& set : candidate.sets) {
    const Place place{set.offer, candidate.strategy};
    TROUPE_TRY(SetSum sum, sum_of(times, candidate, set));
    if (&candidate.set_of(PlanRole::kRollout) == &set) {
      const auto engines = times.engines(place, set.devices, candidate.engine.tp, sum.kept_bytes,
                                         candidate.staleness);
      if (!engines)
        return fail(ErrorCode::kResourceExhausted,
                    "{}: engines of {} devices have no room beside {:.1f} GB",
                    candidate.describe(request), candidate.engine.tp, sum.kept_bytes / 1e9);
      all.generate_s = engines->time.span_s;
      all.steady_s = engines->time.steady_s;
      all.longest_s = engines->time.longest_s;
      all.running_most = engines->time.running_most;
      all.samples_a_replica = engines->samples;
      sum.kept_bytes += times.engine_kept_bytes(place, candidate.engine.tp);
    }
    const double bytes = sum.kept_bytes + sum.extra_bytes;
    if (bytes > times.device(place).memory_bytes)
      return fail(ErrorCode::kResourceExhausted,
                  "{}: a set needs {:.1f} GB on a device of {:.1f} GB", candidate.describe(request),
                  bytes / 1e9, times.device(place).memory_bytes / 1e9);
    all.score_s = std::max(all.score_s, sum.score_s);
    all.pass_s = std::max(all.pass_s, sum.pass_s);
    all.update_s = std::max(all.update_s, sum.update_s);
    price += set.devices * times.device(place).price_per_hour;
  }
  const PlannedSet& from = candidate.set_of(PlanRole::kPolicy);
  const PlannedSet& to = candidate.set_of(PlanRole::kRollout);
  all.publish_s =
      times.publish_s({from.offer, candidate.strategy}, from.devices, candidate.layouts[0],
                      {to.offer, candidate.strategy}, to.devices, &from == &to);
  all.step_s = step_of(candidate.mode, candidate.staleness, all, times.work().reward_s);
  all.objective = objective_of(request, all.step_s, price);
  return all;
}

result<Estimate> estimate(const PlanRequest& request, const Candidate& candidate) {
  TROUPE_TRY(RoleTimes times, RoleTimes::create(request));
  return estimate(times, candidate);
}

}  // namespace troupe::sim
