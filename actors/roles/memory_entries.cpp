#include "actors/roles/memory_entries.hpp"

#include "runtime/base/log.hpp"

#include <algorithm>
#include <utility>

namespace troupe::actors {

using runtime::Eviction;
using runtime::Residency;

MemoryEntries::~MemoryEntries() {
  for (const Kept& kept : kept_) {
    auto removed = memory_->remove(kept.entry.key);
    if (!removed) log::warn("memory ledger: {}", removed.error().to_string());
  }
}

result<void> MemoryEntries::enter(Kept kept) {
  TROUPE_TRY_VOID(memory_->add(kept.entry, kept.actions));
  kept_.push_back(std::move(kept));
  return {};
}

result<void> MemoryEntries::add(const std::string& what, Bytes bytes, Eviction eviction,
                                Residency residency, runtime::MemoryActions actions) {
  if (memory_ == nullptr) return {};
  return enter({.entry = {.key = {role_, what},
                          .bytes = bytes,
                          .eviction = eviction,
                          .residency = residency,
                          .last_needed = 0},
                .actions = std::move(actions)});
}

result<void> MemoryEntries::dropped(const std::string& what) {
  const auto place = std::find_if(kept_.begin(), kept_.end(),
                                  [&](const Kept& kept) { return kept.entry.key.what == what; });
  if (place == kept_.end()) return {};
  Kept kept = std::move(*place);
  kept_.erase(place);
  TROUPE_TRY_VOID(memory_->remove(kept.entry.key));
  kept.entry.residency = Residency::kDropped;
  return enter(std::move(kept));
}

result<void> MemoryEntries::add_engine(TrainEngine& engine) {
  const TrainMemory held = engine.memory();
  const Bytes weights = held.weights;
  TROUPE_TRY_VOID(add("weights", weights, Eviction::kNever, Residency::kResident));
  if (!engine.options().trainable) return {};
  runtime::MemoryActions gradient_moves{.load = [&engine]() -> result<void> {
                                          engine.onload();
                                          return {};
                                        },
                                        .offload = {},
                                        .drop = [&engine]() -> result<void> {
                                          // They are all that is left of the parts so far.
                                          if (engine.step_is_open())
                                            return fail(ErrorCode::kResourceExhausted,
                                                        "gradients of a streamed step are needed "
                                                        "until it is finished or abandoned");
                                          engine.offload();
                                          return {};
                                        }};
  // ZeRO-1 sums into a shard of its own beside the whole gradients, half as big as the two moments.
  const bool own_shard = engine.options().parallel.sharding == Sharding::kZero1;
  const Bytes gradients{weights.value + (own_shard ? held.optimizer.value / 2 : 0)};
  TROUPE_TRY_VOID(
      add("gradients", gradients, Eviction::kDrop, Residency::kDropped, std::move(gradient_moves)));
  return add("optimizer", held.optimizer, Eviction::kNever, Residency::kResident);
}

Bytes activation_estimate(const ModelConfig& model, const TrainEngineOptions& options) {
  const std::int64_t tp = options.parallel.tp;
  const std::int64_t attention = 3 * (model.q_size() + 2 * model.kv_size()) / tp;
  const std::int64_t layer = 16 * model.hidden_size + attention + 5 * model.intermediate_size / tp;
  // A pipeline stage has 1 / pp of the layers, and up to pp micro-batches under way.
  const std::int64_t per_token =
      options.recompute ? model.layer_count * model.hidden_size + layer : model.layer_count * layer;
  const std::int64_t logits = 3 * options.logit_chunk_tokens * model.vocab_size / tp;
  // Fully sharded: weights of two layers and the packed gradients of one, and the head's of both.
  const std::int64_t layer_weights =
      model.hidden_size * (2 * model.q_size() + 2 * model.kv_size() + 3 * model.intermediate_size);
  const std::int64_t gathered = options.parallel.sharding == Sharding::kFsdp
                                    ? 3 * layer_weights + 2 * model.vocab_size * model.hidden_size
                                    : 0;
  const auto value_bytes = static_cast<std::int64_t>(sizeof(float));
  return Bytes{(per_token * options.micro_batch_tokens_max + logits + gathered / tp) * value_bytes};
}

}  // namespace troupe::actors
