#include "sim/world/sim_world.hpp"

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/task/executor.hpp"
#include "sim/engine/duration.hpp"
#include "sim/engine/random.hpp"

#include <algorithm>
#include <cmath>
#include <queue>
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

/// Prompt and answer together, as trained roles see them.
TrainWork work_of(const Batch& batch) {
  TrainWork work;
  const Column prompts = value_or_throw(batch.require(column::kPromptTokens));
  const Column answers = value_or_throw(batch.require(column::kTokens));
  for (std::int64_t row = 0; row < batch.rows(); ++row) {
    const auto tokens =
        static_cast<double>(prompts.scalar<std::int64_t>(row) + answers.scalar<std::int64_t>(row));
    work.tokens += tokens;
    work.squares += tokens * tokens;
  }
  work.sequences = batch.rows();
  return work;
}

void count_trained(const Batch& batch, WorldTotals& totals) {
  const Column prompts = value_or_throw(batch.require(column::kPromptTokens));
  const Column answers = value_or_throw(batch.require(column::kTokens));
  totals.samples += batch.rows();
  for (std::int64_t row = 0; row < batch.rows(); ++row) {
    totals.prompt_tokens += static_cast<double>(prompts.scalar<std::int64_t>(row));
    totals.answer_tokens += static_cast<double>(answers.scalar<std::int64_t>(row));
  }
}

void add_parts(const TrainTime& time, const std::string& prefix, Metrics& metrics) {
  const auto add = [&](const char* part, double span_s) {
    metrics.add(prefix + part, span_s, Reduction::kSum);
  };
  add("compute_s", time.compute);
  add("bubble_s", time.bubble);
  add("tensor_parallel_s", time.tensor_parallel);
  add("experts_s", time.experts);
  add("data_parallel_s", time.data_parallel);
  add("optimizer_s", time.optimizer);
  add("host_s", time.host);
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
  TROUPE_TRY(decode_, DecodeCost::create(job_.policy.model, job_.pools[job_.rollout.pool].device,
                                         job_.rollout.layout, job_.constants));
  for (int i = 0; i < job_.rollout.replicas; ++i) {
    TROUPE_TRY(auto replica, Replica::create(*decode_, job_.rollout.engine, *this));
    replicas_.push_back(std::move(replica));
  }
  TROUPE_TRY(prompt_lengths_, LengthModel::create(job_.prompt_lengths));
  TROUPE_TRY(answer_lengths_, LengthModel::create(job_.answer_lengths));
  TROUPE_TRY_VOID(add_links());
  TROUPE_TRY(traffic_, weight_traffic(job_));
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
  return bytes;
}

double SimWorld::adapter_bytes() const {
  double bytes = 0;
  std::size_t device = 0;
  for (const DevicePool& pool : job_.pools)
    for (int i = 0; i < pool.devices; ++i, ++device)
      if (i % pool.device.per_node == 0) bytes += links_.bytes_sent(device_links_[device].nic_out);
  return bytes;
}

std::vector<ReplicaStatistics> SimWorld::replica_statistics() const {
  std::vector<ReplicaStatistics> all;
  for (const auto& replica : replicas_) all.push_back(replica->statistics());
  return all;
}

Batch SimWorld::prompts_of(std::int64_t step) const {
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < job_.prompts_per_step; ++i) {
    ids.push_back((step - 1) * job_.prompts_per_step + i);
    tokens.push_back(prompt_lengths_->draw(mix_seed(job_.seed, 1), 0,
                                           static_cast<std::uint64_t>(ids.back()), 0));
  }
  Batch batch;
  const auto set = [&batch](std::string_view name, Column column) {
    value_or_throw(batch.set(std::string(name), std::move(column)));
  };
  set(actors::column::kPrompts, one_each<std::int32_t>(job_.prompts_per_step, 0));
  set(actors::column::kPromptIds, Column::dense(std::move(ids)));
  set(column::kPromptTokens, Column::dense(std::move(tokens)));
  return batch;
}

// ---- roles ----------------------------------------------------------------------------------

task<Batch> SimWorld::Rollout::generate(Batch prompts, actors::SamplingOptions) {
  SimWorld& world = world_;
  const TimePoint begin = world.clock().now();
  const LengthModel& lengths = *world.answer_lengths_;
  const Column ids = value_or_throw(prompts.require(actors::column::kPromptIds));
  const Column indices = value_or_throw(prompts.require(actors::column::kSampleIndex));
  const Column prompt_tokens = value_or_throw(prompts.require(column::kPromptTokens));
  const std::int64_t rows = prompts.rows();
  const auto replicas = static_cast<std::int64_t>(world.replicas_.size());
  auto [countdown, over] = world.countdowns_.start(rows);
  std::vector<std::int64_t> tokens;
  std::vector<std::string> reasons;
  std::vector<ReplicaStatistics> before = world.replica_statistics();
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto prompt = static_cast<std::uint64_t>(ids.scalar<std::int64_t>(row));
    const auto sample = static_cast<std::uint32_t>(indices.scalar<std::int64_t>(row));
    const auto step = static_cast<std::int64_t>(prompt) / world.job_.prompts_per_step;
    const std::int64_t length = lengths.draw(mix_seed(world.job_.seed, 2), step, prompt, sample);
    tokens.push_back(length);
    reasons.emplace_back(length >= lengths.options().tokens_max ? "length" : "stop_id");
    const auto whole = static_cast<double>(prompt_tokens.scalar<std::int64_t>(row) + length);
    world.totals_.flops += forward_flops(world.job_.policy.model, whole, whole * whole);
    const SimSequence sequence{.id = ++world.last_sequence_,
                               .group = prompt,
                               .prompt = prompt_tokens.scalar<std::int64_t>(row),
                               .length = length};
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
  const auto set = [&prompts](std::string_view name, Column column) {
    value_or_throw(prompts.set(std::string(name), std::move(column)));
  };
  set(actors::column::kResponses, one_each<std::int32_t>(rows, 0));
  set(actors::column::kResponseMask, one_each<std::uint8_t>(rows, 1));
  set(actors::column::kRolloutLogProbs, one_each<float>(rows, 0));
  set(actors::column::kVersions, one_each<std::int64_t>(rows, world.weights_.version().value));
  set(actors::column::kStopReason, Column::strings(reasons));
  set(column::kTokens, Column::dense(std::move(tokens)));
  co_return prompts;
}

task<void> SimWorld::Rollout::sleep(bool) { co_return; }

task<Batch> SimWorld::Reward::score(Batch batch) {
  SimWorld& world = world_;
  const Column ids = value_or_throw(batch.require(actors::column::kPromptIds));
  const Column indices = value_or_throw(batch.require(actors::column::kSampleIndex));
  // Workers take samples in order; the call ends when the last of them does.
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int i = 0; i < world.job_.reward.workers; ++i) free.push(0);
  std::vector<float> scores;
  double end = 0;
  for (std::int64_t row = 0; row < batch.rows(); ++row) {
    const auto prompt = static_cast<std::uint64_t>(ids.scalar<std::int64_t>(row));
    const auto sample = static_cast<std::uint64_t>(indices.scalar<std::int64_t>(row));
    const DrawKey key{world.job_.seed, prompt, Purpose::kReward, 2 * sample};
    const double span =
        world.job_.reward.sample_s * std::exp(world.job_.reward.sigma * normal(key));
    const double done = free.top() + span;
    free.pop();
    free.push(done);
    end = std::max(end, done);
    const DrawKey right{world.job_.seed, prompt, Purpose::kReward, 2 * sample + 1};
    scores.push_back(uniform(right) < 0.5 ? 1.0F : 0.0F);  // declared: what is learned is not ours
  }
  const TimePoint begin = world.clock().now();
  co_await runtime::sleep_for(to_duration(end));
  world.phases_.add(
      {.role = "reward", .phase = "score", .begin = begin, .end = world.clock().now()});
  Batch out;
  value_or_throw(out.set(std::string(actors::column::kScores), Column::dense(std::move(scores))));
  co_return out;
}

task<Batch> SimWorld::Trained::log_probs(Batch batch) {
  const TimePoint begin = world_.clock().now();
  const TrainWork work = work_of(batch);
  const TrainTime time = cost_.forward(work);
  world_.totals_.flops += forward_flops(role_.model, work.tokens, work.squares);
  co_await runtime::sleep_for(to_duration(time.total()));
  world_.log_phase(role_, name_, "forward", begin);
  Batch out;
  value_or_throw(out.set(column_, one_each<float>(batch.rows(), 0)));
  co_return out;
}

task<Metrics> SimWorld::Trained::update(Batch batch) {
  const TimePoint begin = world_.clock().now();
  TrainWork work = work_of(batch);
  const SimJob& job = world_.job_;
  const std::int64_t minibatch = std::min(batch.rows(), job.minibatch_prompts * job.group_size);
  work.optimizer_steps = job.epochs * ((batch.rows() + minibatch - 1) / minibatch);
  work.tokens *= static_cast<double>(job.epochs);
  work.squares *= static_cast<double>(job.epochs);
  const TrainTime time = cost_.update(work);
  co_await runtime::sleep_for(to_duration(time.total()));
  world_.log_phase(role_, name_, "update", begin);
  Metrics metrics;
  add_parts(time, fmt::format("simulated/{}/", name_), metrics);
  const double flops = 3 * (forward_flops(role_.model, work.tokens, work.squares));
  const double peak = time.total() * role_.layout.devices() * job.pools[role_.pool].device.flops;
  metrics.add(fmt::format("simulated/{}/mfu", name_), flops / peak, Reduction::kMean);
  WorldTotals& totals = world_.totals_;
  totals.flops += flops;
  if (this == &*world_.policy_) {
    totals.update_flops += flops;
    totals.update_peak += peak;
    count_trained(batch, totals);
  }
  co_return metrics;
}

task<Metrics> SimWorld::Weights::publish() {
  SimWorld& world = world_;
  const TimePoint begin = world.clock().now();
  co_await runtime::sleep_for(to_duration(world.job_.constants[Constant::kTransitionHost]));
  auto [countdown, over] =
      world.countdowns_.start(static_cast<std::int64_t>(world.traffic_.flows.size()));
  for (const TrafficFlow& flow : world.traffic_.flows) {
    const double latency = world.nic_latency_[static_cast<std::size_t>(flow.source)];
    const std::uint64_t number =
        world.links_.send(world.simulation_, world.path_of(flow), flow.bytes, latency, world);
    world.countdown_of_flow_[number] = countdown;
  }
  co_await std::move(over);
  version_ = WeightVersion{version_.value + 1};
  world.log_phase(world.job_.policy, "policy", "publish", begin);
  world.totals_.local_bytes += world.traffic_.local_bytes;
  world.totals_.node_bytes += world.traffic_.node_bytes;
  world.totals_.network_bytes += world.traffic_.network_bytes;
  Metrics metrics;
  metrics.add("update_weights/wire_bytes", world.traffic_.network_bytes, Reduction::kSum);
  metrics.add("update_weights/node_bytes", world.traffic_.node_bytes, Reduction::kSum);
  metrics.add("update_weights/local_bytes", world.traffic_.local_bytes, Reduction::kSum);
  co_return metrics;
}

}  // namespace troupe::sim
