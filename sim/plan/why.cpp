#include "sim/plan/why.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace troupe::sim {
namespace {

std::string generation_bound(const RoleTimes& times, const Estimate& estimate) {
  const auto slots = times.request().base.rollout.engine.sequences_max;
  const std::int64_t wanted = std::min(estimate.samples_a_replica, slots);
  if (estimate.running_most < wanted)
    return fmt::format("its KV cache binds: it holds {} of an engine's {} samples at a time",
                       estimate.running_most, estimate.samples_a_replica);
  if (slots < estimate.samples_a_replica)
    return fmt::format("an engine's slots bind: {} of {} samples run at a time", slots,
                       estimate.samples_a_replica);
  if (estimate.steady_s < 0.7 * estimate.generate_s)
    return fmt::format("its longest samples bind: back to back it would take {:.1f} s",
                       estimate.steady_s);
  return "reading weights and KV cache binds";
}

std::string update_bound(const RoleTimes& times, const Candidate& candidate) {
  const PlannedSet& set = candidate.set_of(PlanRole::kPolicy);
  const auto cost = TrainCost::create(times.request().base.policy.model,
                                      times.device({set.offer, candidate.strategy}),
                                      candidate.layouts[0], times.request().base.constants);
  if (!cost) return cost.error().message;
  const TrainTime time = cost->update(times.work().update);
  const std::pair<const char*, double> parts[] = {
      {"arithmetic", time.compute},
      {"memory between matrices", time.memory},
      {"pipeline bubbles", time.bubble},
      {"waits for the slowest stage", time.stage_wait},
      {"messages between stages", time.pipeline},
      {"tensor parallelism", time.tensor_parallel},
      {"exchange of experts", time.experts},
      {"gradients and gathered weights", time.data_parallel},
      {"the optimizer", time.optimizer},
      {"host software", time.host}};
  const auto* longest =
      std::max_element(std::begin(parts), std::end(parts),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return fmt::format(
      "{} {} {:.0f} % of the policy's update", longest->first,
      longest->first[std::char_traits<char>::length(longest->first) - 1] == 's' ? "are" : "is",
      100 * longest->second / time.total());
}

/// Least bytes of a role on a device over all its layouts on all devices of the largest offer.
double least_bytes(RoleTimes& times, PlanRole role, Place place, int devices) {
  double least = std::numeric_limits<double>::infinity();
  for (const LayoutTimes& layout : times.layouts(role, place, devices))
    least = std::min(least, layout.work_bytes);
  return least;
}

/// Devices of the first offer, rising by nodes, until something fits.
int nearest_that_fits_all(const PlanRequest& request) {
  PlanRequest more = request;
  DeviceOffer& offer = more.offers.front();
  const int node = offer.device.per_node;
  const int most = 16 * std::max(node, offer.devices);
  offer.nodes = 0;
  more.granularity = 0;
  const auto fits = [&more, &offer](int devices) {
    offer.devices = devices;
    auto times = RoleTimes::create(more);
    if (!times) return false;
    SetOptions options(*times);
    SearchOptions wanted;
    wanted.best = wanted.of_shape = 1;
    const auto found = search(options, wanted);
    return found && !found->best.empty();
  };
  int lower = offer.devices;
  int upper = std::max(node, lower);
  while (upper <= most && !fits(upper)) {
    lower = upper;
    upper *= 2;
  }
  if (upper > most) return 0;
  while (upper - lower > node) {
    const int middle = (lower + upper) / 2 / node * node;
    if (middle <= lower) break;
    (fits(middle) ? upper : lower) = middle;
  }
  return upper;
}

}  // namespace

std::string why_of(RoleTimes& times, const Candidate& candidate, const Estimate& estimate) {
  if (candidate.mode != SimMode::kSynchronous) {
    const double train =
        estimate.score_s + estimate.pass_s + estimate.update_s + estimate.publish_s;
    const double rollout =
        candidate.mode == SimMode::kOneStepOff ? estimate.generate_s : estimate.steady_s;
    if (train >= rollout)
      return fmt::format("the trainer is the longer side, {:.1f} s to {:.1f} s of rollout; {}",
                         train, rollout, update_bound(times, candidate));
    return fmt::format("rollout is the longer side, {:.1f} s to {:.1f} s of the trainer; {}",
                       rollout, train, generation_bound(times, estimate));
  }
  const std::pair<const char*, double> parts[] = {{"generation", estimate.generate_s},
                                                  {"scoring", estimate.score_s},
                                                  {"log-probs and values", estimate.pass_s},
                                                  {"updates", estimate.update_s},
                                                  {"moving weights", estimate.publish_s}};
  const auto* longest =
      std::max_element(std::begin(parts), std::end(parts),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  std::string text = fmt::format("{} take{} {:.0f} % of the step", longest->first,
                                 longest == &parts[2] || longest == &parts[3] ? "" : "s",
                                 100 * longest->second / estimate.step_s);
  if (longest == &parts[0]) text += "; " + generation_bound(times, estimate);
  if (longest == &parts[2] || longest == &parts[3]) text += "; " + update_bound(times, candidate);
  return text;
}

Error infeasible(const PlanRequest& request) {
  std::string missing;
  auto times = RoleTimes::create(request);
  if (!times) return times.error();
  const auto largest = std::max_element(
      request.offers.begin(), request.offers.end(),
      [](const DeviceOffer& a, const DeviceOffer& b) { return a.devices < b.devices; });
  const Place place{static_cast<std::size_t>(largest - request.offers.begin()),
                    placement::Strategy::kPack};
  for (const PlanRole role : request.roles()) {
    if (role == PlanRole::kRollout) continue;
    const double least = least_bytes(*times, role, place, largest->devices);
    missing += fmt::format("{}{} ({}) {:.1f} GB", missing.empty() ? "" : ", ", plan_role_name(role),
                           request.model_of(role).name, least / 1e9);
  }
  const int enough = nearest_that_fits_all(request);
  return fail(ErrorCode::kResourceExhausted,
              "plan: nothing fits {} {} of {:.0f} GB; roles take at least, each alone on a device "
              "of them: {}; {}",
              largest->devices, largest->device.name, largest->device.memory_bytes / 1e9, missing,
              enough > 0 ? fmt::format("{} {} would do", enough, request.offers.front().device.name)
                         : "sixteen times as many would not do either")
      .value();
}

}  // namespace troupe::sim
