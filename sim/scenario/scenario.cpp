#include "sim/scenario/scenario.hpp"

#include "runtime/config/suggest.hpp"
#include "sim/scenario/length_keys.hpp"
#include "sim/scenario/pool_placement.hpp"
#include "sim/scenario/role_layouts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace troupe::sim {

using runtime::Config;

namespace {

constexpr const char* kSets = "simulation.sets";
constexpr const char* kActor = "actor_rollout_ref.actor";

/// Section of the configuration that says how a role is cut.
std::string section_of(const std::string& role) {
  if (role == "policy") return kActor;
  if (role == "reference") return "actor_rollout_ref.ref";
  return role;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == separator)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

/// Roles of the run, in a fixed order.
std::vector<std::string> roles_of(const ScenarioRoles& roles) {
  std::vector<std::string> names{"policy"};
  if (roles.reference) names.emplace_back("reference");
  if (roles.critic) names.emplace_back("critic");
  names.emplace_back("rollout");
  return names;
}

/// As a real run places its roles: rollout beside the others or with them.
std::vector<RoleSet> real_sets(const Config& config, const ScenarioRoles& roles) {
  RoleSet trainer;
  trainer.roles = roles_of(roles);
  trainer.devices = config.get<int>("trainer.nnodes") * config.get<int>("trainer.n_gpus_per_node");
  if (roles.rollout_devices == 0) return {trainer};
  trainer.roles.pop_back();
  return {trainer,
          {.roles = {"rollout"},
           .devices = roles.rollout_devices,
           .device = config.get<std::string>("simulation.rollout_device")}};
}

result<std::vector<RoleSet>> sets_of(const Config& config, const ScenarioRoles& roles) {
  const auto texts = config.get<std::vector<std::string>>(kSets);
  if (texts.empty()) return real_sets(config, roles);
  std::vector<std::string> missing = roles_of(roles);
  std::vector<RoleSet> sets;
  for (const std::string& text : texts) {
    auto set = parse_role_set(text);
    if (!set) return config.refuse(kSets, "{}", set.error().message);
    for (const std::string& role : set->roles) {
      const auto at = std::ranges::find(missing, role);
      if (at == missing.end())
        return config.refuse(kSets, "'{}': role {} is there twice, or this run has none", text,
                             role);
      missing.erase(at);
    }
    sets.push_back(*std::move(set));
  }
  if (missing.empty()) return sets;
  return config.refuse(kSets, "leaves out {}, which this run has", fmt::join(missing, ", "));
}

result<std::vector<std::string>> place_sets(const Config& config, const Catalogue& catalogue,
                                            const std::vector<RoleSet>& sets, SimJob& job) {
  TROUPE_TRY(const DeviceSpec usual, device_of(config, catalogue, "simulation.device"));
  for (const RoleSet& set : sets) {
    DevicePool pool{.name = fmt::format("{}", fmt::join(set.roles, "+")),
                    .device = usual,
                    .devices = set.devices};
    if (!set.device.empty()) {
      auto own = catalogue.device(set.device);
      if (!own)
        return config.refuse(
            set.roles.front() == "rollout" && config.is_set("simulation.rollout_device")
                ? "simulation.rollout_device"
                : kSets,
            "{}", own.error().message);
      pool.device = *std::move(own);
    }
    job.pools.push_back(std::move(pool));
  }
  PlacementWish wish;
  TROUPE_TRY(wish.strategy, placement::parse_strategy(config.get<std::string>("cluster.strategy")));
  TROUPE_TRY(wish.level, placement::parse_level(config.get<std::string>("cluster.level")));
  wish.per_domain_max = config.get<int>("cluster.max_per_domain");
  wish.nodes = config.get_optional<std::int64_t>("simulation.nodes");
  auto lines = place_pools(job.pools, wish);
  if (!lines)
    return config.refuse(wish.nodes ? "simulation.nodes" : "cluster.strategy", "{}",
                         lines.error().message);
  return lines;
}

std::size_t pool_of(const std::vector<RoleSet>& sets, const std::string& role) {
  const auto at = std::ranges::find_if(sets, [&](const RoleSet& set) {
    return std::ranges::find(set.roles, role) != set.roles.end();
  });
  return static_cast<std::size_t>(at - sets.begin());
}

result<SimTrainedRole> trained_role(const Config& config, const std::vector<RoleSet>& sets,
                                    const std::string& name, ModelSpec model, const SimJob& job) {
  SimTrainedRole role;
  role.model = std::move(model);
  role.pool = pool_of(sets, name);
  TROUPE_TRY(role.layout, train_layout(config, section_of(name), job.pools[role.pool].devices));
  if (role.model.shape.expert.experts > 0)
    role.layout.ep = config.get<int>("simulation.expert_parallel_size");
  TROUPE_TRY_VOID(check_layout(config, section_of(name), role, job));
  return role;
}

result<void> add_roles(const Config& config, const Catalogue& catalogue, const ScenarioRoles& roles,
                       const std::vector<RoleSet>& sets, SimJob& job) {
  const std::string path = "actor_rollout_ref.model.path";
  TROUPE_TRY(const ModelSpec model, model_of(config, catalogue, "simulation.model", path));
  if (model.shape.expert.experts == 0 && config.get<int>("simulation.expert_parallel_size") > 1)
    return config.refuse("simulation.expert_parallel_size",
                         "model {} has no experts; the nearest possible is 1", model.name);
  TROUPE_TRY(job.policy, trained_role(config, sets, "policy", model, job));
  if (roles.reference) {
    TROUPE_TRY(job.reference, trained_role(config, sets, "reference", model, job));
  }
  if (roles.critic) {
    ModelSpec own = model;
    if (!config.get<std::string>("simulation.critic_model").empty() ||
        !config.is_null("critic.model.path")) {
      TROUPE_TRY(own, model_of(config, catalogue, "simulation.critic_model", "critic.model.path"));
    }
    own.shape.value_head = true;
    TROUPE_TRY(job.critic, trained_role(config, sets, "critic", own, job));
  }
  TROUPE_TRY(job.rollout, rollout_of(config, job, pool_of(sets, "rollout")));
  return {};
}

void read_declared(const Config& config, SimJob& job) {
  const std::string at = "simulation.";
  const auto number = [&](const std::string& key) { return config.get<double>(at + key); };
  job.reward = {.sample_s = number("reward.sample_s"),
                .sigma = number("reward.sigma"),
                .workers = config.get<int>("reward.num_workers")};
  job.stragglers = {.replica_share = number("stragglers.replica_share"),
                    .replica_factor = number("stragglers.replica_factor"),
                    .step_share = number("stragglers.step_share"),
                    .step_factor = number("stragglers.step_factor")};
  job.failures = {.rollout_mtbf_s = number("failures.rollout_mtbf_s"),
                  .rollout_restart_s = number("failures.rollout_restart_s"),
                  .trainer_mtbf_s = number("failures.trainer_mtbf_s"),
                  .trainer_restart_s = number("failures.trainer_restart_s"),
                  .restarts_max = config.get<int>("async.revives_max")};
  job.checkpoints = {
      .every_steps = std::max(config.get<std::int64_t>("trainer.save_freq"), std::int64_t{0}),
      .bytes = number("checkpoint.bytes"),
      .rate = number("checkpoint.rate")};
  if (config.get<std::string>("environment.name").empty()) return;
  job.environment = {
      .turns_min = config.get<int>(at + "environment.turns_min"),
      .turns_max = static_cast<int>(config.get<std::int64_t>("environment.turns_max")),
      .turn_s = number("environment.turn_s"),
      .sigma = number("environment.sigma"),
      .tokens_a_turn = config.get<std::int64_t>(at + "environment.tokens_a_turn"),
      .workers = config.get<int>(at + "environment.workers")};
}

result<void> read_work(const Config& config, const ScenarioRoles& roles, Scenario& scenario) {
  SimJob& job = scenario.job;
  job.seed = static_cast<std::uint64_t>(config.get_optional<std::int64_t>("simulation.seed")
                                            .value_or(config.get<std::int64_t>("trainer.seed")));
  TROUPE_TRY(job.mode, sim_mode_from_name(config.get<std::string>("trainer.mode")));
  scenario.sampling = sample_keys(config);
  job.pacing = roles.pacing;
  job.steps = scenario.sampling.steps;
  // What is reported must not show how a run ends: rollout goes on for steps beyond it.
  if (job.mode != SimMode::kSynchronous) job.steps += job.pacing.ledger.lead_max + 1;
  job.pacing.ledger.steps_max = job.steps;
  job.side_by_side = config.get<bool>("simulation.side_by_side");
  job.prompts_per_step = config.get<std::int64_t>("data.train_batch_size");
  job.group_size = config.get<std::int64_t>("actor_rollout_ref.rollout.n");
  job.minibatch_prompts = roles.minibatch_prompts;
  job.epochs = config.get<std::int64_t>(std::string(kActor) + ".ppo_epochs");
  TROUPE_TRY(job.prompt_lengths, length_options(config, "simulation.lengths.prompt",
                                                config.get<std::int64_t>("data.max_prompt_length"),
                                                "data.max_prompt_length"));
  TROUPE_TRY(job.answer_lengths,
             length_options(config, "simulation.lengths.response",
                            config.get<std::int64_t>("data.max_response_length"),
                            "data.max_response_length"));
  const std::string section = "simulation.constants";
  for (const std::string& key : config.keys_below(section)) {
    const runtime::Value& value = config.value(section + "." + key);
    const auto* whole = std::get_if<std::int64_t>(&value);
    TROUPE_TRY(const Constant constant, constant_from_name(key));
    scenario.given.push_back(constant);
    TROUPE_TRY_VOID(job.constants.set(
        constant, whole != nullptr ? static_cast<double>(*whole) : std::get<double>(value)));
  }
  read_declared(config, job);
  return {};
}

std::vector<std::string> notes_of(const Config& config) {
  std::vector<std::string> notes;
  const auto left_out = [&](const std::string& key, const std::string& what) {
    if (config.is_set(key) && !config.is_null(key))
      notes.push_back(
          fmt::format("{} = {}: {}", key, runtime::to_yaml_text(config.value(key)), what));
  };
  left_out("trainer.test_freq", "validation is not simulated");
  left_out("trainer.evaluation_devices", "evaluation is not simulated, nor its devices");
  left_out("trainer.critic_warmup", "policy and critic learn from the first step");
  left_out("async.drop_zero_variance", "scores are a declared fair coin");
  left_out(std::string(kActor) + ".fsdp_config.fsdp_size", "shards lie over all ranks");
  left_out(std::string(kActor) + ".megatron.pipeline_layers", "layers lie evenly");
  left_out("actor_rollout_ref.rollout.simulated_delay.median_s",
           "answers take what their tokens take");
  return notes;
}

/// A run that could be simulated in no time and memory that anyone has.
result<void> check_size(const Config& config, const std::vector<RoleSet>& sets) {
  std::int64_t devices = 0;
  for (const RoleSet& set : sets) devices += set.devices;
  if (devices > kSimulatedDevicesMax)
    return config.refuse("trainer.nnodes", "makes {} devices; the nearest possible is {} in all",
                         devices, kSimulatedDevicesMax);
  const auto prompts = config.get<std::int64_t>("data.train_batch_size");
  const auto group = config.get<std::int64_t>("actor_rollout_ref.rollout.n");
  if (prompts > kSimulatedSamplesMax / group)
    return config.refuse("data.train_batch_size",
                         "of {} samples each is more than {} samples a step; the nearest possible "
                         "is {}",
                         group, kSimulatedSamplesMax,
                         std::max<std::int64_t>(kSimulatedSamplesMax / group, 1));
  return {};
}

}  // namespace

result<RoleSet> parse_role_set(const std::string& text) {
  const std::vector<std::string> parts = split(text, ':');
  if (parts.size() < 2 || parts.size() > 3)
    return fail(ErrorCode::kConfig, "'{}' is not roles:devices or roles:devices:kind", text);
  RoleSet set{.roles = split(parts[0], '+'),
              .devices = 0,
              .device = parts.size() == 3 ? parts[2] : std::string()};
  const std::string& count = parts[1];
  const auto [end, problem] =
      std::from_chars(count.data(), count.data() + count.size(), set.devices);
  if (problem != std::errc() || end != count.data() + count.size() || set.devices < 1)
    return fail(ErrorCode::kConfig, "'{}': {} is no number of devices; the nearest possible is 1",
                text, count);
  const std::vector<std::string> known{"policy", "reference", "critic", "rollout"};
  for (const std::string& role : set.roles) {
    if (std::ranges::find(known, role) != known.end()) continue;
    const auto near = runtime::nearest_name(role, known);
    return fail(ErrorCode::kConfig, "'{}': no role {}{}", text, role,
                near ? fmt::format(", did you mean {}?", *near)
                     : fmt::format(", there are {}", fmt::join(known, ", ")));
  }
  return set;
}

result<Scenario> read_scenario(const Config& config, const ScenarioRoles& roles) {
  Scenario scenario;
  SimJob& job = scenario.job;
  TROUPE_TRY(const Catalogue catalogue, read_catalogue(config));
  TROUPE_TRY(const std::vector<RoleSet> sets, sets_of(config, roles));
  TROUPE_TRY_VOID(check_size(config, sets));
  TROUPE_TRY_VOID(read_work(config, roles, scenario));
  TROUPE_TRY(scenario.placement, place_sets(config, catalogue, sets, job));
  TROUPE_TRY_VOID(add_roles(config, catalogue, roles, sets, job));
  reserve_memory(job);
  if (config.get<bool>("async.lend_devices") && job.own_rollout())
    return config.refuse("async.lend_devices",
                         "replicas on the trainer's devices beside own ones are not simulated; the "
                         "nearest possible is false");
  if (roles.fits) {
    TROUPE_TRY_VOID(check_fits(config, job));
  }
  scenario.notes = notes_of(config);
  return scenario;
}

}  // namespace troupe::sim
