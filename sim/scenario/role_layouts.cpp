#include "sim/scenario/role_layouts.hpp"

#include "actors/model/model_config.hpp"
#include "actors/rollout/model_share.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/units.hpp"
#include "sim/cost/nearest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace troupe::sim {

using runtime::Config;

namespace {

constexpr const char* kRollout = "actor_rollout_ref.rollout.";
constexpr const char* kReference = "actor_rollout_ref.ref";

bool is_bf16(const Config& config) {
  return config.get<std::string>("simulation.precision") == "bf16";
}

std::string tp_key(const std::string& section) {
  return section + ".megatron.tensor_model_parallel_size";
}

std::string pp_key(const std::string& section) {
  return section + ".megatron.pipeline_model_parallel_size";
}

/// Value of a key that only some sections have.
template <class T>
T get_or(const Config& config, const std::string& key, T otherwise) {
  return config.has(key) ? config.get<T>(key) : otherwise;
}

TrainSharding sharding_of(const Config& config, const std::string& section) {
  if (get_or<std::string>(config, section + ".strategy", "megatron") == "fsdp")
    return TrainSharding::kFsdp;
  return get_or(config, section + ".megatron.use_distributed_optimizer", false)
             ? TrainSharding::kZero1
             : TrainSharding::kNone;
}

MicroBatches micro_batches_of(const Config& config) {
  const auto name = config.get<std::string>("simulation.micro_batches");
  if (name == "filled") return MicroBatches::kFilled;
  return name == "padded" ? MicroBatches::kPadded : MicroBatches::kEven;
}

/// Tokens that the configuration gives an engine; 0: what the memory leaves.
std::int64_t kv_pool(const Config& config, const DecodeCost& cost) {
  if (const auto measured = config.get<std::int64_t>("simulation.kv_tokens"); measured > 0)
    return measured;
  std::int64_t tokens = 0;
  const std::string cache = std::string(kRollout) + "kv_cache_mb";
  if (config.is_set(cache)) {
    const auto bytes = static_cast<double>(mebibytes(config.get<std::int64_t>(cache)).value);
    tokens = static_cast<std::int64_t>(bytes / cost.kv_token_bytes());
    tokens = std::max(tokens / kKvBlockTokens, std::int64_t{1}) * kKvBlockTokens;
  }
  const auto blocks = config.get<std::int64_t>(std::string(kRollout) + "kv_cache_blocks");
  if (blocks > 0)
    tokens = tokens == 0 ? blocks * kKvBlockTokens : std::min(tokens, blocks * kKvBlockTokens);
  return tokens;
}

/// A change of the configuration, and what it does to a trained role.
struct Change {
  std::string text;
  std::function<void(TrainLayout&)> make;
};

std::vector<Change> changes_of(const TrainLayout& policy) {
  const std::string actor = "actor_rollout_ref.actor.";
  std::vector<Change> changes{
      {"actor_rollout_ref.model.enable_gradient_checkpointing = true",
       [](TrainLayout& l) { l.recompute = Recompute::kAll; }},
      {actor + "megatron.use_distributed_optimizer = true",
       [](TrainLayout& l) { l.sharding = TrainSharding::kZero1; }},
      {actor + "strategy = fsdp", [](TrainLayout& l) { l.sharding = TrainSharding::kFsdp; }},
      {actor + "strategy = fsdp with enable_gradient_checkpointing", [](TrainLayout& l) {
         l.sharding = TrainSharding::kFsdp;
         l.recompute = Recompute::kAll;
       }}};
  const int devices = policy.devices();
  for (int tp = 1; tp <= 64 && tp <= devices; tp *= 2)
    for (int pp = 1; tp * pp <= devices && pp <= 64; pp *= 2) {
      if (devices % (tp * pp) != 0 || (tp == 1 && pp == 1)) continue;
      changes.push_back({fmt::format("tp {} pp {} with ZeRO-1 and gradient checkpointing", tp, pp),
                         [tp, pp](TrainLayout& l) {
                           l.dp = l.devices() / (tp * pp);
                           l.tp = tp;
                           l.pp = pp;
                           l.virtual_stages = 1;
                           l.sharding = TrainSharding::kZero1;
                           l.recompute = Recompute::kAll;
                         }});
    }
  return changes;
}

/// Calls `visit` for the policy, and for the critic where its set is as large.
template <class Visit>
void for_each_trained(SimJob& job, Visit visit) {
  const int devices = job.policy.layout.devices();
  visit(job.policy.layout);
  if (job.critic && job.critic->layout.devices() == devices) visit(job.critic->layout);
}

bool fits_with(SimJob job, const Change& change) {
  for_each_trained(job, change.make);
  reserve_memory(job);
  return job.check().has_value();
}

/// The job on `factor` times as many devices, all of them data-parallel.
SimJob scaled(SimJob job, int factor) {
  for (DevicePool& pool : job.pools) pool.devices *= factor;
  job.policy.layout.dp *= factor;
  if (job.reference) job.reference->layout.dp *= factor;
  if (job.critic) job.critic->layout.dp *= factor;
  job.rollout.replicas *= factor;
  return job;
}

/// The nearest change that makes the job fit: of its layout, else of its devices.
std::string nearest_fit(const SimJob& job) {
  constexpr int kFactorMost = 64;
  for (int factor = 1; factor <= kFactorMost; factor *= 2) {
    const SimJob larger = scaled(job, factor);
    const std::string more =
        factor == 1 ? std::string() : fmt::format("{} times as many devices with ", factor);
    for (const Change& change : changes_of(larger.policy.layout))
      if (fits_with(larger, change))
        return fmt::format("the nearest that fits is {}{}", more, change.text);
  }
  return fmt::format("nothing fits on up to {} times as many devices", kFactorMost);
}

}  // namespace

result<Catalogue> read_catalogue(const Config& config) {
  Catalogue catalogue = Catalogue::built_in();
  const std::string key = "simulation.catalogue_files";
  for (const std::string& file : config.get<std::vector<std::string>>(key)) {
    const auto text = read_text_file(file);
    if (!text) return config.refuse(key, "{}", text.error().message);
    if (auto added = catalogue.add(*text, file); !added)
      return config.refuse(key, "{}", added.error().message);
  }
  return catalogue;
}

result<DeviceSpec> device_of(const Config& config, const Catalogue& catalogue,
                             const std::string& key) {
  const auto name = config.get<std::string>(key);
  if (name.empty())
    return config.refuse(key, "is missing; the catalogue has {}",
                         fmt::join(catalogue.devices(), ", "));
  auto device = catalogue.device(name);
  if (!device) return config.refuse(key, "{}", device.error().message);
  if (const auto price = config.get_optional<double>("simulation.price_per_hour"))
    device->price_per_hour = *price;
  return device;
}

result<ModelSpec> model_of(const Config& config, const Catalogue& catalogue, const std::string& key,
                           const std::string& path_key) {
  const auto name = config.get<std::string>(key);
  if (!name.empty()) {
    auto model = catalogue.model(name);
    if (!model) return config.refuse(key, "{}", model.error().message);
    return model;
  }
  const auto folder = config.is_null(path_key) ? "" : config.get<std::string>(path_key);
  if (folder.empty())
    return config.refuse(key, "is missing, and so is {}; the catalogue has {}", path_key,
                         fmt::join(catalogue.models(), ", "));
  const auto read = actors::ModelConfig::load(folder);
  if (!read) return config.refuse(path_key, "{}", read.error().message);
  ModelSpec model;
  model.name = std::filesystem::path(folder).filename().string();
  if (model.name.empty()) model.name = folder;
  model.shape = actors::shape_of(*read);
  model.shape.dtype = is_bf16(config) ? reshard::DType::kBf16 : reshard::DType::kF32;
  model.source = folder + "/config.json";
  return model;
}

result<TrainLayout> train_layout(const Config& config, const std::string& section, int devices) {
  TrainLayout layout;
  layout.tp = config.get<int>(tp_key(section));
  layout.pp = config.get<int>(pp_key(section));
  const int ranks = layout.tp * layout.pp;
  if (devices % ranks != 0)
    return config.refuse(
        tp_key(section),
        "with pp {} cuts into {}, which does not divide the set's {} devices; the nearest that "
        "does is {}",
        layout.pp, ranks, devices, nearest_that_fits(layout.tp, devices, [&](int tp) {
          return devices % (tp * layout.pp) == 0;
        }));
  layout.dp = devices / ranks;
  layout.sharding = sharding_of(config, section);
  layout.virtual_stages =
      get_or(config, section + ".megatron.virtual_pipeline_model_parallel_size", 1);
  const bool frozen = section == kReference;
  const std::string tokens = frozen ? "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu"
                                    : section + ".ppo_max_token_len_per_gpu";
  layout.micro_batch_tokens = config.get<std::int64_t>(tokens);
  layout.micro_batches = micro_batches_of(config);
  layout.balanced = config.get<bool>("trainer.balance_batch");
  const std::string model = section == "critic" ? "critic.model." : "actor_rollout_ref.model.";
  layout.recompute = config.get<bool>(model + "enable_gradient_checkpointing")
                         ? Recompute::kAll
                         : Recompute::kAttention;
  const bool bf16 = is_bf16(config);
  layout.weight_bytes = bf16 ? 2 : 4;
  layout.gradient_bytes = frozen ? 0 : 4;
  layout.optimizer_bytes = frozen ? 0 : bf16 ? 12 : 8;
  layout.offload_optimizer = config.get<bool>("simulation.offload_optimizer");
  return layout;
}

result<void> check_layout(const Config& config, const std::string& section,
                          const SimTrainedRole& role, const SimJob& job) {
  const auto cost =
      TrainCost::create(role.model, job.pools[role.pool].device, role.layout, job.constants);
  if (cost) return {};
  const auto& shape = role.model.shape;
  const bool expert = role.layout.ep > 1 &&
                      (shape.expert.experts == 0 || shape.expert.experts % role.layout.ep != 0);
  if (expert) return config.refuse("simulation.expert_parallel_size", "{}", cost.error().message);
  if (shape.heads % role.layout.tp != 0)
    return config.refuse(
        tp_key(section),
        "does not divide the {} heads of {}; the nearest that divides them and {} "
        "devices in pp {} is {}",
        shape.heads, role.model.name, role.layout.devices(), role.layout.pp,
        nearest_that_fits<std::int64_t>(role.layout.tp, shape.heads, [&](std::int64_t tp) {
          return shape.heads % tp == 0 && role.layout.devices() % (tp * role.layout.pp) == 0;
        }));
  return config.refuse(pp_key(section), "{}", cost.error().message);
}

result<SimRollout> rollout_of(const Config& config, const SimJob& job, std::size_t pool) {
  SimRollout rollout;
  const std::string key = std::string(kRollout) + "tensor_model_parallel_size";
  rollout.pool = pool;
  rollout.layout.tp = config.get<int>(key);
  rollout.layout.weight_bytes = is_bf16(config) ? 2 : 4;
  rollout.layout.kv_bytes = rollout.layout.weight_bytes;
  rollout.layout.sleeps = config.get<int>(std::string(kRollout) + "sleep_level") == 2;
  rollout.engine.sequences_max = config.get<std::int64_t>(std::string(kRollout) + "max_num_seqs");
  const std::string profile = "simulation.step_profile";
  if (const auto file = config.get<std::string>(profile); !file.empty()) {
    auto measured = read_step_profile(file);
    if (!measured) return config.refuse(profile, "{}", measured.error().message);
    rollout.layout.profile = *std::move(measured);
  }
  const int devices = job.pools[pool].devices;
  if (devices % rollout.layout.tp != 0)
    return config.refuse(
        key, "does not divide the {} devices of rollout; the nearest that does is {}", devices,
        nearest_that_fits(rollout.layout.tp, devices, [&](int tp) { return devices % tp == 0; }));
  rollout.replicas = devices / rollout.layout.tp;
  const auto cost =
      DecodeCost::create(job.policy.model, job.pools[pool].device, rollout.layout, job.constants);
  if (!cost) return config.refuse(key, "{}", cost.error().message);
  rollout.engine.kv_tokens = kv_pool(config, *cost);
  const std::int64_t longest = config.get<std::int64_t>("data.max_prompt_length") +
                               config.get<std::int64_t>("data.max_response_length");
  if (const auto given = config.get<std::int64_t>("simulation.kv_tokens");
      given > 0 && given < longest)
    return config.refuse("simulation.kv_tokens",
                         "holds no sample of {} tokens (data.max_prompt_length + "
                         "data.max_response_length); the nearest possible is {}",
                         longest, longest);
  return rollout;
}

void reserve_memory(SimJob& job) {
  job.rollout.layout.reserved_bytes = 0;
  const PoolMemory memory = memory_of(job)[job.rollout.pool];
  for (const PoolMemory::Entry& entry : memory.entries)
    if (entry.role != "rollout") job.rollout.layout.reserved_bytes += entry.kept_bytes;
}

result<void> check_fits(const Config& config, const SimJob& job) {
  const auto checked = job.check();
  if (checked) return {};
  if (checked.error().code != ErrorCode::kResourceExhausted)
    return fail(ErrorCode::kConfig, "{}", checked.error().message);
  return config.refuse("simulation.device", "{}; {}", checked.error().message, nearest_fit(job));
}

}  // namespace troupe::sim
