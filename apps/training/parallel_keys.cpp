#include "apps/training/parallel_keys.hpp"

#include "actors/rollout/model_share.hpp"
#include "apps/training/async_keys.hpp"
#include "apps/training/config_seconds.hpp"
#include "apps/training/role_keys.hpp"
#include "apps/training/sections.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace troupe::apps {

using runtime::between;
using runtime::Config;
using runtime::Schema;
using runtime::ValueType;

namespace {

constexpr double kMostRanks = 1024;

/// Keys of a trained section; the reference takes what it is not given from the actor.
void declare_mesh(Schema& s, const std::string& at, const std::string& otherwise) {
  const auto like = [&](runtime::KeySpec& key, const std::string& name) -> runtime::KeySpec& {
    return otherwise.empty() ? key : key.or_value_of(otherwise + name);
  };
  const std::string mesh = ".megatron.";
  like(s.text(at + ".strategy", "megatron",
              "what data-parallel ranks hold: megatron the same weights, fsdp a shard of them"),
       ".strategy")
      .one_of({"megatron", "fsdp"})
      .also_spelled("fsdp2", "fsdp");
  like(s.integer(at + mesh + "tensor_model_parallel_size", 1, "ranks that share every matrix"),
       mesh + "tensor_model_parallel_size")
      .within(between(1, kMostRanks));
  like(s.integer(at + mesh + "pipeline_model_parallel_size", 1, "pipeline stages"),
       mesh + "pipeline_model_parallel_size")
      .within(between(1, kMostRanks));
  like(s.integer(at + mesh + "virtual_pipeline_model_parallel_size", 1,
                 "runs of layers on each pipeline stage"),
       mesh + "virtual_pipeline_model_parallel_size")
      .within(between(1, kMostRanks));
  like(s.optional_key(at + mesh + "pipeline_layers", ValueType::kIntList,
                      "layers of each run, in order; null: as even as possible"),
       mesh + "pipeline_layers")
      .within(between(1, 1 << 16));
  like(s.integer(at + ".fsdp_config.fsdp_size", -1,
                 "ranks that share one copy of the weights, for fsdp; -1: all of them"),
       ".fsdp_config.fsdp_size")
      .within(between(-1, kMostRanks));
  if (otherwise.empty()) {
    s.boolean(at + mesh + "use_distributed_optimizer", false,
              "cut the optimizer's moments over data-parallel ranks (ZeRO-1)");
  } else {
    s.refused(at + mesh + "use_distributed_optimizer", "a reference has no optimizer");
  }
  s.refused(at + mesh + "context_parallel_size", "context parallelism is not in this build");
  s.refused(at + mesh + "expert_model_parallel_size", "expert parallelism is not in this build");
}

void declare_publication(Schema& s) {
  const std::string at = kRollout;
  s.integer(at + ".tensor_model_parallel_size", 1, "ranks of one rollout engine")
      .within(between(1, kMostRanks));
  s.integer(at + ".update_weights_bucket_megabytes", 8,
            "staging of weights from other processes, MiB; a rank has two of them")
      .within(between(1, 1024));
  s.boolean(at + ".free_cache_engine", true,
            "give the KV cache back while others use the device, and gradients before it returns");
  s.integer(at + ".sleep_level", 1,
            "what free_cache_engine gives back: 1 the KV cache; 2 the weights too, until the next "
            "publication")
      .within(between(1, 2));
  s.text(at + ".weight_memory", "double_buffered",
         "where new weights go: double_buffered beside the old ones, in_place over them")
      .one_of({"double_buffered", "in_place"});
  s.integer(at + ".canary.tokens", 8,
            "tokens that each replica generates greedily after a publication, to be compared; 0: "
            "none")
      .within(between(0, 1024));
  s.number(at + ".canary.tolerance", 1e-3,
           "most that the trainer's log-probs of these tokens may differ")
      .within(runtime::positive());
}

int dp_of(const Config& config, const std::string& section) {
  const std::string mesh = section + ".megatron.";
  return run_devices(config) / (config.get<int>(mesh + "tensor_model_parallel_size") *
                                config.get<int>(mesh + "pipeline_model_parallel_size"));
}

result<void> check_devices(const Config& config, const std::string& section) {
  const std::string mesh = section + ".megatron.";
  const int devices = run_devices(config);
  const std::int64_t tp = config.get<int>(mesh + "tensor_model_parallel_size");
  const std::int64_t pp = config.get<int>(mesh + "pipeline_model_parallel_size");
  if (devices % (tp * pp) == 0) return {};
  const std::string key =
      mesh + (devices % tp != 0 ? "tensor_model_parallel_size" : "pipeline_model_parallel_size");
  return config.refuse(key, "the run's {} devices cannot be cut into tp {} × pp {} = {}", devices,
                       tp, pp, tp * pp);
}

result<void> check_stages(const Config& config, const std::string& section) {
  const std::string mesh = section + ".megatron.";
  const std::int64_t pp = config.get<int>(mesh + "pipeline_model_parallel_size");
  const std::int64_t runs = config.get<int>(mesh + "virtual_pipeline_model_parallel_size");
  if (pp == 1 && runs > 1)
    return config.refuse(mesh + "virtual_pipeline_model_parallel_size",
                         "needs {}pipeline_model_parallel_size above 1", mesh);
  const auto layers = config.get_optional<std::vector<std::int64_t>>(mesh + "pipeline_layers");
  if (layers && static_cast<std::int64_t>(layers->size()) != pp * runs)
    return config.refuse(mesh + "pipeline_layers", "has {} numbers, wanted pp {} × virtual {} = {}",
                         layers->size(), pp, runs, pp * runs);
  return {};
}

result<void> check_sharding(const Config& config, const std::string& section) {
  const std::string size = section + ".fsdp_config.fsdp_size";
  const std::string zero = section + ".megatron.use_distributed_optimizer";
  const bool fsdp = config.get<std::string>(section + ".strategy") == "fsdp";
  // A reference may have inherited it beside a strategy of its own.
  const bool inherited =
      section == kReference &&
      config.get<int>(size) == config.get<int>(std::string(kActor) + ".fsdp_config.fsdp_size");
  if (!fsdp && config.get<int>(size) != -1 && !inherited)
    return config.refuse(size, "has no effect with {}.strategy = megatron", section);
  if (fsdp && config.has(zero) && config.get<bool>(zero))
    return config.refuse(zero, "has no effect with {}.strategy = fsdp, which cuts the optimizer",
                         section);
  const int ranks = config.get<int>(size);
  if (ranks == 0) return config.refuse(size, "is neither -1 nor a number of ranks");
  const int dp = dp_of(config, section);
  if (fsdp && ranks > 0 && dp % ranks != 0)
    return config.refuse(size, "does not divide the {} data-parallel ranks", dp);
  return {};
}

result<void> check_rollout(const Config& config) {
  const std::string at = kRollout;
  const int tp = config.get<int>(at + ".tensor_model_parallel_size");
  if (!streams(config) && run_devices(config) % tp != 0)
    return config.refuse(at + ".tensor_model_parallel_size",
                         "the run's {} devices cannot be cut into engines of {}",
                         run_devices(config), tp);
  if (!config.get<bool>(at + ".free_cache_engine") && config.get<int>(at + ".sleep_level") != 1)
    return config.refuse(at + ".sleep_level", "has no effect while {}.free_cache_engine is false",
                         at);
  return {};
}

}  // namespace

void declare_parallel(Schema& schema) {
  declare_mesh(schema, kActor, "");
  declare_mesh(schema, kReference, kActor);
  declare_mesh(schema, kCritic, "");
  declare_publication(schema);
  for (const std::string section : {kActor, kReference, kCritic}) {
    schema.rule([section](const Config& config) -> result<void> {
      TROUPE_TRY_VOID(check_devices(config, section));
      TROUPE_TRY_VOID(check_stages(config, section));
      return check_sharding(config, section);
    });
  }
  schema.rule(check_rollout);
}

result<actors::ParallelOptions> parallel_options(const Config& config, const std::string& section,
                                                 const actors::ModelConfig& model) {
  const std::string mesh = section + ".megatron.";
  actors::ParallelOptions parallel;
  parallel.tp = config.get<int>(mesh + "tensor_model_parallel_size");
  parallel.pp = config.get<int>(mesh + "pipeline_model_parallel_size");
  parallel.virtual_stages = config.get<int>(mesh + "virtual_pipeline_model_parallel_size");
  parallel.stage_layers = config.get_optional<std::vector<std::int64_t>>(mesh + "pipeline_layers")
                              .value_or(std::vector<std::int64_t>());
  if (config.get<std::string>(section + ".strategy") == "fsdp") {
    parallel.sharding = actors::Sharding::kFsdp;
    parallel.shard_ranks = std::max(config.get<int>(section + ".fsdp_config.fsdp_size"), 0);
  } else if (const std::string zero = mesh + "use_distributed_optimizer";
             config.has(zero) && config.get<bool>(zero)) {
    parallel.sharding = actors::Sharding::kZero1;
  }
  auto fits = actors::check_parallel(model, parallel, run_devices(config));
  if (fits) return parallel;
  const bool stages = parallel.pp > 1 && parallel.tp == 1;
  return config.refuse(
      mesh + (stages ? "pipeline_model_parallel_size" : "tensor_model_parallel_size"), "{}",
      fits.error().message);
}

result<int> rollout_tp(const Config& config, const actors::ModelConfig& model) {
  const std::string key = std::string(kRollout) + ".tensor_model_parallel_size";
  const int tp = config.get<int>(key);
  auto share = actors::share_of(model, 0, tp);
  if (share) return tp;
  return config.refuse(key, "{}", share.error().message);
}

actors::PublicationOptions publication_options(const Config& config) {
  const std::string at = kRollout;
  actors::PublicationOptions options;
  options.bucket = mebibytes(config.get<std::int64_t>(at + ".update_weights_bucket_megabytes"));
  options.canary_tokens = config.get<int>(at + ".canary.tokens");
  options.canary_tolerance = config.get<double>(at + ".canary.tolerance");
  options.receive_within = seconds_of(config, "trainer.call_timeout_s");
  options.sleep = std::nullopt;
  if (config.get<bool>(at + ".free_cache_engine"))
    options.sleep = config.get<int>(at + ".sleep_level") == 2 ? actors::SleepLevel::kWeightsAndKv
                                                              : actors::SleepLevel::kKv;
  return options;
}

}  // namespace troupe::apps
