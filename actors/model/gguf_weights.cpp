// Tensors of a GGUF file → weights under their Hugging Face names.

#include "actors/model/gguf_model.hpp"
#include "actors/model/rope.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace troupe::actors {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

/// Hugging Face → GGUF, inside a layer; `.weight` and `.bias` stay.
constexpr std::array kLayerNames = {
    Pair{"input_layernorm", "attn_norm"},    Pair{"self_attn.q_proj", "attn_q"},
    Pair{"self_attn.k_proj", "attn_k"},      Pair{"self_attn.v_proj", "attn_v"},
    Pair{"self_attn.o_proj", "attn_output"}, Pair{"self_attn.q_norm", "attn_q_norm"},
    Pair{"self_attn.k_norm", "attn_k_norm"}, Pair{"post_attention_layernorm", "ffn_norm"},
    Pair{"mlp.gate_proj", "ffn_gate"},       Pair{"mlp.up_proj", "ffn_up"},
    Pair{"mlp.down_proj", "ffn_down"}};
constexpr std::array kOuterNames = {Pair{"model.embed_tokens.weight", "token_embd.weight"},
                                    Pair{"model.norm.weight", "output_norm.weight"},
                                    Pair{"lm_head.weight", "output.weight"}};
constexpr std::string_view kLayerPrefix = "model.layers.";

/// `model.layers.3.mlp.up_proj.weight` → `blk.3.ffn_up.weight`.
std::string gguf_name(std::string_view name) {
  for (const auto& [ours, theirs] : kOuterNames)
    if (name == ours) return std::string(theirs);
  const std::string_view rest = name.substr(kLayerPrefix.size());
  const std::size_t dot = rest.find('.');
  const std::size_t end = rest.rfind('.');
  const std::string_view inner = rest.substr(dot + 1, end - dot - 1);
  for (const auto& [ours, theirs] : kLayerNames)
    if (inner == ours)
      return fmt::format("blk.{}.{}{}", rest.substr(0, dot), theirs, rest.substr(end));
  return {};
}

bool is_rotated(std::string_view name) {
  return name.find("self_attn.q_proj.") != std::string_view::npos ||
         name.find("self_attn.k_proj.") != std::string_view::npos;
}

/// Rows [heads * D, width] from interleaved pairs to halves, head by head.
void undo_interleaving(std::int64_t head_dim, std::int64_t rows, std::span<float> values) {
  const std::vector<std::int64_t> old_row = half_split_permutation(head_dim);
  const std::size_t width = values.size() / static_cast<std::size_t>(rows);
  const std::size_t head_size = old_row.size() * width;
  std::vector<float> head(head_size);
  for (std::size_t begin = 0; begin < values.size(); begin += head_size) {
    const auto target = values.subspan(begin, head_size);
    std::ranges::copy(target, head.begin());
    for (std::size_t row = 0; row < old_row.size(); ++row)
      std::copy_n(head.begin() + old_row[row] * static_cast<std::ptrdiff_t>(width), width,
                  target.begin() + static_cast<std::ptrdiff_t>(row * width));
  }
}

result<void> check_tensors_of(const GgufFile& file, std::span<const TensorShape> expected) {
  const std::string& place = file.metadata().place();
  std::set<std::string> names = {"rope_freqs.weight"};  // read by gguf_config
  for (const TensorShape& wanted : expected) {
    const std::string& name = *names.insert(gguf_name(wanted.name)).first;
    const GgufTensor* tensor = file.find(name);
    if (tensor == nullptr)
      return fail(ErrorCode::kNotFound, "{}: tensor {}: is missing, wanted with shape {}", place,
                  name, shape_text(wanted.shape));
    if (tensor->shape != wanted.shape)
      return fail(ErrorCode::kInvalidArgument, "{}: tensor {}: has shape {}, but {} is wanted",
                  place, name, shape_text(tensor->shape), shape_text(wanted.shape));
  }
  for (const GgufTensor& tensor : file.tensors())
    if (!names.contains(std::string(tensor.name)))
      return fail(ErrorCode::kUnsupported,
                  "{}: tensor {}: shape {} is not part of a model with this metadata", place,
                  tensor.name, shape_text(tensor.shape));
  return {};
}

}  // namespace

result<WeightSet> gguf_weights(const GgufFile& file, const ModelConfig& config) {
  TROUPE_TRY_VOID(config.validate());
  const std::vector<TensorShape> expected = expected_tensors(config);
  // Everything is checked before memory for the numbers is asked for.
  TROUPE_TRY_VOID(check_tensors_of(file, expected));
  WeightSet weights = WeightSet::zeros(expected);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::span<float> values = weights.mutable_data(i);
    TROUPE_TRY_VOID(file.read_f32(*file.find(gguf_name(expected[i].name)), values));
    if (config.family == ModelFamily::kLlama && is_rotated(expected[i].name))
      undo_interleaving(config.head_dim, expected[i].shape.front(), values);
  }
  return weights;
}

}  // namespace troupe::actors
