// What is missing when the nodes, all of them empty, cannot hold a group.

#include "placement/count_fill.hpp"
#include "placement/explain.hpp"
#include "placement/refusal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace troupe::placement {
namespace {

std::string plural(std::size_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

class Diagnosis {
 public:
  Diagnosis(const Cluster& cluster, const GroupRequest& request, const Kept& kept)
      : cluster_(cluster),
        request_(request),
        problem_(cluster, request, kept, View::kEmpty),
        rules_(cluster, request, false),
        sites_(problem_) {
    set_eligible(problem_, rules_);
    state_.reset(problem_);
  }

  std::string reason() {
    if (cluster_.node_count() == 0) return "the cluster has no nodes";
    for (const Shape& shape : problem_.shapes) {
      if (auto reason = no_node(shape)) return *reason;
    }
    CountFill counting(problem_, sites_, state_, nullptr);
    for (const Shape& shape : problem_.shapes) {
      if (auto reason = too_few(shape, counting)) return *reason;
    }
    if (auto reason = sums()) return *reason;
    return fmt::format(
        "each bundle fits by itself, but no combination of the {} bundles does with {} at level {}",
        request_.bundles.size(), strategy_name(request_.strategy), level_name(request_.level));
  }

 private:
  /// One bundle that no node can hold.
  std::optional<std::string> no_node(const Shape& shape) {
    const Bundle& bundle = request_.bundles[static_cast<std::size_t>(shape.sample)];
    const auto nodes = cluster_.nodes();
    std::optional<std::size_t> closest;
    std::vector<ShortResource> closest_short;
    std::pair<std::size_t, double> closest_key;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (shape.eligible[i] == 0) continue;
      auto list = short_resources(problem_, sites_, state_, shape, i);
      if (list.empty()) return std::nullopt;
      double share = 1;
      for (const ShortResource& one : list) share = std::min(share, one.share);
      const std::pair key(list.size(), -share);
      if (closest && closest_key <= key) continue;
      closest = i;
      closest_key = key;
      closest_short = std::move(list);
    }
    if (!closest) return nothing_eligible(shape, bundle);
    std::string wants;
    std::string has;
    for (const ShortResource& one : closest_short) {
      wants += fmt::format("{}{} {}", wants.empty() ? "" : ", ", one.name, one.wanted);
      has += fmt::format("{}{} {}", has.empty() ? "" : ", ", one.name, one.found);
    }
    const bool inside = request_.level > Level::kNode;
    return fmt::format("bundle {} wants {}{}; the closest node, {}, has {}", shape.sample, wants,
                       inside ? fmt::format(" inside one {}", level_name(request_.level)) : "",
                       nodes[*closest].spec.name, has);
  }

  std::string nothing_eligible(const Shape& shape, const Bundle& bundle) const {
    const auto nodes = cluster_.nodes();
    const LabelSelector* refused = nullptr;
    std::size_t draining = 0;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      bool labels_hold = true;
      for (const LabelSelector& selector : bundle.selectors) {
        if (matches(selector, nodes[i].spec.labels)) continue;
        labels_hold = false;
        if (refused == nullptr) refused = &selector;
      }
      draining += labels_hold && nodes[i].spec.draining ? 1 : 0;
    }
    if (draining > 0)
      return fmt::format("bundle {}: {} would do, but drain", shape.sample,
                         plural(draining, "node"));
    return fmt::format("bundle {} wants label {}: none of {} has it{}", shape.sample,
                       refused != nullptr ? to_string(*refused) : "?", plural(nodes.size(), "node"),
                       bundle.selectors.size() > 1 ? " with the other labels" : "");
  }

  /// Bundles of one shape that do not fit all.
  std::optional<std::string> too_few(const Shape& shape, CountFill& counting) {
    const auto wanted = static_cast<std::int32_t>(shape.bundles.size());
    const Occupied occupied(problem_);
    counting.measure(shape, wanted, {kRootDepth, 0}, occupied, -1);
    const std::int32_t room = counting.room({kRootDepth, 0});
    const std::string what = fmt::format("{} of {}", plural(shape.bundles.size(), "bundle"),
                                         shape_text(problem_, shape));
    const int depth = problem_.level() >= Level::kSocket
                          ? kSiteDepth
                          : static_cast<int>(problem_.level()) + kRackDepth;
    const std::string_view level = level_name(request_.level);
    std::size_t closest = 0;
    std::size_t usable = 0;
    for (std::size_t i = 0; i < counting.count_at(depth); ++i) {
      if (counting.room({depth, i}) > counting.room({depth, closest})) closest = i;
      usable += counting.room({depth, i}) > 0 ? 1 : 0;
    }
    const std::string closest_name = problem_.domains.name(static_cast<std::int32_t>(closest));
    const std::int32_t most = counting.room({depth, closest});
    if (problem_.rules.single && most < wanted)
      return fmt::format("STRICT_PACK wants {} in one {}; the closest, {}, holds {}", what, level,
                         closest_name, most);
    if (problem_.rules.exact > 0 && problem_.shapes.size() == 1)
      return exact(shape, counting, depth, what);
    if (room >= wanted) return std::nullopt;
    if (problem_.rules.most < wanted)
      return fmt::format("{} wants {} with at most {} per {}; {} can hold any, {} bundles in all",
                         strategy_name(request_.strategy), what, problem_.rules.most, level,
                         plural(usable, level), room);
    return fmt::format("wants {}; the cluster holds {}", what, room);
  }

  std::optional<std::string> exact(const Shape& shape, const CountFill& counting, int depth,
                                   const std::string& what) const {
    const std::int32_t each = problem_.rules.exact;
    std::size_t full = 0;
    std::pair<std::int32_t, std::size_t> closest{-1, 0};
    for (std::size_t i = 0; i < counting.count_at(depth); ++i) {
      const std::int32_t room = counting.room({depth, i});
      full += room >= each ? 1 : 0;
      if (room < each && room > closest.first) closest = {room, i};
    }
    const std::size_t wanted = shape.bundles.size() / static_cast<std::size_t>(each);
    if (full >= wanted) return std::nullopt;
    std::string text =
        fmt::format("wants {}, {} in each {}; {} of {} can hold that many", what, each,
                    level_name(request_.level), full, counting.count_at(depth));
    if (closest.first >= 0)
      text += fmt::format(", the closest other, {}, holds {}",
                          problem_.domains.name(static_cast<std::int32_t>(closest.second)),
                          closest.first);
    return text;
  }

  /// A resource of which the bundles together want more than there is, in the cluster or, when all
  /// must lie in one domain, in the domain with most of it.
  std::optional<std::string> sums() {
    struct Sum {
      double gpu = 0, cpu = 0, memory = 0;
    };
    Sum want;
    for (const Shape& shape : problem_.shapes) {
      const auto count = static_cast<double>(shape.bundles.size());
      want.gpu += static_cast<double>(shape.demand.gpu_units()) * count;
      want.cpu += static_cast<double>(shape.demand.cpu) * count;
      want.memory += static_cast<double>(shape.demand.memory) * count;
    }
    std::map<std::int32_t, Sum> have;
    const bool by_domain = problem_.rules.single && request_.level <= Level::kNode;
    for (std::size_t i = 0; i < cluster_.node_count(); ++i) {
      const bool any = std::any_of(problem_.shapes.begin(), problem_.shapes.end(),
                                   [i](const Shape& shape) { return shape.eligible[i] != 0; });
      if (!any) continue;
      Sum& sum = have[by_domain ? problem_.domains.of(i, 0, 0) : 0];
      const NodeSummary& node = state_.summary(i);
      sum.gpu += node.gpu_units;
      sum.cpu += static_cast<double>(node.cpu);
      sum.memory += static_cast<double>(node.memory);
    }
    const auto check = [&](std::string_view name, double Sum::*field,
                           bool bytes) -> std::optional<std::string> {
      std::pair<double, std::int32_t> best{-1, 0};
      for (const auto& [domain, sum] : have) best = std::max(best, {sum.*field, domain});
      if (best.first >= want.*field) return std::nullopt;
      const auto text = [bytes](double value) {
        const auto whole = static_cast<std::int64_t>(value);
        return bytes ? to_string(Bytes{whole}) : to_string(Amount{whole});
      };
      const std::string where =
          by_domain ? fmt::format("the closest, {}, has", problem_.domains.name(best.second))
                    : std::string("the cluster has");
      return fmt::format("all bundles together want {} {}{}; {} {}", name, text(want.*field),
                         by_domain ? fmt::format(" in one {}", level_name(request_.level)) : "",
                         where, text(best.first));
    };
    if (auto gpu = check("gpu", &Sum::gpu, false)) return gpu;
    if (auto cpu = check("cpu", &Sum::cpu, false)) return cpu;
    return check("memory", &Sum::memory, true);
  }

  const Cluster& cluster_;
  const GroupRequest& request_;
  Problem problem_;
  NodeRules rules_;
  SiteList sites_;
  SearchState state_;
};

}  // namespace

Error describe_infeasible(const Cluster& cluster, const GroupRequest& request, const Kept& kept) {
  return {.code = ErrorCode::kResourceExhausted,
          .message = fmt::format("group {}: infeasible: {}", request.name,
                                 Diagnosis(cluster, request, kept).reason()),
          .origin = {},
          .causes = {}};
}

}  // namespace troupe::placement
