#include "sim/plan/role_times.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace troupe::sim {
namespace {

/// Runs of layers that a pipeline is cut into at most; longer ones have never paid.
constexpr int kMostStages = 16;

std::vector<int> powers_of_two(int most) {
  std::vector<int> all;
  for (int power = 1; power <= most; power *= 2) all.push_back(power);
  return all;
}

/// Devices whose ranks may share matrices: those that NVLink joins, or of one node.
int domain_of(const DeviceSpec& device) {
  return device.nvlink_rate > 0 ? std::min(device.nvlink_domain, 64) : device.per_node;
}

/// Sizes of a set of whole nodes that are looked at by default, at most.
constexpr int kNodeCounts = 64;

std::vector<int> counts_of(const DeviceOffer& offer, int granularity) {
  std::vector<int> counts;
  if (granularity > 0) {
    for (int n = granularity; n <= offer.devices; n += granularity) counts.push_back(n);
    return counts;
  }
  for (const int power : powers_of_two(offer.device.per_node - 1))
    if (power <= offer.devices) counts.push_back(power);
  // Many nodes: in coarser steps, so that what is searched does not grow with the cluster.
  int nodes_step = 1;
  while (offer.devices / offer.device.per_node / nodes_step > kNodeCounts) nodes_step *= 2;
  const int step = offer.device.per_node * nodes_step;
  for (int n = offer.device.per_node; n < step && n <= offer.devices; n *= 2) counts.push_back(n);
  for (int n = step; n <= offer.devices; n += step) counts.push_back(n);
  if (counts.empty() || counts.back() != offer.devices) counts.push_back(offer.devices);
  return counts;
}

/// A pool's size in steps of a thirty-second of its order of magnitude, so that pools that hardly
/// differ are one.
std::int64_t rounded_down(std::int64_t tokens) {
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(tokens)));
  const std::int64_t grain =
      std::max<std::int64_t>(kKvBlockTokens, std::int64_t{1} << (bits > 6 ? bits - 6 : 0));
  return tokens / grain * grain;
}

}  // namespace

result<RoleTimes> RoleTimes::create(const PlanRequest& request) {
  TROUPE_TRY_VOID(request.check());
  RoleTimes times(request);
  TROUPE_TRY(times.work_, PlanWork::create(request.base));
  for (std::size_t i = 0; i < request.offers.size(); ++i) {
    for (const auto strategy : {placement::Strategy::kPack, placement::Strategy::kSpread}) {
      TROUPE_TRY(const DeviceSpec device, device_as_placed(request.offers[i], strategy));
      times.devices_.emplace(Place{i, strategy}, device);
    }
    times.counts_.push_back(counts_of(request.offers[i], request.granularity));
  }
  return times;
}

const DeviceSpec& RoleTimes::device(Place place) const { return devices_.at(place); }

const TrainLayout& RoleTimes::base_layout(PlanRole role) const {
  const SimJob& base = request_->base;
  if (role == PlanRole::kReference && base.reference) return base.reference->layout;
  if (role == PlanRole::kCritic && base.critic) return base.critic->layout;
  return base.policy.layout;
}

std::vector<TrainLayout> RoleTimes::shapes(PlanRole role, Place place, int devices) const {
  const ModelSpec& model = request_->model_of(role);
  const bool frozen = request_->is_frozen(role);
  const std::int64_t sequences = work_.samples / (frozen ? 1 : work_.update.optimizer_steps);
  const std::int64_t least =
      std::max<std::int64_t>(2'048, (work_.tokens_longest + 1'023) / 1'024 * 1'024);
  const int ep = model.shape.expert.experts > 0 ? request_->experts_cut : 1;
  std::vector<TrainLayout> all;
  for (const int tp : powers_of_two(domain_of(device(place)))) {
    for (const int pp : powers_of_two(kMostStages)) {
      if (devices % (tp * pp) != 0) continue;
      for (const auto sharding : {TrainSharding::kZero1, TrainSharding::kFsdp}) {
        // Shards of cut experts are what the planner of weight moves does not know.
        if (sharding == TrainSharding::kFsdp && (pp > 1 || tp > 1 || ep > 1 || devices == 1))
          continue;
        for (const auto recompute : {Recompute::kAttention, Recompute::kAll}) {
          if (frozen && recompute == Recompute::kAll) continue;
          for (const int times : request_->micro_batches) {
            TrainLayout layout = base_layout(role);
            layout.tp = tp;
            layout.pp = pp;
            layout.dp = devices / (tp * pp);
            layout.ep = ep;
            layout.virtual_stages = 1;
            layout.sharding = sharding;
            layout.recompute = recompute;
            layout.micro_batch_tokens = least * times;
            if (layout.dp <= sequences) all.push_back(layout);
          }
        }
      }
    }
  }
  return all;
}

result<LayoutTimes> RoleTimes::times_of(PlanRole role, Place place,
                                        const TrainLayout& layout) const {
  TROUPE_TRY(const TrainCost cost, TrainCost::create(request_->model_of(role), device(place),
                                                     layout, request_->base.constants));
  const bool frozen = request_->is_frozen(role);
  LayoutTimes times;
  times.layout = layout;
  times.pass_s = cost.forward(work_.pass).total();
  if (!frozen) times.update_s = cost.update(work_.update).total();
  const TrainMemory memory = cost.memory(frozen);
  times.kept_bytes = layout.offload_idle ? 0 : memory.weights + memory.optimizer;
  times.work_bytes = memory.total();
  return times;
}

result<LayoutTimes> RoleTimes::known_times_of(PlanRole role, Place place,
                                              const TrainLayout& layout) {
  for (const LayoutTimes& known : layouts(role, place, layout.devices())) {
    const TrainLayout& other = known.layout;
    if (other.tp == layout.tp && other.pp == layout.pp && other.ep == layout.ep &&
        other.sharding == layout.sharding && other.recompute == layout.recompute &&
        other.virtual_stages == layout.virtual_stages &&
        other.micro_batch_tokens == layout.micro_batch_tokens)
      return known;  // the rest is the base layout's
  }
  return times_of(role, place, layout);
}

const std::vector<LayoutTimes>& RoleTimes::layouts(PlanRole role, Place place, int devices) {
  const auto [at, fresh] = layouts_.try_emplace({role, place, devices});
  if (!fresh) return at->second;
  for (const TrainLayout& layout : shapes(role, place, devices)) {
    const auto times = times_of(role, place, layout);
    if (times) at->second.push_back(*times);  // else the layout does not divide the model
  }
  return at->second;
}

std::vector<int> RoleTimes::engine_sizes(Place place, int devices) const {
  std::vector<int> sizes;
  for (const int tp : powers_of_two(domain_of(device(place))))
    if (devices % tp == 0 && devices / tp <= work_.samples) sizes.push_back(tp);
  return sizes;
}

double RoleTimes::engine_kept_bytes(Place place, int tp) const {
  if (request_->base.rollout.layout.sleeps) return 0;
  const auto found = decode_.find({place, tp});
  return found == decode_.end() || !found->second ? 0 : found->second->weight_bytes();
}

std::optional<EngineTimes> RoleTimes::engines(Place place, int devices, int tp, double kept_bytes,
                                              std::int64_t ahead) {
  const SimJob& base = request_->base;
  EngineLayout layout = base.rollout.layout;
  layout.tp = tp;
  layout.reserved_bytes = 0;  // what others keep is the candidate's, not the base job's
  const auto [decode, fresh] = decode_.try_emplace({place, tp});
  if (fresh) {
    auto cost = DecodeCost::create(base.policy.model, device(place), layout, base.constants);
    if (cost && cost->kv_tokens()) decode->second.emplace(std::move(*cost));
  }
  if (!decode->second) return std::nullopt;
  const DecodeCost& cost = *decode->second;
  EngineTimes times;
  times.engine = layout;
  times.replicas = devices / tp;
  times.samples = (work_.samples + times.replicas - 1) / times.replicas;
  const double left = device(place).memory_bytes - kept_bytes - cost.weight_bytes() -
                      base.constants[Constant::kEngineWorkspace];
  const double usable = left * (1 - base.constants[Constant::kKvFragmentation]);
  std::int64_t tokens = std::min(
      *cost.kv_tokens(), static_cast<std::int64_t>(std::max(0.0, usable / cost.kv_token_bytes())));
  // No more than all samples need at their longest; the next batches' too when they run ahead.
  tokens = std::min(tokens, times.samples * (ahead + 1) * (work_.tokens_longest + kKvBlockTokens));
  times.kv_tokens = rounded_down(tokens);
  const double watermark = base.rollout.engine.watermark;
  if (static_cast<double>(times.kv_tokens) * (1 - watermark) <
      static_cast<double>(work_.tokens_longest + kKvBlockTokens))
    return std::nullopt;
  const auto [time, unknown] =
      engines_.try_emplace({place, tp, times.samples, times.kv_tokens, ahead});
  if (unknown) {
    const EngineRoom room{.kv_tokens = times.kv_tokens,
                          .sequences_max = base.rollout.engine.sequences_max,
                          .watermark = watermark,
                          .share_prompt = base.rollout.engine.share_prompt};
    time->second = engine_time(work_, cost, room, times.samples, ahead);
  }
  times.time = time->second;
  return times;
}

double RoleTimes::publish_s(Place from, int from_devices, const TrainLayout& layout, Place to,
                            int to_devices, bool same_set) const {
  const Constants& constants = request_->base.constants;
  const double host = constants[Constant::kTransitionHost];
  const double bytes =
      static_cast<double>(size_of(request_->base.policy.model).parameters) * layout.weight_bytes;
  const Fabric source(device(from), constants);
  const Fabric target(device(to), constants);
  const auto nodes = [this](Place place, int devices) {
    return std::ceil(static_cast<double>(devices) / device(place).per_node);
  };
  // What a node of the target does not have already comes to it once, then goes on inside.
  double abroad = 1;
  if (same_set) {
    const int copy = layout.sharding == TrainSharding::kFsdp ? from_devices : layout.tp * layout.pp;
    abroad = std::max(0.0, 1 - static_cast<double>(device(from).per_node) / copy);
  }
  const double sent = abroad * bytes * nodes(to, to_devices) / nodes(from, from_devices);
  const double wire =
      std::max(abroad * bytes / target.across(1).rate, sent / source.across(1).rate);
  const double inside = bytes / std::min(8, to_devices) / target.inside().rate;
  return host + wire + inside;
}

}  // namespace troupe::sim
