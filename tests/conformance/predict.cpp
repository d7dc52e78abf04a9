#include "tests/conformance/predict.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/clock.hpp"
#include "sim/catalogue/catalogue.hpp"
#include "sim/engine/simulation.hpp"
#include "sim/rollout/replica.hpp"
#include "sim/world/simulate.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

namespace troupe::conformance {

using sim::Constants;
using sim::SimJob;

namespace {

/// Steps that a loop beside its rollout takes to its rhythm; then `kSteps` are looked at.
std::int64_t warm_steps(sim::SimMode mode, const Row& row) {
  return mode == sim::SimMode::kSynchronous ? 0 : row.lead + 1;
}
constexpr std::int64_t kSteps = 24;

result<sim::Recompute> recompute_of(const std::string& name) {
  if (name == "none") return sim::Recompute::kNone;
  if (name == "attention") return sim::Recompute::kAttention;
  if (name == "all") return sim::Recompute::kAll;
  return fail(ErrorCode::kConfig, "recompute is {}, wanted none, attention or all", name);
}

result<sim::TrainSharding> sharding_of(const std::string& name) {
  if (name == "none") return sim::TrainSharding::kNone;
  if (name == "zero1") return sim::TrainSharding::kZero1;
  if (name == "fsdp") return sim::TrainSharding::kFsdp;
  return fail(ErrorCode::kConfig, "sharding is {}, wanted none, zero1 or fsdp", name);
}

result<sim::LengthOptions> answers(double mean, double sigma, std::int64_t cap) {
  sim::LengthOptions options;
  TROUPE_TRY(options.shape, sim::log_normal_with_mean(mean, sigma, cap));
  options.tokens_max = cap;
  return options;
}

/// Σ s and Σ s² of a batch whose answers have this distribution.
sim::TrainWork work_of(const Row& row, const sim::LengthModel& lengths) {
  const int points = 2'000;
  double squares = 0;
  double tokens = 0;
  for (int i = 0; i < points; ++i) {
    const double answer =
        std::clamp(lengths.quantile((i + 0.5) / points), 1.0, static_cast<double>(row.cap));
    const double whole = static_cast<double>(row.prompt) + answer;
    tokens += whole / points;
    squares += whole * whole / points;
  }
  const std::int64_t samples = row.prompts * row.group;
  return {.tokens = tokens * static_cast<double>(samples),
          .squares = squares * static_cast<double>(samples),
          .sequences = samples};
}

/// The mean answer with which the policy's log-prob pass takes as long as it did.
result<double> mean_from_log_probs(const Row& row, const SimJob& job) {
  const double wanted = row.measured.at("old_log_prob");
  TROUPE_TRY(const sim::TrainCost cost,
             sim::TrainCost::create(row.model, row.device, job.policy.layout, job.constants));
  const double handed_over = static_cast<double>(row.prompts * row.group * row.padded) *
                             job.controller.token_bytes /
                             job.constants[sim::Constant::kControllerRate];
  double low = 16;
  double high = static_cast<double>(row.cap) * 0.98;
  for (int i = 0; i < 40; ++i) {
    const double middle = std::sqrt(low * high);
    TROUPE_TRY(const auto options, answers(middle, row.sigma, row.cap));
    TROUPE_TRY(const auto lengths, sim::LengthModel::create(options));
    const double span = cost.forward(work_of(row, lengths)).total() + handed_over;
    (span < wanted ? low : high) = middle;
  }
  return std::sqrt(low * high);
}

/// When each sample of a generation on engines of one kind ended.
class Generation : public sim::ReplicaListener {
 public:
  result<void> run(const sim::DecodeCost& cost, const sim::ReplicaOptions& options,
                   const std::vector<std::vector<sim::SimSequence>>& by_engine) {
    for (const auto& sequences : by_engine) {
      TROUPE_TRY(auto engine, sim::Replica::create(cost, options, *this));
      for (const sim::SimSequence& one : sequences) {
        TROUPE_TRY_VOID(engine->submit(simulation_, one));
      }
      engines_.push_back(std::move(engine));
    }
    TROUPE_TRY_VOID(simulation_.run());
    return {};
  }
  void on_finished(sim::Replica&, const sim::SimSequence&) override {
    ends_s.push_back(seconds(simulation_.now() - TimePoint{}));
  }
  std::int64_t preemptions() const {
    std::int64_t sum = 0;
    for (const auto& engine : engines_) sum += engine->statistics().preemptions;
    return sum;
  }

  std::vector<double> ends_s{};  ///< rising

 private:
  sim::Simulation simulation_;
  std::vector<std::unique_ptr<sim::Replica>> engines_;
};

}  // namespace

result<SimJob> job_of(const Row& row, const Constants& constants) {
  SimJob job;
  job.constants = constants;
  TROUPE_TRY(job.mode, sim::sim_mode_from_name(row.mode));
  job.steps = warm_steps(job.mode, row) + (job.mode == sim::SimMode::kSynchronous ? 1 : kSteps);
  job.pools = {{.name = "trainer", .device = row.device, .devices = row.gpus}};
  if (row.rollout_gpus > 0)
    job.pools.push_back({.name = "engines", .device = row.device, .devices = row.rollout_gpus});
  job.policy.model = row.model;
  sim::TrainLayout& layout = job.policy.layout;
  layout.tp = row.tp;
  layout.pp = row.pp;
  layout.ep = row.ep;
  layout.dp = row.gpus / (row.tp * row.pp);
  layout.cp = row.cp;
  layout.micro_batch_tokens = row.micro_tokens;
  layout.balanced = row.balanced;
  layout.first_stage_layers = row.first_layers;
  layout.last_stage_layers = row.last_layers;
  // NeMo-RL's packer; with pipelines it pads (nemo_rl/models/megatron/data.py).
  if (row.packed)
    layout.micro_batches = row.pp > 1 ? sim::MicroBatches::kPadded : sim::MicroBatches::kFilled;
  layout.offload_pinned = row.pinned;
  layout.offload_idle = row.offload && row.rollout_gpus == 0;
  TROUPE_TRY(layout.recompute, recompute_of(row.recompute));
  TROUPE_TRY(layout.sharding, sharding_of(row.sharding));
  if (row.reference) {
    job.reference = job.policy;
    job.reference->layout.offload_idle = row.offload;
  }
  job.rollout.pool = row.rollout_gpus > 0 ? 1 : 0;
  job.rollout.layout.tp = row.gen_tp;
  job.rollout.layout.memory_share = row.memory_share;
  job.rollout.layout.sleeps = true;
  job.rollout.replicas = (row.rollout_gpus > 0 ? row.rollout_gpus : row.gpus) / row.gen_tp;
  job.rollout.engine.sequences_max = row.sequences_max;
  job.controller.row_tokens = row.padded;
  job.pacing.ledger.lead_max = row.lead;
  job.quick_moves = true;
  job.whole_tensors = row.whole_tensors;
  job.prompts_per_step = row.prompts;
  job.group_size = row.group;
  job.minibatch_prompts = row.minibatch;
  job.prompt_lengths.shape = sim::FixedLength{row.prompt};
  double mean = static_cast<double>(row.mean);
  if (row.mean == 0) {
    TROUPE_TRY(mean, mean_from_log_probs(row, job));
  }
  TROUPE_TRY(job.answer_lengths, answers(mean, row.sigma, row.cap));
  return job;
}

result<std::map<std::string, double>> predict(const Row& row, const Constants& constants) {
  TROUPE_TRY(const SimJob job, job_of(row, constants));
  TROUPE_TRY(const sim::SimOutcome run, sim::simulate(job, {.keep_phases = false}));
  const auto warm = static_cast<std::size_t>(warm_steps(job.mode, row));
  const auto looked_at = static_cast<double>(run.steps.size() - warm);
  std::map<std::string, double> predicted;
  for (const auto& [phase, measured] : row.measured) {
    if (row.mean == 0 && phase == "old_log_prob") continue;  // lengths were taken from it
    double sum = 0;
    for (std::size_t i = warm; i < run.steps.size(); ++i) {
      const sim::SimStep& step = run.steps[i];
      const auto found = step.phases_s.find(phase);
      sum += phase == "step" ? step.span_s : found == step.phases_s.end() ? 0 : found->second;
    }
    predicted[phase] = sum / looked_at;
  }
  return predicted;
}

Constants of_2024(Constants constants) {
  // In the constants' ranges: the calls cannot fail.
  TROUPE_CHECK(constants.set(sim::Constant::kDecodeSequenceHost, 1e-4), "constant out of range");
  TROUPE_CHECK(constants.set(sim::Constant::kDecodeStepHost, 5e-3), "constant out of range");
  return constants;
}

result<double> predict(const Transition& transition, const Constants& constants) {
  SimJob job;
  job.constants = constants;
  TROUPE_TRY(const auto device, sim::Catalogue::built_in().device("a100-80g-hybridflow"));
  job.pools = {{.name = "all", .device = device, .devices = transition.gpus}};
  job.policy.model = transition.model;
  job.policy.layout.tp = transition.tp;
  job.policy.layout.pp = transition.pp;
  job.policy.layout.dp = transition.gpus / (transition.tp * transition.pp);
  job.rollout.layout.tp = transition.gen_tp;
  job.rollout.layout.sleeps = true;
  job.rollout.replicas = transition.gpus / transition.gen_tp;
  // Weights alone are looked at: the smallest work that goes round.
  job.prompts_per_step = job.rollout.replicas;
  job.group_size = 1;
  job.prompt_lengths.shape = sim::FixedLength{16};
  job.answer_lengths.shape = sim::FixedLength{16};
  TROUPE_TRY(const sim::SimOutcome run, sim::simulate(job, {.keep_phases = false}));
  return run.steps.front().phases_s.at("update_weights");
}

result<std::map<int, double>> predict(const GenerationTp& generation, const Constants& constants) {
  TROUPE_TRY(const auto device, sim::Catalogue::built_in().device("a100-80g-hybridflow"));
  const int gpus = 16;
  const std::int64_t tokens = 1024;
  SimJob job;
  job.constants = of_2024(constants);
  job.pools = {{.name = "all", .device = device, .devices = gpus}};
  job.policy.model = generation.model;
  job.policy.layout.tp = 8;
  job.policy.layout.dp = gpus / 8;
  job.policy.layout.micro_batch_tokens = 4 * tokens;
  job.critic = job.reference = job.reward_model = job.policy;
  job.prompts_per_step = 1024;
  job.group_size = 1;
  job.minibatch_prompts = 128;
  job.prompt_lengths.shape = job.answer_lengths.shape = sim::FixedLength{tokens};
  job.answer_lengths.tokens_max = tokens;
  job.quick_moves = true;
  job.rollout.layout.captured.clear();
  job.rollout.layout.sleeps = true;
  TROUPE_TRY(const auto trained,
             sim::TrainCost::create(generation.model, device, job.policy.layout, job.constants));
  // Actor and critic keep weights and moments, reference and reward model their weights.
  const sim::TrainMemory learns = trained.memory(false);
  job.rollout.layout.reserved_bytes =
      2 * (learns.weights + learns.optimizer) + 2 * trained.memory(true).weights;
  std::map<int, double> spans;
  for (const int tp : generation.sizes) {
    job.rollout.layout.tp = tp;
    job.rollout.replicas = gpus / tp;
    TROUPE_TRY(const auto cost, sim::DecodeCost::create(generation.model, device,
                                                        job.rollout.layout, job.constants));
    const result<std::int64_t> room = cost.kv_tokens();
    if (!room || *room < 2 * tokens) continue;
    TROUPE_TRY(const sim::SimOutcome run, sim::simulate(job, {.keep_phases = false}));
    spans[tp] = run.steps.front().phases_s.at("gen");
  }
  return spans;
}

result<double> predict(const Training& training, Constants constants) {
  // In the constant's range: the call cannot fail.
  TROUPE_CHECK(constants.set(sim::Constant::kExpertUnevenness, 1), "constant out of range");
  sim::TrainLayout layout;
  layout.pp = training.pp;
  layout.virtual_stages = training.virtual_stages;
  layout.ep = training.ep;
  layout.dp = training.gpus / training.pp;
  layout.micro_batch_tokens = training.micro_batch * training.sequence;
  TROUPE_TRY(const auto cost,
             sim::TrainCost::create(training.model, training.device, layout, constants));
  const auto length = static_cast<double>(training.sequence);
  const double tokens = static_cast<double>(training.batch) * length;
  const sim::TrainTime time =
      cost.update({.tokens = tokens, .squares = tokens * length, .sequences = training.batch});
  return tokens / (time.total() - time.host) / training.gpus;
}

result<TailTime> predict(const Tail& tail, const Constants& constants) {
  TROUPE_TRY(const auto cost,
             sim::DecodeCost::create(tail.model, tail.device, {.tp = tail.tp}, constants));
  TROUPE_TRY(const auto options, answers(static_cast<double>(tail.mean), tail.sigma, tail.cap));
  TROUPE_TRY(const auto lengths, sim::LengthModel::create(options));
  std::vector<std::vector<sim::SimSequence>> by_engine(static_cast<std::size_t>(tail.instances));
  for (std::int64_t row = 0; row < tail.prompts * tail.group; ++row) {
    const auto prompt = static_cast<std::uint64_t>(row / tail.group);
    const auto sample = static_cast<std::uint32_t>(row % tail.group);
    const std::int64_t length = lengths.draw(1, 1, prompt, sample);
    // Groups are dealt out in turn, as a whole.
    by_engine[prompt % by_engine.size()].push_back({.id = static_cast<std::uint64_t>(row + 1),
                                                    .group = prompt,
                                                    .prompt = 300,
                                                    .length = length});
  }
  Generation run;
  TROUPE_TRY_VOID(run.run(cost, {}, by_engine));
  const std::vector<double>& ends = run.ends_s;
  return TailTime{.rollout_s = ends.back(),
                  .tail_s = ends.back() - ends[ends.size() * 9 / 10 - 1],
                  .preemptions = run.preemptions()};
}

result<MemoryNeed> predict(const MemoryFact& fact, const Constants& constants) {
  sim::TrainLayout layout;
  layout.tp = fact.tp;
  layout.pp = fact.pp;
  layout.dp = fact.gpus / (fact.tp * fact.pp);
  layout.recompute = sim::Recompute::kAll;
  layout.micro_batch_tokens = 4096;
  TROUPE_TRY(layout.sharding, sharding_of(fact.sharding));
  TROUPE_TRY(const auto cost, sim::TrainCost::create(fact.model, fact.device, layout, constants));
  const sim::TrainMemory learns = cost.memory(false);
  const sim::TrainMemory frozen = cost.memory(true);
  double kept = 0;
  if (!fact.offload) kept += learns.weights + learns.optimizer + frozen.weights;
  if (fact.ppo) kept += learns.weights + learns.optimizer + frozen.weights;
  const double own = fact.offload ? 0 : learns.weights + learns.optimizer;
  const double update = kept - own + learns.total();
  TROUPE_TRY(const auto engine,
             sim::DecodeCost::create(fact.model, fact.device,
                                     {.tp = fact.gen_tp, .reserved_bytes = kept}, constants));
  const result<std::int64_t> room = engine.kv_tokens();
  const double generate = kept + engine.weight_bytes() + constants[sim::Constant::kEngineWorkspace];
  return MemoryNeed{.fits = update <= fact.device.memory_bytes && room && *room >= 2048,
                    .device_bytes = fact.device.memory_bytes,
                    .peak_bytes = std::max(update, generate)};
}

}  // namespace troupe::conformance
