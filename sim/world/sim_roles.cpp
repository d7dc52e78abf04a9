// The roles of the simulated world beside its rollout.

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/task/executor.hpp"
#include "sim/engine/duration.hpp"
#include "sim/engine/random.hpp"
#include "sim/world/sim_world.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace troupe::sim {

using runtime::Batch;
using runtime::Column;
using runtime::Metrics;
using runtime::Reduction;
using runtime::task;
using runtime::value_or_throw;

namespace {

/// Prompt and answer of each row together, as trained roles see them.
std::vector<double> row_tokens(const Batch& batch) {
  std::vector<double> tokens;
  const Column prompts = value_or_throw(batch.require(actors::column::kPrompts));
  const Column answers = value_or_throw(batch.require(actors::column::kResponses));
  for (std::int64_t row = 0; row < batch.rows(); ++row)
    tokens.push_back(static_cast<double>(tokens_in(prompts.row<std::int32_t>(row)) +
                                         tokens_in(answers.row<std::int32_t>(row))));
  return tokens;
}

TrainWork work_of(const Batch& batch, const TrainLayout& layout) {
  TrainWork work{.sequences = batch.rows()};
  std::vector<double> rows = row_tokens(batch);
  for (const double tokens : rows) {
    work.tokens += tokens;
    work.squares += tokens * tokens;
  }
  work.micro_batches = packed_micro_batches(
      std::move(rows), static_cast<double>(layout.micro_batch_tokens) * layout.cp);
  return work;
}

/// Rows go to `ranks` one by one in order, `minibatch` of them at a time: work of the rank that has
/// most, summed over mini-batches, over what it would be if all had the same.
double unevenness_of(const std::vector<double>& rows, std::int64_t minibatch, int ranks,
                     const ModelSpec& model) {
  double most = 0;
  double all = 0;
  const auto count = static_cast<std::int64_t>(rows.size());
  for (std::int64_t begin = 0; begin < count; begin += minibatch) {
    const std::int64_t size = std::min(minibatch, count - begin);
    double heaviest = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      double work = 0;
      for (std::int64_t i = rank; i < size; i += ranks) {
        const double tokens = rows[static_cast<std::size_t>(begin + i)];
        work += forward_flops(model, tokens, tokens * tokens);
      }
      heaviest = std::max(heaviest, work);
      all += work;
    }
    most += heaviest;
  }
  return all > 0 ? most * ranks / all : 1;
}

void count_trained(const Batch& batch, WorldTotals& totals, RunTrace& trace) {
  const Column prompts = value_or_throw(batch.require(actors::column::kPrompts));
  const Column answers = value_or_throw(batch.require(actors::column::kResponses));
  const Column ids = value_or_throw(batch.require(actors::column::kPromptIds));
  const Column indices = value_or_throw(batch.require(actors::column::kSampleIndex));
  totals.samples += batch.rows();
  for (std::int64_t row = 0; row < batch.rows(); ++row) {
    totals.prompt_tokens += static_cast<double>(tokens_in(prompts.row<std::int32_t>(row)));
    totals.answer_tokens += static_cast<double>(tokens_in(answers.row<std::int32_t>(row)));
    if (trace.whole && indices.scalar<std::int64_t>(row) == 0)
      trace.prompts.push_back(static_cast<std::uint64_t>(ids.scalar<std::int64_t>(row)));
  }
}

/// A column of zeros, one for each token of the responses.
Column for_each_token(const Batch& batch) {
  const Column responses = value_or_throw(batch.require(actors::column::kResponses));
  const std::vector<std::int64_t> lengths = responses.row_lengths();
  return Column::jagged(std::vector<float>(static_cast<std::size_t>(
                            std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}))),
                        lengths);
}

void add_parts(const TrainTime& time, const std::string& prefix, Metrics& metrics) {
  const auto add = [&](const char* part, double span_s) {
    metrics.add(prefix + part, span_s, Reduction::kSum);
  };
  add("compute_s", time.compute);
  add("memory_s", time.memory);
  add("stage_wait_s", time.stage_wait);
  add("bubble_s", time.bubble);
  add("pipeline_s", time.pipeline);
  add("tensor_parallel_s", time.tensor_parallel);
  add("experts_s", time.experts);
  add("data_parallel_s", time.data_parallel);
  add("optimizer_s", time.optimizer);
  add("host_s", time.host);
}

}  // namespace

WorkerPool::WorkerPool(int workers) {
  for (int i = 0; i < workers; ++i) free_.push(TimePoint{});
}

TimePoint WorkerPool::done(TimePoint now, double span_s) {
  const TimePoint end = std::max(free_.top(), now) + to_duration(span_s);
  free_.pop();
  free_.push(end);
  return end;
}

task<Batch> SimWorld::Reward::score(Batch batch) {
  SimWorld& world = world_;
  const Column ids = value_or_throw(batch.require(actors::column::kPromptIds));
  const Column indices = value_or_throw(batch.require(actors::column::kSampleIndex));
  const TimePoint begin = world.clock().now();
  std::vector<float> scores;
  TimePoint end = begin;
  for (std::int64_t row = 0; row < batch.rows(); ++row) {
    const auto prompt = static_cast<std::uint64_t>(ids.scalar<std::int64_t>(row));
    const auto sample = static_cast<std::uint64_t>(indices.scalar<std::int64_t>(row));
    const DrawKey key{world.job_.seed, prompt, Purpose::kReward, 2 * sample};
    const double span =
        world.job_.reward.sample_s * std::exp(world.job_.reward.sigma * normal(key));
    end = std::max(end, workers_.done(begin, span));
    const DrawKey right{world.job_.seed, prompt, Purpose::kReward, 2 * sample + 1};
    scores.push_back(uniform(right) < 0.5 ? 1.0F : 0.0F);  // declared: what is learned is not ours
  }
  co_await runtime::sleep_for(end - begin);
  world.phases_.add({.role = "reward", .phase = "score", .begin = begin, .end = end});
  if (world.reward_model_) co_await world.reward_model_->log_probs(batch);
  Batch out;
  value_or_throw(out.set(std::string(actors::column::kScores), Column::dense(std::move(scores))));
  co_return out;
}

task<std::vector<actors::EnvironmentAnswer>> SimWorld::Environment::turn(
    std::vector<actors::EnvironmentTurn> turns) {
  SimWorld& world = world_;
  const TimePoint begin = world.clock().now();
  TimePoint end = begin;
  std::vector<actors::EnvironmentAnswer> answers;
  for (actors::EnvironmentTurn& one : turns) {
    const auto prompt = static_cast<std::uint64_t>(
        one.row.column(actors::column::kPromptIds).scalar<std::int64_t>(0));
    const std::size_t turn = one.state.size();
    const DrawKey key{mix_seed(world.job_.seed, 4 + turn), prompt, Purpose::kEnvironment,
                      one.sample_index};
    end = std::max(
        end, workers_.done(begin, declared_.turn_s * std::exp(declared_.sigma * normal(key))));
    actors::EnvironmentAnswer answer;
    answer.done = std::cmp_greater_equal(turn + 1, world.plan_->turns(prompt, one.sample_index));
    if (!answer.done) answer.tokens = world.plan_->chunks_of(declared_.tokens_a_turn);
    answer.state = std::move(one.state);
    answer.state.push_back(std::byte{1});
    answers.push_back(std::move(answer));
  }
  co_await runtime::sleep_for(end - begin);
  world.phases_.add({.role = "environment", .phase = "turn", .begin = begin, .end = end});
  world.streaming_->nudge();
  co_return answers;
}

// ---- trained roles --------------------------------------------------------------------------

task<void> SimWorld::hand_over(std::int64_t rows) {
  const SimController& controller = job_.controller;
  if (controller.row_tokens == 0) co_return;
  const double bytes = static_cast<double>(rows * controller.row_tokens) * controller.token_bytes;
  co_await runtime::sleep_for(to_duration(bytes / job_.constants[Constant::kControllerRate]));
}

task<TimePoint> SimWorld::take_turn(std::size_t pool, Duration span) {
  const TimePoint begin = std::max(clock().now(), free_at_[pool]);
  free_at_[pool] = begin + span;
  co_await runtime::sleep_for(begin + span - clock().now());
  co_return begin;
}

void SimWorld::Trained::draw_failure() {
  const SimFailures& failures = world_.job_.failures;
  if (failures.trainer_mtbf_s <= 0) return;
  std::uint64_t entity = 0x7261696e;
  for (const char letter : name_) entity = mix_seed(entity, static_cast<std::uint64_t>(letter));
  const DrawKey key{world_.job_.seed, entity, Purpose::kFailure, failures_++};
  const double mean = failures.trainer_mtbf_s / role_.layout.devices();
  next_failure_ = world_.clock().now() + to_duration(mean * exponential(key));
}

task<void> SimWorld::Trained::survive() {
  if (failures_ == 0) draw_failure();
  while (next_failure_ && *next_failure_ <= world_.clock().now()) {
    const TimePoint begin = world_.clock().now();
    const TimePoint failed = *next_failure_;
    // What was done between the last checkpoint and the failure is done once more.
    const Duration lost = std::max(failed - world_.saved_at_, Duration::zero());
    co_await runtime::sleep_for(to_duration(world_.job_.failures.trainer_restart_s) + lost);
    world_.log_phase(role_, name_, "failed", begin);
    ++world_.totals_.trainer_failures;
    world_.trace_.failures.push_back({.role = name_, .begin = failed, .end = world_.clock().now()});
    draw_failure();
  }
}

task<double> SimWorld::Trained::train(double span_s) {
  co_await survive();  // what happened while it waited
  const SimStragglers& slow = world_.job_.stragglers;
  const DrawKey key{mix_seed(world_.job_.seed, static_cast<std::uint64_t>(role_.pool) + 16),
                    updates_++, Purpose::kStepNoise, name_.size()};
  const double factor = uniform(key) < slow.step_share ? slow.step_factor : 1;
  const TimePoint begin = co_await world_.take_turn(role_.pool, to_duration(factor * span_s));
  world_.log_phase(role_, name_, "update", begin);
  const double spent = seconds(world_.clock().now() - begin);
  co_await survive();
  co_return spent;
}

task<Batch> SimWorld::Trained::log_probs(Batch batch) {
  const TrainWork work = work_of(batch, role_.layout);
  co_await world_.hand_over(batch.rows());
  const TrainTime time = cost_.forward(work);
  world_.totals_.flops += forward_flops(role_.model, work.tokens, work.squares);
  const TimePoint begin = co_await world_.take_turn(role_.pool, to_duration(time.total()));
  world_.log_phase(role_, name_, "forward", begin);
  Batch out;
  value_or_throw(out.set(column_, for_each_token(batch)));
  co_return out;
}

Metrics SimWorld::Trained::count_update(const Batch& batch, const TrainWork& work, double spent_s) {
  const double flops = 3 * forward_flops(role_.model, work.tokens, work.squares);
  const double peak = spent_s * role_.layout.devices() * world_.job_.pools[role_.pool].device.flops;
  Metrics metrics;
  metrics.add(fmt::format("simulated/{}/mfu", name_), peak > 0 ? flops / peak : 0, Reduction::kMean,
              std::max(spent_s, 1e-9));
  WorldTotals& totals = world_.totals_;
  totals.flops += flops;
  if (this == &*world_.policy_) {
    totals.update_flops += flops;
    totals.update_peak += peak;
    count_trained(batch, totals, world_.trace_);
  }
  return metrics;
}

task<Metrics> SimWorld::Trained::update(Batch batch) {
  TrainWork work = work_of(batch, role_.layout);
  const SimJob& job = world_.job_;
  const std::int64_t minibatch = std::min(batch.rows(), job.minibatch_prompts * job.group_size);
  work.optimizer_steps = job.epochs * ((batch.rows() + minibatch - 1) / minibatch);
  const TrainLayout& layout = role_.layout;
  if (!layout.balanced)
    work.unevenness =
        unevenness_of(row_tokens(batch), minibatch, layout.dp / layout.cp, role_.model);
  co_await world_.hand_over(batch.rows());
  work.tokens *= static_cast<double>(job.epochs);
  work.squares *= static_cast<double>(job.epochs);
  work.micro_batches *= static_cast<double>(job.epochs);
  const TrainTime time = cost_.update(work);
  const double spent = co_await train(time.total());
  Metrics metrics = count_update(batch, work, spent);
  add_parts(time, fmt::format("simulated/{}/", name_), metrics);
  co_return metrics;
}

task<Metrics> SimWorld::Trained::accumulate(Batch part) {
  const TrainLayout& layout = role_.layout;
  TrainWork work = work_of(part, layout);
  if (!layout.balanced)
    work.unevenness =
        unevenness_of(row_tokens(part), part.rows(), layout.dp / layout.cp, role_.model);
  co_await world_.hand_over(part.rows());
  // Gradients are summed over copies, and applied, once: by `finish_step`.
  const double once = cost_.update(TrainWork{}).total();
  const double spent = co_await train(cost_.update(work).total() - once);
  co_return count_update(part, work, spent);
}

task<Metrics> SimWorld::Trained::finish_step() {
  const TrainTime time = cost_.update(TrainWork{});
  co_await train(time.total());
  Metrics metrics;
  add_parts(time, fmt::format("simulated/{}/", name_), metrics);
  co_return metrics;
}

task<double> SimWorld::save_behind(std::int64_t step) {
  const SimCheckpoints& checkpoints = job_.checkpoints;
  if (checkpoints.every_steps == 0 || step % checkpoints.every_steps != 0) co_return 0;
  const TimePoint begin = clock().now();
  double bytes = checkpoints.bytes;
  const auto add = [&bytes](const SimTrainedRole& role) {
    bytes += static_cast<double>(size_of(role.model).parameters) *
             (role.layout.weight_bytes + role.layout.optimizer_bytes);
  };
  if (bytes == 0) {
    add(job_.policy);
    if (job_.critic) add(*job_.critic);
  }
  co_await runtime::sleep_for(to_duration(bytes / checkpoints.rate));
  log_phase(job_.policy, "policy", "checkpoint", begin);
  saved_at_ = clock().now();
  co_return seconds(saved_at_ - begin);
}

// ---- weights --------------------------------------------------------------------------------

/// The same flows over the same links, on which nothing else runs, take the same time every time.
double SimWorld::busiest_link_s() const {
  std::map<std::uint32_t, double> bytes;
  double latency_s = 0;
  for (const TrafficFlow& flow : traffic_.flows) {
    for (const LinkId link : path_of(flow)) bytes[link.index] += flow.bytes;
    latency_s = std::max(latency_s, nic_latency_[static_cast<std::size_t>(flow.source)]);
  }
  double longest_s = 0;
  for (const auto& [link, sum] : bytes)
    longest_s = std::max(longest_s, sum / links_.rate(LinkId{link}));
  return latency_s + longest_s;
}

task<void> SimWorld::move_weights() {
  if (job_.quick_moves && moves_ == 0) {
    move_span_ = to_duration(busiest_link_s());
    ++moves_;
  }
  if (moves_ > 0) {
    co_await runtime::sleep_for(move_span_);
    ++moves_;
    co_return;
  }
  const TimePoint begin = clock().now();
  auto [countdown, over] = countdowns_.start(static_cast<std::int64_t>(traffic_.flows.size()));
  for (const TrafficFlow& flow : traffic_.flows) {
    const double latency = nic_latency_[static_cast<std::size_t>(flow.source)];
    const std::uint64_t number =
        links_.send(simulation_, path_of(flow), flow.bytes, latency, *this);
    countdown_of_flow_[number] = countdown;
  }
  co_await std::move(over);
  move_span_ = clock().now() - begin;
  ++moves_;
}

task<void> SimWorld::Weights::publish_present() { co_await move(version_.value); }

task<Metrics> SimWorld::Weights::move(std::int64_t version) {
  SimWorld& world = world_;
  const TimePoint begin = world.clock().now();
  co_await runtime::sleep_for(to_duration(world.job_.constants[Constant::kTransitionHost]));
  const TimePoint sent = world.clock().now();
  if (world.streaming_) world.streaming_->pause();
  co_await world.move_weights();
  version_ = WeightVersion{version};
  if (world.streaming_) world.streaming_->land(version_);
  world.log_phase(world.job_.policy, "policy", "publish", begin);
  world.trace_.landings.push_back({version, sent, world.clock().now()});
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
