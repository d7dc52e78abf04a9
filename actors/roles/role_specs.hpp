#pragma once

// What a rank process needs to become a rank of a role: everything but the files of its model,
// which it opens itself.
//
// **Threads:** plain values.
// **Invariants:** the same spec gives the same bits on every host: random weights are a function of
// seed, tensor name and configuration.

#include "actors/model/weight_set.hpp"
#include "actors/roles/judge_specs.hpp"
#include "actors/roles/role_wire.hpp"
#include "actors/roles/simulated_delay.hpp"
#include "actors/rollout/rollout_engine.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace troupe::actors {

/// A model by where it comes from.
struct ModelSource {
  std::string config = {};  ///< text of its config.json, as resolved by the controller
  std::string folder = {};  ///< of its weights, on every node; unread when random
  bool random = false;
  std::uint64_t seed = 0;
  std::string tokenizer_folder = {};

  static constexpr auto fields() {
    using runtime::field;
    using T = ModelSource;
    return std::tuple{field("config", &T::config), field("folder", &T::folder),
                      field("random", &T::random), field("seed", &T::seed),
                      field("tokenizer_folder", &T::tokenizer_folder)};
  }
};

struct OpenedModel {
  ModelConfig config;
  WeightSet weights;
};

/// kNotFound when the folder is not on this node; then the errors of its files.
result<OpenedModel> open_model(const ModelSource& source);
result<ModelConfig> config_of(const ModelSource& source);

/// Program names.
inline constexpr const char* kPolicyProgram = "policy";
inline constexpr const char* kReferenceProgram = "ref";
inline constexpr const char* kCriticProgram = "critic";
inline constexpr const char* kRolloutProgram = "rollout";
inline constexpr const char* kRewardProgram = "reward";

/// policy, ref, critic.
struct TrainSpec {
  ModelSource model;
  TrainEngineOptions engine;
  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{field("model", &TrainSpec::model), field("engine", &TrainSpec::engine)};
  }
};

struct RolloutSpec {
  ModelSource model;
  EngineOptions engine;  ///< without `token_bytes`, which comes from the tokenizer
  SimulatedDelay delay = {};
  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{field("model", &RolloutSpec::model), field("engine", &RolloutSpec::engine),
                      field("delay", &RolloutSpec::delay)};
  }
};

struct RewardSpec {
  std::string tokenizer_folder;
  std::string rule;  ///< empty: by data source
  std::vector<CommandRewardSpec> commands = {};
  bool report_failed = false;
  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{field("tokenizer_folder", &RewardSpec::tokenizer_folder),
                      field("rule", &RewardSpec::rule), field("commands", &RewardSpec::commands),
                      field("report_failed", &RewardSpec::report_failed)};
  }
};

/// What a phase of a role needs on its device: entries by their `what`, and scratch bytes.
struct PhaseNeed {
  std::vector<std::string> resident;
  Bytes scratch;
};
using PhaseNeeds = std::map<std::string, PhaseNeed>;

PhaseNeeds trained_phases(const ModelConfig& model, const TrainEngineOptions& engine);
PhaseNeeds rollout_phases();

}  // namespace troupe::actors

namespace troupe::runtime {

template <>
struct WireFields<actors::EngineOptions> {
  static constexpr auto fields() {
    using T = actors::EngineOptions;
    return std::tuple{field("max_model_tokens", &T::max_model_tokens),
                      field("max_num_seqs", &T::max_num_seqs),
                      field("max_num_batched_tokens", &T::max_num_batched_tokens),
                      field("max_queued_sequences", &T::max_queued_sequences),
                      field("kv_blocks", &T::kv_blocks),
                      field("kv_bytes_max", &T::kv_bytes_max),
                      field("share_prompt", &T::share_prompt),
                      field("kernel", &T::kernel),
                      field("weight_memory", &T::weight_memory),
                      field("tp_timeout", &T::tp_timeout)};
  }
};

}  // namespace troupe::runtime
