#include "apps/training/correction_keys.hpp"

#include "apps/training/sections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace troupe::apps {

using actors::CorrectionOptions;
using actors::CorrectionPreset;
using actors::LogProbKind;
using actors::ProximalSource;
using actors::SamplingTransform;
using runtime::Config;
using runtime::Schema;
using runtime::ValueType;

namespace {

const std::string kAt = "algorithm.rollout_correction.";
const std::string kLossMode = "actor_rollout_ref.actor.policy_loss.loss_mode";
const std::string kRolloutKeys = std::string(kRollout) + ".";

/// Keys that say one by one what a preset says at once.
constexpr const char* kSingleKeys[] = {"rollout_is",
                                       "rollout_is_threshold",
                                       "rollout_is_batch_normalize",
                                       "rollout_rs",
                                       "rollout_rs_threshold",
                                       "rollout_token_veto_threshold",
                                       "bypass_mode",
                                       "proximal",
                                       "opsm_delta",
                                       "m2_threshold"};

/// Whether the key says something else than nothing.
bool given(const Config& c, const std::string& name) {
  const runtime::Value& value = c.value(kAt + name);
  return !std::holds_alternative<runtime::Null>(value) && value != runtime::Value(false);
}

std::string text_of(const Config& c, const std::string& key) {
  return runtime::to_yaml_text(c.value(key));
}

/// What the keys say, before it is split up between controller and loss.
struct Correction {
  CorrectionOptions options = {};
  std::string loss = {};
  actors::ImportanceOptions importance = {};
  bool loss_has_ratio = false;  ///< the loss weighs by π_θ/π_b itself
  bool in_loss = false;         ///< `options` apply to the current policy
  LogProbKind log_probs = LogProbKind::kFull;
};

bool is_one_of(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

SamplingTransform sampling_of(const Config& c) {
  return {.temperature = c.get<double>(kRolloutKeys + "temperature"),
          .top_p = c.get<double>(kRolloutKeys + "top_p"),
          .top_k = static_cast<std::int32_t>(c.get<std::int64_t>(kRolloutKeys + "top_k")),
          .min_p = c.get<double>(kRolloutKeys + "min_p"),
          .has_penalties = c.get<double>(kRolloutKeys + "repetition_penalty") != 1.0};
}

/// The key that brings a KL to the reference, whose log-probs are of the whole distribution.
std::optional<std::string> kl_key(const Config& c) {
  for (const char* key : {"actor_rollout_ref.actor.use_kl_loss", "algorithm.use_kl_in_reward"})
    if (c.get<bool>(key)) return key;
  return std::nullopt;
}

result<LogProbKind> log_prob_kind(const Config& c) {
  const SamplingTransform sampling = sampling_of(c);
  const auto kl = kl_key(c);
  const auto asked = c.get_optional<std::string>(kAt + "log_probs");
  if (!asked) {
    const bool can = !sampling.has_penalties && !(kl && sampling.has_truncation());
    return can ? LogProbKind::kProcessed : LogProbKind::kFull;
  }
  TROUPE_TRY(const LogProbKind kind, actors::log_prob_kind_from_name(*asked));
  if (kind == LogProbKind::kFull) return kind;
  if (sampling.has_penalties)
    return c.refuse(kAt + "log_probs",
                    "the trainer does not penalise its logits, and {}repetition_penalty is {}",
                    kRolloutKeys, text_of(c, kRolloutKeys + "repetition_penalty"));
  if (kl && sampling.has_truncation())
    return c.refuse(kAt + "log_probs",
                    "a KL to the reference is of whole distributions, and {} is true", *kl);
  return kind;
}

result<CorrectionPreset> preset_of(const Config& c) {
  const auto name = c.get<std::string>(kAt + "preset");
  TROUPE_TRY(CorrectionPreset preset, actors::default_corrections().find(name));
  for (const std::string key : kSingleKeys)
    if (given(c, key))
      return c.refuse(kAt + key, "{}preset is {}, which says that already", kAt, name);
  const auto loss = c.get<std::string>(kLossMode);
  if (preset.policy_loss == "vanilla") {
    preset.policy_loss = loss;
  } else if (c.is_set(kLossMode) && loss != preset.policy_loss) {
    return c.refuse(kLossMode, "{}preset is {}, which has the loss {}", kAt, name,
                    preset.policy_loss);
  }
  return preset;
}

result<ProximalSource> proximal_of(const Config& c) {
  const bool bypass = c.get<bool>(kAt + "bypass_mode");
  const auto name = c.get_optional<std::string>(kAt + "proximal");
  if (!name) return bypass ? ProximalSource::kRollout : ProximalSource::kRecompute;
  if (bypass && *name != "rollout")
    return c.refuse(kAt + "proximal", "{}bypass_mode is true, which means rollout", kAt);
  return actors::proximal_source_from_name(*name);
}

/// The weight of a loss that weighs by the ratio itself: `rollout_is` sets its level and bounds.
result<actors::ImportanceOptions> importance_of(const Config& c, const std::string& loss) {
  actors::ImportanceOptions importance;
  if (c.get<bool>(kAt + "rollout_is_batch_normalize"))
    return c.refuse(kAt + "rollout_is_batch_normalize", "{} is {}, which weighs token by token",
                    kLossMode, loss);
  if (const auto level = c.get_optional<std::string>(kAt + "rollout_is")) {
    TROUPE_TRY(importance.level, actors::rollout_weight_level_from_name(*level));
  }
  const auto bound = c.get_optional<std::string>(kAt + "rollout_is_threshold");
  if (!bound) return importance;
  TROUPE_TRY(const actors::BoundText found,
             actors::parse_bound(*bound, kAt + "rollout_is_threshold"));
  importance.high = found.high;
  if (!found.two_sided) return importance;
  if (loss == "tis" || loss == "aipo" || loss == "topr")
    return c.refuse(kAt + "rollout_is_threshold", "{} is {}, which caps on one side only",
                    kLossMode, loss);
  importance.low = found.low;
  return importance;
}

result<CorrectionOptions> single_options(const Config& c, bool loss_has_ratio) {
  actors::CorrectionKeys keys;
  const auto text = [&](const char* name) {
    return c.get_optional<std::string>(kAt + name).value_or("");
  };
  if (!loss_has_ratio) {
    keys.rollout_is = text("rollout_is");
    if (const auto bound = c.get_optional<std::string>(kAt + "rollout_is_threshold")) {
      if (keys.rollout_is.empty())
        return c.refuse(kAt + "rollout_is_threshold", "{}rollout_is is null: there are no weights",
                        kAt);
      keys.rollout_is_threshold = *bound;
    }
    keys.rollout_is_batch_normalize = c.get<bool>(kAt + "rollout_is_batch_normalize");
  }
  keys.rollout_rs = text("rollout_rs");
  keys.rollout_rs_threshold = text("rollout_rs_threshold");
  keys.rollout_token_veto_threshold = c.get_optional<double>(kAt + "rollout_token_veto_threshold");
  result<CorrectionOptions> options = actors::correction_from_keys(keys);
  if (!options)
    return fail(ErrorCode::kConfig, "algorithm.rollout_correction: {}", options.error().message);
  options->negative_kl_max = c.get_optional<double>(kAt + "opsm_delta");
  options->second_moment_max = c.get_optional<double>(kAt + "m2_threshold");
  return options;
}

result<Correction> read_correction(const Config& c) {
  Correction out;
  TROUPE_TRY(out.log_probs, log_prob_kind(c));
  if (given(c, "preset")) {
    TROUPE_TRY(const CorrectionPreset preset, preset_of(c));
    out.options = preset.options;
    out.loss = preset.policy_loss;
    out.importance = preset.importance;
  } else {
    out.loss = c.get<std::string>(kLossMode);
    TROUPE_TRY(out.options, single_options(c, is_one_of(rollout_ratio_losses(), out.loss)));
    TROUPE_TRY(out.options.proximal, proximal_of(c));
  }
  out.loss_has_ratio = is_one_of(rollout_ratio_losses(), out.loss);
  if (out.loss_has_ratio && !given(c, "preset")) {
    TROUPE_TRY(out.importance, importance_of(c, out.loss));
  }
  // Where nothing is recomputed, only the current policy is at a distance from the rollout's.
  out.in_loss = out.options.proximal != ProximalSource::kRecompute && out.options.changes_weights();
  return out;
}

/// The key that asks for something, for messages.
std::string asking_key(const Config& c, const std::string& single) {
  return kAt + (given(c, "preset") ? "preset" : single);
}

result<void> check_proximal(const Config& c, const Correction& correction) {
  const ProximalSource proximal = correction.options.proximal;
  const std::string key = asking_key(c, given(c, "proximal") ? "proximal" : "bypass_mode");
  if (proximal == ProximalSource::kLogLinear && correction.loss != "decoupled")
    return c.refuse(key, "only the loss decoupled interpolates, and {} is {}", kLossMode,
                    correction.loss);
  if (proximal == ProximalSource::kRollout && correction.loss == "decoupled")
    return c.refuse(key,
                    "{} is decoupled: its clip would be around the rollout policy, which is "
                    "vanilla",
                    kLossMode);
  const auto warmup = c.get<std::int64_t>("trainer.critic_warmup");
  if (proximal == ProximalSource::kLogLinear && warmup > 0)
    return c.refuse(key,
                    "versions and updates count alike only without trainer.critic_warmup, "
                    "which is {}",
                    warmup);
  return {};
}

result<void> check_weights(const Config& c, const Correction& correction) {
  const CorrectionOptions& options = correction.options;
  const std::string whole =
      asking_key(c, options.normalise ? "rollout_is_batch_normalize" : "m2_threshold");
  if (options.needs_whole_batch() && options.proximal != ProximalSource::kRecompute)
    return c.refuse(whole, "it needs proximal log-probs of the whole step, and {} is {}",
                    asking_key(c, "proximal"),
                    options.proximal == ProximalSource::kRollout ? "rollout" : "loglinear");
  const auto mode = c.get<std::string>("trainer.mode");
  if (options.needs_whole_batch() && mode == "pipelined")
    return c.refuse(whole, "rows influence each other, and trainer.mode is {}", mode);
  if (options.weight_level && options.proximal == ProximalSource::kRollout &&
      correction.loss != "gpg")
    return c.refuse(asking_key(c, "rollout_is"),
                    "the ratio of {} {} is to the rollout policy already, as {}bypass_mode is {}",
                    kLossMode, correction.loss, kAt, text_of(c, kAt + "bypass_mode"));
  return {};
}

/// Ratios to the rollout policy need log-probs of what was drawn from.
result<void> check_sampling(const Config& c, const Correction& correction) {
  if (!sampling_of(c).has_penalties) return {};
  const bool corrects = correction.options.changes_weights() || correction.loss_has_ratio ||
                        correction.options.proximal != ProximalSource::kRecompute;
  if (!corrects) return {};
  const auto first =
      std::ranges::find_if(kSingleKeys, [&](const std::string& name) { return given(c, name); });
  const std::string key = given(c, "preset")               ? kAt + "preset"
                          : first != std::end(kSingleKeys) ? kAt + *first
                                                           : kLossMode;
  return c.refuse(key, "ratios to the rollout policy are not known under {}repetition_penalty {}",
                  kRolloutKeys, text_of(c, kRolloutKeys + "repetition_penalty"));
}

result<void> check_correction(const Config& c) {
  TROUPE_TRY(const Correction correction, read_correction(c));
  auto valid = correction.options.check();
  if (!valid)
    return fail(ErrorCode::kConfig, "algorithm.rollout_correction: {}", valid.error().message);
  TROUPE_TRY_VOID(check_proximal(c, correction));
  TROUPE_TRY_VOID(check_weights(c, correction));
  return check_sampling(c, correction);
}

SamplingTransform cut_of(const Config& c, LogProbKind kind) {
  SamplingTransform sampling = sampling_of(c);
  return kind == LogProbKind::kProcessed && sampling.has_truncation() ? sampling
                                                                      : SamplingTransform{};
}

}  // namespace

std::vector<std::string> rollout_ratio_losses() {
  return {"tis", "mis", "icepop", "aipo", "topr", "decoupled"};
}

void declare_correction(Schema& s) {
  s.optional_key(kAt + "preset", ValueType::kString,
                 "a correction by its name, in place of the keys below")
      .one_of(actors::default_corrections().names());
  s.optional_key(kAt + "rollout_is", ValueType::kString,
                 "importance weights to the rollout policy, by token, sequence or its geometric "
                 "mean; null: none")
      .one_of({"token", "sequence", "geometric"});
  s.optional_key(kAt + "rollout_is_threshold", ValueType::kString,
                 "cap of the weights, or low_high: 0 outside; null: 2.0, or the loss's own");
  s.boolean(kAt + "rollout_is_batch_normalize", false, "divide weights by their mean of the step");
  s.optional_key(kAt + "rollout_rs", ValueType::kString,
                 "criteria that reject tokens or sequences, e.g. seq_mean_k1,token_k3");
  s.optional_key(kAt + "rollout_rs_threshold", ValueType::kString,
                 "their bounds, e.g. 0.999_1.001,0.01");
  s.optional_key(kAt + "rollout_token_veto_threshold", ValueType::kDouble,
                 "reject sequences that have a token with a smaller ratio");
  s.boolean(kAt + "bypass_mode", false,
            "take the rollout's log-probs as the proximal policy's: saves a pass");
  s.optional_key(kAt + "proximal", ValueType::kString,
                 "proximal log-probs: recompute at the step's start, rollout (as bypass_mode), or "
                 "loglinear between rollout and current by versions; null: by bypass_mode")
      .one_of({"recompute", "loglinear", "rollout"});
  s.optional_key(kAt + "opsm_delta", ValueType::kDouble,
                 "reject negative advantages in sequences further from the rollout policy");
  s.optional_key(kAt + "m2_threshold", ValueType::kDouble,
                 "drop the farthest tokens until the mean squared log-ratio is at most this");
  s.optional_key(kAt + "log_probs", ValueType::kString,
                 "distribution of log-probs: processed, as it was drawn from, or full; null: "
                 "processed, but full under penalties or beside a KL to the reference")
      .one_of({"full", "processed"});
  s.rule(check_correction);
}

result<actors::CorrectionStepOptions> correction_step_options(const Config& config) {
  TROUPE_TRY(const Correction correction, read_correction(config));
  return actors::CorrectionStepOptions{.correction = correction.options,
                                       .log_probs = correction.log_probs,
                                       .in_loss = correction.in_loss};
}

result<void> apply_correction(const Config& config, const actors::PolicyLossRegistry& losses,
                              actors::PolicyUpdateSettings& settings) {
  TROUPE_TRY(const Correction correction, read_correction(config));
  TROUPE_TRY(const actors::PolicyLoss loss, losses.find(correction.loss));
  settings.loss = correction.loss;
  settings.objective.loss.importance = correction.importance;
  settings.cut = cut_of(config, correction.log_probs);
  actors::UpdateCorrection& update = settings.correction;
  if (correction.in_loss) {
    update.in_loss = correction.options;
    if (auto fits = actors::corrected_loss(loss, update.in_loss); !fits)
      return fail(std::move(fits).error());
  }
  update.reports_ratios = correction.options.proximal != ProximalSource::kRecompute;
  update.interpolates = correction.options.proximal == ProximalSource::kLogLinear;
  update.reads_rollout = loss.reads_rollout || correction.in_loss || update.reports_ratios;
  return {};
}

result<std::string> describe_correction(const Config& config) {
  TROUPE_TRY(const Correction correction, read_correction(config));
  const ProximalSource proximal = correction.options.proximal;
  const bool cuts = cut_of(config, correction.log_probs).has_truncation();
  return fmt::format(
      "off-policy: loss {}, proximal log-probs {}, {}, log-probs of the {} distribution",
      correction.loss,
      proximal == ProximalSource::kRecompute ? "recomputed"
      : proximal == ProximalSource::kRollout ? "the rollout's"
                                             : "interpolated",
      correction.in_loss                     ? "weights in the loss"
      : correction.options.changes_weights() ? "weights of the whole step"
                                             : "no weights of its own",
      cuts ? "sampled" : "whole");
}

}  // namespace troupe::apps
