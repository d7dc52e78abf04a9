#include "sim/plan/search.hpp"

#include <algorithm>

namespace troupe::sim {
namespace {

/// Every candidate of one shape, one after the other.
class Walk {
 public:
  Walk(RoleTimes& times, const PlanShape& shape, std::optional<Found>& best)
      : times_(times), shape_(shape), best_(best) {}

  void run(placement::Strategy strategy) {
    candidate_ = {};
    candidate_.mode = shape_.mode;
    candidate_.staleness = shape_.staleness;
    candidate_.strategy = strategy;
    for (const RoleMask set : shape_.sets) candidate_.sets.push_back({roles_in(set), 0, 0});
    give(0);
  }

 private:
  void give(std::size_t next) {
    if (next == candidate_.sets.size()) return lay_out(0);
    PlannedSet& set = candidate_.sets[next];
    for (std::size_t offer = 0; offer < times_.request().offers.size(); ++offer) {
      int taken = 0;
      for (std::size_t i = 0; i < next; ++i)
        if (candidate_.sets[i].offer == offer) taken += candidate_.sets[i].devices;
      set.offer = offer;
      for (const int count : times_.counts(offer)) {
        if (taken + count > times_.request().offers[offer].devices) continue;
        set.devices = count;
        give(next + 1);
      }
    }
  }

  void lay_out(std::size_t role) {
    if (role == kPlanRoles) return judge();
    const auto as_role = static_cast<PlanRole>(role);
    const std::vector<PlanRole> roles = times_.request().roles();
    if (std::find(roles.begin(), roles.end(), as_role) == roles.end()) return lay_out(role + 1);
    const PlannedSet& set = candidate_.set_of(as_role);
    const Place place{set.offer, candidate_.strategy};
    if (as_role == PlanRole::kRollout) {
      for (const int tp : times_.engine_sizes(place, set.devices)) {
        candidate_.engine = times_.request().base.rollout.layout;
        candidate_.engine.tp = tp;
        candidate_.engine.reserved_bytes = 0;
        candidate_.replicas = set.devices / tp;
        lay_out(role + 1);
      }
      return;
    }
    for (const LayoutTimes& layout : times_.layouts(as_role, place, set.devices)) {
      candidate_.layouts[role] = layout.layout;
      lay_out(role + 1);
    }
  }

  void judge() {
    const auto estimated = estimate(times_, candidate_);
    if (!estimated) return;  // does not fit
    if (best_ && estimated->objective >= best_->estimate.objective) return;
    best_ = Found{candidate_, *estimated};
  }

  RoleTimes& times_;
  const PlanShape& shape_;
  std::optional<Found>& best_;
  Candidate candidate_{};
};

}  // namespace

result<std::optional<Found>> search_all(RoleTimes& times) {
  std::optional<Found> best;
  for (const PlanShape& shape : shapes_of(times.request())) {
    Walk walk(times, shape, best);
    walk.run(placement::Strategy::kPack);
    if (can_spread(times.request())) walk.run(placement::Strategy::kSpread);
  }
  return best;
}

}  // namespace troupe::sim
