// Weights and memory of the engine: updates, sleep and wake.

#include "actors/model/hf_folder.hpp"
#include "actors/rollout/engine_impl.hpp"
#include "runtime/base/check.hpp"

#include <string_view>
#include <unordered_map>

namespace troupe::actors {
namespace {

/// In histories, apart from the events of engine_impl.cpp.
constexpr std::int64_t kCommitted = 100;
constexpr std::int64_t kDropped = 101;

Digest digest_of(WeightVersion version, WeightUpdate update) {
  Digest digest;
  digest.add(version.value);
  digest.add(static_cast<int>(update));
  return digest;
}

}  // namespace

result<void> RolloutEngine::Impl::vote(std::string_view what, const result<void>& local,
                                       const Digest& subject) {
  return ranks_ ? ranks_->vote(what, local, subject.value()) : local;
}

result<void> RolloutEngine::Impl::load_weights(std::span<const NamedTensor> tensors,
                                               WeightVersion version, WeightUpdate update) {
  result<void> ready = check_tensors(config_, tensors);
  // In place they can still be drained here while the old weights serve.
  if (ready && !has_weights()) ready = check_drainable(update);
  if (ready) ready = store_.begin(version);
  const bool begun = ready.has_value();
  result<void> outcome = vote("load weights", ready, digest_of(version, update));
  if (outcome && store_.in_place() && has_weights() && update == WeightUpdate::kDrain)
    outcome = drain();
  if (outcome) {
    std::unordered_map<std::string_view, const float*> by_name;
    for (const NamedTensor& tensor : tensors) by_name.emplace(tensor.name, tensor.data.data());
    for (const WeightSlot& slot : store_.slots()) {
      if (slot.held.empty()) continue;
      const float* first = by_name.at(slot.name) + slot.held.row_begin * slot.cols;
      const auto written =
          store_.write(slot.name, slot.held, first + slot.held.col_begin, slot.cols);
      TROUPE_CHECK(written.has_value(), "{}", written.error().to_string());
    }
    outcome = commit_update(update);
  }
  if (!outcome && begun) store_.abort();
  return outcome;
}

/// In place, sequences cannot finish under weights that are overwritten.
result<void> RolloutEngine::Impl::check_drainable(WeightUpdate update) const {
  if (!store_.in_place() || update != WeightUpdate::kDrain || !scheduler_.has_begun()) return {};
  return fail(ErrorCode::kConflict,
              "rollout engine: sequences that began under version {} cannot drain: its weights are "
              "overwritten in place; drain first, or keep or recompute their KV",
              store_.version().value);
}

result<void> RolloutEngine::Impl::commit_update(WeightUpdate update) {
  result<void> ready = store_.check_complete();
  if (ready) ready = check_drainable(update);
  const WeightVersion version = store_.pending().value_or(WeightVersion{});
  TROUPE_TRY_VOID(vote("commit of an update", ready, digest_of(version, update)));
  if (has_weights() && update == WeightUpdate::kDrain) TROUPE_TRY_VOID(drain());
  if (update == WeightUpdate::kRecompute) scheduler_.preempt_all();
  store_.commit();
  scheduler_.new_weights();
  note(kCommitted, version.value, static_cast<int>(update));
  if (update != WeightUpdate::kKeepKv) scheduler_.new_era();
  return {};
}

result<void> RolloutEngine::Impl::drain() {
  scheduler_.pause_new_groups(true);
  result<void> outcome;
  while (outcome && scheduler_.has_begun())
    if (auto report = step(); !report) outcome = fail(std::move(report).error());
  scheduler_.pause_new_groups(false);
  return outcome;
}

result<void> RolloutEngine::Impl::sleep(SleepLevel level) {
  const bool weights = level == SleepLevel::kWeightsAndKv;
  if (weights && store_.pending())
    return fail(ErrorCode::kConflict,
                "rollout engine: weights cannot sleep while an update to version {} is open",
                store_.pending()->value);
  release_kv();
  if (weights) store_.drop(WeightStore::State::kAsleep);
  return {};
}

result<void> RolloutEngine::Impl::wake(MemoryTag tag) {
  return tag == MemoryTag::kWeights ? store_.wake() : acquire_kv();
}

/// Of no consequence to later steps, and so to other ranks, when no sequence holds any.
void RolloutEngine::Impl::drop_kv() {
  if (scheduler_.holds_kv()) note(kDropped);
  scheduler_.preempt_all();
}

void RolloutEngine::Impl::release_kv() {
  drop_kv();
  cache_ = KvCache();
}

result<void> RolloutEngine::Impl::acquire_kv() {
  // Before the first weights the cache may be there: it holds nothing that could be stale.
  if (store_.state() != WeightStore::State::kEmpty)
    TROUPE_TRY_VOID(store_.check_serving("KV cache asked for"));
  if (!cache_.resident()) cache_ = KvCache(share_.local, options_.kv_blocks);
  return {};
}

void RolloutEngine::Impl::release_weights() {
  drop_kv();
  store_.drop(WeightStore::State::kEmpty);
}

}  // namespace troupe::actors
