#include "sim/plan/search.hpp"

#include <algorithm>
#include <limits>

namespace troupe::sim {
namespace {

void widen(Estimate& parts, const Estimate& set) {
  parts.generate_s += set.generate_s;  // one set has rollout, all others nothing of these
  parts.steady_s += set.steady_s;
  parts.longest_s += set.longest_s;
  parts.running_most += set.running_most;
  parts.samples_a_replica += set.samples_a_replica;
  parts.publish_s += set.publish_s;
  parts.score_s = std::max(parts.score_s, set.score_s);
  parts.pass_s = std::max(parts.pass_s, set.pass_s);
  parts.update_s = std::max(parts.update_s, set.update_s);
}

/// Best candidates of one shape.
class ShapeSearch {
 public:
  ShapeSearch(SetOptions& options, const PlanShape& shape, placement::Strategy strategy,
              const SearchOptions& wanted, double worst)
      : options_(options),
        times_(options.times()),
        request_(times_.request()),
        shape_(shape),
        strategy_(strategy),
        wanted_(wanted),
        worst_(worst) {
    for (const DeviceOffer& offer : request_.offers) left_.push_back(offer.devices);
    chosen_.resize(shape.sets.size());
    for (std::size_t i = 0; i < shape.sets.size(); ++i) {
      if (has_role(shape.sets[i], PlanRole::kPolicy)) policy_ = i;
      if (has_role(shape.sets[i], PlanRole::kRollout)) rollout_ = i;
    }
  }

  void run() { give(0, {}, 0); }
  std::vector<Found>& best() { return best_; }
  std::uint64_t looked_at() const { return looked_at_; }

 private:
  struct Chosen {
    std::size_t offer = 0;
    int devices = 0;
    const SetOption* option = nullptr;
  };

  double threshold() const {
    return best_.size() < wanted_.of_shape ? worst_
                                           : std::min(worst_, best_.back().estimate.objective);
  }

  double price_of(const Chosen& one) const {
    return one.devices * request_.offers[one.offer].device.price_per_hour;
  }

  /// Least objective of what sets from `next` on can still make of it.
  double bound(std::size_t next, Estimate parts, double price) {
    for (std::size_t i = next; i < shape_.sets.size(); ++i) {
      Estimate least;
      bool first = true;
      double cheapest = std::numeric_limits<double>::infinity();
      for (std::size_t offer = 0; offer < left_.size(); ++offer) {
        const Place place{offer, strategy_};
        const Estimate* ideal =
            options_.ideal(shape_.sets[i], place, left_[offer], shape_.staleness);
        if (ideal == nullptr) continue;
        const int fewest = options_.least_devices(shape_.sets[i], place, shape_.staleness);
        cheapest = std::min(cheapest, fewest * request_.offers[offer].device.price_per_hour);
        if (first) {
          least = *ideal;
          first = false;
          continue;
        }
        for (double Estimate::*part :
             {&Estimate::generate_s, &Estimate::steady_s, &Estimate::longest_s, &Estimate::score_s,
              &Estimate::pass_s, &Estimate::update_s, &Estimate::publish_s})
          least.*part = std::min(least.*part, (*ideal).*part);
      }
      if (first) return std::numeric_limits<double>::infinity();
      widen(parts, least);
      price += cheapest;
    }
    const double step_s = step_of(shape_.mode, shape_.staleness, parts, times_.work().reward_s);
    return objective_of(request_, step_s, price);
  }

  void give(std::size_t next, const Estimate& parts, double price) {
    if (bound(next, parts, price) >= threshold()) return;
    if (next == shape_.sets.size()) return finish(parts, price);
    for (std::size_t offer = 0; offer < left_.size(); ++offer) {
      const std::vector<int>& counts = times_.counts(offer);
      for (auto count = counts.rbegin(); count != counts.rend(); ++count) {
        if (*count > left_[offer] || (wanted_.halves && !is_equal_part(offer, *count))) continue;
        give_to(next, {offer, *count, nullptr}, parts, price);
      }
    }
  }

  bool is_equal_part(std::size_t offer, int count) const {
    return count * static_cast<int>(shape_.sets.size()) == request_.offers[offer].devices;
  }

  void give_to(std::size_t next, Chosen chosen, const Estimate& parts, double price) {
    left_[chosen.offer] -= chosen.devices;
    const auto& options =
        options_.of(shape_.sets[next], {chosen.offer, strategy_}, chosen.devices, shape_.staleness);
    for (const SetOption& option : options) {
      chosen.option = &option;
      chosen_[next] = chosen;
      Estimate wider = parts;
      widen(wider, option.parts);
      if (policy_ != rollout_ && std::max(policy_, rollout_) == next) {
        const Chosen& from = chosen_[policy_];
        const Chosen& to = chosen_[rollout_];
        wider.publish_s =
            times_.publish_s({from.offer, strategy_}, from.devices, from.option->layouts[0]->layout,
                             {to.offer, strategy_}, to.devices, false);
      }
      give(next + 1, wider, price + price_of(chosen));
    }
    left_[chosen.offer] += chosen.devices;
  }

  void finish(Estimate parts, double price) {
    ++looked_at_;
    parts.step_s = step_of(shape_.mode, shape_.staleness, parts, times_.work().reward_s);
    parts.objective = objective_of(request_, parts.step_s, price);
    Found found;
    found.estimate = parts;
    Candidate& candidate = found.candidate;
    candidate.mode = shape_.mode;
    candidate.staleness = shape_.staleness;
    candidate.strategy = strategy_;
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      const Chosen& one = chosen_[i];
      candidate.sets.push_back({roles_in(shape_.sets[i]), one.offer, one.devices});
      for (std::size_t role = 0; role < kPlanRoles; ++role)
        if (one.option->layouts[role] != nullptr)
          candidate.layouts[role] = one.option->layouts[role]->layout;
      if (i != rollout_) continue;
      candidate.engine = one.option->engines.engine;
      candidate.replicas = one.option->engines.replicas;
      candidate.kv_tokens = one.option->engines.kv_tokens;
    }
    const auto at = std::upper_bound(
        best_.begin(), best_.end(), found,
        [](const Found& a, const Found& b) { return a.estimate.objective < b.estimate.objective; });
    best_.insert(at, std::move(found));
    if (best_.size() > wanted_.of_shape) best_.pop_back();
  }

  SetOptions& options_;
  RoleTimes& times_;
  const PlanRequest& request_;
  const PlanShape& shape_;
  const placement::Strategy strategy_;
  const SearchOptions& wanted_;
  const double worst_;  ///< candidates that are no better are of no use
  std::vector<int> left_;
  std::vector<Chosen> chosen_;
  std::size_t policy_ = 0;
  std::size_t rollout_ = 0;
  std::vector<Found> best_;
  std::uint64_t looked_at_ = 0;
};

void split(const std::vector<PlanRole>& roles, std::size_t next, std::vector<RoleMask>& sets,
           std::vector<std::vector<RoleMask>>& all) {
  if (next == roles.size()) {
    all.push_back(sets);
    return;
  }
  const RoleMask role = mask_of(roles[next]);
  for (std::size_t i = 0; i < sets.size(); ++i) {
    sets[i] |= role;
    split(roles, next + 1, sets, all);
    sets[i] &= ~role;
  }
  sets.push_back(role);
  split(roles, next + 1, sets, all);
  sets.pop_back();
}

bool admits(const PlanRequest& request, SimMode mode, const std::vector<RoleMask>& sets) {
  const bool own = std::find(sets.begin(), sets.end(), mask_of(PlanRole::kRollout)) != sets.end();
  if (mode != SimMode::kSynchronous && !own) return false;
  if (mode == SimMode::kPipelined &&
      (request.base.critic || request.base.epochs != 1 ||
       request.base.minibatch_prompts < request.base.prompts_per_step))
    return false;
  if (request.split_trained) return true;
  return sets.size() == (mode == SimMode::kSynchronous ? 1U : 2U);
}

std::vector<std::int64_t> stalenesses(const PlanRequest& request, SimMode mode) {
  if (mode == SimMode::kSynchronous) return {0};
  std::vector<std::int64_t> all;
  for (std::int64_t eta = 1; eta < request.staleness_max; eta *= 2) all.push_back(eta);
  all.push_back(request.staleness_max);
  if (mode == SimMode::kOneStepOff) all.resize(std::min<std::size_t>(all.size(), 1));
  return all;
}

}  // namespace

std::vector<std::vector<RoleMask>> partitions_of(const std::vector<PlanRole>& roles) {
  std::vector<std::vector<RoleMask>> all;
  std::vector<RoleMask> sets;
  split(roles, 0, sets, all);
  return all;
}

std::vector<PlanShape> shapes_of(const PlanRequest& request) {
  std::vector<PlanShape> shapes;
  for (const SimMode mode : request.modes) {
    for (const std::int64_t staleness : stalenesses(request, mode)) {
      if (mode != SimMode::kSynchronous && staleness < 1) continue;
      for (const auto& sets : partitions_of(request.roles()))
        if (admits(request, mode, sets))
          shapes.push_back({.sets = sets, .mode = mode, .staleness = staleness});
    }
  }
  return shapes;
}

result<Searched> search(SetOptions& options, const SearchOptions& wanted) {
  const PlanRequest& request = options.times().request();
  Searched searched;
  for (const PlanShape& shape : shapes_of(request)) {
    if (wanted.wanted && !wanted.wanted(shape)) continue;
    for (const auto strategy : {placement::Strategy::kPack, placement::Strategy::kSpread}) {
      if (strategy == placement::Strategy::kSpread && !can_spread(request)) continue;
      std::vector<Found>& best = searched.best;
      const double worst = best.size() < wanted.best ? std::numeric_limits<double>::infinity()
                                                     : best.back().estimate.objective;
      ShapeSearch one(options, shape, strategy, wanted, worst);
      one.run();
      searched.looked_at += one.looked_at();
      best.insert(best.end(), one.best().begin(), one.best().end());
      std::stable_sort(best.begin(), best.end(), [](const Found& a, const Found& b) {
        return a.estimate.objective < b.estimate.objective;
      });
      if (best.size() > wanted.best) best.resize(wanted.best);
    }
  }
  return searched;
}

}  // namespace troupe::sim
