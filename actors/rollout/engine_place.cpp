// How a rank of an engine finds its share of the model and agrees with the others on everything
// that decides what they will do.

#include "actors/rollout/engine_impl.hpp"
#include "runtime/base/check.hpp"

namespace troupe::actors {
namespace {

struct Resolved {
  ModelShare share;
  EngineOptions options;
};

result<Resolved> resolve(const ModelConfig& config, EngineOptions options, std::int64_t rank,
                         std::int64_t size) {
  TROUPE_TRY_VOID(config.validate());
  Resolved resolved;
  TROUPE_TRY(resolved.share, share_of(config, rank, size));
  TROUPE_TRY(resolved.options, resolve_options(config, resolved.share, std::move(options)));
  return resolved;
}

/// Of all options but the size of the KV cache, which is agreed upon, and waiting times.
Digest digest_of(const EngineOptions& options) {
  Digest digest;
  for (const std::int32_t number : {options.max_model_tokens, options.max_num_seqs,
                                    options.max_num_batched_tokens, options.max_queued_sequences})
    digest.add(number);
  digest.add(options.share_prompt);
  digest.add(static_cast<bool>(options.token_bytes));
  digest.add(static_cast<int>(options.weight_memory));
  // Sampling runs on every rank and must give the same token.
  digest.add(static_cast<int>(kernel_table(options.kernel).path));
  return digest;
}

void add(Digest& digest, const SamplingOptions& sampling) {
  for (const double number :
       {sampling.temperature, sampling.top_p, sampling.min_p, sampling.repetition_penalty,
        sampling.frequency_penalty, sampling.presence_penalty})
    digest.add(number);
  digest.add(sampling.top_k);
  digest.add(sampling.max_new_tokens);
  digest.add_all(sampling.stop_ids);
  digest.add(sampling.stop_strings.size());
  for (const std::string& text : sampling.stop_strings) digest.add(std::string_view(text));
  digest.add(sampling.ignore_eos);
  digest.add(sampling.seed);
}

}  // namespace

result<EnginePlace> find_place(const ModelConfig& config, EngineOptions options,
                               runtime::Collective* tp) {
  if (options.tp_timeout <= Duration::zero())
    return fail(ErrorCode::kInvalidArgument, "rollout engine: tp_timeout is {} s, wanted > 0",
                seconds(options.tp_timeout));
  if (tp == nullptr || tp->size() == 1) {
    TROUPE_TRY(Resolved alone, resolve(config, std::move(options), 0, 1));
    return EnginePlace{std::move(alone.share), std::move(alone.options), nullptr};
  }
  auto ranks = std::make_unique<RankAgreement>(*tp, options.tp_timeout);
  auto resolved = resolve(config, std::move(options), tp->rank(), tp->size());
  Digest model;
  result<void> ready;
  if (resolved)
    model.add(std::string_view(config.to_json()));
  else
    ready = fail(std::move(resolved).error());
  TROUPE_TRY_VOID(ranks->vote("create with a model", ready, model.value()));
  EnginePlace place{std::move(resolved->share), std::move(resolved->options), std::move(ranks)};
  TROUPE_TRY_VOID(place.ranks->vote("create with options", {}, digest_of(place.options).value()));
  TROUPE_TRY(const std::int64_t blocks, place.ranks->minimum(place.options.kv_blocks));
  place.options.kv_blocks = static_cast<std::int32_t>(blocks);
  return place;
}

Digest digest_of(const GenerateRequest& request) {
  Digest digest;
  digest.add(request.prompt_id);
  digest.add_all(request.sample_indices);
  digest.add_all(request.prompt);
  add(digest, request.sampling);
  for (const SamplePrefix& prefix : request.prefixes) {
    digest.add_all(prefix.tokens);
    digest.add_all(prefix.log_probs);
    digest.add_all(prefix.full_log_probs);
    digest.add(prefix.versions.size());
    for (const WeightVersion version : prefix.versions) digest.add(version.value);
  }
  return digest;
}

}  // namespace troupe::actors
