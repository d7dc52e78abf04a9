#include "placement/explain.hpp"

#include "placement/count_fill.hpp"
#include "placement/refusal.hpp"
#include "runtime/base/index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace troupe::placement {
namespace {

constexpr std::array<std::string_view, 10> kConstraints{"gpu",      "cpu",      "memory",   "named",
                                                        "selector", "draining", "affinity", "held",
                                                        "strategy", "fits"};
constexpr std::array<std::string_view, 5> kStates{"active", "waiting", "infeasible", "rejected",
                                                  "unknown"};

/// Whether a bundle holds some of the resource that is short.
bool holds_some(const BundlePlacement& bundle, const ShortResource& resource) {
  switch (resource.constraint) {
    case Constraint::kGpu:
      return !bundle.devices.empty();
    case Constraint::kCpu:
      return !bundle.cores.empty();
    case Constraint::kMemory:
      return bundle.memory.value > 0;
    default:
      return bundle.named.contains(resource.name);
  }
}

/// The cluster as a group in the queue meets it: with what is held for those before it.
class Explainer {
 public:
  Explainer(const Cluster& cluster, const Scheduler& scheduler, const GroupRequest& request,
            const std::vector<std::string>& ahead)
      : cluster_(cluster),
        held_(cluster),
        request_(request),
        kept_(cluster.group(request.name) != nullptr ? cluster.group(request.name)->bundles
                                                     : Kept{}),
        placer_(scheduler.options().search) {
    for (const Reservation& reservation : scheduler.reservations()) {
      if (reservation.group == request.name) own_ = reservation.bundles;
      const bool before = std::find(ahead.begin(), ahead.end(), reservation.group) != ahead.end();
      if (before) held_.hold(reservation.bundles);
    }
    for (const auto& [name, group] : cluster.groups()) {
      for (const auto& [number, bundle] : group.bundles)
        tenants_[cluster.position_of(bundle.node)].emplace_back(name, &bundle);
    }
  }

  void fill(Explanation& out) {
    const PlaceOutcome ever = placer_.place(cluster_, request_, kept_, View::kEmpty).outcome;
    if (ever == PlaceOutcome::kNone) {
      out.state = GroupState::kInfeasible;
      out.error = describe_infeasible(cluster_, request_, kept_);
      out.summary = out.error->message;
      look_at_nodes(out);
      look_at_domains(out);
      return;
    }
    out.state = GroupState::kWaiting;
    const PlaceOutcome now = placer_.place(held_, request_, kept_, View::kFree).outcome;
    if (now == PlaceOutcome::kFound) {
      out.summary = fmt::format("group {} fits now; the next pass places it", request_.name);
      return;
    }
    out.wait = reason(now, ever);
    look_at_nodes(out);
    look_at_domains(out);
    find_holders(out);
    out.summary = summary(out);
  }

 private:
  WaitReason reason(PlaceOutcome now, PlaceOutcome ever) {
    if (now == PlaceOutcome::kBudget || ever == PlaceOutcome::kBudget)
      return WaitReason::kSearchBudget;
    if (placer_.place(cluster_, request_, kept_, View::kFree).outcome == PlaceOutcome::kFound)
      return WaitReason::kReserved;
    for (const Affinity& affinity : request_.affinities) {
      const bool missing = cluster_.group(affinity.group) == nullptr;
      if (affinity.strict && !affinity.apart && missing) return WaitReason::kAffinity;
    }
    GroupRequest alone = request_;
    alone.affinities.clear();
    alone.name.clear();
    const bool bound =
        !request_.affinities.empty() || cluster_.kept_apart_from(request_.name) != nullptr;
    if (bound && placer_.place(held_, alone, kept_, View::kFree).outcome == PlaceOutcome::kFound)
      return WaitReason::kAffinity;
    return WaitReason::kResources;
  }

  std::vector<std::string> holders(std::size_t position, const ShortResource& resource) const {
    std::set<std::string, NaturalLess> names;
    if (const auto found = tenants_.find(position); found != tenants_.end()) {
      for (const auto& [name, bundle] : found->second) {
        if (holds_some(*bundle, resource)) names.insert(name);
      }
    }
    return {names.begin(), names.end()};
  }

  void look_at_nodes(Explanation& out) {
    Problem held(held_, request_, kept_, View::kFree);
    const Problem free(cluster_, request_, kept_, View::kFree);
    const Problem empty(cluster_, request_, kept_, View::kEmpty);
    const NodeRules rules(cluster_, request_, true);
    const SiteList sites(held);
    SearchState now;
    SearchState without_holds;
    SearchState ever;
    now.reset(held);
    without_holds.reset(free);
    ever.reset(empty);
    for (const Shape& shape : held.shapes) {
      const auto limit = static_cast<std::int32_t>(shape.bundles.size());
      for (std::size_t i = 0; i < cluster_.node_count(); ++i) {
        Refusal refusal{.place = "node " + cluster_.nodes()[i].spec.name, .bundle = shape.sample};
        if (!refused_by_rules(rules, shape, i, refusal)) {
          const auto list = short_resources(held, sites, now, shape, i);
          for (std::size_t s = sites.begin_of(i); s < sites.begin_of(i + 1); ++s)
            refusal.bundles_fitting += now.fits(shape.demand, sites[s], limit);
          if (refusal.bundles_fitting > 0) continue;
          if (list.empty()) continue;
          const auto unheld = short_resources(held, sites, without_holds, shape, i);
          const bool is_held = unheld.empty();
          const ShortResource& first = is_held ? list.front() : unheld.front();
          refusal.constraint = is_held ? Constraint::kHeld : first.constraint;
          refusal.resource = first.name;
          refusal.wanted = first.wanted;
          refusal.found = first.found;
          refusal.by_capacity = !short_resources(held, sites, ever, shape, i).empty();
          if (!is_held) refusal.held_by = holders(i, first);
        }
        out.nodes.push_back(std::move(refusal));
      }
    }
  }

  bool refused_by_rules(const NodeRules& rules, const Shape& shape, std::size_t position,
                        Refusal& refusal) const {
    const auto verdict = rules.verdict(request_.bundles[index(shape.sample)], position);
    const Labels& labels = cluster_.nodes()[position].spec.labels;
    switch (verdict.kind) {
      case NodeRules::Verdict::Kind::kAllowed:
        return false;
      case NodeRules::Verdict::Kind::kDraining:
        refusal.constraint = Constraint::kDraining;
        return true;
      case NodeRules::Verdict::Kind::kSelector: {
        refusal.constraint = Constraint::kSelector;
        refusal.resource = verdict.selector->label;
        refusal.wanted = to_string(*verdict.selector);
        const auto label = labels.find(verdict.selector->label);
        refusal.found = label == labels.end() ? "no such label" : label->second;
        refusal.by_capacity = true;
        return true;
      }
      case NodeRules::Verdict::Kind::kAffinity:
        refusal.constraint = Constraint::kAffinity;
        refusal.resource = verdict.group;
        refusal.wanted = verdict.apart ? "apart" : "near";
        refusal.found = verdict.apart ? "near" : "apart";
        return true;
    }
    return false;
  }

  /// How many of the missing bundles each domain of the level could take, for strict strategies.
  void look_at_domains(Explanation& out) {
    Problem problem(held_, request_, kept_, View::kFree);
    const DomainRules& rules = problem.rules;
    const bool limited = rules.most <= problem.missing || rules.exact > 0;
    if (!rules.single && !limited) return;
    const NodeRules node_rules(cluster_, request_, true);
    set_eligible(problem, node_rules);
    const SiteList sites(problem);
    SearchState state;
    state.reset(problem);
    CountFill counting(problem, sites, state, nullptr);
    const int depth = problem.level() >= Level::kSocket
                          ? kSiteDepth
                          : static_cast<int>(problem.level()) + kRackDepth;
    const Occupied occupied(problem);
    for (const Shape& shape : problem.shapes) {
      const auto count = static_cast<std::int32_t>(shape.bundles.size());
      const std::int32_t wanted =
          rules.single ? count : (rules.exact > 0 ? rules.exact : std::min(rules.most, count));
      counting.measure(shape, count, {kRootDepth, 0}, occupied, -1);
      for (std::size_t i = 0; i < counting.count_at(depth); ++i) {
        const std::int32_t room = counting.room({depth, i});
        if (room >= wanted) continue;
        out.domains.push_back({.place = problem.domains.name(static_cast<std::int32_t>(i)),
                               .bundle = shape.sample,
                               .constraint = Constraint::kStrategy,
                               .resource = "bundles",
                               .wanted = fmt::format("{}", wanted),
                               .found = fmt::format("{}", room),
                               .bundles_fitting = room});
      }
    }
  }

  /// The groups that hold what the group's reservation, or else the best place, needs.
  void find_holders(Explanation& out) {
    if (own_.empty()) {
      PlaceResult place = placer_.place(held_, request_, kept_, View::kCapacity);
      if (place.outcome != PlaceOutcome::kFound) return;
      own_ = std::move(place.bundles);
    }
    std::set<std::string, NaturalLess> names;
    std::map<std::size_t, NodeFree> left;
    for (const BundlePlacement& bundle : own_) {
      if (cluster_.node(bundle.node) == nullptr) continue;
      const std::size_t position = cluster_.position_of(bundle.node);
      const auto [at, is_new] = left.try_emplace(position);
      if (is_new) at->second = held_.free_at(position, View::kFree);
      subtract(bundle, position, at->second, names);
    }
    out.would_run_when.assign(names.begin(), names.end());
  }

  void subtract(const BundlePlacement& bundle, std::size_t position, NodeFree& left,
                std::set<std::string, NaturalLess>& names) const {
    const auto blame = [&](const ShortResource& resource) {
      for (std::string& name : holders(position, resource)) names.insert(std::move(name));
    };
    for (const auto& [device, amount] : bundle.devices) {
      std::int32_t& units = left.devices[index(device)];
      units -= static_cast<std::int32_t>(amount.units);
      if (units >= 0) continue;
      const auto tenants = tenants_.find(position);
      if (tenants == tenants_.end()) continue;
      for (const auto& [name, tenant] : tenants->second) {
        const auto& devices = tenant->devices;
        if (std::any_of(devices.begin(), devices.end(),
                        [d = device](const DeviceShare& share) { return share.device == d; }))
          names.insert(name);
      }
    }
    std::int64_t cpu = 0;
    for (const auto& [core, amount] : bundle.cores) cpu += amount.units;
    left.cpu.front() -= cpu;  // the node's sum is what counts
    std::int64_t sum = 0;
    for (const std::int64_t units : left.cpu) sum += units;
    if (sum < 0) blame({.constraint = Constraint::kCpu});
    left.memory -= bundle.memory.value;
    if (left.memory < 0) blame({.constraint = Constraint::kMemory});
    for (const auto& [name, amount] : bundle.named) {
      const auto named = cluster_.named_index(name);
      if (!named || *named >= left.named.size()) continue;
      left.named[*named] -= amount.units;
      if (left.named[*named] < 0) blame({.constraint = Constraint::kNamed, .name = name});
    }
  }

  std::string summary(const Explanation& out) const {
    std::string text = fmt::format("group {} waits for {}, position {} in the queue", request_.name,
                                   wait_reason_name(out.wait), out.position);
    if (out.wait == WaitReason::kAffinity) {
      for (const Affinity& affinity : request_.affinities) {
        if (affinity.strict && !affinity.apart && cluster_.group(affinity.group) == nullptr)
          text += fmt::format("; group {} must be placed first", affinity.group);
      }
    }
    if (out.wait == WaitReason::kReserved) text += "; what it needs is held for groups before it";
    if (!out.would_run_when.empty())
      text += fmt::format("; it would run when these end: {}", fmt::join(out.would_run_when, ", "));
    return text;
  }

  const Cluster& cluster_;
  Cluster held_;
  const GroupRequest& request_;
  Kept kept_;
  Placer placer_;
  std::vector<BundlePlacement> own_;
  std::map<std::size_t, std::vector<std::pair<std::string, const BundlePlacement*>>> tenants_;
};

}  // namespace

std::string_view constraint_name(Constraint constraint) {
  const auto i = static_cast<std::size_t>(constraint);
  return i < kConstraints.size() ? kConstraints[i] : "unknown";
}

std::string_view group_state_name(GroupState state) {
  const auto i = static_cast<std::size_t>(state);
  return i < kStates.size() ? kStates[i] : "unknown";
}

std::string Refusal::to_string() const {
  std::string text = fmt::format("{}: {}", place, constraint_name(constraint));
  if (!resource.empty() && resource != constraint_name(constraint)) text += " " + resource;
  if (!wanted.empty())
    text += fmt::format(" wanted {}, {} {}", wanted, by_capacity ? "has" : "free", found);
  if (!held_by.empty()) text += fmt::format(" (held by {})", fmt::join(held_by, ", "));
  return text;
}

std::string Explanation::to_string(std::size_t refusals_max) const {
  std::string text = summary;
  for (const std::vector<Refusal>* list : {&domains, &nodes}) {
    for (std::size_t i = 0; i < std::min(list->size(), refusals_max); ++i)
      text += "\n  " + (*list)[i].to_string();
    if (list->size() > refusals_max)
      text += fmt::format("\n  and {} more", list->size() - refusals_max);
  }
  return text;
}

Explanation explain(const Cluster& cluster, const Scheduler& scheduler,
                    std::span<const QueuedGroup> queue, std::string_view group) {
  Explanation out;
  out.group = std::string(group);
  std::vector<const QueuedGroup*> order;
  for (const QueuedGroup& queued : queue) order.push_back(&queued);
  std::stable_sort(order.begin(), order.end(), [&](const auto* a, const auto* b) {
    const auto key = [&](const QueuedGroup* one) {
      return std::tuple(-standing(*one, scheduler.options()), one->arrival,
                        std::string_view(one->request.name));
    };
    return key(a) < key(b);
  });
  const GroupRequest* request = nullptr;
  for (const QueuedGroup* queued : order) {
    if (queued->request.name == group) {
      request = &queued->request;
      break;
    }
    out.ahead.push_back(queued->request.name);
  }
  const ActiveGroup* active = cluster.group(group);
  if (request == nullptr) {
    out.ahead.clear();
    if (active == nullptr) {
      out.summary = fmt::format("group {} is neither active nor queued", group);
      return out;
    }
    out.state = GroupState::kActive;
    out.summary = fmt::format("group {} holds {} of {} bundles", group, active->bundles.size(),
                              active->request.bundles.size());
    return out;
  }
  out.position = out.ahead.size() + 1;
  if (auto valid = validate(*request); !valid) {
    out.state = GroupState::kRejected;
    out.error = valid.error();
    out.summary = valid.error().message;
    return out;
  }
  Explainer(cluster, scheduler, *request, out.ahead).fill(out);
  return out;
}

}  // namespace troupe::placement
