#include "sim/world/sim_world.hpp"

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/task/executor.hpp"
#include "sim/engine/duration.hpp"
#include "sim/engine/random.hpp"

#include <algorithm>
#include <utility>

namespace troupe::sim {

using runtime::Batch;
using runtime::Column;
using runtime::Metrics;
using runtime::Reduction;
using runtime::task;
using runtime::value_or_throw;

namespace {

template <class T>
Column one_each(std::int64_t rows, T value) {
  return Column::jagged(std::vector<T>(static_cast<std::size_t>(rows), value),
                        std::vector<std::int64_t>(static_cast<std::size_t>(rows), 1));
}

}  // namespace

std::pair<std::uint64_t, runtime::pending<int>> Countdowns::start(std::int64_t count) {
  auto ends = runtime::make_pending<int>();
  const std::uint64_t number = ++last_;
  if (count == 0)
    ends.second.complete(0);
  else
    open_.emplace(number, One{count, std::move(ends.second)});
  return {number, std::move(ends.first)};
}

void Countdowns::arrive(std::uint64_t number) {
  const auto found = open_.find(number);
  if (--found->second.left > 0) return;
  runtime::completer<int> done = std::move(found->second.done);
  open_.erase(found);
  done.complete(0);
}

// ---- building -------------------------------------------------------------------------------

result<std::unique_ptr<SimWorld>> SimWorld::create(Simulation& simulation, const SimJob& job) {
  TROUPE_TRY_VOID(job.check());
  std::unique_ptr<SimWorld> world(new SimWorld(simulation, job));
  TROUPE_TRY_VOID(world->build());
  return world;
}

result<void> SimWorld::build() {
  const auto make = [this](const SimTrainedRole& role) {
    return TrainCost::create(role.model, job_.pools[role.pool].device, role.layout, job_.constants);
  };
  TROUPE_TRY(TrainCost policy, make(job_.policy));
  policy_.emplace(*this, "policy", job_.policy, std::move(policy), actors::column::kOldLogProbs);
  if (job_.reference) {
    TROUPE_TRY(TrainCost reference, make(*job_.reference));
    reference_.emplace(*this, "reference", *job_.reference, std::move(reference),
                       actors::column::kReferenceLogProbs);
  }
  if (job_.critic) {
    TROUPE_TRY(TrainCost critic, make(*job_.critic));
    critic_.emplace(*this, "critic", *job_.critic, std::move(critic), actors::column::kValues);
  }
  if (job_.reward_model) {
    TROUPE_TRY(TrainCost model, make(*job_.reward_model));
    reward_model_.emplace(*this, "reward_model", *job_.reward_model, std::move(model),
                          actors::column::kValues);
  }
  TROUPE_TRY(decode_, DecodeCost::create(job_.policy.model, job_.pools[job_.rollout.pool].device,
                                         job_.rollout.layout, job_.constants));
  TROUPE_TRY(plan_, SamplePlan::create(job_));
  TROUPE_TRY_VOID(add_engines());
  if (job_.environment) environment_.emplace(*this, *job_.environment);
  TROUPE_TRY_VOID(add_links());
  TROUPE_TRY(traffic_, weight_traffic(job_));
  return {};
}

result<void> SimWorld::add_engines() {
  kv_pool_tokens_ = job_.rollout.engine.kv_tokens;
  if (kv_pool_tokens_ == 0) {
    TROUPE_TRY(kv_pool_tokens_, decode_->kv_tokens());
  }
  if (job_.mode != SimMode::kSynchronous) {
    TROUPE_TRY(streaming_,
               SimStreaming::create(simulation_, job_, *plan_, *decode_, phases_, trace_));
    return {};
  }
  for (int i = 0; i < job_.rollout.replicas; ++i) {
    TROUPE_TRY(auto replica, Replica::create(*decode_, engine_options(job_, i), *this));
    replicas_.push_back(std::move(replica));
  }
  return {};
}

result<void> SimWorld::add_links() {
  for (const DevicePool& pool : job_.pools) {
    const Fabric fabric(pool.device, job_.constants);
    for (int device = 0; device < pool.devices; ++device) {
      DeviceLinks links;
      const std::string name = fmt::format("{}/device {}", pool.name, device);
      TROUPE_TRY(links.out, links_.add_link(name + " out", fabric.inside().rate));
      TROUPE_TRY(links.in, links_.add_link(name + " in", fabric.inside().rate));
      if (device % pool.device.per_node == 0) {
        const std::string node =
            fmt::format("{}/node {}", pool.name, device / pool.device.per_node);
        TROUPE_TRY(links.nic_out, links_.add_link(node + " nic out", fabric.across(1).rate));
        TROUPE_TRY(links.nic_in, links_.add_link(node + " nic in", fabric.across(1).rate));
      } else {
        links.nic_out = device_links_.back().nic_out;
        links.nic_in = device_links_.back().nic_in;
      }
      device_links_.push_back(links);
      nic_latency_.push_back(fabric.across(1).latency_s);
    }
  }
  return {};
}

std::vector<LinkId> SimWorld::path_of(const TrafficFlow& flow) const {
  const DeviceLinks& from = device_links_[static_cast<std::size_t>(flow.source)];
  const DeviceLinks& to = device_links_[static_cast<std::size_t>(flow.target)];
  if (flow.same_node) return {from.out, to.in};
  return {from.out, from.nic_out, to.nic_in, to.in};
}

void SimWorld::on_finished(Replica&, const SimSequence& sequence) {
  const auto found = countdown_of_sequence_.find(sequence.id);
  const std::uint64_t countdown = found->second;
  countdown_of_sequence_.erase(found);
  countdowns_.arrive(countdown);
}

void SimWorld::on_sent(Simulation&, std::uint64_t flow) {
  const auto found = countdown_of_flow_.find(flow);
  const std::uint64_t countdown = found->second;
  countdown_of_flow_.erase(found);
  countdowns_.arrive(countdown);
}

void SimWorld::log_phase(const SimTrainedRole& role, const std::string& name, const char* phase,
                         TimePoint begin) {
  phases_.add({.role = name,
               .phase = phase,
               .pool = role.pool,
               .first_device = 0,
               .devices = role.layout.devices(),
               .begin = begin,
               .end = clock().now()});
}

double SimWorld::port_bytes() const {
  double bytes = 0;
  for (const DeviceLinks& one : device_links_) bytes += links_.bytes_sent(one.out);
  return bytes * static_cast<double>(std::max<std::int64_t>(moves_, 1));
}

double SimWorld::adapter_bytes() const {
  double bytes = 0;
  std::size_t device = 0;
  for (const DevicePool& pool : job_.pools)
    for (int i = 0; i < pool.devices; ++i, ++device)
      if (i % pool.device.per_node == 0) bytes += links_.bytes_sent(device_links_[device].nic_out);
  return bytes * static_cast<double>(std::max<std::int64_t>(moves_, 1));
}

WorldTotals SimWorld::totals() const {
  WorldTotals totals = totals_;
  if (streaming_) totals.flops += streaming_->flops();
  return totals;
}

void SimWorld::flush_phases() {
  if (streaming_) streaming_->flush_phases();
}

std::vector<ReplicaStatistics> SimWorld::replica_statistics() const {
  if (streaming_) return streaming_->statistics();
  std::vector<ReplicaStatistics> all;
  for (const auto& replica : replicas_) all.push_back(replica->statistics());
  return all;
}

Batch SimWorld::prompts_of(std::int64_t step) const {
  std::vector<std::int64_t> ids;
  std::vector<std::vector<std::int32_t>> prompts;
  for (std::int64_t i = 0; i < job_.prompts_per_step; ++i) {
    ids.push_back((step - 1) * job_.prompts_per_step + i);
    prompts.push_back(plan_->chunks_of(
        plan_->prompt_tokens(static_cast<std::uint64_t>(ids[static_cast<std::size_t>(i)]))));
  }
  Batch batch;
  const auto set = [&batch](std::string_view name, Column column) {
    value_or_throw(batch.set(std::string(name), std::move(column)));
  };
  set(actors::column::kPrompts, Column::jagged(prompts));
  set(actors::column::kPromptIds, Column::dense(std::move(ids)));
  return batch;
}

// ---- roles ----------------------------------------------------------------------------------

task<Batch> SimWorld::Rollout::generate(Batch prompts, actors::SamplingOptions) {
  SimWorld& world = world_;
  const TimePoint begin = world.clock().now();
  if (world.streaming_)
    throw runtime::Failure(
        Error{.code = ErrorCode::kUnsupported,
              .message = "simulation: an engine that streams has no whole batches",
              .origin = {},
              .causes = {}});
  const Column ids = value_or_throw(prompts.require(actors::column::kPromptIds));
  const Column indices = value_or_throw(prompts.require(actors::column::kSampleIndex));
  const Column prompt_tokens = value_or_throw(prompts.require(actors::column::kPrompts));
  const std::int64_t rows = prompts.rows();
  const auto replicas = static_cast<std::int64_t>(world.replicas_.size());
  auto [countdown, over] = world.countdowns_.start(rows);
  std::vector<std::int32_t> tokens;
  std::vector<std::string> reasons;
  std::vector<ReplicaStatistics> before = world.replica_statistics();
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto prompt = static_cast<std::uint64_t>(ids.scalar<std::int64_t>(row));
    const auto sample = static_cast<std::uint32_t>(indices.scalar<std::int64_t>(row));
    const std::int64_t length = world.plan_->answer_tokens(prompt, sample);
    const std::int64_t own = tokens_in(prompt_tokens.row<std::int32_t>(row));
    tokens.push_back(static_cast<std::int32_t>(length));
    reasons.emplace_back(world.plan_->at_bound(length) ? "length" : "stop_id");
    const auto whole = static_cast<double>(own + length);
    world.totals_.flops += forward_flops(world.job_.policy.model, whole, whole * whole);
    const SimSequence sequence{
        .id = ++world.last_sequence_, .group = prompt, .prompt = own, .length = length};
    world.countdown_of_sequence_[sequence.id] = countdown;
    // Rows are shared out evenly and in order, as the groups of real ranks do.
    const auto replica = static_cast<std::size_t>(row * replicas / rows);
    value_or_throw(world.replicas_[replica]->submit(world.simulation_, sequence));
  }
  co_await std::move(over);
  for (std::size_t i = 0; i < world.replicas_.size(); ++i) {
    const double busy = world.replicas_[i]->statistics().busy_s - before[i].busy_s;
    const int tp = world.job_.rollout.layout.tp;
    world.phases_.add({.role = "rollout",
                       .phase = "generate",
                       .pool = world.job_.rollout.pool,
                       .first_device = static_cast<int>(i) * tp,
                       .devices = tp,
                       .begin = begin,
                       .end = begin + to_duration(busy)});
  }
  co_await world.hand_over(rows);
  const auto set = [&prompts](std::string_view name, Column column) {
    value_or_throw(prompts.set(std::string(name), std::move(column)));
  };
  set(actors::column::kResponses,
      Column::jagged(std::move(tokens),
                     std::vector<std::int64_t>(static_cast<std::size_t>(rows), 1)));
  set(actors::column::kResponseMask, one_each<std::uint8_t>(rows, 1));
  set(actors::column::kRolloutLogProbs, one_each<float>(rows, 0));
  set(actors::column::kVersions, one_each<std::int64_t>(rows, world.weights_.version().value));
  set(actors::column::kStopReason, Column::strings(reasons));
  co_return prompts;
}

task<void> SimWorld::Rollout::sleep(bool) { co_return; }

}  // namespace troupe::sim
