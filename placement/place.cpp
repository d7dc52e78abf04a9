#include "placement/place.hpp"

#include "placement/backtrack.hpp"
#include "placement/count_fill.hpp"
#include "placement/materialize.hpp"
#include "placement/problem.hpp"
#include "placement/search_state.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/index.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace troupe::placement {
namespace {

/// Mixed groups try at most this many containers of a depth.
constexpr std::size_t kMixedTriesMax = 12;

/// Sums over all bundles that no set of nodes can go below.
struct Totals {
  std::int64_t gpu = 0;
  double cpu = 0;  // sums over a cluster may pass 2^63
  double memory = 0;
};

bool covers(const Totals& have, const Totals& want) {
  return have.gpu >= want.gpu && have.cpu >= want.cpu && have.memory >= want.memory;
}

}  // namespace

struct Placer::Scratch {
  SearchState state;
  SearchState now;
};

/// One search for one wish: `eligible` of the shapes is set.
class Solver {
 public:
  Solver(const Problem& problem, const SiteList& sites, SearchState& state, SearchState* now,
         const SearchOptions& options)
      : problem_(problem),
        sites_(sites),
        state_(state),
        counting_(problem, sites, state, now),
        options_(options) {
    for (const Shape& shape : problem.shapes) {
      const auto count = static_cast<std::int64_t>(shape.bundles.size());
      want_.gpu += shape.demand.gpu_units() * count;
      want_.cpu += static_cast<double>(shape.demand.cpu) * static_cast<double>(count);
      want_.memory += static_cast<double>(shape.demand.memory) * static_cast<double>(count);
    }
  }

  PlaceOutcome solve() {
    const bool counted = problem_.shapes.size() == 1 ? count_one() : count_mixed();
    if (!counted && (problem_.shapes.size() == 1 || cannot_be())) return PlaceOutcome::kNone;
    if (!counted) {
      Backtrack search(problem_, sites_, state_);
      const PlaceOutcome outcome =
          search.run(options_.steps_max, options_.improve_steps_max, std::nullopt);
      steps_ = search.steps();
      if (outcome == PlaceOutcome::kFound) plan_ = search.plan();
      return outcome;
    }
    // A place to wait for is as near as can be, not as cheap.
    if (problem_.view != View::kCapacity) improve();
    return PlaceOutcome::kFound;
  }

  Plan take_plan() { return std::move(plan_); }
  std::size_t steps() const { return steps_; }

 private:
  static Container root() { return {kRootDepth, 0}; }

  /// Gives the counted bundles of a shape; appends to `plan`.
  void give(const Shape& shape, const std::vector<SiteCount>& counts, Occupied& occupied,
            Plan& plan) {
    for (const SiteCount& part : counts) {
      const Site site = sites_[part.site];
      for (std::int32_t i = 0; i < part.count; ++i) plan.push_back(state_.give(shape.demand, site));
      occupied.add(problem_, site, part.count);
    }
  }

  void undo(Plan& plan) {
    std::size_t shape = 0;
    std::size_t in_shape = 0;
    std::vector<const Shape*> owner;
    for (std::size_t i = 0; i < plan.size(); ++i) {
      if (in_shape == problem_.shapes[shape].bundles.size()) {
        ++shape;
        in_shape = 0;
      }
      owner.push_back(&problem_.shapes[shape]);
      ++in_shape;
    }
    for (; !plan.empty(); plan.pop_back()) state_.undo(owner[plan.size() - 1]->demand, plan.back());
  }

  bool count_one() {
    const Shape& shape = problem_.shapes.front();
    Occupied occupied(problem_);
    const auto counts = counting_.fill(shape, problem_.missing, root(), occupied, -1);
    if (!counts) return false;
    give(shape, *counts, occupied, plan_);
    return true;
  }

  /// All shapes after each other inside one container.
  std::optional<Plan> fill_all(const Container& container, std::int32_t only) {
    Plan plan;
    Occupied occupied(problem_);
    for (const Shape& shape : problem_.shapes) {
      const auto wanted = static_cast<std::int32_t>(shape.bundles.size());
      const auto counts = counting_.fill(shape, wanted, container, occupied, only);
      if (!counts) {
        undo(plan);
        return std::nullopt;
      }
      give(shape, *counts, occupied, plan);
    }
    return plan;
  }

  Totals have(const Container& container) const {
    Totals sum;
    const auto [begin, end] = counting_.parts(container, kNodeDepth);
    for (std::size_t i = begin; i < end; ++i) {
      const bool any = std::any_of(problem_.shapes.begin(), problem_.shapes.end(),
                                   [i](const Shape& shape) { return shape.eligible[i] != 0; });
      if (!any) continue;
      const NodeSummary& node = state_.summary(i);
      sum.gpu += node.gpu_units;
      sum.cpu += static_cast<double>(node.cpu);
      sum.memory += static_cast<double>(node.memory);
    }
    return sum;
  }

  CountCost cost_of_plan(const Plan& plan) const {
    CostCounter counter(problem_);
    for (const Given& given : plan) {
      const auto position = index(given.position);
      const std::int32_t device = given.devices.empty() ? 0 : given.devices[0];
      counter.add({given.position, given.socket, device,
                   problem_.domains.of(position, std::max(given.socket, 0), device)});
    }
    return counter.bound(0);
  }

  /// Whether a container could hold all, each shape looked at alone.
  bool may_hold(const Container& container, std::int32_t only) {
    if (!covers(have(container), want_)) return false;
    const Occupied occupied(problem_);
    return std::all_of(problem_.shapes.begin(), problem_.shapes.end(), [&](const Shape& shape) {
      const auto wanted = static_cast<std::int32_t>(shape.bundles.size());
      counting_.measure(shape, wanted, container, occupied, only);
      return counting_.room(container) >= wanted;
    });
  }

  /// Containers of one depth that could hold the group, the fullest first.
  std::vector<Container> containers(int depth) const {
    std::vector<std::pair<std::int64_t, std::size_t>> found;
    for (std::size_t i = 0; i < counting_.count_at(depth); ++i) {
      const Totals there = have({depth, i});
      if (covers(there, want_)) found.emplace_back(there.gpu, i);
    }
    std::sort(found.begin(), found.end());
    std::vector<Container> list;
    for (const auto& [gpu, i] : found) list.push_back({depth, i});
    return list;
  }

  void keep_better(std::optional<Plan> plan, std::optional<std::pair<CountCost, Plan>>& best) {
    if (!plan) return;
    const CountCost cost = cost_of_plan(*plan);
    Plan copy = *plan;
    undo(*plan);
    if (!best || cost < best->first) best.emplace(cost, std::move(copy));
  }

  bool count_mixed() {
    if (problem_.rules.exact > 0) return false;  // shapes share the exact number: search
    std::optional<std::pair<CountCost, Plan>> best;
    if (problem_.rules.single) {
      try_single(best);
    } else {
      for (int depth = kNodeDepth; depth >= kRootDepth; --depth) {
        std::size_t tries = 0;
        for (const Container& container : containers(depth)) {
          if (++tries > kMixedTriesMax) break;
          keep_better(fill_all(container, -1), best);
        }
        if (best && problem_.packs() && std::get<0>(best->first) <= 1) break;
      }
    }
    if (!best) return false;
    plan_ = std::move(best->second);
    return true;
  }

  void try_single(std::optional<std::pair<CountCost, Plan>>& best) {
    std::size_t tries = 0;
    const auto domains = static_cast<std::int32_t>(problem_.domains.count());
    for (std::int32_t domain = 0; domain < domains && tries < kMixedTriesMax; ++domain) {
      const Container container = container_of(domain);
      if (!may_hold(container, domain)) continue;
      ++tries;
      keep_better(fill_all(container, domain), best);
    }
  }

  Container container_of(std::int32_t domain) const {
    if (problem_.level() <= Level::kNode)
      return {static_cast<int>(problem_.level()) + kRackDepth, index(domain)};
    return {kNodeDepth, index(sites_[index(domain)].position)};  // sites are domains there
  }

  /// Proofs that mixed groups have no place, without a search.
  bool cannot_be() {
    if (!may_hold(root(), -1)) return true;
    if (!problem_.rules.single) return false;
    const auto domains = static_cast<std::int32_t>(problem_.domains.count());
    for (std::int32_t domain = 0; domain < domains; ++domain) {
      if (may_hold(container_of(domain), domain)) return false;
    }
    return true;
  }

  void improve() {
    if (index(problem_.missing) > options_.improve_bundles_max) return;
    const CountCost now = cost_of_plan(plan_);
    std::size_t eligible_sites = 0;
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      const std::size_t position = index(sites_[i].position);
      eligible_sites +=
          std::any_of(problem_.shapes.begin(), problem_.shapes.end(),
                      [position](const Shape& shape) { return shape.eligible[position] != 0; })
              ? 1
              : 0;
      if (eligible_sites > options_.improve_sites_max) return;
    }
    if (problem_.missing <= 1 && problem_.kept_count == 0) return;
    if (problem_.packs() && now == CountCost{1, 0, 1, 1, 1}) return;
    state_.reset(problem_);
    Backtrack search(problem_, sites_, state_);
    if (search.run(options_.improve_steps_max, options_.improve_steps_max, now) ==
        PlaceOutcome::kFound)
      plan_ = search.plan();
    steps_ += search.steps();
  }

  const Problem& problem_;
  const SiteList& sites_;
  SearchState& state_;
  CountFill counting_;
  const SearchOptions& options_;
  Totals want_;
  Plan plan_;
  std::size_t steps_ = 0;
};

Placer::Placer(SearchOptions options) : options_(options), scratch_(std::make_unique<Scratch>()) {}
Placer::~Placer() = default;

namespace {

/// Which wish is still kept, the best first.
struct Wish {
  bool affinities = false;
  bool off_gpu_nodes = false;
};

std::vector<Wish> wishes_of(bool wants_gpu, const NodeRules& rules) {
  std::vector<Wish> wishes;
  for (const bool affinities : {true, false}) {
    for (const bool off : {true, false}) {
      if ((affinities && !rules.has_wishes()) || (off && wants_gpu)) continue;
      wishes.push_back({affinities, off});
    }
  }
  return wishes;
}

/// Whether the kept bundles have given the wish up already: then it costs nothing any more.
bool is_broken(const Problem& problem, const NodeRules& rules, const Wish& wish) {
  for (const auto& [bundle, placement] : *problem.kept) {
    const std::size_t position = problem.cluster->position_of(placement.node);
    if (wish.affinities && !rules.wish_holds(position)) return true;
    if (wish.off_gpu_nodes && !problem.cluster->nodes()[position].spec.devices.empty()) return true;
  }
  return false;
}

void set_eligible(Problem& problem, const NodeRules& rules, const Wish& wish) {
  const auto nodes = problem.cluster->nodes();
  for (Shape& shape : problem.shapes) {
    const Bundle& bundle = problem.request->bundles[index(shape.sample)];
    shape.eligible.assign(nodes.size(), 0);
    const bool plain = bundle.selectors.empty() && !rules.has_affinities();
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].spec.draining) continue;
      if (!plain && rules.verdict(bundle, i).kind != NodeRules::Verdict::Kind::kAllowed) continue;
      if (wish.affinities && !rules.wish_holds(i)) continue;
      if (wish.off_gpu_nodes && !nodes[i].spec.devices.empty()) continue;
      shape.eligible[i] = 1;
    }
  }
}

/// One bundle, no others of its group: the node that it fills best. Most groups are like this.
std::optional<std::size_t> best_node(const Cluster& cluster, const Bundle& bundle,
                                     const Demand& demand, const NodeRules& rules, const Wish& wish,
                                     View view, SearchState& state) {
  const auto summaries = cluster.summaries(view);
  const bool plain = bundle.selectors.empty() && !rules.has_affinities();
  const bool by_gpu = demand.gpu_units() > 0;
  std::optional<std::size_t> best;
  std::int64_t best_room = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < summaries.size(); ++i) {
    const NodeSummary& node = summaries[i];
    const std::int64_t room =
        by_gpu ? node.gpu_units : node.cpu + (node.has_devices ? std::int64_t{1} << 50 : 0);
    if (room >= best_room) continue;
    if (!node.accepts || node.cpu < demand.cpu || node.memory < demand.memory) continue;
    if (node.whole_devices < demand.whole || node.largest_share < demand.fraction) continue;
    if (wish.off_gpu_nodes && node.has_devices) continue;
    if (!demand.named.empty() && state.fits_node(demand, i, 1) == 0) continue;
    if (!plain && rules.verdict(bundle, i).kind != NodeRules::Verdict::Kind::kAllowed) continue;
    if (wish.affinities && !rules.wish_holds(i)) continue;
    best = i;
    best_room = room;
  }
  return best;
}

}  // namespace

/// `place` for a group of one bundle at node level or above, without the apparatus for more.
PlaceResult Placer::place_single(const Cluster& cluster, const GroupRequest& request, View view) {
  const Bundle& bundle = request.bundles.front();
  const Demand demand = demand_of(cluster, needs_of(request, 0));
  const NodeRules rules(cluster, request, view != View::kEmpty);
  SearchState& state = scratch_->state;
  state.reset(cluster, view);
  PlaceResult result;
  if (demand.unknown_named) return result;
  for (const Wish& wish : wishes_of(demand.gpu_units() > 0, rules)) {
    const auto node = best_node(cluster, bundle, demand, rules, wish, view, state);
    if (!node) continue;
    const Site site{.position = static_cast<std::int32_t>(*node)};
    result.outcome = PlaceOutcome::kFound;
    result.bundles.push_back(
        materialize_one(cluster, request, demand, state.give(demand, site), view));
    const bool pack = is_pack(request.strategy);
    result.cost = {
        .breaks_wish = !rules.wish_holds(*node),
        .uses_gpu_nodes = demand.gpu_units() == 0 && !cluster.nodes()[*node].spec.devices.empty(),
        .level_domains = pack ? 1 : -1,
        .level_most = pack ? 0 : 1,
        .racks = 1,
        .domains = 1,
        .nodes = 1};
    return result;
  }
  return result;
}

PlaceResult Placer::place(const Cluster& cluster, const GroupRequest& request,
                          const std::map<std::int32_t, BundlePlacement>& kept, View view) {
  if (request.bundles.size() == 1 && kept.empty() && request.level <= Level::kNode &&
      view != View::kCapacity)
    return place_single(cluster, request, view);
  Problem problem(cluster, request, kept, view);
  PlaceResult result;
  if (problem.missing == 0) {
    std::vector<BundlePlacement> whole;
    for (const auto& [bundle, placement] : kept) whole.push_back(placement);
    result.outcome = PlaceOutcome::kFound;
    result.cost = cost_of(cluster, request, whole);
    return result;
  }
  const NodeRules rules(cluster, request, view != View::kEmpty);
  const SiteList sites(problem);
  SearchState* now = nullptr;
  if (view == View::kCapacity) {
    const Problem free(cluster, request, kept, View::kFree);
    scratch_->now.reset(free);
    now = &scratch_->now;
  }
  bool unknown = false;
  for (const Wish& wish : wishes_of(problem.wants_gpu, rules)) {
    if ((wish.affinities || wish.off_gpu_nodes) && is_broken(problem, rules, wish)) continue;
    set_eligible(problem, rules, wish);
    scratch_->state.reset(problem);
    Solver solver(problem, sites, scratch_->state, now, options_);
    const PlaceOutcome outcome = solver.solve();
    result.steps += solver.steps();
    unknown = outcome == PlaceOutcome::kBudget;
    if (outcome != PlaceOutcome::kFound) continue;
    result.outcome = PlaceOutcome::kFound;
    result.bundles = materialize(problem, solver.take_plan());
    std::vector<BundlePlacement> whole = result.bundles;
    for (const auto& [bundle, placement] : kept) whole.push_back(placement);
    result.cost = cost_of(cluster, request, whole);
    return result;
  }
  result.outcome = unknown ? PlaceOutcome::kBudget : PlaceOutcome::kNone;
  return result;
}

}  // namespace troupe::placement
