#include "actors/model/decoder_part.hpp"

#include "runtime/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

namespace troupe::actors {
namespace {

/// Collects the leaves in the order in which the decoder takes them again.
class UnitBuilder {
 public:
  UnitBuilder(const ModelConfig& config, bool value_head, TensorPlace place) {
    for (const TensorShape& tensor : decoder_tensors(config, value_head))
      tensors_.emplace(tensor.name, local_tensor(config, tensor, place));
  }

  /// The next leaves belong together; the number of their unit.
  std::size_t begin_unit() {
    units_.emplace_back();
    return units_.size() - 1;
  }
  /// One leaf of all these tensors; the model either has all of them or none.
  void add(const std::vector<std::string>& names) {
    ParameterGroup group;
    for (const std::string& name : names)
      if (const auto found = tensors_.find(name); found != tensors_.end())
        group.push_back(found->second);
    if (group.empty()) return;
    TROUPE_CHECK(group.size() == names.size(), "decoder: only {} of {} tensors beside {}",
                 group.size(), names.size(), names.front());
    units_.back().push_back(std::move(group));
  }
  /// The embedding once more, as the head of a last stage that does not own it.
  void add_embedding_copy() {
    LocalTensor copy = tensors_.at(std::string(kEmbedding));
    copy.owned = false;
    units_.back().push_back({std::move(copy)});
  }
  std::vector<ParameterUnit> take() { return std::move(units_); }

 private:
  std::unordered_map<std::string, LocalTensor> tensors_;
  std::vector<ParameterUnit> units_;
};

void add_layer(UnitBuilder& builder, std::int64_t index) {
  const std::string layer = fmt::format("model.layers.{}.", index);
  const std::string attention = layer + "self_attn.";
  const std::string mlp = layer + "mlp.";
  builder.begin_unit();
  builder.add({layer + "input_layernorm.weight"});
  for (const char* kind : {".weight", ".bias"})
    builder.add(
        {attention + "q_proj" + kind, attention + "k_proj" + kind, attention + "v_proj" + kind});
  builder.add({attention + "q_norm.weight"});
  builder.add({attention + "k_norm.weight"});
  for (const char* kind : {".weight", ".bias"}) builder.add({attention + "o_proj" + kind});
  builder.add({layer + "post_attention_layernorm.weight"});
  for (const char* kind : {".weight", ".bias"})
    builder.add({mlp + "gate_proj" + kind, mlp + "up_proj" + kind});
  for (const char* kind : {".weight", ".bias"}) builder.add({mlp + "down_proj" + kind});
}

}  // namespace

std::vector<IndexRange> DecoderPart::layer_runs(const ModelConfig& config) const {
  if (!runs.empty()) return runs;
  return {{.begin = 0, .end = config.layer_count}};
}

std::vector<TensorShape> decoder_tensors(const ModelConfig& config, bool value_head) {
  std::vector<TensorShape> tensors = expected_tensors(config);
  if (!value_head) return tensors;
  std::erase_if(tensors, [](const TensorShape& tensor) { return tensor.name == kLanguageHead; });
  tensors.push_back({std::string(kValueHead), {1, config.hidden_size}});
  return tensors;
}

std::vector<TensorShape> part_tensors(const ModelConfig& config, bool value_head,
                                      const DecoderPart& part) {
  std::vector<std::string> prefixes;
  for (const IndexRange& run : part.layer_runs(config))
    for (std::int64_t l = run.begin; l < run.end; ++l)
      prefixes.push_back(fmt::format("model.layers.{}.", l));
  const bool embedding_is_head = config.tie_embeddings && !value_head;
  const auto is_here = [&](const TensorShape& tensor) {
    if (tensor.name == kEmbedding) return part.first || (part.last && embedding_is_head);
    if (!tensor.name.starts_with("model.layers.")) return part.last;
    return std::ranges::any_of(
        prefixes, [&](const std::string& prefix) { return tensor.name.starts_with(prefix); });
  };
  std::vector<TensorShape> tensors = decoder_tensors(config, value_head);
  std::erase_if(tensors, [&](const TensorShape& tensor) { return !is_here(tensor); });
  return tensors;
}

PartUnits part_units(const ModelConfig& config, bool value_head, const DecoderPart& part) {
  UnitBuilder builder(config, value_head, part.place());
  PartUnits out;
  if (part.first) {
    out.embedding = builder.begin_unit();
    builder.add({std::string(kEmbedding)});
  }
  out.run_begins.push_back(part.first ? 1 : 0);
  for (const IndexRange& run : part.layer_runs(config)) {
    for (std::int64_t l = run.begin; l < run.end; ++l) add_layer(builder, l);
    out.run_begins.push_back(out.run_begins.back() + static_cast<std::size_t>(run.size()));
  }
  if (part.last) {
    out.final_norm = builder.begin_unit();
    builder.add({std::string(kFinalNorm)});
    const bool tied = config.tie_embeddings && !value_head;
    if (tied && part.first) {
      out.head = out.embedding;
    } else {
      out.head = builder.begin_unit();
      if (tied)
        builder.add_embedding_copy();
      else
        builder.add({std::string(value_head ? kValueHead : kLanguageHead)});
    }
  }
  out.units = builder.take();
  return out;
}

}  // namespace troupe::actors
