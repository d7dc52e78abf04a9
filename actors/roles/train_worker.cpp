#include "actors/roles/train_worker.hpp"

#include "actors/roles/sharded_batch.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe::actors {
namespace {

/// The tensors, or pieces, of each part, in order; at least one part.
template <class Tensor>
std::vector<std::span<const Tensor>> parts_of(std::span<const Tensor> tensors,
                                              std::int64_t bytes_max) {
  std::vector<std::span<const Tensor>> parts;
  std::size_t begin = 0;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto size = static_cast<std::int64_t>(tensors[i].data.size_bytes());
    if (i > begin && bytes + size > bytes_max) {
      parts.push_back(tensors.subspan(begin, i - begin));
      begin = i;
      bytes = 0;
    }
    bytes += size;
  }
  parts.push_back(tensors.subspan(begin));
  return parts;
}

}  // namespace

result<std::shared_ptr<TrainEngine>> TrainWorker::make_engine(runtime::WorkerContext& context,
                                                              const TrainWorkerOptions& options) {
  TROUPE_TRY(auto engine, TrainEngine::create(options.model, options.weights, options.engine,
                                              &context.collective()));
  return std::shared_ptr<TrainEngine>(std::move(engine));
}

result<void> TrainWorker::enter(runtime::MemoryBook* memory) {
  entries_ = std::make_unique<MemoryEntries>(memory, context_.group());
  return entries_->add_engine(*engine_);
}

result<EngineState> TrainWorker::state(std::int64_t part) {
  if (part < 0) return fail(ErrorCode::kInvalidArgument, "state: part {}, wanted 0 or more", part);
  return engine_->is_whole() ? whole_state(part) : sharded_state(part);
}

result<EngineState> TrainWorker::whole_state(std::int64_t part) {
  EngineState out;
  if (context_.rank() != RankId{0}) return out;
  TrainState whole = engine_->state();
  const auto parts = parts_of(std::span<const NamedTensor>(whole.tensors), kStatePartBytes);
  if (part >= static_cast<std::int64_t>(parts.size()))
    return fail(ErrorCode::kInvalidArgument, "state: part {} of {}", part, parts.size());
  out.parts = static_cast<std::int64_t>(parts.size());
  if (part == 0) out.json = std::move(whole.json);
  TROUPE_TRY(const runtime::Batch tensors,
             tensor_batch(parts[static_cast<std::size_t>(part)], engine_));
  TROUPE_TRY(out.tensors, context_.columns().put(tensors));
  return out;
}

result<EngineState> TrainWorker::sharded_state(std::int64_t part) {
  TROUPE_TRY(EngineState out, part_of(engine_->state_pieces(), part));
  if (part == 0 && context_.rank() == RankId{0}) out.json = engine_->state_json();
  return out;
}

result<EngineState> TrainWorker::weight_parts(std::int64_t part) {
  if (part < 0)
    return fail(ErrorCode::kInvalidArgument, "weight_parts: part {}, wanted 0 or more", part);
  return part_of(engine_->weight_pieces(), part);
}

result<EngineState> TrainWorker::part_of(std::span<const StatePiece> pieces, std::int64_t part) {
  EngineState out;
  out.sharded = true;
  const auto parts = parts_of(pieces, kStatePartBytes / context_.collective().size());
  out.parts = static_cast<std::int64_t>(parts.size());
  // Ranks have different amounts, and all are asked for as many parts as the fullest has.
  if (part >= out.parts || pieces.empty()) return out;
  TROUPE_TRY(const runtime::Batch batch,
             piece_batch(parts[static_cast<std::size_t>(part)], engine_));
  TROUPE_TRY(out.tensors, context_.columns().put(batch));
  return out;
}

result<void> TrainWorker::load_state(const EngineState& state) {
  if (engine_->is_whole() && !state.sharded) {
    TROUPE_TRY(const TensorRows rows, TensorRows::open(state.tensors, context_.deadline()));
    return engine_->load_state(state.json, rows.tensors());
  }
  std::unordered_map<std::string, std::vector<reshard::Box>> held;
  for (const StatePiece& piece : engine_->held_pieces()) held[piece.name].push_back(piece.box);
  const auto wanted = [&held](const StatePiece& piece) {
    const auto found = held.find(piece.name);
    return found != held.end() && std::ranges::any_of(found->second, [&](const reshard::Box& box) {
             return !intersect(box, piece.box).empty();
           });
  };
  TROUPE_TRY(const PieceRows rows, PieceRows::open(state.tensors, wanted, context_.deadline()));
  return engine_->load_pieces(state.json, rows.pieces());
}

}  // namespace troupe::actors
