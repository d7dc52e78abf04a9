#include "apps/training/model_bundle.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

namespace troupe::apps {

using actors::ChatTemplate;
using actors::ModelConfig;
using actors::Tokenizer;

namespace {

/// config.json of the folder with some fields replaced; only new weights can follow such a change.
result<ModelConfig> overridden_config(const std::filesystem::path& folder,
                                      const ModelOptions& options) {
  if (options.config_overrides.empty()) return ModelConfig::load(folder);
  if (!options.random_weights)
    return fail(ErrorCode::kConfig,
                "actor_rollout_ref.model.override_config: {} would not match the weights of {}; "
                "it needs load_format random",
                options.config_overrides.begin()->first, folder.string());
  const std::filesystem::path path = folder / "config.json";
  std::ifstream file(path);
  auto fields = nlohmann::json::parse(file, nullptr, false);
  if (!fields.is_object()) return fail(ErrorCode::kCorrupt, "{}: not a JSON object", path.string());
  for (const auto& [key, text] : options.config_overrides) {
    auto value = nlohmann::json::parse(text, nullptr, false);
    fields[key] = value.is_discarded() ? nlohmann::json(text) : value;
  }
  return ModelConfig::from_json(fields.dump(), path.string() + " with override_config");
}

result<ChatTemplate> chat_template(const Tokenizer& tokenizer, const ModelOptions& options) {
  using actors::ChatStyle;
  const std::string& name = options.chat_template;
  const auto styled = [&](ChatStyle style) {
    return ChatTemplate::with_style(tokenizer, style, options.chat);
  };
  if (name == "llama3") return styled(ChatStyle::kLlama3);
  if (name == "qwen") return styled(ChatStyle::kChatMl);
  if (name == "plain") return styled(ChatStyle::kPlain);
  return ChatTemplate::pick(tokenizer, options.chat);
}

/// Weights that are not numbers would only show as samples that all fail.
result<void> check_finite(const std::filesystem::path& folder, const actors::WeightSet& weights) {
  for (const actors::NamedTensor& tensor : weights.tensors()) {
    for (std::size_t i = 0; i < tensor.data.size(); ++i) {
      if (!std::isfinite(tensor.data[i]))
        return fail(ErrorCode::kCorrupt, "{}: tensor {}: element {} is {}, wanted a finite number",
                    folder.string(), tensor.name, i, tensor.data[i]);
    }
  }
  return {};
}

}  // namespace

ModelBundle::ModelBundle(std::filesystem::path folder, std::filesystem::path tokenizer_folder,
                         ModelConfig config, actors::WeightSet weights, Tokenizer tokenizer)
    : folder_(std::move(folder)),
      tokenizer_folder_(std::move(tokenizer_folder)),
      config_(std::move(config)),
      weights_(std::move(weights)),
      tokenizer_(std::move(tokenizer)) {}

result<std::unique_ptr<ModelBundle>> ModelBundle::open(const std::filesystem::path& folder,
                                                       const ModelOptions& options) {
  const std::filesystem::path& tokenizer_folder =
      options.tokenizer_folder.empty() ? folder : options.tokenizer_folder;
  TROUPE_TRY(ModelConfig config, overridden_config(folder, options));
  TROUPE_TRY(Tokenizer tokenizer, Tokenizer::load(tokenizer_folder));
  if (tokenizer.vocab_size() > config.vocab_size)
    return fail(ErrorCode::kConflict,
                "{}: tokenizer.json has ids up to {}, config.json vocab_size {}",
                tokenizer_folder.string(), tokenizer.vocab_size() - 1, config.vocab_size);
  result<actors::WeightSet> loaded = options.random_weights
                                         ? actors::random_weights(config, options.seed)
                                         : actors::load_hf_weights(folder, config);
  TROUPE_TRY(actors::WeightSet weights, std::move(loaded));
  TROUPE_TRY_VOID(check_finite(folder, weights));
  std::unique_ptr<ModelBundle> bundle(new ModelBundle(folder, tokenizer_folder, std::move(config),
                                                      std::move(weights), std::move(tokenizer)));
  TROUPE_TRY(ChatTemplate chat, chat_template(bundle->tokenizer_, options));
  bundle->chat_ = std::make_unique<ChatTemplate>(std::move(chat));

  auto& stops = bundle->stop_ids_;
  if (const auto turn_end = bundle->chat_->end_of_turn_id()) stops.push_back(*turn_end);
  for (const std::int32_t id : bundle->config_.stop_ids) stops.push_back(id);
  if (const auto eos = bundle->tokenizer_.eos_id()) stops.push_back(*eos);
  std::vector<std::int32_t> unique;
  for (const std::int32_t id : stops) {
    if (id < 0 || id >= bundle->config_.vocab_size)
      return fail(ErrorCode::kConflict, "{}: stop id {} is not below vocab_size {}",
                  folder.string(), id, bundle->config_.vocab_size);
    if (std::find(unique.begin(), unique.end(), id) == unique.end()) unique.push_back(id);
  }
  stops = std::move(unique);
  return bundle;
}

result<std::vector<std::int32_t>> ModelBundle::encode_prompt(
    std::span<const actors::Message> messages) const {
  return chat_->format(messages, true);
}

std::vector<std::int32_t> ModelBundle::encode_response(std::string_view text) const {
  std::vector<std::int32_t> ids = tokenizer_.encode(text);
  if (!stop_ids_.empty()) ids.push_back(stop_ids_.front());
  return ids;
}

}  // namespace troupe::apps
