#include "sim/scenario/simulation_keys.hpp"

#include "sim/cost/constants.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::sim {

using runtime::at_least;
using runtime::between;
using runtime::Config;
using runtime::positive;
using runtime::Schema;
using runtime::ValueType;

namespace {

constexpr double kMostTokens = 1 << 24;
constexpr double kMostSeconds = 1e9;
constexpr double kMostRanks = 1024;

void declare_machines(Schema& s) {
  const std::string at = "simulation.";
  s.text(at + "device", "", "kind of the trainer's devices, a name of the catalogue");
  s.text(at + "rollout_device", "", "kind of rollout's own devices; empty: as the trainer's");
  s.texts(at + "catalogue_files", {}, "files with devices and models of your own");
  s.optional_key(at + "nodes", ValueType::kInt,
                 "nodes of each kind that cluster.strategy chooses from; null: as few as suffice")
      .within(between(1, 65536));
  s.texts(at + "sets", {},
          "roles that share devices: 'policy+reference:32', 'critic:16:h20', 'rollout:16'; empty: "
          "as a real run places them");
  s.boolean(at + "side_by_side", false, "roles on different sets work at the same time");
  s.optional_key(at + "price_per_hour", ValueType::kDouble,
                 "of one device, US dollars; null: the catalogue's")
      .within(at_least(0));
}

void declare_models(Schema& s) {
  const std::string at = "simulation.";
  s.text(at + "model", "",
         "the policy, a name of the catalogue; empty: config.json in "
         "actor_rollout_ref.model.path");
  s.text(at + "critic_model", "", "empty: the policy's, or config.json in critic.model.path");
  s.text(at + "precision", "bf16", "bytes of weights, gradients, moments and KV: bf16 or fp32")
      .one_of({"bf16", "fp32"});
  s.integer(at + "expert_parallel_size", 1, "ranks that share out the trained experts")
      .within(between(1, kMostRanks));
  s.text(at + "micro_batches", "even",
         "even: of about the same tokens; filled: whole sequences, one after the other; padded: "
         "filled, and padded to the bound")
      .one_of({"even", "filled", "padded"});
  s.boolean(at + "offload_optimizer", false, "moments live in host memory");
  s.integer(at + "kv_tokens", 0, "measured KV pool of one engine; 0: what the memory leaves")
      .within(between(0, 1e12));
  s.text(at + "step_profile", "",
         "measured decode steps, lines of `sequences,seconds`; empty: the cost model's");
}

void declare_lengths(Schema& s, const std::string& at, const std::string& shape,
                     const std::string& what) {
  s.text(at + "shape", shape, "distribution of " + what)
      .one_of({"", "fixed", "lognormal", "weibull", "mixture", "empirical"});
  const auto number = [&](const char* name, const char* doc) {
    s.optional_key(at + name, ValueType::kDouble, doc).within(positive());
  };
  s.optional_key(at + "tokens", ValueType::kInt, "fixed: null: the most that is allowed")
      .within(between(1, kMostTokens));
  number("median", "lognormal, mixture: tokens");
  number("sigma", "lognormal, mixture: of the logarithm");
  number("scale", "weibull: tokens");
  number("weibull_shape", "weibull: below 1 a heavy tail");
  s.number(at + "overlong_share", 0.1, "mixture: share that is as long as allowed")
      .within(between(0, 1));
  s.text(at + "file", "", "empirical: a length a line, or the first column of a CSV");
  s.number(at + "group_share", 0.5, "of the variance, that samples of a prompt have in common")
      .within(between(0, 1));
  s.number(at + "drift_per_step", 0, "growth of the logarithm with each step")
      .within(between(-10, 10));
  s.number(at + "drift_factor_max", 10, "most that lengths drift, either way")
      .within(between(1, 1e6));
}

void declare_declared(Schema& s) {
  const std::string at = "simulation.";
  s.number(at + "reward.sample_s", 0.001, "seconds of one reward, median; declared")
      .within(between(0, kMostSeconds));
  s.number(at + "reward.sigma", 0, "of its logarithm").within(between(0, 4));
  const std::string turn = at + "environment.";
  s.integer(turn + "turns_min", 1, "turns of a sample, with environment.name; declared")
      .within(between(1, 1 << 16));
  s.number(turn + "turn_s", 1, "seconds of a turn, median").within(between(0, kMostSeconds));
  s.number(turn + "sigma", 0, "of its logarithm").within(between(0, 4));
  s.integer(turn + "tokens_a_turn", 64, "tokens that it adds").within(between(1, kMostTokens));
  s.integer(turn + "workers", 256, "turns at a time").within(between(1, 1 << 20));
  const std::string slow = at + "stragglers.";
  s.number(slow + "replica_share", 0, "probability that an engine is slow").within(between(0, 1));
  s.number(slow + "replica_factor", 1, "times as long its steps take").within(between(1, 1e6));
  s.number(slow + "step_share", 0, "probability that an update is slow").within(between(0, 1));
  s.number(slow + "step_factor", 1, "times as long it takes").within(between(1, 1e6));
  const std::string dead = at + "failures.";
  s.number(dead + "rollout_mtbf_s", 0, "mean time between failures of a device; 0: none")
      .within(between(0, 1e12));
  s.number(dead + "rollout_restart_s", 60, "until an engine is back")
      .within(between(0, kMostSeconds));
  s.number(dead + "trainer_mtbf_s", 0, "the same of trained roles").within(between(0, 1e12));
  s.number(dead + "trainer_restart_s", 300, "until training goes on")
      .within(between(0, kMostSeconds));
  const std::string saved = at + "checkpoint.";
  s.number(saved + "bytes", 0, "of one checkpoint; 0: weights and moments of trained roles")
      .within(between(0, 1e18));
  s.number(saved + "rate", 2e9, "bytes/s to storage").within(between(1, 1e15));
}

void declare_run(Schema& s) {
  const std::string at = "simulation.";
  s.integer(at + "steps", 4, "training steps that are simulated").within(between(1, 1'000'000));
  s.integer(at + "warm_up_steps", 1, "first steps that the numbers leave out")
      .within(between(0, 1'000'000));
  s.integer(at + "samples", 16,
            "runs with other seeds and constants inside their ranges, behind p10 and p90; 1: none")
      .within(between(1, 10'000));
  s.optional_key(at + "seed", ValueType::kInt, "null: trainer.seed").within(at_least(0));
  s.open_section("simulation.constants", "values in place of priors; names in docs/simulator.md");
}

result<void> check_names(const Config& config) {
  const std::string section = "simulation.constants";
  for (const std::string& key : config.keys_below(section)) {
    const std::string full = section + "." + key;
    const auto constant = constant_from_name(key);
    if (!constant) return config.refuse(full, "{}", constant.error().message);
    const runtime::Value& value = config.value(full);
    const auto* real = std::get_if<double>(&value);
    const auto* whole = std::get_if<std::int64_t>(&value);
    if (real == nullptr && whole == nullptr) return config.refuse(full, "is no number");
    const double number = real != nullptr ? *real : static_cast<double>(*whole);
    const ConstantInfo& info = info_of(*constant);
    if (number >= info.low && number <= info.high) continue;
    return config.refuse(full, "is outside {} to {} {}; the nearest possible is {}", info.low,
                         info.high, info.unit, number > info.high ? info.high : info.low);
  }
  return {};
}

result<void> check_steps(const Config& config) {
  const auto steps = config.get<std::int64_t>("simulation.steps");
  const auto warm_up = config.get<std::int64_t>("simulation.warm_up_steps");
  if (warm_up < steps || !config.is_set("simulation.warm_up_steps")) return {};
  return config.refuse("simulation.warm_up_steps",
                       "leaves nothing of simulation.steps = {}; the nearest possible is {}", steps,
                       steps - 1);
}

}  // namespace

void declare_simulation(Schema& schema) {
  declare_machines(schema);
  declare_models(schema);
  declare_lengths(schema, "simulation.lengths.prompt.", "fixed", "prompts");
  declare_lengths(schema, "simulation.lengths.response.", "", "answers");
  declare_declared(schema);
  declare_run(schema);
  schema.rule(check_names);
  schema.rule(check_steps);
}

std::vector<std::string> given_simulation_keys(const Config& config) {
  std::vector<std::string> given;
  for (const std::string& key : config.keys_below("simulation")) {
    const std::string full = "simulation." + key;
    if (config.is_set(full))
      given.push_back(fmt::format("{} = {}", full, runtime::to_yaml_text(config.value(full))));
  }
  return given;
}

SampleKeys sample_keys(const Config& config) {
  const auto steps = config.get<std::int64_t>("simulation.steps");
  return {
      .steps = steps,
      .warm_up_steps = std::min(config.get<std::int64_t>("simulation.warm_up_steps"), steps - 1),
      .samples = config.get<std::int64_t>("simulation.samples")};
}

}  // namespace troupe::sim
