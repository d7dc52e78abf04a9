#pragma once

// Random clusters and requests for property tests, from a seed.
//
// **Threads:** belongs to one owner.

#include "placement/bundle.hpp"
#include "placement/cluster.hpp"
#include "runtime/base/rng.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace troupe::placement::testing {

class RandomCase {
 public:
  explicit RandomCase(std::uint64_t seed) : rng_(seed) {}

  std::int32_t below(std::int32_t bound) {
    return static_cast<std::int32_t>(rng_.below(static_cast<std::uint64_t>(bound)));
  }
  bool chance(double probability) { return rng_.uniform() < probability; }
  template <class Value>
  const Value& pick(const std::vector<Value>& values) {
    return values[static_cast<std::size_t>(below(static_cast<std::int32_t>(values.size())))];
  }
  template <class Value>
  void shuffle(std::vector<Value>& values) {
    for (std::size_t i = values.size(); i > 1; --i)
      std::swap(values[i - 1],
                values[static_cast<std::size_t>(below(static_cast<std::int32_t>(i)))]);
  }

  /// Unequal nodes in two racks; about a third are like the first.
  std::vector<NodeSpec> nodes(std::int32_t count) {
    std::vector<NodeSpec> specs;
    for (std::int32_t i = 0; i < count; ++i) {
      NodeSpec spec = i > 0 && chance(0.35) ? specs.front() : random_node();
      spec.name = "node" + std::to_string(i * 7 + 3);
      spec.rack = below(2) == 0 ? "a" : "b";
      spec.domain = chance(0.4) ? "" : "nv" + std::to_string(below(2));
      spec.draining = chance(0.06);
      specs.push_back(std::move(spec));
    }
    return specs;
  }

  NodeSpec random_node() {
    NodeSpec spec;
    spec.sockets = 1 + below(2);
    spec.cores = 1 + below(8);
    spec.memory = Bytes{below(9)};
    for (std::int32_t d = below(5); d > 0; --d)
      spec.devices.push_back(
          {.socket = below(spec.sockets), .nic = "nic0", .failed = chance(0.04)});
    if (chance(0.3)) spec.named["license"] = Amount::whole(below(4));
    if (chance(0.5)) spec.labels["zone"] = chance(0.5) ? "x" : "y";
    return spec;
  }

  Bundle bundle() {
    Bundle bundle;
    const std::int32_t kind = below(10);
    if (kind < 4) bundle.resources.gpu = Amount::whole(1 + below(kind == 0 ? 4 : 2));
    if (kind >= 4 && kind < 7) bundle.resources.gpu = pick(fractions_);
    if (kind >= 7 || chance(0.5))
      bundle.resources.cpu = chance(0.7) ? Amount::whole(1 + below(4)) : Amount{2'500};
    if (chance(0.3)) bundle.resources.memory = Bytes{1 + below(4)};
    if (chance(0.1)) bundle.resources.named["license"] = Amount::whole(1);
    if (chance(0.2)) bundle.selectors.push_back({"zone", pick(ops_), {}});
    for (LabelSelector& selector : bundle.selectors) {
      if (selector.op < SelectorOp::kExists) selector.values = {chance(0.5) ? "x" : "y"};
    }
    return bundle;
  }

  GroupRequest request(std::string name, std::int32_t bundles,
                       const std::vector<std::string>& others) {
    GroupRequest request;
    request.name = std::move(name);
    std::vector<Bundle> shapes{bundle()};
    while (chance(0.4) && shapes.size() < 3) shapes.push_back(bundle());
    for (std::int32_t i = 0; i < bundles; ++i) request.bundles.push_back(pick(shapes));
    request.strategy = static_cast<Strategy>(below(4));
    request.level = static_cast<Level>(chance(0.4) ? 2 : below(5));
    if (chance(0.25)) request.per_domain_max = 1 + below(3);
    if (chance(0.15)) request.per_domain_exact = 1 + below(3);
    if (chance(0.1)) request.reserve_per_gpu = {.cpu = Amount{5'000}, .memory = Bytes{1}};
    if (!others.empty() && chance(0.25)) {
      request.affinities.push_back({.group = pick(others),
                                    .apart = chance(0.5),
                                    .level = static_cast<Level>(below(3)),
                                    .strict = chance(0.5)});
    }
    return request;
  }

 private:
  Rng rng_;
  std::vector<Amount> fractions_{Amount{2'500}, Amount{3'000}, Amount{4'000},
                                 Amount{5'000}, Amount{6'000}, Amount{7'000}};
  std::vector<SelectorOp> ops_{SelectorOp::kEqual, SelectorOp::kNotEqual, SelectorOp::kIn,
                               SelectorOp::kNotIn, SelectorOp::kExists,   SelectorOp::kAbsent};
};

}  // namespace troupe::placement::testing
