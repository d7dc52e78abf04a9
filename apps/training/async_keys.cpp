#include "apps/training/async_keys.hpp"

#include "actors/algorithm/advantage.hpp"
#include "actors/train/streamed_update.hpp"
#include "apps/training/config_seconds.hpp"
#include "apps/training/judge_keys.hpp"
#include "apps/training/role_keys.hpp"
#include "apps/training/sections.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <utility>

namespace troupe::apps {

using runtime::at_least;
using runtime::between;
using runtime::Config;
using runtime::Schema;
using runtime::ValueType;

namespace {

constexpr double kMostSeconds = 1e7;
constexpr double kMostDevices = 1024;
constexpr const char* kRolloutTp = "actor_rollout_ref.rollout.tensor_model_parallel_size";
constexpr const char* kMode = "trainer.mode";

void declare_pacing(Schema& s) {
  const std::string at = "async.";
  s.optional_key(at + "staleness", ValueType::kInt,
                 "steps that rollout may be ahead of training; 0: the synchronous order; null: 1")
      .within(between(0, 1024));
  s.text(at + "policy", "wait",
         "what happens at the bounds: wait keeps places in steps, drop gives groups up, truncate "
         "masks old tokens")
      .one_of({"wait", "drop", "truncate"});
  s.optional_key(at + "age_max", ValueType::kInt,
                 "versions that the oldest token may be behind when it is used; null: what "
                 "staleness implies")
      .within(between(0, 1 << 20));
  s.optional_key(at + "span_max", ValueType::kInt,
                 "versions that one sample may cross; null: any number")
      .within(between(0, 1 << 20));
  s.integer(at + "groups_extra", 0, "prompts generated beyond what steps need (over-sampling)")
      .within(between(0, kMostInt));
  s.integer(at + "running_max", 0, "prompts generated at a time; 0: as pacing allows")
      .within(between(0, kMostInt));
  s.text(at + "on_update", "recompute",
         "the KV cache of samples under way when weights arrive: recompute it, keep it, or drain: "
         "samples end first")
      .one_of({"drain", "keep", "recompute"});
  s.optional_key(at + "order", ValueType::kString,
                 "prompts that a step takes: those ready first, or strictly by issue; null: issue "
                 "when pipelined, else ready")
      .one_of({"ready", "issue"});
  s.integer(at + "groups_per_part", 1, "pipelined: prompts that are trained at a time")
      .within(between(1, kMostInt));
  s.integer(at + "revives_max", 3, "times that a rollout replica is made anew after a death")
      .within(between(0, 1 << 20));
  s.boolean(at + "lend_devices", false,
            "rollout replicas on the trainer's devices too, used while the trainer waits");
  s.number(at + "no_progress_s", 600, "seconds without any progress of rollout that end the run")
      .within(between(0.001, kMostSeconds));
}

void declare_tools(Schema& s) {
  const std::string at = "async.";
  s.boolean(at + "rounds", false, "prompts run in rounds that end when enough are complete");
  s.text(at + "cut", "resume", "prompts that a round's end stops: resume, restart or drop them")
      .one_of({"resume", "restart", "drop"});
  s.integer(at + "tail_round_groups", 0, "so many prompts that were stopped have a round; 0: none")
      .within(between(0, kMostInt));
  s.integer(at + "samples_extra", 0, "samples of a prompt beyond n; the first n scored count")
      .within(between(0, 65536));
  s.number(at + "hedge_after_s", 0, "then an idle replica may run a slow sample too; 0: never")
      .within(between(0, kMostSeconds));
  s.number(at + "sample_deadline_s", 0, "seconds that a sample may run; 0: any")
      .within(between(0, kMostSeconds));
  s.text(at + "on_deadline", "truncate", "what then: truncate it, retry elsewhere, drop its prompt")
      .one_of({"truncate", "retry", "drop"});
  s.number(at + "stall_after_s", 0, "a sample that gets nothing for so long goes elsewhere; 0: no")
      .within(between(0, kMostSeconds));
  s.number(at + "score_deadline_s", 0, "a reward that takes longer is asked for again; 0: never")
      .within(between(0, kMostSeconds));
  s.integer(at + "retries_max", 3, "failures of one sample before its prompt is given up")
      .within(between(0, 1 << 20));
  s.boolean(at + "longest_first", false, "start what is expected to take longest first");
  s.integer(at + "repack_below", 0,
            "when so few samples run, empty the replicas that run least; 0: never")
      .within(between(0, kMostInt));
  s.integer(at + "moves_max", 1, "times that one sample may be moved for it")
      .within(between(1, 1 << 20));
  s.boolean(at + "drop_zero_variance", false,
            "drop prompts whose samples all score the same (dynamic sampling)");
  s.integer(at + "refills_max", 0, "prompts that a step may drop for it; 0: ten times its own")
      .within(between(0, kMostInt));
  s.text(at + "on_refills", "fail", "beyond that: fail the run, or keep such prompts")
      .one_of({"fail", "keep"});
}

void declare_pools(Schema& s) {
  s.optional_key("trainer.rollout_devices", ValueType::kInt,
                 "devices of rollout alone, beside the trainer's; null: those of one engine")
      .within(between(1, kMostDevices));
  s.alias("rollout.n_gpus_per_node", "trainer.rollout_devices");
  s.refused("rollout.nnodes", "write all devices of rollout into trainer.rollout_devices");
  s.integer("trainer.evaluation_devices", 0,
            "devices that only evaluate, beside all others; 0: rollout's, between steps")
      .within(between(0, kMostDevices));
  s.number("trainer.evaluation_wait_s", 600,
           "seconds that the end of a run waits for evaluations under way")
      .within(between(0, kMostSeconds));
  const std::string delay = "actor_rollout_ref.rollout.simulated_delay.";
  s.number(delay + "median_s", 0,
           "declared, simulated seconds that a sample takes at least, median; 0: none")
      .within(between(0, 86400));
  s.number(delay + "sigma", 0, "of their log-normal distribution").within(between(0, 4));
}

/// One option without which another does nothing: the latter's default is the only value it takes.
template <class T>
result<void> needs(const Config& c, bool there, const std::string& key, const T& otherwise,
                   const std::string& wanted) {
  if (there || c.get<T>(key) == otherwise) return {};
  return c.refuse(key, "has no effect with {} = {}", wanted,
                  runtime::to_yaml_text(c.value(wanted)));
}

result<void> check_tools(const Config& c) {
  const std::string at = "async.";
  const bool rounds = c.get<bool>(at + "rounds");
  TROUPE_TRY_VOID(needs<std::string>(c, rounds, at + "cut", "resume", at + "rounds"));
  TROUPE_TRY_VOID(needs<std::int64_t>(c, rounds, at + "tail_round_groups", 0, at + "rounds"));
  const bool deadline = c.get<double>(at + "sample_deadline_s") > 0;
  TROUPE_TRY_VOID(
      needs<std::string>(c, deadline, at + "on_deadline", "truncate", at + "sample_deadline_s"));
  const bool repacks = c.get<std::int64_t>(at + "repack_below") > 0;
  TROUPE_TRY_VOID(needs<std::int64_t>(c, repacks, at + "moves_max", 1, at + "repack_below"));
  const bool drops = c.get<bool>(at + "drop_zero_variance");
  TROUPE_TRY_VOID(needs<std::int64_t>(c, drops, at + "refills_max", 0, at + "drop_zero_variance"));
  TROUPE_TRY_VOID(
      needs<std::string>(c, drops, at + "on_refills", "fail", at + "drop_zero_variance"));
  const auto n = c.get<std::int64_t>("actor_rollout_ref.rollout.n");
  if (drops && n < 2)
    return c.refuse(at + "drop_zero_variance",
                    "would drop every prompt, as actor_rollout_ref.rollout.n = {}", n);
  const std::string delay = "actor_rollout_ref.rollout.simulated_delay.";
  return needs<double>(c, c.get<double>(delay + "median_s") > 0, delay + "sigma", 0,
                       delay + "median_s");
}

result<void> check_pacing(const Config& c) {
  const auto mode = c.get<std::string>(kMode);
  if (mode == "one_step_off" && staleness(c) > 1)
    return c.refuse("async.staleness", "is more than 1, the most with {} = {}", kMode, mode);
  const actors::LedgerOptions ledger = ledger_options(c, 0);
  const auto bound =
      ledger.lead_max + (ledger.groups_extra + ledger.groups_per_step - 1) / ledger.groups_per_step;
  if (ledger.policy == actors::StalePolicy::kWait && ledger.age_max && *ledger.age_max < bound)
    return c.refuse("async.age_max",
                    "is below {}, which async.staleness = {} and async.groups_extra = {} imply; "
                    "async.policy = wait could never use such groups",
                    bound, ledger.lead_max, ledger.groups_extra);
  if (c.get<std::string>("async.on_update") == "drain" && mode == "async")
    return c.refuse("async.on_update", "is what {} = one_step_off does; {} publishes in flight",
                    kMode, mode);
  if (auto fits = ledger.check(); !fits)
    return c.refuse("async.staleness", "{}", fits.error().message);
  actors::SamplingOptions sampling;
  sampling.max_new_tokens =
      static_cast<std::int32_t>(c.get<std::int64_t>("data.max_response_length"));
  if (auto fits = dispatch_options(c, sampling).check(); !fits)
    return c.refuse("async.rounds", "{}", fits.error().message);
  return {};
}

result<void> check_estimator_of_loop(const Config& c) {
  const auto mode = c.get<std::string>(kMode);
  if (c.get<std::string>("algorithm.adv_estimator") != "remax") return {};
  if (mode == "pipelined")
    return c.refuse("algorithm.adv_estimator",
                    "needs a greedy sample of each prompt, for which {} = {} would stop at every "
                    "part; take async or one_step_off",
                    kMode, mode);
  if (!c.get<std::string>("environment.name").empty())
    return c.refuse("algorithm.adv_estimator",
                    "needs greedy samples, which have no turns of environment.name = {}",
                    c.get<std::string>("environment.name"));
  return {};
}

/// One optimizer step of a role at the end of a pipelined step, in the order of issue.
result<void> check_pipelined_role(const Config& c, const std::string& section) {
  const auto mode = c.get<std::string>(kMode);
  const auto batch = c.get<std::int64_t>("data.train_batch_size");
  const std::int64_t mini = minibatch_prompts(c, section);
  if (mini != batch)
    return c.refuse(section + ".ppo_mini_batch_size",
                    "cuts a step of data.train_batch_size = {} prompts into several updates ({}); "
                    "{} = {} makes one of them",
                    batch, mini, kMode, mode);
  if (c.get<std::int64_t>(section + ".ppo_epochs") != 1)
    return c.refuse(section + ".ppo_epochs", "passes twice over samples that {} = {} sees once",
                    kMode, mode);
  if (c.get<bool>(section + ".shuffle"))
    return c.refuse(section + ".shuffle", "contradicts {} = {}, which trains in issue order", kMode,
                    mode);
  return {};
}

/// Pipelined: gradients of groups are added as they come, and one optimizer step ends it.
result<void> check_pipelined(const Config& c) {
  const auto mode = c.get<std::string>(kMode);
  if (mode != "pipelined") return {};
  TROUPE_TRY_VOID(check_pipelined_role(c, kActor));
  if (wants_critic(c)) TROUPE_TRY_VOID(check_pipelined_role(c, kCritic));
  const auto estimator = c.get<std::string>("algorithm.adv_estimator");
  if (estimator == "gae" && c.get<bool>("algorithm.whiten_advantages"))
    return c.refuse("algorithm.whiten_advantages",
                    "needs the mean over the whole step, {} = {} trains its groups one by one; "
                    "false leaves advantages as they are",
                    kMode, mode);
  // A program's own estimator is judged where its registry is at hand (check_streamed_update).
  if (estimator != "gae" && actors::default_advantages().find(estimator) &&
      !actors::advantage_is_group_local(estimator))
    return c.refuse("algorithm.adv_estimator",
                    "normalises over the whole step, {} = {} trains its groups one by one", kMode,
                    mode);
  if (c.get_optional<std::string>("async.order") == std::optional<std::string>("ready"))
    return c.refuse("async.order",
                    "would make gradients depend on arrival; {} = {} trains by issue", kMode, mode);
  const auto part = c.get<std::int64_t>("async.groups_per_part");
  const auto batch = c.get<std::int64_t>("data.train_batch_size");
  if (part > batch)
    return c.refuse("async.groups_per_part", "is more than data.train_batch_size = {}", batch);
  return {};
}

result<void> check_sleep(const Config& c) {
  if (c.get<int>("actor_rollout_ref.rollout.sleep_level") == 1) return {};
  if (!streams(c))
    return c.refuse("actor_rollout_ref.rollout.sleep_level",
                    "would take the weights from samples between turns of environment.name = {}",
                    c.get<std::string>("environment.name"));
  return c.refuse("actor_rollout_ref.rollout.sleep_level",
                  "would take the weights from samples under way with {} = {}", kMode,
                  c.get<std::string>(kMode));
}

result<void> check_pools(const Config& c) {
  const int tp = c.get<int>(kRolloutTp);
  for (const std::string key : {"trainer.rollout_devices", "trainer.evaluation_devices"}) {
    const int devices =
        key == "trainer.rollout_devices" ? rollout_devices(c) : evaluation_devices(c);
    if (devices % tp != 0)
      return c.refuse(key, "cannot be cut into engines of {} = {}", kRolloutTp, tp);
  }
  if (c.get<bool>("trainer.val_only") && evaluation_devices(c) > 0)
    return c.refuse("trainer.evaluation_devices", "has no effect with trainer.val_only = true");
  return {};
}

result<void> check_streaming(const Config& c) {
  TROUPE_TRY_VOID(check_tools(c));
  if (!uses_service(c)) return {};
  TROUPE_TRY_VOID(check_estimator_of_loop(c));
  TROUPE_TRY_VOID(check_sleep(c));
  if (!streams(c)) return {};
  TROUPE_TRY_VOID(check_pacing(c));
  TROUPE_TRY_VOID(check_pipelined(c));
  return check_pools(c);
}

}  // namespace

void declare_async(Schema& schema) {
  schema.text(kMode, "sync", "loop: who waits for whom")
      .one_of({"sync", "one_step_off", "async", "pipelined"});
  declare_pacing(schema);
  declare_tools(schema);
  declare_pools(schema);
  schema.rule(check_streaming);
}

LoopMode loop_mode(const Config& config) {
  const auto name = config.get<std::string>(kMode);
  if (name == "one_step_off") return LoopMode::kOneStepOff;
  if (name == "async") return LoopMode::kAsync;
  if (name == "pipelined") return LoopMode::kPipelined;
  TROUPE_CHECK(name == "sync", "trainer.mode: the schema allows an unknown name '{}'", name);
  return LoopMode::kSync;
}

bool streams(const Config& config) { return loop_mode(config) != LoopMode::kSync; }

bool uses_service(const Config& config) { return streams(config) || wants_environment(config); }

int rollout_devices(const Config& config) {
  if (!streams(config)) return 0;
  const auto own = config.get_optional<std::int64_t>("trainer.rollout_devices");
  return own ? static_cast<int>(*own) : config.get<int>(kRolloutTp);
}

int evaluation_devices(const Config& config) {
  return streams(config) ? config.get<int>("trainer.evaluation_devices") : 0;
}

int all_devices(const Config& config) {
  return run_devices(config) + rollout_devices(config) + evaluation_devices(config);
}

std::int64_t staleness(const Config& config) {
  if (!streams(config)) return 0;
  return config.get_optional<std::int64_t>("async.staleness").value_or(1);
}

actors::LedgerOptions ledger_options(const Config& config, std::int64_t steps) {
  const std::string at = "async.";
  actors::LedgerOptions ledger;
  ledger.groups_per_step = config.get<std::int64_t>("data.train_batch_size");
  ledger.lead_max = staleness(config);
  const auto policy = actors::stale_policy_from_name(config.get<std::string>(at + "policy"));
  TROUPE_CHECK(policy.has_value(), "async.policy: the schema allows an unknown name");
  ledger.policy = *policy;
  ledger.age_max = config.get_optional<std::int64_t>(at + "age_max");
  ledger.span_max = config.get_optional<std::int64_t>(at + "span_max");
  ledger.groups_extra = config.get<std::int64_t>(at + "groups_extra");
  ledger.running_max = config.get<std::int64_t>(at + "running_max");
  ledger.steps_max = steps;
  return ledger;
}

actors::DispatchOptions dispatch_options(const Config& config,
                                         const actors::SamplingOptions& sampling) {
  const std::string at = "async.";
  actors::DispatchOptions dispatch;
  dispatch.group_size = config.get<std::int32_t>("actor_rollout_ref.rollout.n");
  dispatch.rounds = config.get<bool>(at + "rounds");
  const auto cut = config.get<std::string>(at + "cut");
  dispatch.cut = cut == "drop"      ? actors::CutAction::kDrop
                 : cut == "restart" ? actors::CutAction::kRestart
                                    : actors::CutAction::kResume;
  dispatch.tail_round_groups = config.get<std::int64_t>(at + "tail_round_groups");
  dispatch.samples_extra = config.get<std::int32_t>(at + "samples_extra");
  dispatch.hedge_after = seconds_of(config, at + "hedge_after_s");
  dispatch.sample_deadline = seconds_of(config, at + "sample_deadline_s");
  const auto late = config.get<std::string>(at + "on_deadline");
  dispatch.on_deadline = late == "drop"    ? actors::DeadlineAction::kDrop
                         : late == "retry" ? actors::DeadlineAction::kRetry
                                           : actors::DeadlineAction::kTruncate;
  dispatch.stall_after = seconds_of(config, at + "stall_after_s");
  dispatch.score_deadline = seconds_of(config, at + "score_deadline_s");
  dispatch.retries_max = config.get<std::int32_t>(at + "retries_max");
  dispatch.longest_first = config.get<bool>(at + "longest_first");
  dispatch.new_tokens_max = sampling.max_new_tokens;
  dispatch.repack_below = config.get<std::int64_t>(at + "repack_below");
  dispatch.moves_max = config.get<std::int32_t>(at + "moves_max");
  dispatch.drop_zero_variance = config.get<bool>(at + "drop_zero_variance");
  dispatch.refills_max = config.get<std::int64_t>(at + "refills_max");
  dispatch.on_refills = config.get<std::string>(at + "on_refills") == "keep"
                            ? actors::RefillAction::kKeep
                            : actors::RefillAction::kFail;
  return dispatch;
}

std::vector<std::string> ignored_keys(const Config& config) {
  std::vector<std::string> ignored;
  if (streams(config)) return ignored;
  for (const std::string key :
       {"async.staleness", "trainer.rollout_devices", "trainer.evaluation_devices"}) {
    if (config.is_set(key) && !config.is_null(key) && config.value(key) != runtime::Value(0L))
      ignored.push_back(key + " = " + runtime::to_yaml_text(config.value(key)));
  }
  return ignored;
}

}  // namespace troupe::apps
