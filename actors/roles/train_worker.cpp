#include "actors/roles/train_worker.hpp"

#include <utility>
#include <vector>

namespace troupe::actors {
namespace {

/// The tensors of each part, in order.
std::vector<std::span<const NamedTensor>> parts_of(std::span<const NamedTensor> tensors) {
  std::vector<std::span<const NamedTensor>> parts;
  std::size_t begin = 0;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto size = static_cast<std::int64_t>(tensors[i].data.size_bytes());
    if (i > begin && bytes + size > kStatePartBytes) {
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
  EngineState out;
  if (context_.rank() != RankId{0}) return out;
  TrainState whole = engine_->state();
  const auto parts = parts_of(whole.tensors);
  if (part < 0 || part >= static_cast<std::int64_t>(parts.size()))
    return fail(ErrorCode::kInvalidArgument, "state: part {} of {}", part, parts.size());
  out.parts = static_cast<std::int64_t>(parts.size());
  if (part == 0) out.json = std::move(whole.json);
  TROUPE_TRY(const runtime::Batch tensors,
             tensor_batch(parts[static_cast<std::size_t>(part)], engine_));
  TROUPE_TRY(out.tensors, context_.columns().put(tensors));
  return out;
}

result<void> TrainWorker::load_state(const EngineState& state) {
  TROUPE_TRY(const TensorRows rows, TensorRows::open(state.tensors, context_.deadline()));
  return engine_->load_state(state.json, rows.tensors());
}

}  // namespace troupe::actors
