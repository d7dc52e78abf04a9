// Reading config.json: the key names of both generations of transformers.

#include "actors/model/model_config.hpp"
#include "actors/text/strict_json.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <limits>
#include <utility>

namespace troupe::actors {
namespace {

using nlohmann::json;

/// One JSON object with the name to use in messages. A key that is null counts as absent.
struct Section {
  const json& object;
  std::string_view place;

  const json* find(std::string_view key) const {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }
  tl::unexpected<Error> wrong(std::string_view key, std::string_view wanted) const {
    return fail(ErrorCode::kInvalidArgument, "{}: {} is {}, wanted {}", place, key,
                object.at(std::string(key)).dump(), wanted);
  }
};

result<std::int64_t> integer_of(const Section& section, std::string_view key,
                                std::optional<std::int64_t> fallback = {}) {
  const json* value = section.find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return fail(ErrorCode::kInvalidArgument, "{}: {} is missing", section.place, key);
  }
  if (!value->is_number_integer()) return section.wrong(key, "an integer");
  if (value->is_number_unsigned() &&
      value->get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
    return section.wrong(key, "a smaller integer");
  return value->get<std::int64_t>();
}

result<double> number_of(const Section& section, std::string_view key,
                         std::optional<double> fallback = {}) {
  const json* value = section.find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return fail(ErrorCode::kInvalidArgument, "{}: {} is missing", section.place, key);
  }
  if (!value->is_number()) return section.wrong(key, "a number");
  return value->get<double>();
}

result<bool> flag_of(const Section& section, std::string_view key, bool fallback) {
  const json* value = section.find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return section.wrong(key, "true or false");
  return value->get<bool>();
}

result<std::string> text_of(const Section& section, std::string_view key, std::string fallback) {
  const json* value = section.find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) return section.wrong(key, "a string");
  return value->get<std::string>();
}

/// `eos_token_id` is an integer, a list of them, or absent. Negative means absent, as in old files.
result<std::vector<std::int32_t>> token_ids_of(const Section& section, std::string_view key) {
  std::vector<std::int32_t> ids;
  const json* value = section.find(key);
  if (value == nullptr) return ids;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& item : list) {
    if (!item.is_number_integer()) return section.wrong(key, "a token id or a list of them");
    const auto id = item.get<std::int64_t>();
    const bool is_huge = item.is_number_unsigned() &&
                         item.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max();
    if (is_huge || id > std::numeric_limits<std::int32_t>::max())
      return section.wrong(key, "a token id of 31 bits");
    if (id >= 0) ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

result<std::optional<std::int32_t>> token_id_of(const Section& section, std::string_view key) {
  TROUPE_TRY(const std::vector<std::int32_t> ids, token_ids_of(section, key));
  if (ids.empty()) return std::nullopt;
  return ids.front();
}

/// Agreement of `model_type` and `architectures`; either may be absent, not both.
result<ModelFamily> read_family(const Section& root) {
  struct Known {
    std::string_view type;
    std::string_view architecture;
    ModelFamily family;
  };
  constexpr std::array kKnown = {Known{"llama", "Llama", ModelFamily::kLlama},
                                 Known{"qwen2", "Qwen2", ModelFamily::kQwen2},
                                 Known{"qwen3", "Qwen3", ModelFamily::kQwen3}};
  TROUPE_TRY(const std::string type, text_of(root, "model_type", ""));
  std::string architecture;
  if (const json* list = root.find("architectures"); list != nullptr) {
    const bool is_list_of_text = list->is_array() && (list->empty() || list->front().is_string());
    if (!is_list_of_text) return root.wrong("architectures", "a list of class names");
    if (!list->empty()) architecture = list->front().get<std::string>();
  }
  if (type.empty() && architecture.empty())
    return fail(ErrorCode::kInvalidArgument, "{}: model_type is missing, and architectures too",
                root.place);
  for (const Known& known : kKnown) {
    // The name goes on with `For…`: Qwen3MoeForCausalLM is another model than Qwen3ForCausalLM.
    const bool same_architecture =
        architecture.starts_with(known.architecture) &&
        std::string_view(architecture).substr(known.architecture.size()).starts_with("For");
    if (type.empty() ? same_architecture : type == known.type) {
      if (!architecture.empty() && !same_architecture)
        return fail(ErrorCode::kUnsupported, "{}: model_type {} with architectures [\"{}\"]",
                    root.place, type, architecture);
      return known.family;
    }
  }
  return fail(ErrorCode::kUnsupported, "{}: model_type {} is not one of llama, qwen2, qwen3",
              root.place, type.empty() ? architecture : type);
}

/// `rope_scaling` (old) or `rope_parameters` (new) next to, or with, `rope_theta`.
result<RopeConfig> read_rope(const Section& root, std::int64_t positions_max) {
  RopeConfig rope;
  TROUPE_TRY(rope.theta, number_of(root, "rope_theta", rope.theta));
  const bool has_top_theta = root.find("rope_theta") != nullptr;
  const json* old_scaling = root.find("rope_scaling");
  const json* parameters = root.find("rope_parameters");
  if (old_scaling != nullptr && parameters != nullptr && *old_scaling != *parameters)
    return fail(ErrorCode::kInvalidArgument,
                "{}: rope_scaling {} and rope_parameters {} contradict each other", root.place,
                old_scaling->dump(), parameters->dump());
  const std::string_view key = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  const json* object = parameters != nullptr ? parameters : old_scaling;
  if (object == nullptr) return rope;
  if (!object->is_object()) return root.wrong(key, "an object");
  const std::string place = fmt::format("{}: {}", root.place, key);
  const Section section{*object, place};

  TROUPE_TRY(const double inner_theta, number_of(section, "rope_theta", rope.theta));
  if (has_top_theta && inner_theta != rope.theta)
    return fail(ErrorCode::kInvalidArgument, "{}: rope_theta {} contradicts the top level's {}",
                place, inner_theta, rope.theta);
  rope.theta = inner_theta;

  TROUPE_TRY(const std::string older_type, text_of(section, "type", "default"));
  TROUPE_TRY(const std::string type, text_of(section, "rope_type", older_type));
  for (const auto& [name, value] : object->items())
    if (value.is_object())
      return fail(ErrorCode::kUnsupported,
                  "{}: {} has its own settings; only one set for all "
                  "layers is supported",
                  place, name);
  TROUPE_TRY(const double rotated, number_of(section, "partial_rotary_factor", 1.0));
  if (rotated != 1.0)
    return fail(ErrorCode::kUnsupported, "{}: partial_rotary_factor {} is not supported, only 1",
                place, rotated);
  if (type == "default") return rope;
  if (type == "linear") {
    rope.kind = RopeKind::kLinear;
    TROUPE_TRY(rope.factor, number_of(section, "factor"));
    return rope;
  }
  if (type == "llama3") {
    rope.kind = RopeKind::kLlama3;
    TROUPE_TRY(rope.factor, number_of(section, "factor"));
    TROUPE_TRY(rope.low_freq_factor, number_of(section, "low_freq_factor"));
    TROUPE_TRY(rope.high_freq_factor, number_of(section, "high_freq_factor"));
    TROUPE_TRY(rope.original_positions, number_of(section, "original_max_position_embeddings",
                                                  static_cast<double>(positions_max)));
    return rope;
  }
  return fail(ErrorCode::kUnsupported, "{}: rope type {} is not one of default, linear, llama3",
              place, type);
}

/// What would load and then compute something else than the model's authors meant.
result<void> refuse_silent_errors(const Section& root, std::int64_t layer_count) {
  TROUPE_TRY(const std::string activation, text_of(root, "hidden_act", "silu"));
  if (activation != "silu" && activation != "swish")
    return fail(ErrorCode::kUnsupported, "{}: hidden_act {} is not supported, only silu",
                root.place, activation);
  for (const std::string_view key : {"quantization_config", "compression_config"})
    if (root.find(key) != nullptr)
      return fail(ErrorCode::kUnsupported, "{}: {} is set; quantised weights are not supported",
                  root.place, key);
  for (const std::string_view key :
       {"num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size"}) {
    TROUPE_TRY(const std::int64_t experts, integer_of(root, key, 0));
    if (experts != 0)
      return fail(ErrorCode::kUnsupported, "{}: {} is {}; mixtures of experts are not supported",
                  root.place, key, experts);
  }
  TROUPE_TRY(const double rotated, number_of(root, "partial_rotary_factor", 1.0));
  if (rotated != 1.0)
    return fail(ErrorCode::kUnsupported, "{}: partial_rotary_factor {} is not supported, only 1",
                root.place, rotated);

  if (const json* kinds = root.find("layer_types"); kinds != nullptr) {
    if (!kinds->is_array()) return root.wrong("layer_types", "a list");
    if (std::cmp_not_equal(kinds->size(), layer_count))
      return fail(ErrorCode::kInvalidArgument,
                  "{}: layer_types names {} layers, num_hidden_layers "
                  "is {}",
                  root.place, kinds->size(), layer_count);
    for (std::size_t layer = 0; layer < kinds->size(); ++layer)
      if ((*kinds)[layer] != "full_attention")
        return fail(ErrorCode::kUnsupported,
                    "{}: layer_types: layer {} is {}, only full_attention "
                    "is supported",
                    root.place, layer, (*kinds)[layer].dump());
  }
  return {};
}

/// Qwen2 and Qwen3 window only layers from `max_window_layers` on, and only when told to.
result<void> refuse_sliding_window(const Section& root, std::int64_t layer_count) {
  TROUPE_TRY(const bool in_use, flag_of(root, "use_sliding_window", false));
  TROUPE_TRY(const std::int64_t window, integer_of(root, "sliding_window", 4096));
  TROUPE_TRY(const std::int64_t first_layer, integer_of(root, "max_window_layers", 28));
  if (in_use && first_layer < layer_count && root.find("layer_types") == nullptr)
    return fail(ErrorCode::kUnsupported,
                "{}: use_sliding_window with sliding_window {} from layer "
                "{} of {} on is not supported",
                root.place, window, first_layer, layer_count);
  return {};
}

result<WeightType> read_stored_type(const Section& root) {
  TROUPE_TRY(const std::string old_name, text_of(root, "torch_dtype", "float32"));
  TROUPE_TRY(std::string name, text_of(root, "dtype", old_name));
  if (name.starts_with("torch.")) name.erase(0, 6);
  if (root.find("dtype") != nullptr && root.find("torch_dtype") != nullptr && name != old_name)
    return fail(ErrorCode::kInvalidArgument, "{}: dtype {} contradicts torch_dtype {}", root.place,
                name, old_name);
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kF16})
    if (name == weight_type_name(type)) return type;
  return fail(ErrorCode::kUnsupported, "{}: dtype {} is not one of float32, bfloat16, float16",
              root.place, name);
}

result<void> read_shape(const Section& root, ModelConfig& config) {
  TROUPE_TRY(config.hidden_size, integer_of(root, "hidden_size"));
  TROUPE_TRY(config.intermediate_size, integer_of(root, "intermediate_size"));
  TROUPE_TRY(config.layer_count, integer_of(root, "num_hidden_layers"));
  TROUPE_TRY(config.head_count, integer_of(root, "num_attention_heads"));
  TROUPE_TRY(config.kv_head_count, integer_of(root, "num_key_value_heads", config.head_count));
  TROUPE_TRY(config.vocab_size, integer_of(root, "vocab_size"));
  const bool is_llama = config.family == ModelFamily::kLlama;
  TROUPE_TRY(config.positions_max,
             integer_of(root, "max_position_embeddings", is_llama ? 2048 : 32768));
  if (config.head_count < 1) return root.wrong("num_attention_heads", "at least 1");
  const bool has_head_dim = root.find("head_dim") != nullptr;
  const bool divides = config.family != ModelFamily::kQwen3;  // Qwen3 has a fixed default instead
  if (!has_head_dim && divides && config.hidden_size % config.head_count != 0)
    return fail(ErrorCode::kInvalidArgument,
                "{}: hidden_size {} is not a multiple of num_attention_heads {}", root.place,
                config.hidden_size, config.head_count);
  TROUPE_TRY(config.head_dim,
             integer_of(root, "head_dim", divides ? config.hidden_size / config.head_count : 128));
  return {};
}

result<void> read_switches(const Section& root, ModelConfig& config) {
  TROUPE_TRY(const bool attention_bias, flag_of(root, "attention_bias", false));
  switch (config.family) {
    case ModelFamily::kLlama: {
      config.qkv_bias = config.o_bias = attention_bias;
      TROUPE_TRY(config.mlp_bias, flag_of(root, "mlp_bias", false));
      break;
    }
    case ModelFamily::kQwen2:  // has no such key: always and never
      config.qkv_bias = true;
      break;
    case ModelFamily::kQwen3:
      config.qkv_bias = config.o_bias = attention_bias;
      config.qk_norm = true;
      break;
  }
  TROUPE_TRY(config.tie_embeddings, flag_of(root, "tie_word_embeddings", false));
  return {};
}

}  // namespace

result<ModelConfig> ModelConfig::from_json(std::string_view text, std::string_view place) {
  TROUPE_TRY(const json document, parse_strict_json(text, place));
  if (!document.is_object())
    return fail(ErrorCode::kInvalidArgument, "{}: is a JSON {}, wanted an object", place,
                document.type_name());
  const Section root{document, place};
  ModelConfig config;
  TROUPE_TRY(config.family, read_family(root));
  TROUPE_TRY_VOID(read_shape(root, config));
  TROUPE_TRY_VOID(refuse_silent_errors(root, config.layer_count));
  if (config.family != ModelFamily::kLlama)
    TROUPE_TRY_VOID(refuse_sliding_window(root, config.layer_count));
  TROUPE_TRY_VOID(read_switches(root, config));
  TROUPE_TRY(config.rms_norm_eps, number_of(root, "rms_norm_eps", config.rms_norm_eps));
  TROUPE_TRY(config.initializer_range,
             number_of(root, "initializer_range", config.initializer_range));
  TROUPE_TRY(config.rope, read_rope(root, config.positions_max));
  TROUPE_TRY(config.stored_type, read_stored_type(root));
  TROUPE_TRY(config.bos_id, token_id_of(root, "bos_token_id"));
  TROUPE_TRY(config.pad_id, token_id_of(root, "pad_token_id"));
  TROUPE_TRY(config.eos_ids, token_ids_of(root, "eos_token_id"));
  config.stop_ids = config.eos_ids;
  if (auto valid = config.validate(); !valid)
    return fail(valid.error().code, "{}: {}", place, valid.error().message);
  return config;
}

result<std::vector<std::int32_t>> parse_generation_stop_ids(std::string_view text,
                                                            std::string_view place) {
  TROUPE_TRY(const json document, parse_strict_json(text, place));
  if (!document.is_object())
    return fail(ErrorCode::kInvalidArgument, "{}: is a JSON {}, wanted an object", place,
                document.type_name());
  return token_ids_of(Section{document, place}, "eos_token_id");
}

}  // namespace troupe::actors
