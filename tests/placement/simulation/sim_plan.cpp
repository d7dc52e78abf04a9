#include "tests/placement/simulation/sim_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace troupe::placement::simulation {

using std::chrono::milliseconds;
using std::chrono::seconds;

bool chance(Rng& rng, double probability) { return rng.uniform() < probability; }

Duration random_span(Rng& rng, Duration most) {
  return Duration{static_cast<Duration::rep>(rng.uniform() * static_cast<double>(most.count()))};
}

namespace {

std::int32_t between(Rng& rng, std::int32_t low, std::int32_t high) {
  return low + static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(high - low + 1)));
}

std::vector<NodeSpec> random_nodes(Rng& rng) {
  const std::int32_t count = chance(rng, 0.1) ? between(rng, 9, 16) : between(rng, 1, 7);
  const std::int32_t racks = between(rng, 1, 3);
  const std::int32_t devices = between(rng, 1, 8);
  const bool equal = chance(rng, 0.5);
  std::vector<NodeSpec> nodes;
  for (std::int32_t i = 0; i < count; ++i) {
    NodeSpec node;
    node.name = fmt::format("n{}", i);
    node.rack = fmt::format("r{}", i % racks);
    if (chance(rng, 0.5)) node.domain = fmt::format("d{}", i / 2 % 2);
    node.sockets = chance(rng, 0.5) ? 2 : 1;
    const std::int32_t own = equal ? devices : between(rng, 0, 8);
    for (std::int32_t d = 0; d < own; ++d)
      node.devices.push_back({.socket = d * node.sockets / std::max(own, 1), .nic = {}});
    node.cores = equal ? 16 : between(rng, 2, 32);
    node.memory = gibibytes(equal ? 64 : between(rng, 8, 128));
    if (chance(rng, 0.3)) node.named["license"] = Amount::whole(between(rng, 1, 4));
    if (chance(rng, 0.5)) node.labels["zone"] = chance(rng, 0.5) ? "a" : "b";
    nodes.push_back(std::move(node));
  }
  return nodes;
}

CoreOptions random_options(Rng& rng) {
  CoreOptions options;
  options.lease = milliseconds(between(rng, 500, 4000));
  options.renew_every = options.lease / 3;
  options.reply_within = milliseconds(between(rng, 200, 3000));
  options.reattach_within = milliseconds(between(rng, 0, 3000));
  options.settle = milliseconds(between(rng, 0, 3000));
  options.owner_lease = milliseconds(between(rng, 500, 4000));
  options.backoff_max = milliseconds(between(rng, 200, 5000));
  options.repair_hold = milliseconds(between(rng, 500, 10'000));
  options.truth_every = milliseconds(between(rng, 500, 10'000));
  options.one_phase = chance(rng, 0.5);
  options.passes_in_flight_max = static_cast<std::size_t>(between(rng, 1, 8));
  options.snapshot_after = static_cast<std::uint64_t>(between(rng, 20, 400));
  options.short_queue = static_cast<std::size_t>(between(rng, 0, 16));
  return options;
}

FaultRates random_faults(Rng& rng) {
  FaultRates faults;
  // Each kind of fault is on in some runs only: together they hide each other.
  const auto pick = [&rng](double most, double often = 0.35) {
    return chance(rng, often) ? rng.uniform() * most : 0.0;
  };
  faults.node_death = pick(0.5);
  faults.node_silent_death = pick(0.2);
  faults.block_one_way = pick(0.4);
  faults.block_two_way = pick(0.4);
  faults.swizzle = pick(0.2);
  faults.head_crash = pick(0.3);
  faults.head_crash_per_step = pick(0.02);
  faults.client_death = pick(0.2);
  faults.slow_disk = pick(0.2);
  faults.clock_jump = pick(0.2);
  faults.drain = pick(0.3);
  faults.device_failure = pick(0.3);
  faults.lose_message = pick(0.1);
  faults.repeat_message = pick(0.2);
  faults.delay_message = pick(0.2);
  faults.storm = pick(0.1);
  return faults;
}

}  // namespace

SimPlan make_plan(std::uint64_t seed) {
  Rng rng(mix_seed(seed, 1));
  SimPlan plan{.seed = seed};
  plan.nodes = random_nodes(rng);
  plan.clients = static_cast<std::size_t>(between(rng, 1, 4));
  plan.core = random_options(rng);
  plan.faults = random_faults(rng);
  plan.chaos = seconds(between(rng, 5, 30));
  plan.latency_max = milliseconds(chance(rng, 0.2) ? between(rng, 50, 400) : between(rng, 1, 20));
  plan.flush_max = milliseconds(between(rng, 1, 40));
  plan.requests_per_second = 0.5 + rng.uniform() * 12;
  plan.bundles_max = between(rng, 1, 8);
  return plan;
}

Bundle random_bundle(Rng& rng) {
  constexpr std::array<double, 6> kGpus{0, 0.25, 0.5, 1, 1, 2};
  Bundle bundle;
  bundle.resources.gpu = *parse_amount(kGpus[rng.below(kGpus.size())], "gpu");
  bundle.resources.cpu = *parse_amount(chance(rng, 0.2) ? 0.5 : between(rng, 1, 4), "cpu");
  if (chance(rng, 0.4)) bundle.resources.memory = gibibytes(between(rng, 1, 16));
  if (chance(rng, 0.05)) bundle.resources.named["license"] = Amount::whole(1);
  if (chance(rng, 0.1))
    bundle.selectors.push_back(
        {.label = "zone", .op = SelectorOp::kEqual, .values = {chance(rng, 0.5) ? "a" : "b"}});
  return bundle;
}

GroupRequest random_request(Rng& rng, const SimPlan& plan, const std::string& name) {
  GroupRequest request;
  request.name = name;
  const std::int32_t count = between(rng, 1, plan.bundles_max);
  const Bundle same = random_bundle(rng);
  const bool mixed = chance(rng, 0.25);
  for (std::int32_t i = 0; i < count; ++i)
    request.bundles.push_back(mixed ? random_bundle(rng) : same);
  request.strategy = static_cast<Strategy>(rng.below(4));
  request.level = chance(rng, 0.7) ? Level::kNode : static_cast<Level>(rng.below(3));
  if (chance(rng, 0.1)) request.per_domain_max = between(rng, 1, 3);
  if (chance(rng, 0.3)) request.priority = between(rng, 0, 3);
  // Requests that must be refused, each in its own way.
  if (chance(rng, 0.02)) request.bundles.clear();
  if (chance(rng, 0.02)) request.strategy = static_cast<Strategy>(9);
  if (chance(rng, 0.02) && !request.bundles.empty())
    request.bundles[0].resources.gpu = Amount::whole(64);
  return request;
}

GroupTerms random_terms(Rng& rng) {
  GroupTerms terms;
  terms.repair = static_cast<RepairPolicy>(rng.below(3));
  terms.detached = chance(rng, 0.15);
  if (chance(rng, 0.2)) terms.feasible_within = milliseconds(between(rng, 100, 5000));
  return terms;
}

}  // namespace troupe::placement::simulation
