#include "actors/model/weight_set.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace troupe::actors {
namespace {

/// FNV-1a; stands for the name in the seed of a tensor.
std::uint64_t name_hash(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

void append_layer(const ModelConfig& config, const std::string& prefix,
                  std::vector<TensorShape>& list) {
  const auto add_linear = [&](const std::string& name, std::int64_t out, std::int64_t in,
                              bool has_bias) {
    list.push_back({prefix + name + ".weight", {out, in}});
    if (has_bias) list.push_back({prefix + name + ".bias", {out}});
  };
  const std::int64_t hidden = config.hidden_size;
  list.push_back({prefix + "input_layernorm.weight", {hidden}});
  add_linear("self_attn.q_proj", config.q_size(), hidden, config.qkv_bias);
  add_linear("self_attn.k_proj", config.kv_size(), hidden, config.qkv_bias);
  add_linear("self_attn.v_proj", config.kv_size(), hidden, config.qkv_bias);
  add_linear("self_attn.o_proj", hidden, config.q_size(), config.o_bias);
  if (config.qk_norm) {
    list.push_back({prefix + "self_attn.q_norm.weight", {config.head_dim}});
    list.push_back({prefix + "self_attn.k_norm.weight", {config.head_dim}});
  }
  list.push_back({prefix + "post_attention_layernorm.weight", {hidden}});
  add_linear("mlp.gate_proj", config.intermediate_size, hidden, config.mlp_bias);
  add_linear("mlp.up_proj", config.intermediate_size, hidden, config.mlp_bias);
  add_linear("mlp.down_proj", hidden, config.intermediate_size, config.mlp_bias);
}

}  // namespace

std::int64_t TensorShape::element_count() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::vector<TensorShape> expected_tensors(const ModelConfig& config) {
  std::vector<TensorShape> list;
  list.push_back({"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}});
  for (std::int64_t layer = 0; layer < config.layer_count; ++layer)
    append_layer(config, fmt::format("model.layers.{}.", layer), list);
  list.push_back({"model.norm.weight", {config.hidden_size}});
  if (!config.tie_embeddings)
    list.push_back({"lm_head.weight", {config.vocab_size, config.hidden_size}});
  return list;
}

WeightSet WeightSet::zeros(std::span<const TensorShape> shapes) {
  WeightSet set;
  set.values_.reserve(shapes.size());
  set.tensors_.reserve(shapes.size());
  for (const TensorShape& tensor : shapes) {
    const auto count = static_cast<std::size_t>(tensor.element_count());
    const std::vector<float>& values = set.values_.emplace_back(count, 0.0F);
    const bool is_new = set.index_of_.emplace(tensor.name, set.tensors_.size()).second;
    TROUPE_CHECK(is_new, "weight set: tensor {} is given twice", tensor.name);
    set.tensors_.push_back({tensor.name, tensor.shape, values});
  }
  return set;
}

WeightSet WeightSet::copy_of(std::span<const NamedTensor> tensors) {
  std::vector<TensorShape> shapes;
  for (const NamedTensor& tensor : tensors) shapes.push_back({tensor.name, tensor.shape});
  WeightSet set = zeros(shapes);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TROUPE_CHECK(tensors[i].data.size() == set.values_[i].size(),
                 "weight set: tensor {}: {} values for shape {}", tensors[i].name,
                 tensors[i].data.size(), shape_text(tensors[i].shape));
    std::copy(tensors[i].data.begin(), tensors[i].data.end(), set.values_[i].begin());
  }
  return set;
}

const NamedTensor* WeightSet::find(std::string_view name) const {
  const auto found = index_of_.find(std::string(name));
  return found == index_of_.end() ? nullptr : &tensors_[found->second];
}

std::span<float> WeightSet::mutable_data(std::size_t index) { return values_.at(index); }

std::span<float> WeightSet::mutable_data(std::string_view name) {
  const auto found = index_of_.find(std::string(name));
  TROUPE_CHECK(found != index_of_.end(), "weight set: no tensor {}", name);
  return values_[found->second];
}

std::int64_t WeightSet::element_count() const {
  std::int64_t count = 0;
  for (const auto& values : values_) count += static_cast<std::int64_t>(values.size());
  return count;
}

WeightSet random_weights(const ModelConfig& config, std::uint64_t seed,
                         RandomWeightOptions options) {
  WeightSet set = WeightSet::zeros(config);
  for (std::size_t i = 0; i < set.tensors().size(); ++i) {
    const NamedTensor& tensor = set.tensors()[i];
    Rng rng(mix_seed(seed, name_hash(tensor.name)));
    const bool is_matrix = tensor.shape.size() == 2;
    const double mean = !is_matrix && tensor.name.ends_with(".weight") ? 1.0 : 0.0;
    const double spread = is_matrix ? config.initializer_range : options.bias_and_norm_spread;
    for (float& value : set.mutable_data(i))
      value = static_cast<float>(spread == 0.0 ? mean : mean + spread * rng.normal());
  }
  return set;
}

}  // namespace troupe::actors
