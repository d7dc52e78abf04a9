// Checks of options and requests: everything that is refused before any work is done.

#include "actors/rollout/engine_impl.hpp"
#include "actors/rollout/stop_check.hpp"

#include <algorithm>

namespace troupe::actors {
namespace {

result<void> check_prefix(const GenerateRequest& request, std::size_t sample,
                          std::int64_t vocab_size, const TokenBytes& token_bytes) {
  const SamplePrefix& prefix = request.prefixes[sample];
  const std::size_t count = prefix.tokens.size();
  const auto place = [&] {
    return fmt::format("prompt {}: prefix of sample {}", request.prompt_id,
                       request.sample_indices[sample]);
  };
  if (prefix.log_probs.size() != count || prefix.full_log_probs.size() != count ||
      prefix.versions.size() != count)
    return fail(ErrorCode::kInvalidArgument,
                "{}: {} tokens, {} log-probs, {} full log-probs, {} versions", place(), count,
                prefix.log_probs.size(), prefix.full_log_probs.size(), prefix.versions.size());
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t token = prefix.tokens[i];
    if (token < 0 || token >= vocab_size)
      return fail(ErrorCode::kInvalidArgument, "{}: token {} is {}, vocabulary has {}", place(), i,
                  token, vocab_size);
    const auto stop =
        stop_after(request.sampling, token_bytes, token, static_cast<std::int64_t>(i) + 1, text);
    if (stop && i + 1 < count)
      return fail(ErrorCode::kInvalidArgument, "{}: ends at token {} ({}), but has {}", place(),
                  i + 1, stop_reason_name(*stop), count);
  }
  return {};
}

}  // namespace

std::string_view stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kLength:
      return "length";
    case StopReason::kStopId:
      return "stop_id";
    case StopReason::kStopString:
      return "stop_string";
    case StopReason::kAborted:
      return "aborted";
    case StopReason::kFailed:
      return "failed";
  }
  return "unknown";
}

result<EngineOptions> resolve_options(const ModelConfig& config, const ModelShare& share,
                                      EngineOptions options) {
  if (!kernel_path_available(options.kernel))
    return fail(ErrorCode::kUnsupported, "rollout engine: kernel path {} on this machine",
                kernel_path_name(options.kernel));
  if (options.max_model_tokens == 0)
    options.max_model_tokens =
        static_cast<std::int32_t>(std::min<std::int64_t>(config.positions_max, INT32_MAX));
  if (options.max_model_tokens < 2 || options.max_model_tokens > config.positions_max)
    return fail(ErrorCode::kInvalidArgument,
                "rollout engine: max_model_tokens is {}, wanted 2 to {} (positions of the model)",
                options.max_model_tokens, config.positions_max);
  if (options.max_num_seqs < 1)
    return fail(ErrorCode::kInvalidArgument, "rollout engine: max_num_seqs is {}, wanted ≥ 1",
                options.max_num_seqs);
  if (options.max_num_batched_tokens < options.max_num_seqs)
    return fail(ErrorCode::kInvalidArgument,
                "rollout engine: max_num_batched_tokens is {}, wanted ≥ max_num_seqs {}",
                options.max_num_batched_tokens, options.max_num_seqs);
  if (options.max_queued_sequences < 1)
    return fail(ErrorCode::kInvalidArgument,
                "rollout engine: max_queued_sequences is {}, wanted ≥ 1",
                options.max_queued_sequences);
  if (options.kv_blocks < 0)
    return fail(ErrorCode::kInvalidArgument, "rollout engine: kv_blocks is {}, wanted ≥ 0",
                options.kv_blocks);
  if (options.kv_blocks == 0) {
    const std::int64_t block_bytes =
        KvCache::floats_per_block(share.local) * static_cast<std::int64_t>(sizeof(float));
    // Each running sequence whole, and one trunk.
    const std::int64_t useful =
        (std::int64_t{options.max_num_seqs} + 1) * blocks_for_tokens(options.max_model_tokens);
    const std::int64_t fit = options.kv_bytes_max.value / block_bytes;
    if (fit < 1)
      return fail(ErrorCode::kInvalidArgument,
                  "rollout engine: kv_bytes_max is {}, one block of 16 tokens takes {}",
                  to_string(options.kv_bytes_max), to_string(Bytes{block_bytes}));
    options.kv_blocks = static_cast<std::int32_t>(std::min({useful, fit, std::int64_t{INT32_MAX}}));
  }
  return options;
}

result<void> RolloutEngine::Impl::check(const GenerateRequest& request) const {
  const auto place = [&] { return fmt::format("prompt {}", request.prompt_id); };
  if (auto sampling = request.sampling.check(); !sampling)
    return fail(std::move(sampling).error().wrap(ErrorCode::kInvalidArgument, place()));
  if (request.prompt.empty())
    return fail(ErrorCode::kInvalidArgument, "{}: prompt has 0 tokens, wanted ≥ 1", place());
  if (request.sample_indices.empty())
    return fail(ErrorCode::kInvalidArgument, "{}: 0 samples, wanted ≥ 1", place());
  if (!request.prefixes.empty() && request.prefixes.size() != request.sample_indices.size())
    return fail(ErrorCode::kInvalidArgument, "{}: {} prefixes for {} samples", place(),
                request.prefixes.size(), request.sample_indices.size());
  for (std::size_t i = 0; i < request.prompt.size(); ++i)
    if (request.prompt[i] < 0 || request.prompt[i] >= config_.vocab_size)
      return fail(ErrorCode::kInvalidArgument, "{}: prompt token {} is {}, vocabulary has {}",
                  place(), i, request.prompt[i], config_.vocab_size);
  for (const std::int32_t id : request.sampling.stop_ids)
    if (id < 0 || id >= config_.vocab_size)
      return fail(ErrorCode::kInvalidArgument, "{}: stop id {}, vocabulary has {}", place(), id,
                  config_.vocab_size);
  if (!request.sampling.stop_strings.empty() && !options_.token_bytes)
    return fail(ErrorCode::kInvalidArgument,
                "{}: stop_strings are set, but the engine has no token_bytes", place());
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  const std::int64_t longest = prompt + request.sampling.max_new_tokens;
  if (longest > options_.max_model_tokens)
    return fail(ErrorCode::kInvalidArgument,
                "{}: prompt {} + max_new_tokens {} = {} tokens, max_model_tokens is {}", place(),
                prompt, request.sampling.max_new_tokens, longest, options_.max_model_tokens);
  // The last token's KV is never needed.
  if (const std::int64_t blocks = blocks_for_tokens(longest - 1); blocks > options_.kv_blocks)
    return fail(ErrorCode::kResourceExhausted, "{}: needs {} KV blocks, the engine has {}", place(),
                blocks, options_.kv_blocks);
  for (std::size_t sample = 0; sample < request.prefixes.size(); ++sample)
    TROUPE_TRY_VOID(check_prefix(request, sample, config_.vocab_size, options_.token_bytes));
  return {};
}

}  // namespace troupe::actors
