// Writing config.json and generation_config.json.

#include "actors/model/model_config.hpp"

#include <nlohmann/json.hpp>

namespace troupe::actors {
namespace {

nlohmann::ordered_json token_ids_json(const std::vector<std::int32_t>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids.front();
  return ids;
}

nlohmann::ordered_json rope_scaling_json(const RopeConfig& rope) {
  switch (rope.kind) {
    case RopeKind::kDefault:
      return nullptr;
    case RopeKind::kLinear:
      return {{"rope_type", "linear"}, {"factor", rope.factor}};
    case RopeKind::kLlama3:
      break;
  }
  nlohmann::ordered_json scaling = {{"rope_type", "llama3"},
                                    {"factor", rope.factor},
                                    {"low_freq_factor", rope.low_freq_factor},
                                    {"high_freq_factor", rope.high_freq_factor}};
  // transformers declares this one an integer and warns about 8192.0.
  const auto whole = static_cast<std::int64_t>(rope.original_positions);
  if (static_cast<double>(whole) == rope.original_positions)
    scaling["original_max_position_embeddings"] = whole;
  else
    scaling["original_max_position_embeddings"] = rope.original_positions;
  return scaling;
}

}  // namespace

std::string ModelConfig::to_json() const {
  std::string architecture = "LlamaForCausalLM";
  if (family == ModelFamily::kQwen2) architecture = "Qwen2ForCausalLM";
  if (family == ModelFamily::kQwen3) architecture = "Qwen3ForCausalLM";
  nlohmann::ordered_json document;
  document["architectures"] = {architecture};
  document["model_type"] = model_family_name(family);
  document["vocab_size"] = vocab_size;
  document["hidden_size"] = hidden_size;
  document["intermediate_size"] = intermediate_size;
  document["num_hidden_layers"] = layer_count;
  document["num_attention_heads"] = head_count;
  document["num_key_value_heads"] = kv_head_count;
  document["head_dim"] = head_dim;
  document["hidden_act"] = "silu";
  document["max_position_embeddings"] = positions_max;
  document["initializer_range"] = initializer_range;
  document["rms_norm_eps"] = rms_norm_eps;
  document["rope_theta"] = rope.theta;
  document["rope_scaling"] = rope_scaling_json(rope);
  document["tie_word_embeddings"] = tie_embeddings;
  if (family != ModelFamily::kQwen2) document["attention_bias"] = qkv_bias;
  if (family == ModelFamily::kLlama) document["mlp_bias"] = mlp_bias;
  if (family != ModelFamily::kLlama) document["use_sliding_window"] = false;
  document["bos_token_id"] = bos_id ? nlohmann::ordered_json(*bos_id) : nullptr;
  document["eos_token_id"] = token_ids_json(eos_ids);
  document["pad_token_id"] = pad_id ? nlohmann::ordered_json(*pad_id) : nullptr;
  document["torch_dtype"] = weight_type_name(stored_type);
  return document.dump(2) + "\n";
}

std::string ModelConfig::generation_json() const {
  nlohmann::ordered_json document;
  document["bos_token_id"] = bos_id ? nlohmann::ordered_json(*bos_id) : nullptr;
  document["eos_token_id"] = token_ids_json(stop_ids);
  document["pad_token_id"] = pad_id ? nlohmann::ordered_json(*pad_id) : nullptr;
  return document.dump(2) + "\n";
}

}  // namespace troupe::actors
