#include "runtime/base/check.hpp"
#include "sim/catalogue/catalogue.hpp"
#include "sim/engine/simulation.hpp"
#include "sim/rollout/replica.hpp"
#include "tests/conformance/predict.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

// A PPO step whose four roles lie in sets of devices: what each stage takes is summed inside a set
// and the longest over sets counts, as the roles of a set take turns and sets work at once. All
// samples have the same length here, so stages do not overlap and this is exact; layouts are the
// best of those that fit.

namespace troupe::conformance {

using sim::Constants;

namespace {

enum Role { kActor, kCritic, kReference, kReward, kRoles };
bool trained(int role) { return role == kActor || role == kCritic; }

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::int64_t kPrompts = 1024;
constexpr std::int64_t kTokens = 1024;
constexpr std::int64_t kUpdates = 8;
constexpr double kUsable = 0.9;  // of the memory, beside contexts, communicators and fragments

/// Sets of roles, and the devices of each.
struct Plan {
  std::vector<std::vector<int>> sets{};
  std::vector<int> devices{};
};

class Step {
 public:
  Step(const sim::ModelSpec& model, const sim::DeviceSpec& device, const Constants& constants)
      : model_(model), device_(device), constants_(constants), fabric_(device, constants) {}

  result<double> time_of(const Plan& plan) {
    double prepare = 0;
    double learn = 0;
    double generate = kNever;
    for (std::size_t i = 0; i < plan.sets.size(); ++i) {
      TROUPE_TRY(const Choice choice, choose(plan.sets[i], plan.devices[i]));
      prepare = std::max(prepare, choice.forward_s);
      learn = std::max(learn, choice.update_s);
      if (std::find(plan.sets[i].begin(), plan.sets[i].end(), kActor) != plan.sets[i].end())
        generate = choice.generate_s;
    }
    return generate + prepare + learn + constants_[sim::Constant::kIterationHost];
  }

 private:
  /// What the roles of a set take with the best of their layouts; `kNever`: none fits.
  struct Choice {
    double forward_s = kNever;
    double update_s = kNever;
    double generate_s = 0;
    double total() const { return forward_s + update_s + generate_s; }
  };
  /// One role with one layout.
  struct Option {
    sim::TrainLayout layout{};
    double forward_s = 0;
    double update_s = 0;
    double kept_bytes = 0;      ///< while others work
    double resident_bytes = 0;  ///< the same, and gradients
    double working_bytes = 0;   ///< more while it works
  };

  result<const std::vector<Option>*> options(bool trains, int devices) {
    const auto key = std::make_pair(trains, devices);
    const auto known = options_.find(key);
    if (known != options_.end()) return &known->second;
    std::vector<Option> all;
    for (const int tp : {1, 2, 4, 8}) {
      for (const int pp : {1, 2, 4, 8}) {
        if (devices % (tp * pp) != 0) continue;
        sim::TrainLayout layout{.tp = tp, .pp = pp, .dp = devices / (tp * pp)};
        for (const std::int64_t sequences : {1, 2, 4}) {
          layout.micro_batch_tokens = 2 * kTokens * sequences;
          const auto cost = sim::TrainCost::create(model_, device_, layout, constants_);
          if (!cost) return fail(cost.error());
          const sim::TrainMemory memory = cost->memory(!trains);
          all.push_back({.layout = layout,
                         .forward_s = cost->forward(work(1)).total(),
                         .update_s = trains ? cost->update(work(kUpdates)).total() : 0,
                         .kept_bytes = memory.weights + memory.optimizer,
                         .resident_bytes = memory.weights + memory.optimizer + memory.gradients,
                         .working_bytes = memory.activations + memory.logits});
        }
      }
    }
    return &(options_[key] = std::move(all));
  }

  /// The fastest layouts of a set's roles: one for those that train, one for those that do not.
  /// What all keep, and what one needs beside it while it works, fits into the memory.
  result<Choice> choose(const std::vector<int>& roles, int devices) {
    const auto key = std::make_pair(roles, devices);
    const auto known = choices_.find(key);
    if (known != choices_.end()) return known->second;
    const auto train = static_cast<double>(std::count_if(roles.begin(), roles.end(), trained));
    const double frozen = static_cast<double>(roles.size()) - train;
    const bool acts = std::find(roles.begin(), roles.end(), kActor) != roles.end();
    TROUPE_TRY(const auto* trainings, options(true, devices));
    TROUPE_TRY(const auto* forwards, options(false, devices));
    Choice best;
    for (const Option& learns : *trainings) {
      for (const Option& reads : *forwards) {
        const double resident = train * learns.resident_bytes + frozen * reads.resident_bytes;
        const double working =
            std::max(train > 0 ? learns.working_bytes : 0, frozen > 0 ? reads.working_bytes : 0);
        if (resident + working > kUsable * device_.memory_bytes) continue;
        Choice one{.forward_s = train * learns.forward_s + frozen * reads.forward_s,
                   .update_s = train * learns.update_s};
        if (one.total() >= best.total()) continue;
        if (acts) {
          const double kept = train * learns.kept_bytes + frozen * reads.kept_bytes;
          TROUPE_TRY(one.generate_s, generation_s(devices, learns.layout, kept));
        }
        if (one.total() < best.total()) best = one;
      }
    }
    return choices_[key] = best;
  }

  static sim::TrainWork work(std::int64_t updates) {
    const auto samples = static_cast<double>(kPrompts);
    const auto length = static_cast<double>(2 * kTokens);
    return {.tokens = samples * length,
            .squares = samples * length * length,
            .sequences = kPrompts,
            .optimizer_steps = updates};
  }

  /// The transition to the best generation layout, and generation in it.
  result<double> generation_s(int devices, const sim::TrainLayout& actor, double kept) {
    double best = kNever;
    for (const int tp : {1, 2, 4, 8}) {
      sim::EngineLayout engine;
      engine.tp = tp;
      engine.captured.clear();
      engine.reserved_bytes = kept;
      TROUPE_TRY(const auto cost, sim::DecodeCost::create(model_, device_, engine, constants_));
      const result<std::int64_t> room = cost.kv_tokens();
      if (!room || *room < 2 * kTokens) continue;
      const int replicas = devices / tp;
      TROUPE_TRY(const double span, engine_s(cost, (kPrompts + replicas - 1) / replicas));
      best = std::min(best, span + transition_s(actor, tp));
    }
    return best;
  }

  result<double> engine_s(const sim::DecodeCost& cost, std::int64_t samples) const {
    struct Listener : sim::ReplicaListener {
      void on_finished(sim::Replica&, const sim::SimSequence&) override {}
    } listener;
    sim::Simulation simulation;
    TROUPE_TRY(auto engine, sim::Replica::create(cost, {}, listener));
    for (std::int64_t i = 0; i < samples; ++i) {
      const auto id = static_cast<std::uint64_t>(i + 1);
      TROUPE_TRY_VOID(engine->submit(
          simulation, {.id = id, .group = id, .prompt = kTokens, .length = kTokens}));
    }
    TROUPE_TRY_VOID(simulation.run());
    return seconds(simulation.now() - TimePoint{});
  }

  /// Table 2: what a device receives, over the slowest link that its group spans.
  double transition_s(const sim::TrainLayout& actor, int tp) const {
    const double shards = actor.tp * actor.pp;
    const double missing = std::max(0.0, 1.0 / tp - 1.0 / shards);
    const double bytes = missing * 2 * static_cast<double>(sim::size_of(model_).parameters);
    const bool inside = shards <= device_.nvlink_domain;
    const double rate = inside ? fabric_.inside().rate : fabric_.across(device_.per_node).rate;
    return constants_[sim::Constant::kTransitionHost] + bytes / rate;
  }

  const sim::ModelSpec& model_;
  const sim::DeviceSpec& device_;
  const Constants& constants_;
  const sim::Fabric fabric_;
  std::map<std::pair<bool, int>, std::vector<Option>> options_;
  std::map<std::pair<std::vector<int>, int>, Choice> choices_;
};

/// Every role alone, by whole nodes.
std::vector<Plan> standalone_plans(int gpus, int per_node) {
  const int nodes = gpus / per_node;
  std::vector<Plan> plans;
  for (int actor = 1; actor < nodes; ++actor)
    for (int critic = 1; actor + critic < nodes; ++critic)
      for (int reference = 1; actor + critic + reference < nodes; ++reference)
        plans.push_back({.sets = {{kActor}, {kCritic}, {kReference}, {kReward}},
                         .devices = {actor * per_node, critic * per_node, reference * per_node,
                                     (nodes - actor - critic - reference) * per_node}});
  return plans;
}

}  // namespace

result<std::map<std::string, double>> predict(const Placement& placement,
                                              const Constants& constants) {
  TROUPE_TRY(const auto device, sim::Catalogue::built_in().device("a100-80g-hybridflow"));
  const int gpus = placement.gpus;
  std::map<std::string, std::vector<Plan>> plans;
  plans["colocate"] = {{.sets = {{kActor, kCritic, kReference, kReward}}, .devices = {gpus}}};
  plans["split"] = {
      {.sets = {{kActor, kReference}, {kCritic, kReward}}, .devices = {gpus / 2, gpus / 2}}};
  plans["standalone"] = standalone_plans(gpus, device.per_node);
  const Constants software = of_2024(constants);
  Step step(placement.model, device, software);
  std::map<std::string, double> best;
  for (const auto& [name, all] : plans) {
    double least = kNever;
    for (const Plan& plan : all) {
      TROUPE_TRY(const double span, step.time_of(plan));
      least = std::min(least, span);
    }
    if (least < kNever) best[name] = least;
  }
  return best;
}

}  // namespace troupe::conformance
