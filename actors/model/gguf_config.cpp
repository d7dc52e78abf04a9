// Metadata of a GGUF file → ModelConfig.

#include "actors/model/gguf_model.hpp"
#include "actors/model/rope.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace troupe::actors {
namespace {

constexpr std::string_view kRopeFactors = "rope_freqs.weight";

/// Keys of the architecture, `llama.block_count` for `block_count`.
class ConfigReader {
 public:
  ConfigReader(const GgufFile& file, std::string_view architecture)
      : file_(file), metadata_(file.metadata()), architecture_(architecture) {}

  result<ModelConfig> read() {
    TROUPE_TRY_VOID(refuse_silent_errors());
    TROUPE_TRY_VOID(read_sizes());
    TROUPE_TRY_VOID(read_head_dim());
    read_switches();
    TROUPE_TRY(config_.rms_norm_eps, metadata_.number(key("attention.layer_norm_rms_epsilon")));
    TROUPE_TRY_VOID(read_rope());
    TROUPE_TRY_VOID(read_token_ids());
    TROUPE_TRY_VOID(check());
    TROUPE_TRY_VOID(read_rope_factors());
    return config_;
  }

  void set_family(ModelFamily family) { config_.family = family; }

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", architecture_, name); }

  tl::unexpected<Error> unsupported(std::string_view name, std::string_view value,
                                    std::string_view wanted) const {
    return fail(ErrorCode::kUnsupported, "{}: key {} is {}, supported is only {}",
                metadata_.place(), name, value, wanted);
  }

  result<void> check() const {
    if (auto valid = config_.validate(); !valid)
      return fail(valid.error().code, "{}: {}", metadata_.place(), valid.error().message);
    return {};
  }

  /// What this decoder has no counterpart for, in a file that sets it.
  result<void> refuse_silent_errors() const {
    TROUPE_TRY(const std::int64_t parts, metadata_.integer("split.count", 1));
    if (parts > 1)
      return unsupported("split.count", fmt::to_string(parts), "1: join the parts first");
    for (const std::string_view name : {"expert_count", "attention.sliding_window"}) {
      TROUPE_TRY(const std::int64_t value, metadata_.integer(key(name), 0));
      if (value != 0) return unsupported(key(name), fmt::to_string(value), "0");
    }
    for (const std::string_view name : {"attention.scale", "logit_scale", "residual_scale",
                                        "embedding_scale", "attention.clamp_kqv"}) {
      if (metadata_.find(key(name)) != nullptr)
        return fail(ErrorCode::kUnsupported, "{}: key {} is set, which is not supported",
                    metadata_.place(), key(name));
    }
    TROUPE_TRY(const bool is_causal, metadata_.flag(key("attention.causal"), true));
    if (!is_causal) return unsupported(key("attention.causal"), "false", "true");
    return {};
  }

  /// One number for all layers; files may have a list of equal ones.
  result<std::int64_t> per_layer(std::string_view name, std::optional<std::int64_t> fallback) {
    const GgufValue* value = metadata_.find(key(name));
    if (value == nullptr || !value->is_array) return metadata_.integer(key(name), fallback);
    TROUPE_TRY(const std::vector<std::int64_t> list, metadata_.integers(key(name)));
    const bool is_same = !list.empty() && std::all_of(list.begin(), list.end(), [&](auto item) {
      return item == list.front();
    });
    if (!is_same)
      return unsupported(key(name), fmt::format("a list of {}", list.size()),
                         "one number for all layers");
    return list.front();
  }

  result<void> read_sizes() {
    TROUPE_TRY(config_.hidden_size, metadata_.integer(key("embedding_length")));
    TROUPE_TRY(config_.layer_count, metadata_.integer(key("block_count")));
    TROUPE_TRY(config_.intermediate_size, per_layer("feed_forward_length", {}));
    TROUPE_TRY(config_.head_count, per_layer("attention.head_count", {}));
    TROUPE_TRY(config_.kv_head_count, per_layer("attention.head_count_kv", config_.head_count));
    TROUPE_TRY(config_.positions_max, metadata_.integer(key("context_length")));
    // Rows of the embedding, which may be more than the tokens.
    const GgufTensor* embedding = file_.find("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2)
      return fail(ErrorCode::kNotFound, "{}: tensor token_embd.weight: is missing or no matrix",
                  metadata_.place());
    config_.vocab_size = embedding->shape.front();
    TROUPE_TRY(const std::int64_t said, metadata_.integer(key("vocab_size"), config_.vocab_size));
    if (said != config_.vocab_size)
      return fail(ErrorCode::kConflict, "{}: key {} is {}, but token_embd.weight has {} rows",
                  metadata_.place(), key("vocab_size"), said, config_.vocab_size);
    return {};
  }

  result<void> read_head_dim() {
    std::optional<std::int64_t> usual;
    if (config_.head_count > 0 && config_.hidden_size % config_.head_count == 0)
      usual = config_.hidden_size / config_.head_count;
    TROUPE_TRY(config_.head_dim, metadata_.integer(key("attention.key_length"), usual));
    for (const std::string_view name : {"attention.value_length", "rope.dimension_count"}) {
      TROUPE_TRY(const std::int64_t other, metadata_.integer(key(name), config_.head_dim));
      if (other != config_.head_dim)
        return unsupported(key(name), fmt::to_string(other),
                           fmt::format("the head size {}", config_.head_dim));
    }
    return {};
  }

  /// Nothing but the tensors says which of these a model has.
  void read_switches() {
    const auto has = [this](std::string_view name) { return file_.find(name) != nullptr; };
    config_.tie_embeddings = !has("output.weight");
    config_.qkv_bias = has("blk.0.attn_q.bias");
    config_.o_bias = has("blk.0.attn_output.bias");
    config_.mlp_bias = has("blk.0.ffn_gate.bias");
    config_.qk_norm = has("blk.0.attn_q_norm.weight");
  }

  result<void> read_rope() {
    TROUPE_TRY(config_.rope.theta, metadata_.number(key("rope.freq_base"), 10000.0));
    TROUPE_TRY(const double old_factor, metadata_.number(key("rope.scale_linear"), 1.0));
    const std::string_view usual = old_factor == 1.0 ? "none" : "linear";
    TROUPE_TRY(const std::string_view type, metadata_.text(key("rope.scaling.type"), usual));
    if (type != "none" && type != "linear")
      return unsupported(key("rope.scaling.type"), type, "none or linear");
    TROUPE_TRY(const double factor, metadata_.number(key("rope.scaling.factor"), old_factor));
    if (type == "none" || factor == 1.0) return {};
    config_.rope.kind = RopeKind::kLinear;
    config_.rope.factor = factor;
    return {};
  }

  /// Llama 3's scaling is a table of divisors. It is the one that Llama 3.1 to 3.3 publish, with
  /// some factor, or it is refused: this decoder computes frequencies from the four numbers.
  result<void> read_rope_factors() {
    const GgufTensor* tensor = file_.find(kRopeFactors);
    if (tensor == nullptr) return {};
    const std::int64_t half = config_.head_dim / 2;
    if (tensor->shape != std::vector<std::int64_t>{half})
      return fail(ErrorCode::kCorrupt, "{}: tensor {}: has shape {}, but [{}] is wanted",
                  metadata_.place(), kRopeFactors, shape_text(tensor->shape), half);
    std::vector<float> divisors(static_cast<std::size_t>(half));
    TROUPE_TRY_VOID(file_.read_f32(*tensor, divisors));
    if (config_.rope.kind != RopeKind::kDefault)
      return fail(ErrorCode::kUnsupported, "{}: {} together with linear scaling by {}",
                  metadata_.place(), kRopeFactors, config_.rope.factor);
    const std::vector<double> plain = rope_inverse_frequencies(config_);
    config_.rope = {.kind = RopeKind::kLlama3,
                    .theta = config_.rope.theta,
                    .factor = *std::max_element(divisors.begin(), divisors.end()),
                    .low_freq_factor = 1.0,
                    .high_freq_factor = 4.0,
                    .original_positions = 8192};
    TROUPE_TRY_VOID(check());
    const std::vector<double> scaled = rope_inverse_frequencies(config_);
    for (std::size_t i = 0; i < divisors.size(); ++i) {
      const double wanted = plain[i] / scaled[i];
      if (!(std::abs(divisors[i] - wanted) <= 1e-4 * wanted))
        return fail(ErrorCode::kUnsupported,
                    "{}: tensor {}: element {} is {}, but scaling of kind llama3 by {} of 8192 "
                    "positions gives {}",
                    metadata_.place(), kRopeFactors, i, divisors[i], config_.rope.factor, wanted);
    }
    return {};
  }

  result<std::optional<std::int32_t>> token_id(std::string_view name) const {
    const std::string full = fmt::format("tokenizer.ggml.{}", name);
    TROUPE_TRY(const std::int64_t id, metadata_.integer(full, -1));
    if (id < 0) return std::nullopt;
    if (id >= config_.vocab_size || id > std::numeric_limits<std::int32_t>::max())
      return fail(ErrorCode::kCorrupt, "{}: key {} is {}, but there are {} tokens",
                  metadata_.place(), full, id, config_.vocab_size);
    return static_cast<std::int32_t>(id);
  }

  result<void> read_token_ids() {
    TROUPE_TRY(config_.bos_id, token_id("bos_token_id"));
    TROUPE_TRY(config_.pad_id, token_id("padding_token_id"));
    TROUPE_TRY(const auto eos, token_id("eos_token_id"));
    if (eos) config_.eos_ids.push_back(*eos);
    config_.stop_ids = config_.eos_ids;
    for (const std::string_view name : {"eot_token_id", "eom_token_id"}) {
      TROUPE_TRY(const auto id, token_id(name));
      if (id && std::ranges::find(config_.stop_ids, *id) == config_.stop_ids.end())
        config_.stop_ids.push_back(*id);
    }
    return {};
  }

  const GgufFile& file_;
  const GgufMetadata& metadata_;
  std::string_view architecture_;
  ModelConfig config_;
};

}  // namespace

result<ModelConfig> gguf_config(const GgufFile& file) {
  TROUPE_TRY(const std::string_view architecture, file.metadata().text("general.architecture"));
  for (const ModelFamily family : {ModelFamily::kLlama, ModelFamily::kQwen2, ModelFamily::kQwen3}) {
    if (architecture != model_family_name(family)) continue;
    ConfigReader reader(file, architecture);
    reader.set_family(family);
    return reader.read();
  }
  return fail(ErrorCode::kUnsupported,
              "{}: general.architecture {} is not one of llama, qwen2, qwen3",
              file.metadata().place(), architecture);
}

}  // namespace troupe::actors
