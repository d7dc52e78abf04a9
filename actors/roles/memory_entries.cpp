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
                                          engine.offload();
                                          return {};
                                        }};
  TROUPE_TRY_VOID(
      add("gradients", weights, Eviction::kDrop, Residency::kDropped, std::move(gradient_moves)));
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
  const auto value_bytes = static_cast<std::int64_t>(sizeof(float));
  return Bytes{(per_token * options.micro_batch_tokens_max + logits) * value_bytes};
}

}  // namespace troupe::actors
