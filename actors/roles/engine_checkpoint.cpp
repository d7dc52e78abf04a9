#include "actors/roles/engine_checkpoint.hpp"

#include "actors/roles/sharded_batch.hpp"

#include <memory>
#include <utility>
#include <vector>

namespace troupe::actors {
namespace {

result<EngineState> read_pieces(const runtime::Checkpoint& checkpoint, const std::string& role) {
  EngineState state;
  state.sharded = true;
  TROUPE_TRY(state.json, checkpoint.state(role));
  TROUPE_TRY(const ShardManifest manifest, read_manifest(checkpoint, role));
  const auto values = std::make_shared<std::vector<std::vector<float>>>();
  std::vector<StatePiece> pieces;
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const ManifestPiece& piece : tensor.pieces) {
      TROUPE_TRY(std::vector<float> data, checkpoint.tensor<float>(piece.entry));
      values->push_back(std::move(data));
      pieces.push_back(
          {.name = name, .whole = tensor.shape, .box = piece.box, .data = values->back()});
    }
  }
  TROUPE_TRY(state.tensors, piece_batch(pieces, values));
  return state;
}

}  // namespace

result<void> StateWriter::add(std::int64_t part, std::span<const EngineState> ranks) {
  for (const EngineState& state : ranks) {
    if (!state.json.empty()) TROUPE_TRY_VOID(writer_.add_state(role_, state.json));
    if (part >= state.parts || !state.tensors.rows_fixed()) continue;
    if (!state.sharded) {
      TROUPE_TRY(const TensorRows rows, TensorRows::open(state.tensors));
      for (const NamedTensor& tensor : rows.tensors())
        TROUPE_TRY_VOID(
            writer_.add_tensor<float>(role_ + "/" + tensor.name, tensor.shape, tensor.data));
      continue;
    }
    sharded_ = true;
    TROUPE_TRY(const PieceRows rows, PieceRows::open(state.tensors, nullptr));
    for (const StatePiece& piece : rows.pieces()) {
      TROUPE_TRY_VOID(add_piece(manifest_, role_, piece));
      TROUPE_TRY_VOID(writer_.add_tensor<float>(piece_entry(role_, piece),
                                                entry_shape(piece.whole, piece.box), piece.data));
    }
  }
  return {};
}

result<void> StateWriter::finish() {
  if (!sharded_) return {};
  TROUPE_TRY_VOID(check_coverage(manifest_, "state of " + role_));
  return writer_.add_state(manifest_state(role_), manifest_.to_json());
}

WeightGather::WeightGather(std::span<const TensorShape> tensors)
    : weights_(WeightSet::zeros(tensors)) {
  // Named beforehand, so that one of which nothing comes is missed.
  for (const TensorShape& tensor : tensors)
    manifest_.tensors[std::string(kWeightPrefix) + tensor.name].shape = tensor.shape;
}

result<void> WeightGather::add(std::span<const EngineState> ranks) {
  for (const EngineState& state : ranks) {
    if (!state.tensors.rows_fixed()) continue;
    TROUPE_TRY(const PieceRows rows, PieceRows::open(state.tensors, nullptr));
    for (const StatePiece& piece : rows.pieces()) {
      if (!manifest_.tensors.contains(piece.name))
        return fail(ErrorCode::kNotFound, "weights: tensor {} is not of this model", piece.name);
      TROUPE_TRY_VOID(add_piece(manifest_, "policy", piece));
      const NamedTensor* const tensor = weights_.find(piece.name.substr(kWeightPrefix.size()));
      copy_common(piece.box, piece.data, whole_box(tensor->shape),
                  weights_.mutable_data(tensor->name));
    }
  }
  return {};
}

result<WeightSet> WeightGather::finish() {
  TROUPE_TRY_VOID(check_coverage(manifest_, "policy weights"));
  return std::move(weights_);
}

result<EngineState> read_state(const runtime::Checkpoint& checkpoint, const std::string& role) {
  if (checkpoint.index().states.contains(manifest_state(role)))
    return read_pieces(checkpoint, role);
  EngineState state;
  TROUPE_TRY(state.json, checkpoint.state(role));
  const std::string prefix = role + "/";
  const auto values = std::make_shared<std::vector<std::vector<float>>>();
  std::vector<NamedTensor> tensors;
  for (const auto& [name, entry] : checkpoint.index().tensors) {
    if (name.compare(0, prefix.size(), prefix) != 0) continue;
    TROUPE_TRY(std::vector<float> data, checkpoint.tensor<float>(name));
    values->push_back(std::move(data));
    tensors.push_back(NamedTensor{
        .name = name.substr(prefix.size()), .shape = entry.shape, .data = values->back()});
  }
  TROUPE_TRY(state.tensors, tensor_batch(tensors, values));
  return state;
}

result<WeightSet> read_weights(const runtime::Checkpoint& checkpoint, std::string_view role,
                               std::span<const TensorShape> tensors) {
  std::optional<ShardManifest> manifest;
  if (checkpoint.index().states.contains(manifest_state(role))) {
    TROUPE_TRY(manifest, read_manifest(checkpoint, role));
  }
  WeightSet out = WeightSet::zeros(tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorShape state{std::string(kWeightPrefix) + tensors[i].name, tensors[i].shape};
    TROUPE_TRY(const std::vector<float> values,
               read_tensor(checkpoint, role, manifest ? &*manifest : nullptr, state));
    if (values.size() != out.mutable_data(i).size())
      return fail(ErrorCode::kConflict, "{}: tensor {} has {} numbers, wanted shape {}",
                  checkpoint.folder().string(), state.name, values.size(), shape_text(state.shape));
    std::ranges::copy(values, out.mutable_data(i).begin());
  }
  return out;
}

}  // namespace troupe::actors
