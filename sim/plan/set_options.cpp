#include "sim/plan/set_options.hpp"

#include <algorithm>
#include <array>

namespace troupe::sim {
namespace {

using Numbers = std::array<double, 9>;

Numbers numbers_of(const SetOption& option, bool memory) {
  const Estimate& parts = option.parts;
  return {parts.generate_s,
          parts.steady_s,
          parts.longest_s,
          parts.score_s,
          parts.pass_s,
          parts.update_s,
          parts.publish_s,
          memory ? option.kept_bytes : 0,
          memory ? option.extra_bytes : 0};
}

bool beats(const Numbers& a, const Numbers& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] > b[i]) return false;
  return true;
}

/// Leaves out what an earlier or another option beats in everything; the first of equals stays.
std::vector<SetOption> undominated(std::vector<SetOption> all, bool memory) {
  std::vector<std::pair<Numbers, std::size_t>> order;
  for (std::size_t i = 0; i < all.size(); ++i) order.emplace_back(numbers_of(all[i], memory), i);
  std::sort(order.begin(), order.end());
  std::vector<SetOption> kept;
  std::vector<Numbers> front;
  for (const auto& [numbers, index] : order) {
    // What beats it is not greater in the first number, so it came before.
    const bool beaten = std::any_of(front.begin(), front.end(),
                                    [&](const Numbers& other) { return beats(other, numbers); });
    if (beaten) continue;
    front.push_back(numbers);
    kept.push_back(all[index]);
  }
  return kept;
}

}  // namespace

std::vector<PlanRole> roles_in(RoleMask mask) {
  std::vector<PlanRole> roles;
  for (std::size_t i = 0; i < kPlanRoles; ++i)
    if (has_role(mask, static_cast<PlanRole>(i))) roles.push_back(static_cast<PlanRole>(i));
  return roles;
}

std::vector<SetOption> SetOptions::with_role(const std::vector<SetOption>& before, PlanRole role,
                                             Place place, int devices) {
  const double room = times_.device(place).memory_bytes;
  std::vector<SetOption> after;
  for (const SetOption& option : before) {
    for (const LayoutTimes& layout : times_.layouts(role, place, devices)) {
      SetOption next = option;
      next.layouts[static_cast<std::size_t>(role)] = &layout;
      (role == PlanRole::kRewardModel ? next.parts.score_s : next.parts.pass_s) += layout.pass_s;
      next.parts.update_s += layout.update_s;
      next.kept_bytes += layout.kept_bytes;
      next.extra_bytes = std::max(next.extra_bytes, layout.work_bytes - layout.kept_bytes);
      if (next.kept_bytes + next.extra_bytes <= room) after.push_back(next);
    }
  }
  return after;
}

std::vector<SetOption> SetOptions::with_engines(const std::vector<SetOption>& before, Place place,
                                                int devices, std::int64_t ahead) {
  const double room = times_.device(place).memory_bytes;
  std::vector<SetOption> after;
  for (const SetOption& option : before) {
    for (const int tp : times_.engine_sizes(place, devices)) {
      const auto engines = times_.engines(place, devices, tp, option.kept_bytes, ahead);
      if (!engines) continue;
      const double kept = times_.engine_kept_bytes(place, tp);
      if (option.kept_bytes + kept + option.extra_bytes > room) continue;
      SetOption next = option;
      next.engines = *engines;
      next.kept_bytes += kept;
      next.parts.generate_s = engines->time.span_s;
      next.parts.steady_s = engines->time.steady_s;
      next.parts.longest_s = engines->time.longest_s;
      next.parts.running_most = engines->time.running_most;
      next.parts.samples_a_replica = engines->samples;
      after.push_back(next);
    }
  }
  return after;
}

std::vector<SetOption> SetOptions::compute(RoleMask set, Place place, int devices,
                                           std::int64_t ahead) {
  std::vector<SetOption> options(1);
  const bool both = has_role(set, PlanRole::kPolicy) && has_role(set, PlanRole::kRollout);
  for (const PlanRole role : roles_in(set)) {
    if (role == PlanRole::kRollout) continue;
    options = with_role(options, role, place, devices);
    if (role == PlanRole::kPolicy && both) {
      for (SetOption& option : options)
        option.parts.publish_s =
            times_.publish_s(place, devices, option.layouts[0]->layout, place, devices, true);
    }
    options = undominated(std::move(options), true);
  }
  if (has_role(set, PlanRole::kRollout)) options = with_engines(options, place, devices, ahead);
  return undominated(std::move(options), false);
}

const std::vector<SetOption>& SetOptions::of(RoleMask set, Place place, int devices,
                                             std::int64_t ahead) {
  const Key key{set, place, devices, has_role(set, PlanRole::kRollout) ? ahead : 0};
  const auto found = options_.find(key);
  if (found != options_.end()) return found->second;
  return options_.emplace(key, compute(set, place, devices, ahead)).first->second;
}

const Estimate* SetOptions::ideal(RoleMask set, Place place, int devices, std::int64_t ahead) {
  const std::vector<int>& counts = times_.counts(place.offer);
  auto at = std::upper_bound(counts.begin(), counts.end(), devices);
  if (at == counts.begin()) return nullptr;
  const int count = *--at;
  const Key key{set, place, count, has_role(set, PlanRole::kRollout) ? ahead : 0};
  const auto found = ideals_.find(key);
  if (found != ideals_.end()) return found->second ? &*found->second : nullptr;
  std::optional<Estimate> least;
  if (const Estimate* fewer = ideal(set, place, count - 1, ahead)) least = *fewer;
  for (const SetOption& option : of(set, place, count, ahead)) {
    if (!least) {
      least = option.parts;
      continue;
    }
    for (double Estimate::*part :
         {&Estimate::generate_s, &Estimate::steady_s, &Estimate::longest_s, &Estimate::score_s,
          &Estimate::pass_s, &Estimate::update_s, &Estimate::publish_s})
      (*least).*part = std::min((*least).*part, option.parts.*part);
  }
  const auto kept = ideals_.emplace(key, least).first;
  return kept->second ? &*kept->second : nullptr;
}

int SetOptions::least_devices(RoleMask set, Place place, std::int64_t ahead) {
  for (const int count : times_.counts(place.offer))
    if (!of(set, place, count, ahead).empty()) return count;
  return 0;
}

}  // namespace troupe::sim
