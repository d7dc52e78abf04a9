#pragma once

// Shape and switches of one decoder: what a Hugging Face `config.json` says, checked.
//
// One decoder covers the families Llama 2/3.x (and SmolLM2), Qwen2/2.5 and Qwen3; they differ by
// the switches below, by the RoPE variant and by tying. Both generations of key names are read
// (`torch_dtype`/`dtype`, `rope_theta` + `rope_scaling` / `rope_parameters`). What this decoder
// would compute wrongly in silence (sliding attention in use, experts, quantised weights, another
// activation, an unknown rope type) is refused with kUnsupported.
// **Threads:** a value type.
// **Invariants:** a config made by `from_json` or `load` passes `validate()`.

#include "runtime/base/result.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

enum class ModelFamily { kLlama, kQwen2, kQwen3 };

/// `llama`, `qwen2`, `qwen3`: the value of `model_type`.
std::string_view model_family_name(ModelFamily family);

/// How weights are stored on disk; in memory Troupe computes in fp32.
enum class WeightType { kF32, kBf16, kF16 };

/// `float32`, `bfloat16`, `float16`.
std::string_view weight_type_name(WeightType type);

enum class RopeKind { kDefault, kLinear, kLlama3 };

/// Rotary embedding; see rope.hpp for the frequencies.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;               ///< kLinear, kLlama3
  double low_freq_factor = 1.0;      ///< kLlama3
  double high_freq_factor = 4.0;     ///< kLlama3
  double original_positions = 8192;  ///< kLlama3: context length before scaling
  bool operator==(const RopeConfig&) const = default;
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  std::int64_t hidden_size = 0;        ///< H
  std::int64_t intermediate_size = 0;  ///< F
  std::int64_t layer_count = 0;        ///< L
  std::int64_t head_count = 0;         ///< N
  std::int64_t kv_head_count = 0;      ///< K; divides N
  std::int64_t head_dim = 0;           ///< D; N*D may differ from H (Qwen3)
  std::int64_t vocab_size = 0;         ///< V: rows of the embedding, may exceed the tokenizer's ids
  std::int64_t positions_max = 2048;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  RopeConfig rope;

  bool qkv_bias = false;        ///< bias of q_proj, k_proj and v_proj
  bool o_bias = false;          ///< bias of o_proj
  bool mlp_bias = false;        ///< bias of gate_proj, up_proj and down_proj
  bool qk_norm = false;         ///< RMSNorm over D on q and k, before RoPE
  bool tie_embeddings = false;  ///< the head is the embedding; `lm_head.weight` is absent

  WeightType stored_type = WeightType::kF32;
  std::optional<std::int32_t> bos_id;
  std::optional<std::int32_t> pad_id;
  std::vector<std::int32_t> eos_ids;   ///< of config.json: one or several, may be empty
  std::vector<std::int32_t> stop_ids;  ///< eos_ids, then those only generation_config.json names

  bool operator==(const ModelConfig&) const = default;

  std::int64_t q_size() const { return head_count * head_dim; }      ///< rows of q_proj
  std::int64_t kv_size() const { return kv_head_count * head_dim; }  ///< rows of k_proj and v_proj
  /// Weights counted once (a tied head adds nothing).
  std::int64_t parameter_count() const;
  /// Keys and values of one token over all layers.
  std::int64_t kv_bytes_per_token(std::int64_t bytes_per_value) const {
    return 2 * layer_count * kv_size() * bytes_per_value;
  }

  /// Parses the text of a config.json. `place` names it in messages.
  /// Errors: kCorrupt (not JSON), kInvalidArgument (missing or wrong key), kUnsupported (above).
  static result<ModelConfig> from_json(std::string_view text,
                                       std::string_view place = "config.json");

  /// Reads `folder/config.json`, and the stop ids (nothing else, in particular no sampling
  /// defaults) of `folder/generation_config.json` when that exists.
  static result<ModelConfig> load(const std::filesystem::path& folder);

  /// Text of a config.json that this class and transformers read back (old key names, which both
  /// generations of transformers accept). Ends with a newline. `stop_ids` are not part of it.
  std::string to_json() const;

  /// Text of a generation_config.json with the token ids only.
  std::string generation_json() const;

  /// Ranges and divisibility. Errors: kInvalidArgument naming the field and both values, and
  /// kUnsupported where `family` cannot express the switches (so `to_json` could not).
  result<void> validate() const;
};

/// The `eos_token_id` (int or list) of the text of a generation_config.json; empty when it has
/// none. Errors: kCorrupt, kInvalidArgument.
result<std::vector<std::int32_t>> parse_generation_stop_ids(std::string_view text,
                                                            std::string_view place);

}  // namespace troupe::actors
