#pragma once

// Wire forms of what roles are asked with and made from, where the structs themselves lie in
// libraries that know nothing of the wire.
//
// **Threads:** stateless.
// **Invariants:** every member is listed; the test compares each with another value than its
// default.

#include "actors/algorithm/objective.hpp"
#include "actors/algorithm/value_loss.hpp"
#include "actors/rollout/sampling_options.hpp"
#include "actors/train/train_options.hpp"
#include "runtime/wire/wire.hpp"

#include <tuple>

namespace troupe::runtime {

template <>
struct WireFields<actors::SamplingOptions> {
  static constexpr auto fields() {
    using T = actors::SamplingOptions;
    return std::tuple{field("temperature", &T::temperature),
                      field("top_p", &T::top_p),
                      field("top_k", &T::top_k),
                      field("min_p", &T::min_p),
                      field("repetition_penalty", &T::repetition_penalty),
                      field("frequency_penalty", &T::frequency_penalty),
                      field("presence_penalty", &T::presence_penalty),
                      field("max_new_tokens", &T::max_new_tokens),
                      field("stop_ids", &T::stop_ids),
                      field("stop_strings", &T::stop_strings),
                      field("ignore_eos", &T::ignore_eos),
                      field("seed", &T::seed)};
  }
};

template <>
struct WireFields<actors::ImportanceOptions> {
  static constexpr auto fields() {
    using T = actors::ImportanceOptions;
    return std::tuple{field("level", &T::level), field("low", &T::low), field("high", &T::high)};
  }
};

template <>
struct WireFields<actors::PolicyLossOptions> {
  static constexpr auto fields() {
    using T = actors::PolicyLossOptions;
    return std::tuple{field("aggregation", &T::aggregation),
                      field("clip_low", &T::clip_low),
                      field("clip_high", &T::clip_high),
                      field("clip_dual", &T::clip_dual),
                      field("clip_cov_ratio", &T::clip_cov_ratio),
                      field("clip_cov_low", &T::clip_cov_low),
                      field("clip_cov_high", &T::clip_cov_high),
                      field("kl_cov_ratio", &T::kl_cov_ratio),
                      field("kl_cov_coefficient", &T::kl_cov_coefficient),
                      field("sapo_tau_positive", &T::sapo_tau_positive),
                      field("sapo_tau_negative", &T::sapo_tau_negative),
                      field("dro_beta", &T::dro_beta),
                      field("importance", &T::importance),
                      field("seed", &T::seed)};
  }
};

template <>
struct WireFields<actors::KlKind> {
  static constexpr auto fields() {
    using T = actors::KlKind;
    return std::tuple{field("estimator", &T::estimator),
                      field("straight_through", &T::straight_through)};
  }
};

template <>
struct WireFields<actors::PolicyObjectiveOptions> {
  static constexpr auto fields() {
    using T = actors::PolicyObjectiveOptions;
    return std::tuple{field("loss", &T::loss),
                      field("entropy_coefficient", &T::entropy_coefficient),
                      field("kl_coefficient", &T::kl_coefficient), field("kl", &T::kl)};
  }
};

template <>
struct WireFields<actors::ValueLossOptions> {
  static constexpr auto fields() {
    using T = actors::ValueLossOptions;
    return std::tuple{field("aggregation", &T::aggregation), field("clip", &T::clip)};
  }
};

template <>
struct WireFields<actors::OptimizerOptions> {
  static constexpr auto fields() {
    using T = actors::OptimizerOptions;
    return std::tuple{field("lr", &T::lr),
                      field("beta1", &T::beta1),
                      field("beta2", &T::beta2),
                      field("eps", &T::eps),
                      field("weight_decay", &T::weight_decay),
                      field("grad_norm_max", &T::grad_norm_max),
                      field("schedule", &T::schedule),
                      field("warmup_steps", &T::warmup_steps),
                      field("total_steps", &T::total_steps),
                      field("lr_min_ratio", &T::lr_min_ratio)};
  }
};

template <>
struct WireFields<actors::ParallelOptions> {
  static constexpr auto fields() {
    using T = actors::ParallelOptions;
    return std::tuple{field("tp", &T::tp),
                      field("pp", &T::pp),
                      field("virtual_stages", &T::virtual_stages),
                      field("sharding", &T::sharding),
                      field("shard_ranks", &T::shard_ranks),
                      field("stage_layers", &T::stage_layers)};
  }
};

template <>
struct WireFields<actors::TrainEngineOptions> {
  static constexpr auto fields() {
    using T = actors::TrainEngineOptions;
    return std::tuple{field("head", &T::head),
                      field("trainable", &T::trainable),
                      field("optimizer", &T::optimizer),
                      field("recompute", &T::recompute),
                      field("micro_batch_tokens_max", &T::micro_batch_tokens_max),
                      field("forward_tokens_max", &T::forward_tokens_max),
                      field("share_prompts", &T::share_prompts),
                      field("logit_chunk_tokens", &T::logit_chunk_tokens),
                      field("seed", &T::seed),
                      field("threads", &T::threads),
                      field("collective_timeout", &T::collective_timeout),
                      field("parallel", &T::parallel)};
  }
};

}  // namespace troupe::runtime
