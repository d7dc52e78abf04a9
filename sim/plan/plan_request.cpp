#include "sim/plan/plan_request.hpp"

#include "placement/place.hpp"
#include "runtime/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace troupe::sim {
namespace {

constexpr int kCountsMax = 4096;  ///< sizes of a set of devices

}  // namespace

std::string_view plan_role_name(PlanRole role) {
  constexpr std::string_view kNames[kPlanRoles] = {"policy", "rollout", "reference", "critic",
                                                   "reward_model"};
  return kNames[static_cast<std::size_t>(role)];
}

result<void> PlanRequest::check() const {
  if (offers.empty())
    return fail(ErrorCode::kInvalidArgument, "plan: no devices are on offer, wanted at least 1");
  for (const DeviceOffer& offer : offers) {
    TROUPE_TRY_VOID(offer.device.validate());
    const int least = (offer.devices + offer.device.per_node - 1) / offer.device.per_node;
    if (offer.devices < 1 || (offer.nodes != 0 && offer.nodes < least))
      return fail(ErrorCode::kInvalidArgument,
                  "plan: offer {} has {} devices on {} nodes of {}, wanted at least 1 device and "
                  "{} nodes",
                  offer.name, offer.devices, offer.nodes, offer.device.per_node, least);
    if (offer.devices > kSimulatedDevicesMax)
      return fail(ErrorCode::kInvalidArgument,
                  "plan: offer {} has {} devices; the nearest possible is {}", offer.name,
                  offer.devices, kSimulatedDevicesMax);
    if (granularity > 0 && offer.devices / granularity > kCountsMax)
      return fail(ErrorCode::kInvalidArgument,
                  "plan: {} devices in steps of {} are more than {} sizes to look at; the nearest "
                  "possible granularity is {}",
                  offer.devices, granularity, kCountsMax, offer.devices / kCountsMax + 1);
  }
  if (modes.empty())
    return fail(ErrorCode::kInvalidArgument, "plan: no modes to choose from, wanted at least 1");
  if (staleness_max < 0 || granularity < 0 || simulate_best < 1 || simulated_steps < 1)
    return fail(ErrorCode::kInvalidArgument,
                "plan: staleness {}, granularity {}, {} candidates simulated for {} steps; wanted "
                "at least 0, 0, 1 and 1",
                staleness_max, granularity, simulate_best, simulated_steps);
  if (base.prompts_per_step < 1 || base.group_size < 1 || base.minibatch_prompts < 1 ||
      base.epochs < 1 || base.reward.workers < 1)
    return fail(
        ErrorCode::kInvalidArgument,
        "plan: {} prompts a step, {} samples each, mini-batches of {}, {} epochs, {} reward "
        "workers; wanted at least 1 of each",
        base.prompts_per_step, base.group_size, base.minibatch_prompts, base.epochs,
        base.reward.workers);
  return {};
}

std::vector<PlanRole> PlanRequest::roles() const {
  std::vector<PlanRole> all = {PlanRole::kPolicy, PlanRole::kRollout};
  if (base.reference) all.push_back(PlanRole::kReference);
  if (base.critic) all.push_back(PlanRole::kCritic);
  return all;
}

const ModelSpec& PlanRequest::model_of(PlanRole role) const {
  if (role == PlanRole::kReference) return base.reference->model;
  if (role == PlanRole::kCritic) return base.critic->model;
  return base.policy.model;
}

bool PlanRequest::is_trained(PlanRole role) const {
  return role == PlanRole::kPolicy || role == PlanRole::kCritic;
}

bool PlanRequest::is_frozen(PlanRole role) const {
  return role == PlanRole::kReference || role == PlanRole::kRewardModel;
}

const PlannedSet& Candidate::set_of(PlanRole role) const {
  for (const PlannedSet& set : sets)
    if (std::find(set.roles.begin(), set.roles.end(), role) != set.roles.end()) return set;
  TROUPE_CHECK(false, "candidate without a set for {}", plan_role_name(role));
  return sets.front();
}

int Candidate::devices() const {
  int sum = 0;
  for (const PlannedSet& set : sets) sum += set.devices;
  return sum;
}

namespace {

std::string roles_text(const PlannedSet& set) {
  std::string text;
  for (const PlanRole role : set.roles)
    text += fmt::format("{}{}", text.empty() ? "" : "+", plan_role_name(role));
  return text;
}

}  // namespace

std::string Candidate::describe(const PlanRequest& request) const {
  std::string text;
  for (const PlannedSet& set : sets)
    text += fmt::format("{}{} on {} {}", text.empty() ? "" : " | ", roles_text(set), set.devices,
                        request.offers[set.offer].device.name);
  text += fmt::format(", {}", sim_mode_name(mode));
  if (mode != SimMode::kSynchronous) text += fmt::format(" η={}", staleness);
  if (strategy == placement::Strategy::kSpread) text += ", SPREAD";
  return text;
}

bool Candidate::is_runnable() const {
  const PlannedSet& trained = set_of(PlanRole::kPolicy);
  const bool together = &set_of(PlanRole::kRollout) == &trained;
  if (together != (mode == SimMode::kSynchronous)) return false;
  if (sets.size() > (together ? 1U : 2U)) return false;
  for (const PlannedSet& set : sets) {
    for (const PlanRole role : set.roles) {
      if (role == PlanRole::kRewardModel) return false;  // rewards are rules and commands there
      if (role == PlanRole::kRollout) continue;
      const TrainLayout& layout = layouts[static_cast<std::size_t>(role)];
      if (layout.ep > 1 || layout.devices() != trained.devices) return false;
    }
  }
  return true;
}

bool can_spread(const PlanRequest& request) {
  return std::any_of(request.offers.begin(), request.offers.end(), [](const DeviceOffer& offer) {
    return offer.nodes > (offer.devices + offer.device.per_node - 1) / offer.device.per_node;
  });
}

SimJob job_of(const PlanRequest& request, const Candidate& candidate) {
  SimJob job = request.base;
  job.mode = candidate.mode;
  job.side_by_side = candidate.sets.size() > 1;
  job.quick_moves = true;
  job.pacing.ledger.lead_max = candidate.staleness;
  job.pools.clear();
  std::map<PlanRole, std::size_t> pool_of;
  for (const PlannedSet& set : candidate.sets) {
    const auto device = device_as_placed(request.offers[set.offer], candidate.strategy);
    for (const PlanRole role : set.roles) pool_of[role] = job.pools.size();
    job.pools.push_back({.name = roles_text(set),
                         .device = device ? *device : request.offers[set.offer].device,
                         .devices = set.devices});
  }
  const auto place = [&](PlanRole role, SimTrainedRole& at) {
    at.pool = pool_of[role];
    at.layout = candidate.layouts[static_cast<std::size_t>(role)];
  };
  place(PlanRole::kPolicy, job.policy);
  if (job.reference) place(PlanRole::kReference, *job.reference);
  if (job.critic) place(PlanRole::kCritic, *job.critic);
  job.rollout.pool = pool_of[PlanRole::kRollout];
  job.rollout.layout = candidate.engine;
  job.rollout.replicas = candidate.replicas;
  job.rollout.engine.kv_tokens = candidate.kv_tokens;
  return job;
}

result<DeviceSpec> device_as_placed(const DeviceOffer& offer, placement::Strategy strategy) {
  const int per_node = offer.device.per_node;
  const int least = (offer.devices + per_node - 1) / per_node;
  const int nodes = offer.nodes > 0 ? offer.nodes : least;
  if (strategy == placement::Strategy::kPack || nodes == least) return offer.device;
  std::vector<placement::NodeSpec> specs;
  for (int i = 0; i < nodes; ++i) {
    placement::NodeSpec node;
    node.name = fmt::format("node-{}", i);
    node.devices.resize(static_cast<std::size_t>(per_node));
    specs.push_back(std::move(node));
  }
  TROUPE_TRY(const placement::Cluster cluster, placement::Cluster::create(std::move(specs)));
  placement::GroupRequest group;
  group.name = offer.name;
  group.strategy = strategy;
  placement::Bundle bundle;
  bundle.resources.gpu = placement::Amount::whole(1);
  group.bundles.assign(static_cast<std::size_t>(offer.devices), bundle);
  const placement::PlaceResult placed =
      placement::Placer().place(cluster, group, {}, placement::View::kFree);
  std::map<std::string, int> on_node;
  int most = 0;
  for (const placement::BundlePlacement& one : placed.bundles)
    most = std::max(most, ++on_node[one.node_name]);
  if (most == 0)
    return fail(ErrorCode::kInternal, "plan: offer {}: {} devices found no place on {} nodes",
                offer.name, offer.devices, nodes);
  DeviceSpec device = offer.device;
  device.per_node = most;
  // Domains that join several nodes still do; within a node the run's own devices are joined.
  if (device.nvlink_rate > 0)
    device.nvlink_domain = std::max(most, device.nvlink_domain / per_node * most);
  return device;
}

}  // namespace troupe::sim
