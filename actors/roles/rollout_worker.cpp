#include "actors/roles/rollout_worker.hpp"

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "actors/loops/response_columns.hpp"
#include "actors/rollout/block_pool.hpp"
#include "actors/rollout/model_share.hpp"
#include "reshard/model_shape.hpp"
#include "runtime/base/log.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {
namespace {

using runtime::Batch;
using runtime::Column;
using runtime::Metrics;
using runtime::Reduction;

/// One request per stretch of rows with the same prompt and group.
result<std::vector<GenerateRequest>> requests_of(const Batch& batch,
                                                 const SamplingOptions& sampling) {
  TROUPE_TRY(const Column prompts, batch.require(column::kPrompts));
  TROUPE_TRY(const Column ids, batch.require(column::kPromptIds));
  TROUPE_TRY(const Column groups, batch.require(column::kGroup));
  TROUPE_TRY(const Column indices, batch.require(column::kSampleIndex));
  std::vector<GenerateRequest> requests;
  for (std::int64_t row = 0; row < batch.rows(); ++row) {
    const auto sample = static_cast<std::uint32_t>(indices.scalar<std::int64_t>(row));
    const bool same = row > 0 &&
                      groups.scalar<std::int64_t>(row) == groups.scalar<std::int64_t>(row - 1) &&
                      ids.scalar<std::int64_t>(row) == ids.scalar<std::int64_t>(row - 1);
    if (same) {
      requests.back().sample_indices.push_back(sample);
      continue;
    }
    const auto prompt = prompts.row<std::int32_t>(row);
    requests.push_back(
        GenerateRequest{.prompt_id = static_cast<std::uint64_t>(ids.scalar<std::int64_t>(row)),
                        .sample_indices = {sample},
                        .prompt = {prompt.begin(), prompt.end()},
                        .sampling = sampling,
                        .prefixes = {}});
  }
  return requests;
}

/// Columns of finished sequences, which come in row order.
result<Batch> batch_of(std::span<const GeneratedSequence> sequences, bool processed) {
  ResponseColumns columns(processed);
  std::vector<std::uint8_t> mask;
  for (const GeneratedSequence& sequence : sequences) {
    mask.assign(sequence.tokens.size(), sequence.reason == StopReason::kFailed ? 0 : 1);
    columns.add(sequence.tokens, mask, sequence.full_log_probs, sequence.log_probs,
                sequence.versions, sequence.reason);
  }
  return std::move(columns).batch();
}

/// A sequence that failed never trains; when all did, there is nothing to go on with.
result<void> check_failures(std::span<const GeneratedSequence> sequences, RankId rank) {
  std::size_t failed = 0;
  const Error* first = nullptr;
  for (const GeneratedSequence& sequence : sequences) {
    if (sequence.reason != StopReason::kFailed) continue;
    ++failed;
    if (first == nullptr && sequence.error) first = &*sequence.error;
  }
  if (failed == 0) return {};
  const std::string cause = first == nullptr ? "unknown" : first->message;
  if (failed == sequences.size())
    return fail(ErrorCode::kAborted, "rollout: all {} sequences failed, the first: {}", failed,
                cause);
  log::warn("rollout rank {}: {} of {} sequences failed, the first: {}", rank.value, failed,
            sequences.size(), cause);
  return {};
}

/// Of each sample, in row order; empty when nothing is simulated.
std::vector<Duration> declared_times(const SimulatedDelay& delay,
                                     std::span<const GenerateRequest> requests) {
  std::vector<Duration> times;
  if (!delay.on()) return times;
  for (const GenerateRequest& request : requests)
    for (const std::uint32_t& sample : request.sample_indices)
      times.push_back(delay.of(request.prompt_id, sample, request.sampling.seed));
  return times;
}

}  // namespace

RolloutWorker::RolloutWorker(runtime::WorkerContext& context, const Options& options)
    : context_(context),
      door_(options.seat, fmt::format("{} rank {}", context.group(), context.rank().value)),
      delay_(options.delay),
      clock_(options.clock == nullptr ? machine_clock_ : *options.clock) {}

result<std::unique_ptr<RolloutWorker>> RolloutWorker::create(runtime::WorkerContext& context,
                                                             const Options& options) {
  TROUPE_TRY_VOID(options.delay.check());
  std::unique_ptr<RolloutWorker> worker(new RolloutWorker(context, options));
  if (context.mesh().axis_size("tp") > 1)
    worker->tp_ = std::make_unique<AxisCollective>(context, "tp");
  TROUPE_TRY(worker->engine_,
             RolloutEngine::create(options.model, options.engine, worker->tp_.get()));
  worker->stream_ =
      std::make_unique<RolloutStream>(*worker->engine_, worker->delay_, worker->clock_);
  worker->sink_ = std::make_unique<EngineSink>(*worker->engine_, [made = worker.get()] {
    return made->stream_->settle(made->context_.deadline());
  });
  TROUPE_TRY_VOID(worker->enter(options.memory));
  return worker;
}

result<void> RolloutWorker::enter(runtime::MemoryBook* memory) {
  RolloutEngine& engine = *engine_;
  entries_ = std::make_unique<MemoryEntries>(memory, context_.group());
  std::int64_t numbers = 0;
  for (const reshard::Segment& segment : engine.layout().segments)
    numbers += segment.box.elements();
  const int sets = engine.options().weight_memory == WeightMemory::kInPlace ? 1 : 2;
  const Bytes weights{numbers * sets * static_cast<std::int64_t>(sizeof(float))};
  runtime::MemoryActions wakes{
      .load = [&engine] { return engine.wake(MemoryTag::kWeights); }, .offload = {}, .drop = {}};
  TROUPE_TRY_VOID(entries_->add("weights", weights, runtime::Eviction::kNever,
                                runtime::Residency::kResident, std::move(wakes)));
  runtime::MemoryActions moves{.load = [&engine] { return engine.acquire_kv(); },
                               .offload = {},
                               .drop = [&engine]() -> result<void> {
                                 engine.release_kv();
                                 return {};
                               }};
  return entries_->add("kv cache", engine.kv_bytes(), runtime::Eviction::kDrop,
                       runtime::Residency::kResident, std::move(moves));
}

result<Batch> RolloutWorker::generate(const Batch& prompts, const SamplingOptions& sampling) {
  if (!engine_->kv_resident()) TROUPE_TRY_VOID(engine_->acquire_kv());
  TROUPE_TRY(const Batch local, prompts.resolve());
  TROUPE_TRY(std::vector<GenerateRequest> requests, requests_of(local, sampling));
  const TimePoint begin = clock_.now();
  const std::vector<Duration> declared = declared_times(delay_, requests);
  engine_->reset_stats();
  TROUPE_TRY(const std::vector<GeneratedSequence> sequences,
             engine_->generate(std::move(requests), context_.deadline()));
  TROUPE_TRY_VOID(check_failures(sequences, context_.rank()));
  TROUPE_TRY(Batch out, batch_of(sequences, sampling.has_truncation()));
  add_rollout_stats(engine_->stats(), out.metrics());
  out.metrics().add("rollout/engine_s", engine_->stats().step_s, Reduction::kMax);
  if (!delay_.on()) return out;
  for (const Duration one : declared)
    out.metrics().add("simulated/generation_delay_s", seconds(one), Reduction::kMean);
  TROUPE_TRY_VOID(
      wait_until(begin + simulated_makespan(declared, engine_->options().max_num_seqs)));
  return out;
}

/// For declared time to pass; kDeadline when the call ends before it.
result<void> RolloutWorker::wait_until(TimePoint end) {
  constexpr Duration kNapMax = std::chrono::milliseconds(200);
  for (TimePoint now = clock_.now(); now < end; now = clock_.now()) {
    if (context_.cancelled() || context_.deadline().passed())
      return fail(ErrorCode::kDeadline,
                  "rollout: {:.3f} s of simulated generation are left at the end of the call",
                  seconds(end - now));
    clock_.sleep_for(std::min(end - now, kNapMax));
    context_.progress();
  }
  return {};
}

result<AdvanceReply> RolloutWorker::advance(const AdvanceRequest& request) {
  // Others may have needed its memory between two slices; samples under way are then recomputed.
  if (engine_->has_weights() && !engine_->kv_resident()) TROUPE_TRY_VOID(engine_->acquire_kv());
  TROUPE_TRY(AdvanceReply reply, stream_->advance(request, context_.deadline()));
  context_.progress(reply.steps);
  return reply;
}

result<void> RolloutWorker::load_weights(const WeightHandle& weights) {
  TROUPE_TRY(const TensorRows rows, TensorRows::open(weights.tensors, context_.deadline()));
  // When nobody waits any more the trainer may go on, and what was pulled may be torn.
  if (context_.cancelled() || context_.deadline().passed())
    return fail(ErrorCode::kCancelled, "weights of version {} came too late",
                weights.version.value);
  return engine_->load_weights(rows.tensors(), weights.version);
}

result<RolloutCapacity> RolloutWorker::capacity() {
  return RolloutCapacity{.samples_max = engine_->options().max_num_seqs,
                         .tokens_max = engine_->options().kv_blocks * kBlockTokens};
}

result<WeightLayout> RolloutWorker::weight_layout() {
  return WeightLayout{.tensors = reshard::canonical_tensors(shape_of(engine_->config())),
                      .layout = engine_->layout(),
                      .host = door_.host()};
}

result<void> RolloutWorker::open_publication(const PublicationSetup& setup) {
  target_.reset();
  TROUPE_TRY(auto plan, door_.open(setup));
  const auto rank = static_cast<std::size_t>(setup.target_first + context_.rank().value);
  if (setup.target_first < 0 || rank >= setup.target.ranks.size())
    return fail(ErrorCode::kInvalidArgument, "publication: layouts of {} targets, this is rank {}",
                setup.target.ranks.size(), rank);
  sink_->set_update(setup.update);
  target_ = std::make_unique<reshard::PublicationTarget>(
      std::move(plan), setup.target.ranks[rank].rank, *sink_, door_.port(),
      reshard::TargetOptions{.bucket_bytes = setup.bucket.value});
  return {};
}

result<reshard::Reply> RolloutWorker::publication(const reshard::Command& command) {
  if (target_ == nullptr) return no_publication(door_);
  return target_->handle(command);
}

result<CanaryAnswer> RolloutWorker::canary(const CanaryRequest& request) {
  auto answer = engine_->canary(request.prompt, request.tokens);
  if (answer) return answer;
  return fail(std::move(answer).error().wrap(
      ErrorCode::kConflict, fmt::format("canary of version {}", engine_->version().value)));
}

result<void> RolloutWorker::sleep(SleepLevel level) {
  TROUPE_TRY_VOID(engine_->sleep(level));
  TROUPE_TRY_VOID(entries_->dropped("kv cache"));
  return level == SleepLevel::kWeightsAndKv ? entries_->dropped("weights") : result<void>();
}

result<void> RolloutWorker::wake() { return engine_->wake(MemoryTag::kKv); }

}  // namespace troupe::actors
