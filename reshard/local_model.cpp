#include "reshard/local_model.hpp"

#include "reshard/stages.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace troupe::reshard {
namespace {

/// Rows of one canonical tensor, to be stacked on others.
struct RowBlock {
  std::int32_t tensor = kNoTensor;
  Range rows = {};
};

Range part_of(Range whole, std::int64_t begin, std::int64_t size) {
  return {std::max(whole.begin, begin), std::min(whole.end, begin + size)};
}

class Builder {
 public:
  Builder(const ModelShape& shape, const ModelTensors& model, const RankCut& cut)
      : shape_(shape), model_(model), cut_(cut) {}

  LocalModel build() {
    // A tied head is the embedding, so the last stage holds that too.
    const bool head_is_embedding = shape_.tied && !shape_.value_head && !cut_.stored_head;
    if (cut_.first_stage || (cut_.last_stage && head_is_embedding)) vocabulary(model_.embedding);
    for (const std::int64_t layer : cut_.layers) {
      const LayerTensors& ids = model_.layers[static_cast<std::size_t>(layer)];
      replicated(ids.input_norm);
      if (shape_.latent.kv_rank > 0)
        latent_attention(ids);
      else
        attention(ids);
      replicated(ids.mlp_norm);
      mlp(ids);
    }
    if (cut_.last_stage) {
      replicated(model_.final_norm);
      replicated(model_.value_head);
      if (model_.head != kNoTensor) vocabulary(model_.head);
    }
    return std::move(out_);
  }

 private:
  LocalTensor& start(std::int32_t tensor, std::int64_t rows, std::int64_t cols) {
    const TensorInfo& info = model_.at(tensor);
    out_.tensors.push_back(
        {.unit = info.layer, .dtype = info.dtype, .rows = rows, .cols = cols, .pieces = {}});
    return out_.tensors.back();
  }

  void replicated(std::int32_t tensor) {
    if (tensor == kNoTensor) return;
    const TensorInfo& info = model_.at(tensor);
    start(tensor, info.rows, info.cols).pieces.push_back({tensor, whole(info), 0});
  }

  /// One local tensor of row blocks one after the other, or one for each when nothing is fused.
  void stacked(std::initializer_list<RowBlock> blocks) {
    if (blocks.begin()->tensor == kNoTensor) return;
    if (cut_.style == CutStyle::kUnfused && blocks.size() > 1) {
      for (const RowBlock& block : blocks) stacked({block});
      return;
    }
    std::int64_t rows = 0;
    for (const RowBlock& block : blocks) rows += block.rows.size();
    const std::int64_t cols = model_.at(blocks.begin()->tensor).cols;
    LocalTensor& local = start(blocks.begin()->tensor, rows, cols);
    std::int64_t row = 0;
    for (const RowBlock& block : blocks) {
      if (block.rows.size() > 0)
        local.pieces.push_back({block.tensor, {block.rows.begin, block.rows.end, 0, cols}, row});
      row += block.rows.size();
    }
  }

  /// All rows of some columns.
  void columns(std::int32_t tensor, Range cols) {
    const TensorInfo& info = model_.at(tensor);
    LocalTensor& local = start(tensor, info.rows, cols.size());
    if (cols.size() > 0) local.pieces.push_back({tensor, {0, info.rows, cols.begin, cols.end}, 0});
  }

  void vocabulary(std::int32_t tensor) {
    const TensorInfo& info = model_.at(tensor);
    if (cut_.vocab_multiple == 0)
      return stacked({{tensor, even_part(info.rows, cut_.tp, cut_.tp_index)}});
    const std::int64_t multiple = cut_.vocab_multiple;
    const std::int64_t rows = (info.rows + multiple - 1) / multiple * multiple / cut_.tp;
    const Range real = part_of({0, info.rows}, rows * cut_.tp_index, rows);
    LocalTensor& local = start(tensor, rows, info.cols);
    if (real.size() > 0) local.pieces.push_back({tensor, {real.begin, real.end, 0, info.cols}, 0});
  }

  void attention(const LayerTensors& ids) {
    if (cut_.style == CutStyle::kMegatron) {
      interleaved(ids.q, ids.k, ids.v);
      interleaved(ids.q_bias, ids.k_bias, ids.v_bias);
    } else {
      const Range q = scaled(even_part(shape_.heads, cut_.tp, cut_.tp_index), shape_.head_dim);
      const Range kv = scaled(kv_heads(), shape_.head_dim);
      stacked({{ids.q, q}, {ids.k, kv}, {ids.v, kv}});
      stacked({{ids.q_bias, q}, {ids.k_bias, kv}, {ids.v_bias, kv}});
    }
    replicated(ids.q_norm);
    replicated(ids.k_norm);
    const Range heads = even_part(shape_.heads, cut_.tp, cut_.tp_index);
    columns(ids.o, scaled(heads, shape_.head_dim));
    replicated(ids.o_bias);
  }

  static Range scaled(Range range, std::int64_t by) { return {range.begin * by, range.end * by}; }

  /// Several ranks hold the same kv head when there are more ranks than kv heads.
  Range kv_heads() const {
    if (cut_.tp <= shape_.kv_heads) return even_part(shape_.kv_heads, cut_.tp, cut_.tp_index);
    const std::int64_t head = cut_.tp_index / (cut_.tp / shape_.kv_heads);
    return {head, head + 1};
  }

  /// Rows of each group: its q heads, its k head, its v head; then cut evenly over the ranks.
  void interleaved(std::int32_t q, std::int32_t k, std::int32_t v) {
    if (q == kNoTensor) return;
    const std::int64_t dim = shape_.head_dim;
    const std::int64_t q_rows = shape_.heads / shape_.kv_heads * dim;
    const std::int64_t group_rows = q_rows + 2 * dim;
    const std::int64_t rows = group_rows * shape_.kv_heads / cut_.tp;
    const Range own{rows * cut_.tp_index, rows * (cut_.tp_index + 1)};
    const std::int64_t cols = model_.at(q).cols;
    LocalTensor& local = start(q, rows, cols);
    for (std::int64_t group = own.begin / group_rows; group * group_rows < own.end; ++group) {
      std::int64_t fused = group * group_rows;
      const auto part = [&](std::int32_t tensor, std::int64_t size) {
        const Range cut = part_of(own, fused, size);
        const std::int64_t shift = group * size - fused;  // from fused to canonical rows
        if (cut.size() > 0)
          local.pieces.push_back(
              {tensor, {cut.begin + shift, cut.end + shift, 0, cols}, cut.begin - own.begin});
        fused += size;
      };
      part(q, q_rows);
      part(k, dim);
      part(v, dim);
    }
  }

  /// Down projections and their norms are whole on each rank; up projections are cut by head.
  void latent_attention(const LayerTensors& ids) {
    const LatentShape& latent = shape_.latent;
    const Range heads = even_part(shape_.heads, cut_.tp, cut_.tp_index);
    replicated(ids.q_a);
    replicated(ids.q_a_norm);
    stacked({{ids.q_b, scaled(heads, latent.nope_dim + latent.rope_dim)}});
    replicated(ids.kv_a);
    replicated(ids.kv_a_norm);
    stacked({{ids.kv_b, scaled(heads, latent.nope_dim + latent.v_dim)}});
    columns(ids.o, scaled(heads, latent.v_dim));
    replicated(ids.o_bias);
  }

  void mlp(const LayerTensors& ids) {
    replicated(ids.router);
    replicated(ids.router_bias);
    if (ids.gate != kNoTensor) {
      const Range own = even_part(model_.at(ids.gate).rows, cut_.tp, cut_.tp_index);
      stacked({{ids.gate, own}, {ids.up, own}});
      stacked({{ids.gate_bias, own}, {ids.up_bias, own}});
      columns(ids.down, own);
      replicated(ids.down_bias);
    }
    if (ids.experts == kNoTensor) return;
    const Range own = even_part(shape_.expert.intermediate, cut_.expert_tp, cut_.expert_tp_index);
    for (const std::int64_t expert : cut_.experts) {
      const std::int32_t gate = ids.expert_gate(expert);
      stacked({{gate, own}, {gate + 1, own}});
      columns(gate + 2, own);
    }
  }

  const ModelShape& shape_;
  const ModelTensors& model_;
  const RankCut& cut_;
  LocalModel out_;
};

result<void> divides(std::string_view what, std::int64_t total, std::string_view by,
                     std::int64_t parts) {
  if (total % parts == 0) return {};
  return fail(ErrorCode::kInvalidArgument, "layout: {} {} do not divide by {} {}", total, what, by,
              parts);
}

result<void> check_index(std::string_view what, std::int64_t index, std::int64_t count) {
  if (count >= 1 && index >= 0 && index < count) return {};
  return fail(ErrorCode::kInvalidArgument, "layout: {} index {} of {}", what, index, count);
}

result<void> check_attention(const ModelShape& shape, const RankCut& cut) {
  TROUPE_TRY_VOID(divides("heads", shape.heads, "tp", cut.tp));
  if (shape.latent.kv_rank > 0) return {};
  if (cut.style == CutStyle::kMegatron)
    return divides("fused qkv rows", shape.q_rows() + 2 * shape.kv_rows(), "tp", cut.tp);
  if (cut.tp <= shape.kv_heads) return divides("kv heads", shape.kv_heads, "tp", cut.tp);
  if (cut.tp % shape.kv_heads == 0) return {};
  return fail(ErrorCode::kInvalidArgument, "layout: tp {} is no multiple of {} kv heads", cut.tp,
              shape.kv_heads);
}

result<void> check_vocabulary(const ModelShape& shape, const RankCut& cut) {
  if (cut.vocab_multiple < 0)
    return fail(ErrorCode::kInvalidArgument, "layout: vocabulary padded to a multiple of {}",
                cut.vocab_multiple);
  if (cut.vocab_multiple == 0) return {};
  const std::int64_t multiple = cut.vocab_multiple;
  return divides("padded vocabulary rows", (shape.vocab + multiple - 1) / multiple * multiple, "tp",
                 cut.tp);
}

result<void> check_experts(const ModelShape& shape, const RankCut& cut) {
  TROUPE_TRY_VOID(check_index("expert tp", cut.expert_tp_index, cut.expert_tp));
  if (shape.expert.experts == 0) return {};
  TROUPE_TRY_VOID(divides("expert columns", shape.expert.intermediate, "expert tp", cut.expert_tp));
  for (const std::int64_t expert : cut.experts)
    TROUPE_TRY_VOID(check_index("expert", expert, shape.expert.experts));
  return {};
}

}  // namespace

ModelTensors tensors_for(const ModelShape& shape, bool stored_head) {
  ModelShape stored = shape;
  if (stored_head) stored.tied = false;
  return model_tensors(stored);
}

result<void> check_cut(const ModelShape& shape, const RankCut& cut) {
  TROUPE_TRY_VOID(shape.validate());
  TROUPE_TRY_VOID(check_index("tp", cut.tp_index, cut.tp));
  TROUPE_TRY_VOID(check_attention(shape, cut));
  TROUPE_TRY_VOID(check_vocabulary(shape, cut));
  TROUPE_TRY_VOID(check_experts(shape, cut));
  if (cut.style == CutStyle::kMegatron && shape.intermediate > 0)
    TROUPE_TRY_VOID(divides("mlp columns", shape.intermediate, "tp", cut.tp));
  for (const std::int64_t layer : cut.layers)
    TROUPE_TRY_VOID(check_index("layer", layer, shape.layers));
  return {};
}

LocalModel local_model(const ModelShape& shape, const ModelTensors& tensors, const RankCut& cut) {
  TROUPE_DCHECK(check_cut(shape, cut), "layout: {}", check_cut(shape, cut).error().message);
  return Builder(shape, tensors, cut).build();
}

}  // namespace troupe::reshard
