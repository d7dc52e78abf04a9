#include "actors/rollout/engine_impl.hpp"

#include "actors/rollout/stop_check.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <numeric>
#include <utility>

namespace troupe::actors {
namespace {

/// Rows of logits in memory at once: enough to use every weight many times, at most 16 MiB.
std::int64_t logit_rows(const ModelConfig& config, const EngineOptions& options) {
  const std::int64_t fit = (std::int64_t{1} << 22) / padded(config.vocab_size);
  return std::min<std::int64_t>(std::max<std::int64_t>(fit, 48), options.max_num_batched_tokens);
}

// What a history is made of.
constexpr std::int64_t kSubmitted = 1;
constexpr std::int64_t kAborted = 2;
constexpr std::int64_t kPreempted = 3;

/// Groups are compared by their tokens too; the key only finds them. Not 0.
std::uint64_t prompt_key(const std::vector<std::int32_t>& prompt) {
  Digest digest;
  digest.add_all(prompt);
  return std::bit_cast<std::uint64_t>(digest.value()) | 1U;
}

RunnerLimits runner_limits(const ModelConfig& config, const EngineOptions& options) {
  return RunnerLimits{.rows = options.max_num_batched_tokens,
                      .positions = options.max_model_tokens,
                      .logit_rows = logit_rows(config, options)};
}

}  // namespace

RolloutEngine::Impl::Impl(const ModelConfig& config, EnginePlace place)
    : config_(config),
      share_(place.share),
      options_(std::move(place.options)),
      ranks_(std::move(place.ranks)),
      kernels_(&kernel_table(options_.kernel)),
      pool_(options_.kv_blocks),
      cache_(share_.local, options_.kv_blocks),
      scheduler_(SchedulerLimits{.running_sequences = options_.max_num_seqs,
                                 .step_tokens = options_.max_num_batched_tokens},
                 pool_),
      runner_(share_, runner_limits(config_, options_), *kernels_, ranks_.get()),
      sampler_(config_.vocab_size, *kernels_),
      store_(config_, share_, options_.weight_memory) {}

result<std::vector<SequenceId>> RolloutEngine::Impl::submit(GenerateRequest request) {
  const std::size_t samples = request.sample_indices.size();
  if (by_id_.size() + samples > static_cast<std::size_t>(options_.max_queued_sequences))
    return fail(ErrorCode::kResourceExhausted,
                "prompt {}: {} samples onto a queue of {}, max_queued_sequences is {}",
                request.prompt_id, samples, by_id_.size(), options_.max_queued_sequences);
  std::vector<std::size_t> order(samples);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<SequenceId> ids;
  if (ranks_) note(kSubmitted, digest_of(request).value());
  if (options_.share_prompt) {
    queue_group(request, order, ids);
  } else {
    for (const std::size_t& sample : order) queue_group(request, {&sample, 1}, ids);
  }
  return ids;
}

void RolloutEngine::Impl::queue_group(const GenerateRequest& request,
                                      std::span<const std::size_t> samples,
                                      std::vector<SequenceId>& ids) {
  auto owned = std::make_unique<PromptGroup>();
  PromptGroup& group = *owned;
  groups_.emplace(&group, std::move(owned));
  group.arrival = next_arrival_++;
  group.prompt_id = request.prompt_id;
  group.sampling = request.sampling;
  if (options_.share_prompt) group.prompt_key = prompt_key(request.prompt);
  group.trunk.group = &group;
  group.trunk.member = Sequence::kTrunk;
  group.trunk.tokens = request.prompt;
  group.trunk.prompt_tokens = group.trunk.length();
  group.unfinished = group.waiting = static_cast<std::int32_t>(samples.size());
  std::vector<std::pair<Sequence*, StopReason>> complete;
  for (const std::size_t sample : samples) {
    auto member = make_member(group, request, sample);
    ids.push_back(member->id);
    by_id_.emplace(member->id, member.get());
    // A prefix may already be a whole answer: replay its stops, which also restores its text.
    std::optional<StopReason> stop;
    for (std::int32_t i = 0; i < member->output_tokens(); ++i) {
      const auto at = static_cast<std::size_t>(member->prompt_tokens + i);
      stop =
          stop_after(group.sampling, options_.token_bytes, member->tokens[at], i + 1, member->text);
    }
    if (stop) complete.emplace_back(member.get(), *stop);
    group.members.push_back(std::move(member));
  }
  scheduler_.submit(group);
  for (const auto& [member, reason] : complete) finish(*member, reason, std::nullopt);
  retire_groups();
}

std::unique_ptr<Sequence> RolloutEngine::Impl::make_member(PromptGroup& group,
                                                           const GenerateRequest& request,
                                                           std::size_t sample) {
  auto member = std::make_unique<Sequence>();
  member->id = SequenceId{next_id_++};
  member->group = &group;
  member->member = static_cast<std::int32_t>(group.members.size());
  member->sample_index = request.sample_indices[sample];
  member->tokens.reserve(request.prompt.size() +
                         static_cast<std::size_t>(request.sampling.max_new_tokens));
  member->tokens = request.prompt;
  member->prompt_tokens = member->length();
  if (!request.prefixes.empty()) {
    const SamplePrefix& prefix = request.prefixes[sample];
    std::ranges::copy(prefix.tokens, std::back_inserter(member->tokens));
    member->log_probs = prefix.log_probs;
    member->full_log_probs = prefix.full_log_probs;
    member->versions = prefix.versions;
  }
  return member;
}

result<EngineStep> RolloutEngine::Impl::step() {
  TROUPE_TRY(const std::optional<EngineStep> report, advance(false));
  if (!report)
    return fail(ErrorCode::kDeadline, "rollout engine: the deadline of another rank has passed");
  return *report;
}

result<std::optional<EngineStep>> RolloutEngine::Impl::advance(bool expired) {
  const auto begin = std::chrono::steady_clock::now();
  result<void> ready = store_.check_serving("step");
  if (ready && !cache_.resident())
    ready = fail(ErrorCode::kConflict, "rollout engine: step while the KV cache is released");
  plan_.clear();
  if (ready && !(expired && !ranks_)) scheduler_.next_step(plan_);
  // Also when the step does not happen: then its sequences are merely planned again.
  for (const BlockCopy& copy : plan_.copies) cache_.copy(copy);
  if (ranks_) {
    const RankClaim claim{.action = RankClaim::kStep,
                          .plan = digest_of_plan().value(),
                          .refusal = cache_.resident() ? RankClaim::kWeights : RankClaim::kKv,
                          .expired = expired ? 1 : 0};
    TROUPE_TRY(const Verdict verdict, agree(claim, ready));
    expired = verdict == Verdict::kExpired;
  }
  if (expired) return std::optional<EngineStep>();
  TROUPE_TRY_VOID(ready);
  EngineStep report;
  if (plan_.runs.empty()) return report;
  note(digest_of_plan().value());
  if (auto ran = run_plan(report); !ran) {
    const ErrorCode code = ran.error().code;
    return fail(std::move(ran).error().wrap(
        code, fmt::format("rollout engine: step of {} rows on tensor-parallel rank {} of {}",
                          plan_.tokens, share_.rank, share_.size)));
  }
  ++stats_.steps;
  stats_.step_s += seconds(std::chrono::steady_clock::now() - begin);
  return report;
}

result<void> RolloutEngine::Impl::run_plan(EngineStep& report) {
  flatten();
  count_rows();
  TROUPE_TRY_VOID(
      runner_.forward(*store_.active(), cache_, row_tokens_, row_runs_, selected_rows_));
  for (const ScheduledRun& run : plan_.runs) scheduler_.complete(run);
  result<void> sampled = sample_all(report);
  // Sequences that were computed but not sampled have nothing to run: start them again.
  if (!sampled) scheduler_.preempt_all();
  retire_groups();
  report.rows = plan_.tokens;
  return sampled;
}

/// `claim.refusal` is what this rank says when it is not ready.
result<Verdict> RolloutEngine::Impl::agree(RankClaim claim, const result<void>& ready) {
  claim.version = store_.version().value;
  claim.history = history_.value();
  if (ready) claim.refusal = RankClaim::kNone;
  auto verdict = ranks_->compare(claim);
  if (!ready) return fail(Error(ready.error()));  // in words of its own
  return verdict;
}

Digest RolloutEngine::Impl::digest_of_plan() const {
  Digest digest;
  for (const ScheduledRun& run : plan_.runs) {
    digest.add(run.sequence->is_trunk() ? -run.sequence->group->arrival - 1
                                        : run.sequence->id.value);
    digest.add(run.sequence->computed);
    digest.add(run.tokens);
  }
  return digest;
}

void RolloutEngine::Impl::flatten() {
  row_tokens_.clear();
  row_runs_.clear();
  selected_rows_.clear();
  selected_.clear();
  for (const ScheduledRun& run : plan_.runs) {
    Sequence& sequence = *run.sequence;
    row_runs_.push_back(RowRun{.first_row = static_cast<std::int64_t>(row_tokens_.size()),
                               .rows = run.tokens,
                               .first_position = sequence.computed,
                               .blocks = sequence.blocks.data()});
    const auto first = sequence.tokens.begin() + sequence.computed;
    row_tokens_.insert(row_tokens_.end(), first, first + run.tokens);
    if (!run.completes()) continue;
    // A trunk is only sampled for members that have no output yet.
    const auto fresh = [](const auto& m) {
      return m->state == SequenceState::kWaiting && m->output_tokens() == 0;
    };
    if (sequence.is_trunk() && std::ranges::none_of(sequence.group->members, fresh)) continue;
    selected_rows_.push_back(static_cast<std::int32_t>(row_tokens_.size()) - 1);
    selected_.push_back(&sequence);
  }
}

void RolloutEngine::Impl::count_rows() {
  for (const ScheduledRun& run : plan_.runs) {
    const bool decode = run.tokens == 1 && run.sequence->output_tokens() > 0 && run.completes();
    (decode ? stats_.decode_tokens : stats_.prefill_tokens) += run.tokens;
  }
  const auto rows = static_cast<std::uint32_t>(plan_.tokens);
  const auto bucket = static_cast<std::size_t>(std::bit_width(rows) - 1);
  ++stats_.rows_histogram[std::min(bucket, stats_.rows_histogram.size() - 1)];
}

result<void> RolloutEngine::Impl::sample_all(EngineStep& report) {
  const auto vocab = static_cast<std::size_t>(config_.vocab_size);
  const auto total = static_cast<std::int64_t>(selected_.size());
  for (std::int64_t first = 0; first < total; first += runner_.logit_rows()) {
    const std::int64_t count = std::min(runner_.logit_rows(), total - first);
    TROUPE_TRY(const float* const logits, runner_.logits(*store_.active(), first, count));
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < count; ++i)
      sample_run(*selected_[static_cast<std::size_t>(first + i)],
                 {logits + i * runner_.logit_stride(), vocab}, report);
    stats_.sample_s += seconds(std::chrono::steady_clock::now() - begin);
  }
  return {};
}

void RolloutEngine::Impl::sample_run(Sequence& sequence, std::span<const float> logits,
                                     EngineStep& report) {
  if (!sequence.is_trunk()) return sample_token(sequence, logits, report);
  for (const auto& member : sequence.group->members)
    if (member->state == SequenceState::kWaiting && member->output_tokens() == 0)
      sample_token(*member, logits, report);
}

void RolloutEngine::Impl::sample_token(Sequence& sequence, std::span<const float> logits,
                                       EngineStep& report) {
  const PromptGroup& group = *sequence.group;
  const SampleKey key{.seed = group.sampling.seed,
                      .prompt = group.prompt_id,
                      .sample = sequence.sample_index,
                      .position = static_cast<std::uint32_t>(sequence.length())};
  auto sampled =
      sampler_.sample(logits, group.sampling, sequence.tokens, sequence.prompt_tokens, key);
  if (!sampled) {
    ++report.finished;
    Error cause = std::move(sampled).error();
    const ErrorCode code = cause.code;
    return finish(
        sequence, StopReason::kFailed,
        std::move(cause).wrap(code, fmt::format("prompt {} sample {} (sequence {}) at "
                                                "output token {}",
                                                group.prompt_id, sequence.sample_index,
                                                sequence.id.value, sequence.output_tokens())));
  }
  sequence.tokens.push_back(sampled->token);
  sequence.log_probs.push_back(sampled->log_prob);
  sequence.full_log_probs.push_back(sampled->full_log_prob);
  sequence.versions.push_back(store_.version());
  note(sampled->token);
  ++report.tokens_generated;
  ++stats_.tokens_generated;
  const auto stop = stop_after(group.sampling, options_.token_bytes, sampled->token,
                               sequence.output_tokens(), sequence.text);
  if (!stop) return;
  ++report.finished;
  finish(sequence, *stop, std::nullopt);
}

void RolloutEngine::Impl::finish(Sequence& sequence, StopReason reason,
                                 std::optional<Error> error) {
  scheduler_.finish(sequence);
  by_id_.erase(sequence.id);
  stats_.finished += 1;
  stats_.failed += reason == StopReason::kFailed ? 1 : 0;
  stats_.aborted += reason == StopReason::kAborted ? 1 : 0;
  GeneratedSequence out;
  out.id = sequence.id;
  out.prompt_id = sequence.group->prompt_id;
  out.sample_index = sequence.sample_index;
  out.tokens.assign(sequence.tokens.begin() + sequence.prompt_tokens, sequence.tokens.end());
  out.log_probs = std::move(sequence.log_probs);
  out.full_log_probs = std::move(sequence.full_log_probs);
  out.versions = std::move(sequence.versions);
  out.reason = reason;
  out.text = std::move(sequence.text);
  out.error = std::move(error);
  finished_.push_back(std::move(out));
}

std::optional<OutputView> RolloutEngine::Impl::output(SequenceId id, std::int64_t from) const {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return std::nullopt;
  const Sequence& sequence = *found->second;
  TROUPE_CHECK(from >= 0 && from <= sequence.output_tokens(),
               "rollout engine: output of sequence {} from token {} of {}", id.value, from,
               sequence.output_tokens());
  const auto first = static_cast<std::size_t>(from);
  const auto prompt = static_cast<std::size_t>(sequence.prompt_tokens);
  return OutputView{.tokens = std::span(sequence.tokens).subspan(prompt + first),
                    .log_probs = std::span(sequence.log_probs).subspan(first),
                    .full_log_probs = std::span(sequence.full_log_probs).subspan(first),
                    .versions = std::span(sequence.versions).subspan(first)};
}

std::int64_t RolloutEngine::Impl::kv_tokens_free() const {
  std::int64_t tokens = pool_.free_count() * kBlockTokens;
  for (const auto& [id, sequence] : by_id_)
    if (sequence->state == SequenceState::kWaiting) tokens -= sequence->length();
  return std::max<std::int64_t>(tokens, 0);
}

void RolloutEngine::Impl::retire_groups() {
  for (PromptGroup* group : scheduler_.take_retired()) groups_.erase(group);
}

result<std::vector<GeneratedSequence>> RolloutEngine::Impl::generate(
    std::vector<GenerateRequest> requests, Deadline deadline) {
  for (const GenerateRequest& request : requests) TROUPE_TRY_VOID(check(request));
  std::unordered_map<SequenceId, std::size_t> place;
  const auto abort_mine = [&] {
    std::vector<SequenceId> ids;
    for (const auto& [id, index] : place) ids.push_back(id);
    std::ranges::sort(ids);
    for (const SequenceId id : ids) abort(id);
    std::erase_if(finished_, [&](const GeneratedSequence& s) { return place.contains(s.id); });
  };
  for (GenerateRequest& request : requests) {
    auto ids = submit(std::move(request));
    if (!ids) {
      abort_mine();
      return fail(std::move(ids).error());
    }
    for (const SequenceId id : *ids) place.emplace(id, place.size());
  }
  std::vector<GeneratedSequence> results(place.size());
  std::size_t missing = place.size();
  while (true) {
    std::erase_if(finished_, [&](GeneratedSequence& sequence) {
      const auto found = place.find(sequence.id);
      if (found == place.end()) return false;
      results[found->second] = std::move(sequence);
      --missing;
      return true;
    });
    if (missing == 0) return results;
    auto report = advance(deadline.passed());
    if (!report) {
      abort_mine();
      return fail(std::move(report).error());
    }
    if (!*report) {
      abort_mine();
      return fail(ErrorCode::kDeadline, "rollout engine: {} of {} sequences unfinished", missing,
                  results.size());
    }
  }
}

bool RolloutEngine::Impl::abort(SequenceId id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  note(kAborted, id.value);
  finish(*found->second, StopReason::kAborted, std::nullopt);
  retire_groups();
  return true;
}

void RolloutEngine::Impl::abort_all() {
  std::vector<SequenceId> ids;
  for (const auto& [id, sequence] : by_id_) ids.push_back(id);
  std::ranges::sort(ids);
  for (const SequenceId id : ids) abort(id);
}

bool RolloutEngine::Impl::preempt(SequenceId id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->state != SequenceState::kRunning) return false;
  note(kPreempted, id.value);
  scheduler_.preempt(*found->second);
  return true;
}

const RolloutStats& RolloutEngine::Impl::stats() const {
  stats_.forks = scheduler_.counts().forks;
  stats_.preemptions = scheduler_.counts().preemptions;
  stats_.prefix_tokens_shared = scheduler_.counts().prefix_tokens_shared;
  stats_.gemm_s = runner_.times().gemm_s;
  stats_.attention_s = runner_.times().attention_s;
  stats_.collective_s = runner_.times().collective_s;
  return stats_;
}

void RolloutEngine::Impl::reset_stats() {
  stats_ = {};
  scheduler_.reset_counts();
  runner_.set_times({});
}

}  // namespace troupe::actors
