#include "actors/rollout/packed_weights.hpp"

#include "actors/model/hf_folder.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace troupe::actors {
namespace {

PackedLayer empty_layer(const ModelConfig& local) {
  const std::int64_t qkv = local.q_size() + 2 * local.kv_size();
  const std::int64_t gate_up = padded(local.intermediate_size) + local.intermediate_size;
  const std::int64_t hidden = local.hidden_size;
  PackedLayer layer;
  layer.input_norm = AlignedBuffer(padded(hidden));
  layer.post_norm = AlignedBuffer(padded(hidden));
  layer.qkv = PackedMatrix(qkv, hidden);
  layer.o = PackedMatrix(hidden, local.q_size());
  layer.gate_up = PackedMatrix(gate_up, hidden);
  layer.down = PackedMatrix(hidden, local.intermediate_size);
  if (local.qk_norm) {
    layer.q_norm = AlignedBuffer(padded(local.head_dim));
    layer.k_norm = AlignedBuffer(padded(local.head_dim));
  }
  if (local.qkv_bias) layer.qkv_bias = AlignedBuffer(padded(qkv));
  if (local.o_bias) layer.o_bias = AlignedBuffer(padded(hidden));
  if (local.mlp_bias) {
    layer.gate_up_bias = AlignedBuffer(padded(gate_up));
    layer.down_bias = AlignedBuffer(padded(hidden));
  }
  return layer;
}

}  // namespace

PackedWeights::PackedWeights(const ModelShare& share)
    : final_norm_(padded(share.local.hidden_size)),
      head_(share.local.vocab_size, share.local.hidden_size) {
  const ModelConfig& local = share.local;
  for (std::int64_t i = 0; i < local.layer_count; ++i) layers_.push_back(empty_layer(local));
  if (!local.tie_embeddings)
    embedding_ = AlignedBuffer(padded(local.vocab_size * local.hidden_size));
}

result<PackedWeights> PackedWeights::pack(const ModelConfig& config,
                                          std::span<const NamedTensor> tensors) {
  TROUPE_TRY_VOID(check_tensors(config, tensors));
  std::unordered_map<std::string_view, std::span<const float>> by_name;
  for (const NamedTensor& tensor : tensors) by_name.emplace(tensor.name, tensor.data);
  const ModelShare share = whole_model(config);
  PackedWeights packed(share);
  for (const WeightSlot& slot : weight_slots(config, share))
    packed.write(slot, slot.held, by_name.at(slot.name).data(), slot.cols);
  return packed;
}

PackedMatrix* PackedWeights::matrix_of(const WeightSlot& slot) {
  if (slot.part == WeightPart::kHead) return &head_;
  if (slot.layer < 0) return nullptr;
  PackedLayer& layer = layers_[static_cast<std::size_t>(slot.layer)];
  switch (slot.part) {
    case WeightPart::kQkv:
      return &layer.qkv;
    case WeightPart::kO:
      return &layer.o;
    case WeightPart::kGateUp:
      return &layer.gate_up;
    case WeightPart::kDown:
      return &layer.down;
    default:
      return nullptr;
  }
}

AlignedBuffer& PackedWeights::vector_of(const WeightSlot& slot) {
  if (slot.part == WeightPart::kFinalNorm) return final_norm_;
  TROUPE_CHECK(slot.layer >= 0, "packed weights: {} is no vector", slot.name);
  PackedLayer& layer = layers_[static_cast<std::size_t>(slot.layer)];
  switch (slot.part) {
    case WeightPart::kInputNorm:
      return layer.input_norm;
    case WeightPart::kPostNorm:
      return layer.post_norm;
    case WeightPart::kQNorm:
      return layer.q_norm;
    case WeightPart::kKNorm:
      return layer.k_norm;
    case WeightPart::kQkvBias:
      return layer.qkv_bias;
    case WeightPart::kOBias:
      return layer.o_bias;
    case WeightPart::kGateUpBias:
      return layer.gate_up_bias;
    default:
      return layer.down_bias;
  }
}

void PackedWeights::write(const WeightSlot& slot, const reshard::Box& box, const float* data,
                          std::int64_t row_stride) {
  const std::int64_t row = slot.first_output + box.row_begin - slot.held.row_begin;
  const std::int64_t col = box.col_begin - slot.held.col_begin;
  if (PackedMatrix* matrix = matrix_of(slot))
    return matrix->write({row, box.rows(), col, box.cols()}, data, row_stride);
  // The embedding is row-major over all columns; a vector has rows of one number.
  AlignedBuffer& target = slot.part == WeightPart::kEmbedding ? embedding_ : vector_of(slot);
  const std::int64_t width = slot.held.cols();
  if (width == box.cols() && row_stride == width) {
    std::copy_n(data, box.elements(), target.data() + row * width);
    return;
  }
  for (std::int64_t r = 0; r < box.rows(); ++r)
    std::copy_n(data + r * row_stride, box.cols(), target.data() + (row + r) * width + col);
}

void PackedWeights::copy_embedding(std::int64_t row, std::span<float> target) const {
  if (embedding_.size() == 0) return head_.copy_output(row, target);
  std::copy_n(embedding_.data() + row * static_cast<std::int64_t>(target.size()), target.size(),
              target.data());
}

std::vector<std::span<const float>> PackedWeights::arrays() const {
  std::vector<std::span<const float>> arrays;
  const auto add = [&](const float* data, std::int64_t count) {
    arrays.emplace_back(data, static_cast<std::size_t>(count));
  };
  const auto add_matrix = [&](const PackedMatrix& matrix) {
    add(matrix.panels(), padded(matrix.outputs()) * matrix.inputs());
  };
  add_matrix(head_);
  add(embedding_.data(), embedding_.size());
  add(final_norm_.data(), final_norm_.size());
  for (const PackedLayer& layer : layers_) {
    for (const PackedMatrix* matrix : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down})
      add_matrix(*matrix);
    for (const AlignedBuffer* buffer :
         {&layer.input_norm, &layer.post_norm, &layer.q_norm, &layer.k_norm, &layer.qkv_bias,
          &layer.o_bias, &layer.gate_up_bias, &layer.down_bias})
      add(buffer->data(), buffer->size());
  }
  return arrays;
}

Bytes PackedWeights::bytes() const {
  std::int64_t total = 0;
  for (const std::span<const float> array : arrays())
    total += static_cast<std::int64_t>(array.size_bytes());
  return Bytes{total};
}

}  // namespace troupe::actors
