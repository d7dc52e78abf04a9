#include "actors/rollout/rollout_engine.hpp"

#include "actors/rollout/engine_impl.hpp"

#include <utility>

namespace troupe::actors {

RolloutEngine::RolloutEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RolloutEngine::~RolloutEngine() = default;

result<std::unique_ptr<RolloutEngine>> RolloutEngine::create(const ModelConfig& config,
                                                             EngineOptions options) {
  TROUPE_TRY(options, resolve_options(config, std::move(options)));
  return std::unique_ptr<RolloutEngine>(
      new RolloutEngine(std::make_unique<Impl>(config, std::move(options))));
}

result<void> RolloutEngine::load_weights(std::span<const NamedTensor> tensors,
                                         WeightVersion version, WeightUpdate update) {
  return impl_->load_weights(tensors, version, update);
}
bool RolloutEngine::has_weights() const { return impl_->has_weights(); }
WeightVersion RolloutEngine::version() const { return impl_->version(); }

result<std::vector<SequenceId>> RolloutEngine::submit(GenerateRequest request) {
  TROUPE_TRY_VOID(impl_->check(request));
  return impl_->submit(std::move(request));
}

result<EngineStep> RolloutEngine::step() { return impl_->step(); }
std::vector<GeneratedSequence> RolloutEngine::take_finished() { return impl_->take_finished(); }
std::int64_t RolloutEngine::unfinished() const { return impl_->unfinished(); }

result<std::vector<GeneratedSequence>> RolloutEngine::generate(
    std::vector<GenerateRequest> requests, Deadline deadline) {
  return impl_->generate(std::move(requests), deadline);
}

bool RolloutEngine::abort(SequenceId id) { return impl_->abort(id); }
void RolloutEngine::abort_all() { impl_->abort_all(); }
bool RolloutEngine::preempt(SequenceId id) { return impl_->preempt(id); }
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
