#include "actors/model/model_config.hpp"

#include "actors/model/weight_set.hpp"
#include "actors/text/strict_json.hpp"
#include "runtime/base/file.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::actors {

std::string_view model_family_name(ModelFamily family) {
  switch (family) {
    case ModelFamily::kLlama:
      return "llama";
    case ModelFamily::kQwen2:
      return "qwen2";
    case ModelFamily::kQwen3:
      return "qwen3";
  }
  return "unknown";
}

std::string_view weight_type_name(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return "float32";
    case WeightType::kBf16:
      return "bfloat16";
    case WeightType::kF16:
      return "float16";
  }
  return "unknown";
}

std::int64_t ModelConfig::parameter_count() const {
  std::int64_t count = 0;
  for (const TensorShape& tensor : expected_tensors(*this)) count += tensor.element_count();
  return count;
}

result<void> ModelConfig::validate() const {
  // Far above every model, and small enough that no count of parameters overflows.
  struct Size {
    std::string_view name;
    std::int64_t value;
    std::int64_t most;
  };
  constexpr std::int64_t kWidthMax = 1 << 22;
  const Size sizes[] = {{"hidden_size", hidden_size, kWidthMax},
                        {"intermediate_size", intermediate_size, kWidthMax},
                        {"num_hidden_layers", layer_count, 1 << 12},
                        {"num_attention_heads", head_count, kWidthMax},
                        {"num_key_value_heads", kv_head_count, kWidthMax},
                        {"head_dim", head_dim, kWidthMax},
                        {"vocab_size", vocab_size, 1 << 26},
                        {"max_position_embeddings", positions_max, 1 << 30}};
  for (const auto& [name, value, most] : sizes)
    if (value < 1 || value > most)
      return fail(ErrorCode::kInvalidArgument, "{} is {}, must be 1 to {}", name, value, most);
  if (q_size() > kWidthMax)
    return fail(ErrorCode::kInvalidArgument, "num_attention_heads {} times head_dim {} exceeds {}",
                head_count, head_dim, kWidthMax);
  if (head_count % kv_head_count != 0)
    return fail(ErrorCode::kInvalidArgument,
                "num_attention_heads {} is not a multiple of num_key_value_heads {}", head_count,
                kv_head_count);
  if (head_dim % 2 != 0)
    return fail(ErrorCode::kInvalidArgument, "head_dim {} is odd; rotary embedding pairs halves",
                head_dim);
  const std::pair<std::string_view, double> positives[] = {
      {"rms_norm_eps", rms_norm_eps},
      {"rope_theta", rope.theta},
      {"rope factor", rope.factor},
      {"rope low_freq_factor", rope.low_freq_factor},
      {"rope high_freq_factor", rope.high_freq_factor},
      {"rope original_max_position_embeddings", rope.original_positions}};
  for (const auto& [name, value] : positives)
    if (!std::isfinite(value) || value <= 0)
      return fail(ErrorCode::kInvalidArgument, "{} is {}, must be positive", name, value);
  if (!std::isfinite(initializer_range) || initializer_range < 0)
    return fail(ErrorCode::kInvalidArgument, "initializer_range is {}, must not be negative",
                initializer_range);
  if (rope.kind == RopeKind::kLlama3 && rope.high_freq_factor <= rope.low_freq_factor)
    return fail(ErrorCode::kInvalidArgument,
                "rope high_freq_factor {} must be greater than low_freq_factor {}",
                rope.high_freq_factor, rope.low_freq_factor);

  const bool is_qwen2 = family == ModelFamily::kQwen2;
  if (is_qwen2 ? !(qkv_bias && !o_bias) : qkv_bias != o_bias)
    return fail(ErrorCode::kUnsupported, "{} cannot have qkv_bias {} with o_bias {}",
                model_family_name(family), qkv_bias, o_bias);
  if (mlp_bias && family != ModelFamily::kLlama)
    return fail(ErrorCode::kUnsupported, "{} cannot have mlp_bias", model_family_name(family));
  if (qk_norm != (family == ModelFamily::kQwen3))
    return fail(ErrorCode::kUnsupported, "{} cannot have qk_norm {}", model_family_name(family),
                qk_norm);
  return {};
}

result<ModelConfig> ModelConfig::load(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  TROUPE_TRY(const std::string text, read_text_file(path));
  TROUPE_TRY(ModelConfig config, from_json(text, path.string()));

  const std::filesystem::path generation_path = folder / "generation_config.json";
  if (!std::filesystem::exists(generation_path)) return config;
  TROUPE_TRY(const std::string generation_text, read_text_file(generation_path));
  TROUPE_TRY(const std::vector<std::int32_t> more,
             parse_generation_stop_ids(generation_text, generation_path.string()));
  for (const std::int32_t id : more)
    if (std::find(config.stop_ids.begin(), config.stop_ids.end(), id) == config.stop_ids.end())
      config.stop_ids.push_back(id);
  return config;
}

}  // namespace troupe::actors
