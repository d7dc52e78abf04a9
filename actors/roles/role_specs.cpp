#include "actors/roles/role_specs.hpp"

#include "actors/model/hf_folder.hpp"
#include "actors/roles/memory_entries.hpp"

#include <filesystem>
#include <system_error>
#include <utility>

namespace troupe::actors {

result<ModelConfig> config_of(const ModelSource& source) {
  return ModelConfig::from_json(source.config, "the controller's model configuration");
}

result<OpenedModel> open_model(const ModelSource& source) {
  TROUPE_TRY(ModelConfig config, config_of(source));
  if (source.random) {
    WeightSet weights = random_weights(config, source.seed);
    return OpenedModel{std::move(config), std::move(weights)};
  }
  std::error_code ignored;
  if (!std::filesystem::is_directory(source.folder, ignored))
    return fail(ErrorCode::kNotFound,
                "{}: no such folder on this node; the model must lie under the same path on every "
                "node",
                source.folder);
  TROUPE_TRY(WeightSet weights, load_hf_weights(source.folder, config));
  return OpenedModel{std::move(config), std::move(weights)};
}

PhaseNeeds trained_phases(const ModelConfig& model, const TrainEngineOptions& engine) {
  PhaseNeeds needs{{"log_prob", {{"weights"}, {}}}};
  if (!engine.trainable) return needs;
  needs["values"] = {{"weights"}, {}};
  needs["train"] = {{"weights", "gradients", "optimizer"}, activation_estimate(model, engine)};
  return needs;
}

PhaseNeeds rollout_phases() {
  return {{"rollout", {{"weights", "kv cache"}, {}}}, {"publish", {{"weights"}, {}}}};
}

}  // namespace troupe::actors
