// The canary: a few greedy tokens of a fixed prompt, run beside everything else.

#include "actors/rollout/engine_impl.hpp"

#include <algorithm>
#include <numeric>

namespace troupe::actors {

result<void> RolloutEngine::Impl::check_canary(std::span<const std::int32_t> prompt,
                                               std::int32_t new_tokens) const {
  if (prompt.empty() || new_tokens < 1)
    return fail(ErrorCode::kInvalidArgument,
                "rollout engine: canary of {} prompt tokens and {} new ones, wanted ≥ 1 each",
                prompt.size(), new_tokens);
  const std::int64_t longest = static_cast<std::int64_t>(prompt.size()) + new_tokens;
  if (longest > options_.max_model_tokens)
    return fail(ErrorCode::kInvalidArgument,
                "rollout engine: canary of {} tokens, max_model_tokens is {}", longest,
                options_.max_model_tokens);
  for (std::size_t i = 0; i < prompt.size(); ++i)
    if (prompt[i] < 0 || prompt[i] >= config_.vocab_size)
      return fail(ErrorCode::kInvalidArgument,
                  "rollout engine: canary token {} is {}, vocabulary has {}", i, prompt[i],
                  config_.vocab_size);
  return {};
}

result<CanaryAnswer> RolloutEngine::Impl::canary(std::span<const std::int32_t> prompt,
                                                 std::int32_t new_tokens) {
  result<void> ready = store_.check_serving("canary");
  const bool serving = ready.has_value();
  if (ready) ready = check_canary(prompt, new_tokens);
  if (ranks_) {
    Digest digest;
    for (const std::int32_t token : prompt) digest.add(token);
    digest.add(new_tokens);
    const RankClaim claim{.action = RankClaim::kCanary,
                          .plan = digest.value(),
                          .refusal = serving ? RankClaim::kRequest : RankClaim::kWeights};
    TROUPE_TRY_VOID(agree(claim, ready));
  }
  TROUPE_TRY_VOID(ready);
  const RunnerTimes times = runner_.times();
  auto answer = run_canary(prompt, new_tokens);
  runner_.set_times(times);
  return answer;
}

result<CanaryAnswer> RolloutEngine::Impl::run_canary(std::span<const std::int32_t> prompt,
                                                     std::int32_t new_tokens) {
  const std::size_t longest = prompt.size() + static_cast<std::size_t>(new_tokens);
  const std::int64_t blocks = blocks_for_tokens(static_cast<std::int64_t>(longest));
  KvCache cache(share_.local, blocks);
  BlockTable table(static_cast<std::size_t>(blocks));
  std::iota(table.begin(), table.end(), 0);
  const SamplingOptions greedy{.temperature = 0.0};
  CanaryAnswer answer{.tokens = {}, .log_probs = {}, .version = store_.version()};
  std::vector<std::int32_t> tokens(prompt.begin(), prompt.end());
  tokens.reserve(longest);
  for (std::size_t computed = 0; tokens.size() < longest;) {
    const std::size_t count = std::min(tokens.size() - computed,
                                       static_cast<std::size_t>(options_.max_num_batched_tokens));
    const RowRun run{.first_row = 0,
                     .rows = static_cast<std::int64_t>(count),
                     .first_position = static_cast<std::int64_t>(computed),
                     .blocks = table.data()};
    const std::int32_t last = static_cast<std::int32_t>(count) - 1;
    TROUPE_TRY_VOID(runner_.forward(*store_.active(), cache,
                                    std::span(tokens).subspan(computed, count), {&run, 1},
                                    {&last, 1}));
    computed += count;
    if (computed < tokens.size()) continue;  // the prompt goes on
    TROUPE_TRY(const float* const logits, runner_.logits(*store_.active(), 0, 1));
    TROUPE_TRY(const SampledToken sampled,
               sampler_.sample({logits, static_cast<std::size_t>(config_.vocab_size)}, greedy,
                               tokens, static_cast<std::int64_t>(prompt.size()), {}));
    tokens.push_back(sampled.token);
    answer.tokens.push_back(sampled.token);
    answer.log_probs.push_back(sampled.log_prob);
  }
  return answer;
}

}  // namespace troupe::actors
