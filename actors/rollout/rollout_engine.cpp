#include "actors/rollout/rollout_engine.hpp"

#include "actors/rollout/engine_impl.hpp"

#include <utility>

namespace troupe::actors {

RolloutEngine::RolloutEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RolloutEngine::~RolloutEngine() = default;

result<std::unique_ptr<RolloutEngine>> RolloutEngine::create(const ModelConfig& config,
                                                             EngineOptions options,
                                                             runtime::Collective* tp) {
  TROUPE_TRY(EnginePlace place, find_place(config, std::move(options), tp));
  return std::unique_ptr<RolloutEngine>(
      new RolloutEngine(std::make_unique<Impl>(config, std::move(place))));
}

result<void> RolloutEngine::load_weights(std::span<const NamedTensor> tensors,
                                         WeightVersion version, WeightUpdate update) {
  return impl_->load_weights(tensors, version, update);
}
bool RolloutEngine::has_weights() const { return impl_->has_weights(); }
WeightVersion RolloutEngine::version() const { return impl_->version(); }

reshard::RankLayout RolloutEngine::layout() const { return impl_->layout(); }
result<void> RolloutEngine::begin_update(WeightVersion version) {
  return impl_->begin_update(version);
}
result<void> RolloutEngine::write(std::string_view tensor, const reshard::Box& box,
                                  const float* data, std::int64_t row_stride) {
  return impl_->write(tensor, box, data, row_stride);
}
result<void> RolloutEngine::commit_update(WeightUpdate update) {
  return impl_->commit_update(update);
}
void RolloutEngine::abort_update() { impl_->abort_update(); }
result<void> RolloutEngine::drain() { return impl_->drain(); }
result<CanaryAnswer> RolloutEngine::canary(std::span<const std::int32_t> prompt,
                                           std::int32_t new_tokens) {
  return impl_->canary(prompt, new_tokens);
}

result<void> RolloutEngine::check(const GenerateRequest& request) const {
  return impl_->check(request);
}
result<std::vector<SequenceId>> RolloutEngine::submit(GenerateRequest request) {
  TROUPE_TRY_VOID(impl_->check(request));
  return impl_->submit(std::move(request));
}

result<EngineStep> RolloutEngine::step() { return impl_->step(); }
result<std::optional<EngineStep>> RolloutEngine::step_unless(bool expired) {
  return impl_->advance(expired);
}
std::optional<OutputView> RolloutEngine::output(SequenceId id, std::int64_t from) const {
  return impl_->output(id, from);
}
result<std::int64_t> RolloutEngine::smallest(std::int64_t value) { return impl_->smallest(value); }
std::int64_t RolloutEngine::kv_tokens_free() const { return impl_->kv_tokens_free(); }
std::vector<GeneratedSequence> RolloutEngine::take_finished() { return impl_->take_finished(); }
std::int64_t RolloutEngine::unfinished() const { return impl_->unfinished(); }

result<std::vector<GeneratedSequence>> RolloutEngine::generate(
    std::vector<GenerateRequest> requests, Deadline deadline) {
  return impl_->generate(std::move(requests), deadline);
}

bool RolloutEngine::abort(SequenceId id) { return impl_->abort(id); }
void RolloutEngine::abort_all() { impl_->abort_all(); }
bool RolloutEngine::preempt(SequenceId id) { return impl_->preempt(id); }
result<void> RolloutEngine::sleep(SleepLevel level) { return impl_->sleep(level); }
result<void> RolloutEngine::wake(MemoryTag tag) { return impl_->wake(tag); }
void RolloutEngine::release_kv() { impl_->release_kv(); }
result<void> RolloutEngine::acquire_kv() { return impl_->acquire_kv(); }
bool RolloutEngine::kv_resident() const { return impl_->kv_resident(); }
void RolloutEngine::release_weights() { impl_->release_weights(); }
Bytes RolloutEngine::kv_bytes() const { return impl_->kv_bytes(); }
Bytes RolloutEngine::weight_bytes() const { return impl_->weight_bytes(); }
const RolloutStats& RolloutEngine::stats() const { return impl_->stats(); }
void RolloutEngine::reset_stats() { impl_->reset_stats(); }
const ModelConfig& RolloutEngine::config() const { return impl_->config(); }
const EngineOptions& RolloutEngine::options() const { return impl_->options(); }

}  // namespace troupe::actors
