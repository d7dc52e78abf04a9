#include "actors/rollout/packed_weights.hpp"

#include "actors/model/hf_folder.hpp"
#include "runtime/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>

namespace troupe::actors {
namespace {

class Source {
 public:
  explicit Source(std::span<const NamedTensor> tensors) {
    for (const NamedTensor& tensor : tensors) by_name_.emplace(tensor.name, tensor.data);
  }
  std::span<const float> operator()(const std::string& name) const {
    const auto found = by_name_.find(name);
    TROUPE_CHECK(found != by_name_.end(), "packed weights: {} was checked to be there", name);
    return found->second;
  }

 private:
  std::unordered_map<std::string_view, std::span<const float>> by_name_;
};

AlignedBuffer vector_of(std::span<const float> values) {
  AlignedBuffer buffer(padded(static_cast<std::int64_t>(values.size())));
  std::ranges::copy(values, buffer.data());
  return buffer;
}

struct Part {
  std::string name;  // without .weight or .bias
  std::int64_t first_output;
};

PackedMatrix matrix_of(const Source& source, std::span<const Part> parts, std::int64_t outputs,
                       std::int64_t inputs) {
  PackedMatrix matrix(outputs, inputs);
  for (const Part& part : parts) matrix.pack(source(part.name + ".weight"), part.first_output);
  return matrix;
}

AlignedBuffer bias_of(const Source& source, std::span<const Part> parts, std::int64_t outputs) {
  AlignedBuffer bias(padded(outputs));
  for (const Part& part : parts)
    std::ranges::copy(source(part.name + ".bias"), bias.data() + part.first_output);
  return bias;
}

PackedLayer pack_layer(const ModelConfig& config, const Source& source, std::int64_t index) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const std::int64_t q = config.q_size();
  const std::int64_t kv = config.kv_size();
  const std::int64_t up_offset = padded(config.intermediate_size);
  const Part qkv[] = {
      {attention + "q_proj", 0}, {attention + "k_proj", q}, {attention + "v_proj", q + kv}};
  const Part o[] = {{attention + "o_proj", 0}};
  const Part gate_up[] = {{mlp + "gate_proj", 0}, {mlp + "up_proj", up_offset}};
  const Part down[] = {{mlp + "down_proj", 0}};

  PackedLayer layer;
  layer.input_norm = vector_of(source(prefix + "input_layernorm.weight"));
  layer.post_norm = vector_of(source(prefix + "post_attention_layernorm.weight"));
  layer.qkv = matrix_of(source, qkv, q + 2 * kv, config.hidden_size);
  layer.o = matrix_of(source, o, config.hidden_size, q);
  layer.gate_up =
      matrix_of(source, gate_up, up_offset + config.intermediate_size, config.hidden_size);
  layer.down = matrix_of(source, down, config.hidden_size, config.intermediate_size);
  if (config.qk_norm) {
    layer.q_norm = vector_of(source(attention + "q_norm.weight"));
    layer.k_norm = vector_of(source(attention + "k_norm.weight"));
  }
  if (config.qkv_bias) layer.qkv_bias = bias_of(source, qkv, q + 2 * kv);
  if (config.o_bias) layer.o_bias = bias_of(source, o, config.hidden_size);
  if (config.mlp_bias) {
    layer.gate_up_bias = bias_of(source, gate_up, up_offset + config.intermediate_size);
    layer.down_bias = bias_of(source, down, config.hidden_size);
  }
  return layer;
}

}  // namespace

result<PackedWeights> PackedWeights::pack(const ModelConfig& config,
                                          std::span<const NamedTensor> tensors) {
  TROUPE_TRY_VOID(check_tensors(config, tensors));
  const Source source(tensors);
  PackedWeights packed;
  for (std::int64_t i = 0; i < config.layer_count; ++i)
    packed.layers_.push_back(pack_layer(config, source, i));
  packed.final_norm_ = vector_of(source("model.norm.weight"));
  const auto embedding = source("model.embed_tokens.weight");
  packed.head_ = PackedMatrix(config.vocab_size, config.hidden_size);
  packed.head_.pack(config.tie_embeddings ? embedding : source("lm_head.weight"), 0);
  if (!config.tie_embeddings) packed.embedding_ = vector_of(embedding);
  return packed;
}

void PackedWeights::copy_embedding(std::int32_t token, std::span<float> target) const {
  if (embedding_.size() == 0) return head_.copy_output(token, target);
  std::copy_n(embedding_.data() + token * static_cast<std::int64_t>(target.size()), target.size(),
              target.data());
}

Bytes PackedWeights::bytes() const {
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  std::int64_t total = head_.bytes() + (embedding_.size() + final_norm_.size()) * kFloat;
  for (const PackedLayer& layer : layers_) {
    for (const PackedMatrix* matrix : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down})
      total += matrix->bytes();
    for (const AlignedBuffer* buffer :
         {&layer.input_norm, &layer.post_norm, &layer.q_norm, &layer.k_norm, &layer.qkv_bias,
          &layer.o_bias, &layer.gate_up_bias, &layer.down_bias})
      total += buffer->size() * kFloat;
  }
  return Bytes{total};
}

}  // namespace troupe::actors
