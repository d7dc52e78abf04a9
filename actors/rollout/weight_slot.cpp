#include "actors/rollout/weight_slot.hpp"

#include "actors/kernel/kernel_table.hpp"
#include "actors/model/weight_set.hpp"
#include "runtime/base/check.hpp"

#include <charconv>
#include <string_view>

namespace troupe::actors {
namespace {

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Fills in part, place and box of one tensor from its name.
class SlotMap {
 public:
  SlotMap(const ModelConfig& config, const ModelShare& share) : config_(config), share_(share) {
    const ModelConfig& local = share.local;
    q_ = {share.q_head_begin * config.head_dim, 0};
    q_.end = q_.begin + local.q_size();
    kv_ = {share.kv_head_begin * config.head_dim, 0};
    kv_.end = kv_.begin + local.kv_size();
    mlp_ = {share.mlp_begin, share.mlp_begin + local.intermediate_size};
    vocab_ = {share.vocab_begin(share.rank), share.vocab_end(share.rank)};
  }

  void fill(WeightSlot& slot) const {
    constexpr std::string_view kLayers = "model.layers.";
    std::string_view rest = slot.name;
    if (!rest.starts_with(kLayers)) return fill_outer(slot);
    rest.remove_prefix(kLayers.size());
    const auto parsed = std::from_chars(rest.data(), rest.data() + rest.size(), slot.layer);
    rest.remove_prefix(static_cast<std::size_t>(parsed.ptr - rest.data()) + 1);
    const bool bias = rest.ends_with(".bias");
    rest.remove_suffix(bias ? 5 : 7);  // .bias, .weight
    fill_layer(slot, rest, bias);
  }

 private:
  void fill_outer(WeightSlot& slot) const {
    if (slot.name == "model.norm.weight") {
      slot.part = WeightPart::kFinalNorm;
      return;
    }
    const bool head = slot.name == "lm_head.weight" || config_.tie_embeddings;
    slot.part = head ? WeightPart::kHead : WeightPart::kEmbedding;
    rows(slot, vocab_, 0);
  }

  void fill_layer(WeightSlot& slot, std::string_view name, bool bias) const {
    const ModelConfig& local = share_.local;
    const auto outputs = [&](WeightPart matrix, WeightPart vector, Range held, std::int64_t first) {
      slot.part = bias ? vector : matrix;
      rows(slot, held, first);
    };
    const auto inputs = [&](WeightPart matrix, WeightPart vector, Range held) {
      slot.part = bias ? vector : matrix;  // a row-parallel bias is whole: it is added once
      if (bias) return;
      slot.held.col_begin = held.begin;
      slot.held.col_end = held.end;
    };
    const std::int64_t q = local.q_size();
    if (name == "input_layernorm") {
      slot.part = WeightPart::kInputNorm;
    } else if (name == "post_attention_layernorm") {
      slot.part = WeightPart::kPostNorm;
    } else if (name == "self_attn.q_norm") {
      slot.part = WeightPart::kQNorm;
    } else if (name == "self_attn.k_norm") {
      slot.part = WeightPart::kKNorm;
    } else if (name == "self_attn.q_proj") {
      outputs(WeightPart::kQkv, WeightPart::kQkvBias, q_, 0);
    } else if (name == "self_attn.k_proj") {
      outputs(WeightPart::kQkv, WeightPart::kQkvBias, kv_, q);
    } else if (name == "self_attn.v_proj") {
      outputs(WeightPart::kQkv, WeightPart::kQkvBias, kv_, q + local.kv_size());
    } else if (name == "mlp.gate_proj") {
      outputs(WeightPart::kGateUp, WeightPart::kGateUpBias, mlp_, 0);
    } else if (name == "mlp.up_proj") {
      outputs(WeightPart::kGateUp, WeightPart::kGateUpBias, mlp_, padded(local.intermediate_size));
    } else if (name == "self_attn.o_proj") {
      inputs(WeightPart::kO, WeightPart::kOBias, q_);
    } else if (name == "mlp.down_proj") {
      inputs(WeightPart::kDown, WeightPart::kDownBias, mlp_);
    } else {
      TROUPE_CHECK(false, "weight slots: {} has no place", slot.name);
    }
  }

  static void rows(WeightSlot& slot, Range held, std::int64_t first_output) {
    slot.held.row_begin = held.begin;
    slot.held.row_end = held.end;
    slot.first_output = first_output;
  }

  const ModelConfig& config_;
  const ModelShare& share_;
  Range q_, kv_, mlp_, vocab_;
};

}  // namespace

std::vector<WeightSlot> weight_slots(const ModelConfig& config, const ModelShare& share) {
  const SlotMap map(config, share);
  std::vector<WeightSlot> slots;
  for (const TensorShape& tensor : expected_tensors(config)) {
    WeightSlot& slot = slots.emplace_back();
    slot.name = tensor.name;
    slot.rows = tensor.shape[0];
    slot.cols = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
    slot.held = reshard::Box{0, slot.rows, 0, slot.cols};
    map.fill(slot);
  }
  return slots;
}

reshard::RankLayout layout_of(const std::vector<WeightSlot>& slots, const ModelShare& share) {
  reshard::RankLayout layout;
  layout.rank = static_cast<std::int32_t>(share.rank);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const reshard::Box& held = slots[i].held;
    if (held.empty()) continue;
    layout.segments.push_back(reshard::Segment{.tensor = static_cast<std::int32_t>(i),
                                               .box = held,
                                               .buffer = 0,
                                               .offset = offset,
                                               .row_stride = held.cols()});
    offset += held.elements();
  }
  layout.buffer_elements = {offset};
  return layout;
}

}  // namespace troupe::actors
