#include "actors/roles/memory_entries.hpp"

#include "runtime/base/log.hpp"

#include <utility>

namespace troupe::actors {

using runtime::Eviction;
using runtime::Residency;

MemoryEntries::~MemoryEntries() {
  for (const runtime::MemoryKey& key : keys_) {
    auto removed = memory_->remove(key);
    if (!removed) log::warn("memory ledger: {}", removed.error().to_string());
  }
}

result<void> MemoryEntries::add(const std::string& what, Bytes bytes, Eviction eviction,
                                Residency residency, runtime::MemoryActions actions) {
  if (memory_ == nullptr) return {};
  runtime::MemoryKey key{role_, what};
  TROUPE_TRY_VOID(memory_->add(
      {.key = key, .bytes = bytes, .eviction = eviction, .residency = residency, .last_needed = 0},
      std::move(actions)));
  keys_.push_back(std::move(key));
  return {};
}

result<void> MemoryEntries::add_engine(TrainEngine& engine) {
  const Bytes weights{engine.parameter_count() * static_cast<std::int64_t>(sizeof(float))};
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
  return add("optimizer", weights + weights, Eviction::kNever, Residency::kResident);
}

Bytes activation_estimate(const ModelConfig& model, const TrainEngineOptions& options) {
  const std::int64_t attention = 3 * (model.q_size() + 2 * model.kv_size());
  const std::int64_t layer = 16 * model.hidden_size + attention + 5 * model.intermediate_size;
  const std::int64_t per_token =
      options.recompute ? model.layer_count * model.hidden_size + layer : model.layer_count * layer;
  const std::int64_t logits = 3 * options.logit_chunk_tokens * model.vocab_size;
  const auto value_bytes = static_cast<std::int64_t>(sizeof(float));
  return Bytes{(per_token * options.micro_batch_tokens_max + logits) * value_bytes};
}

}  // namespace troupe::actors
