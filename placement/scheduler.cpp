#include "placement/scheduler.hpp"

#include "placement/explain.hpp"
#include "placement/problem.hpp"
#include "placement/shape_key.hpp"
#include "runtime/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

namespace troupe::placement {
namespace {

constexpr std::size_t kVerdictsMax = 10'000;
constexpr std::array<std::string_view, 5> kWaitReasons{"none", "resources", "reserved", "affinity",
                                                       "search budget"};

const Kept kNothingKept;
/// Standings stay far from the ends of 64 bits of nanoseconds.
constexpr Duration kWaitMax = std::chrono::hours(24 * 365 * 100);
constexpr Duration kAgeMax = std::chrono::hours(1);

Decision rejected(const GroupRequest& request, Error error) {
  return {.group = request.name, .kind = DecisionKind::kRejected, .error = std::move(error)};
}

bool has_strict_affinity(const Cluster& cluster, const GroupRequest& request) {
  return cluster.kept_apart_from(request.name) != nullptr ||
         std::any_of(request.affinities.begin(), request.affinities.end(),
                     [](const Affinity& affinity) { return affinity.strict; });
}

/// Whether it wants to be near a group that has no place.
bool waits_for_group(const Cluster& cluster, const GroupRequest& request) {
  return std::any_of(
      request.affinities.begin(), request.affinities.end(), [&cluster](const Affinity& affinity) {
        return affinity.strict && !affinity.apart && cluster.group(affinity.group) == nullptr;
      });
}

/// Whether a request may complete an active group: the bundles there are as they were, some are
/// missing, and the rules that placed the others still hold.
result<void> check_continues(const GroupRequest& request, const ActiveGroup* active) {
  if (active == nullptr) return {};
  const GroupRequest& before = active->request;
  if (active->bundles.size() >= request.bundles.size())
    return fail(ErrorCode::kAlreadyExists, "group {}: is active with {} bundles", request.name,
                active->bundles.size());
  if (request.strategy != before.strategy || request.level != before.level ||
      request.per_domain_max != before.per_domain_max ||
      request.per_domain_exact != before.per_domain_exact)
    return fail(ErrorCode::kConflict, "group {}: is active as {} at level {}, queued as {} at {}",
                request.name, strategy_name(before.strategy), level_name(before.level),
                strategy_name(request.strategy), level_name(request.level));
  for (const auto& [number, bundle] : active->bundles) {
    const auto index = static_cast<std::size_t>(number);
    const bool same = index < request.bundles.size() &&
                      request.bundles[index] == before.bundles[index] &&
                      request.reserve_per_gpu == before.reserve_per_gpu;
    if (!same)
      return fail(ErrorCode::kConflict, "group {}: is active and bundle {} differs in the request",
                  request.name, number);
  }
  return {};
}

Error make_error(ErrorCode code, std::string message) {
  return {.code = code, .message = std::move(message), .origin = {}, .causes = {}};
}

}  // namespace

std::string_view wait_reason_name(WaitReason reason) {
  const auto index = static_cast<std::size_t>(reason);
  return index < kWaitReasons.size() ? kWaitReasons[index] : "unknown";
}

Duration standing(const QueuedGroup& group, const SchedulerOptions& options) {
  if (options.age_per_priority == Duration{}) return Duration{group.request.priority};
  const std::int64_t priority =
      std::clamp(group.request.priority, -kPriorityMax, kPriorityMax);  // not validated yet
  return options.age_per_priority * priority + std::min<Duration>(group.waited, kWaitMax);
}

/// The state of one pass.
class Scheduler::Pass {
 public:
  Pass(Scheduler& scheduler, Cluster& cluster, std::span<const QueuedGroup> queue)
      : scheduler_(scheduler), cluster_(cluster), queue_(queue) {
    for (const QueuedGroup& queued : queue) names_.insert(queued.request.name);
    for (const QueuedGroup& queued : queue) {
      for (const Affinity& affinity : queued.request.affinities) {
        if (affinity.strict && !affinity.apart && cluster.group(affinity.group) == nullptr)
          near_[queued.request.name].insert(affinity.group);
      }
    }
  }

  PassResult run() {
    std::vector<const QueuedGroup*> order;
    for (const QueuedGroup& queued : queue_) order.push_back(&queued);
    const auto key = [this](const QueuedGroup* group) {
      return std::tuple(-standing(*group, scheduler_.options_), group->arrival,
                        std::string_view(group->request.name));
    };
    std::stable_sort(order.begin(), order.end(),
                     [&key](const auto* a, const auto* b) { return key(a) < key(b); });
    cluster_.clear_holds();
    PassResult result;
    result.decisions.reserve(order.size());
    std::set<std::string_view> seen;
    for (const QueuedGroup* queued : order) {
      const bool twice = !seen.insert(queued->request.name).second;
      result.decisions.push_back(twice ? repeated(queued->request) : decide(queued->request));
      if (result.decisions.back().kind == DecisionKind::kWaiting)
        waiting_.push_back(&queued->request);
    }
    cluster_.clear_holds();
    if (!held_.empty()) tell_reserved(result);
    scheduler_.reservations_ = held_;
    result.reservations = std::move(held_);
    result.cluster_version = cluster_.version();
    return result;
  }

 private:
  static Decision repeated(const GroupRequest& request) {
    return rejected(request, make_error(ErrorCode::kAlreadyExists,
                                        fmt::format("group {} is queued twice", request.name)));
  }

  Decision decide(const GroupRequest& request) {
    if (auto valid = validate(request); !valid) return rejected(request, valid.error());
    const ActiveGroup* active = cluster_.group(request.name);
    if (auto known = check_near(request); !known) return rejected(request, known.error());
    if (auto fits = check_continues(request, active); !fits) return rejected(request, fits.error());
    const Kept& kept = active != nullptr ? active->bundles : kNothingKept;
    const bool comparable = kept.empty() && !has_strict_affinity(cluster_, request);
    std::string key;
    if (comparable && !failed_.empty()) {
      key = shape_key(request);
      if (const auto before = failed_.find(key); before != failed_.end())
        return again(request, kept, before->second);
    }
    if (steps_ > scheduler_.options_.pass_steps_max)
      return waits(request, WaitReason::kSearchBudget);
    PlaceResult place = scheduler_.placer_->place(cluster_, request, kept, View::kFree);
    steps_ += place.steps;
    if (place.outcome == PlaceOutcome::kFound) return placed(request, std::move(place));
    Decision decision = not_now(request, kept, place.outcome);
    if (comparable && decision.kind != DecisionKind::kRejected) {
      if (key.empty()) key = shape_key(request);
      failed_.emplace(std::move(key), decision);
    }
    return decision;
  }

  /// A group of the same shape failed before in this pass, and room only shrinks in a pass.
  Decision again(const GroupRequest& request, const Kept& kept, Decision decision) {
    decision.group = request.name;
    if (decision.kind == DecisionKind::kInfeasible)
      decision.error = describe_infeasible(cluster_, request, kept);
    if (decision.kind == DecisionKind::kWaiting) {
      decision.position = ++position_;
      if (decision.wait == WaitReason::kResources) reserve(request, kept);
    }
    return decision;
  }

  Decision placed(const GroupRequest& request, PlaceResult place) {
    const auto taken = cluster_.allocate(request, place.bundles);
    TROUPE_CHECK(taken, "scheduler: {}", taken.error().message);
    return {.group = request.name,
            .kind = DecisionKind::kPlaced,
            .bundles = std::move(place.bundles),
            .cost = place.cost};
  }

  Decision waits(const GroupRequest& request, WaitReason reason) {
    return {.group = request.name,
            .kind = DecisionKind::kWaiting,
            .wait = reason,
            .position = ++position_};
  }

  Decision not_now(const GroupRequest& request, const Kept& kept, PlaceOutcome outcome) {
    const ActiveGroup* active = cluster_.group(request.name);
    const PlaceOutcome ever = scheduler_.feasible(cluster_, request, active, steps_);
    if (ever == PlaceOutcome::kNone) {
      Decision decision{.group = request.name, .kind = DecisionKind::kInfeasible};
      decision.error = describe_infeasible(cluster_, request, kept);
      return decision;
    }
    if (outcome == PlaceOutcome::kBudget || ever == PlaceOutcome::kBudget) {
      Decision decision = waits(request, WaitReason::kSearchBudget);
      reserve(request, kept);
      return decision;
    }
    if (is_kept_by_affinity(request, kept)) {
      Decision decision = waits(request, WaitReason::kAffinity);
      reserve(request, kept);
      return decision;
    }
    Decision decision = waits(request, WaitReason::kResources);
    reserve(request, kept);
    return decision;
  }

  /// Whether it would fit at once if it had no strict affinities, nor others towards it.
  bool is_kept_by_affinity(const GroupRequest& request, const Kept& kept) {
    if (!has_strict_affinity(cluster_, request)) return false;
    if (near_.contains(request.name)) return true;
    GroupRequest alone = request;
    alone.affinities.clear();
    alone.name.clear();
    PlaceResult place = scheduler_.placer_->place(cluster_, alone, kept, View::kFree);
    steps_ += place.steps;
    return place.outcome == PlaceOutcome::kFound;
  }

  /// Holds the place the group waits for: that of the last pass while it is good, else a new one.
  void reserve(const GroupRequest& request, const Kept& kept) {
    if (held_.size() >= scheduler_.options_.reservations_max) return;
    const auto& before = scheduler_.reservations_;
    const auto old = std::find_if(before.begin(), before.end(), [&](const Reservation& one) {
      return one.group == request.name;
    });
    if (old != before.end() && is_good(*old, request, kept)) {
      cluster_.hold(old->bundles);
      held_.push_back(*old);
      return;
    }
    if (steps_ > scheduler_.options_.pass_steps_max) return;
    PlaceResult place = scheduler_.placer_->place(cluster_, request, kept, View::kCapacity);
    steps_ += place.steps;
    if (place.outcome != PlaceOutcome::kFound) return;
    cluster_.hold(place.bundles);
    held_.push_back({request.name, request, std::move(place.bundles)});
  }

  /// Whether a reservation still has nodes that could hold it, beside what is held already.
  bool is_good(const Reservation& old, const GroupRequest& request, const Kept& kept) const {
    if (old.request != request || old.bundles.size() + kept.size() != request.bundles.size())
      return false;
    std::map<std::size_t, NodeFree> free;
    for (const BundlePlacement& bundle : old.bundles) {
      const NodeState* node = cluster_.node(bundle.node);
      if (kept.contains(bundle.bundle) || node == nullptr || node->spec.draining) return false;
      const std::size_t position = cluster_.position_of(bundle.node);
      const auto [at, is_new] = free.try_emplace(position);
      if (is_new) at->second = cluster_.free_at(position, View::kCapacity);
      NodeFree& there = at->second;
      for (const auto& [device, amount] : bundle.devices) {
        std::int32_t& units = there.devices[static_cast<std::size_t>(device)];
        if (units < amount.units) return false;
        units -= static_cast<std::int32_t>(amount.units);
      }
      for (const auto& [core, amount] : bundle.cores)
        there.cpu[static_cast<std::size_t>(socket_of_core(node->spec, core))] -= amount.units;
      there.memory -= bundle.memory.value;
      if (there.memory < 0) return false;
      for (const auto& [name, amount] : bundle.named) {
        const auto index = cluster_.named_index(name);
        if (!index || *index >= there.named.size()) return false;
        there.named[*index] -= amount.units;
        if (there.named[*index] < 0) return false;
      }
    }
    return std::all_of(free.begin(), free.end(), [](const auto& entry) {
      const auto& cpu = entry.second.cpu;
      return std::all_of(cpu.begin(), cpu.end(), [](std::int64_t units) { return units >= 0; });
    });
  }

  /// With the holds gone: what would fit now was kept out by them.
  void tell_reserved(PassResult& result) {
    std::map<std::string, bool> fits;
    std::size_t next = 0;
    for (Decision& decision : result.decisions) {
      if (decision.kind != DecisionKind::kWaiting) continue;
      const GroupRequest& request = *waiting_[next++];
      if (decision.wait != WaitReason::kResources) continue;
      if (has_strict_affinity(cluster_, request) || cluster_.group(request.name) != nullptr)
        continue;
      const auto [known, is_new] = fits.try_emplace(shape_key(request), false);
      if (is_new && steps_ <= scheduler_.options_.pass_steps_max) {
        PlaceResult place = scheduler_.placer_->place(cluster_, request, kNothingKept, View::kFree);
        steps_ += place.steps;
        known->second = place.outcome == PlaceOutcome::kFound;
      }
      if (known->second) decision.wait = WaitReason::kReserved;
    }
  }

  /// Strict wishes to be near groups that can never be there.
  result<void> check_near(const GroupRequest& request) const {
    const auto wanted = near_.find(request.name);
    if (wanted == near_.end()) return {};
    for (const std::string& group : wanted->second) {
      if (cluster_.group(group) != nullptr) continue;  // placed in this pass
      if (!names_.contains(group))
        return fail(ErrorCode::kNotFound,
                    "group {}: affinity to {}: no such group, active or queued", request.name,
                    group);
    }
    std::set<std::string_view> reached;
    std::vector<std::string_view> open{request.name};
    while (!open.empty()) {
      const auto at = near_.find(open.back());
      open.pop_back();
      if (at == near_.end()) continue;
      for (const std::string& group : at->second) {
        if (group == request.name)
          return fail(ErrorCode::kConflict,
                      "group {}: affinities lead in a circle back to it, by {}", request.name,
                      at->first);
        if (cluster_.group(group) == nullptr && reached.insert(group).second) open.push_back(group);
      }
    }
    return {};
  }

  Scheduler& scheduler_;
  Cluster& cluster_;
  std::span<const QueuedGroup> queue_;
  std::set<std::string, std::less<>> names_;
  std::map<std::string, std::set<std::string>, std::less<>> near_;
  std::map<std::string, Decision> failed_;  ///< by shape_key
  std::vector<const GroupRequest*> waiting_;
  std::vector<Reservation> held_;
  std::size_t position_ = 0;
  std::size_t steps_ = 0;
};

Scheduler::Scheduler(SchedulerOptions options)
    : options_(options), placer_(std::make_unique<Placer>(options.search)) {
  TROUPE_CHECK(options.age_per_priority >= Duration{} && options.age_per_priority <= kAgeMax,
               "scheduler: age_per_priority {} ns", options.age_per_priority.count());
  TROUPE_CHECK(options.reservations_max >= 1, "scheduler: no reservations, so big groups starve");
}
Scheduler::~Scheduler() = default;
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;

PlaceOutcome Scheduler::feasible(const Cluster& cluster, const GroupRequest& request,
                                 const ActiveGroup* kept, std::size_t& steps) {
  const bool plain = kept == nullptr || kept->bundles.empty();
  if (topology_version_ != cluster.topology_version() || on_empty_.size() > kVerdictsMax) {
    on_empty_.clear();
    topology_version_ = cluster.topology_version();
  }
  std::string key = plain ? shape_key(request) : std::string();
  if (const auto known = on_empty_.find(key); plain && known != on_empty_.end())
    return known->second;
  PlaceResult place =
      placer_->place(cluster, request, plain ? kNothingKept : kept->bundles, View::kEmpty);
  steps += place.steps;
  if (plain) on_empty_.emplace(std::move(key), place.outcome);
  return place.outcome;
}

result<PassResult> Scheduler::pass(Cluster& cluster, std::span<const QueuedGroup> queue) {
  if (queue.size() > options_.queue_max)
    return fail(ErrorCode::kResourceExhausted, "scheduler: {} groups queued, at most {}",
                queue.size(), options_.queue_max);
  return Pass(*this, cluster, queue).run();
}

Decision Scheduler::place_one(Cluster& cluster, const GroupRequest& request) {
  if (auto valid = validate(request); !valid) return rejected(request, valid.error());
  const ActiveGroup* active = cluster.group(request.name);
  if (auto fits = check_continues(request, active); !fits) return rejected(request, fits.error());
  for (const Reservation& reservation : reservations_) {
    if (reservation.group != request.name) cluster.hold(reservation.bundles);
  }
  const Kept& kept = active != nullptr ? active->bundles : kNothingKept;
  PlaceResult place = placer_->place(cluster, request, kept, View::kFree);
  if (!reservations_.empty()) cluster.clear_holds();
  Decision decision{.group = request.name};
  if (place.outcome == PlaceOutcome::kFound) {
    const auto taken = cluster.allocate(request, place.bundles);
    TROUPE_CHECK(taken, "scheduler: {}", taken.error().message);
    decision.kind = DecisionKind::kPlaced;
    decision.bundles = std::move(place.bundles);
    decision.cost = place.cost;
    return decision;
  }
  const PlaceOutcome ever = feasible(cluster, request, active, place.steps);
  decision.wait =
      waits_for_group(cluster, request) ? WaitReason::kAffinity : WaitReason::kResources;
  if (ever == PlaceOutcome::kNone) {
    decision.kind = DecisionKind::kInfeasible;
    decision.wait = WaitReason::kNone;
    decision.error = describe_infeasible(cluster, request, kept);
  } else if (ever == PlaceOutcome::kBudget || place.outcome == PlaceOutcome::kBudget) {
    decision.wait = WaitReason::kSearchBudget;
  }
  return decision;
}

result<void> Scheduler::check_feasible(const Cluster& cluster, const GroupRequest& request) {
  TROUPE_TRY_VOID(validate(request));
  std::size_t steps = 0;
  if (feasible(cluster, request, nullptr, steps) == PlaceOutcome::kNone)
    return fail(describe_infeasible(cluster, request, kNothingKept));
  return {};
}

result<void> Scheduler::check_submission(const Cluster& cluster, std::span<const QueuedGroup> queue,
                                         const GroupRequest& request) {
  TROUPE_TRY_VOID(validate(request));
  std::set<std::string_view> names;
  for (const QueuedGroup& queued : queue) names.insert(queued.request.name);
  if (names.contains(request.name) || cluster.group(request.name) != nullptr)
    return fail(ErrorCode::kAlreadyExists, "group {}: there is a group of this name", request.name);
  for (const Affinity& affinity : request.affinities) {
    if (!names.contains(affinity.group) && cluster.group(affinity.group) == nullptr)
      return fail(ErrorCode::kNotFound, "group {}: affinity to {}: no such group, active or queued",
                  request.name, affinity.group);
  }
  return check_feasible(cluster, request);
}

}  // namespace troupe::placement
