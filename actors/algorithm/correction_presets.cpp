// Corrections by the names that papers and other systems gave them.
#include "actors/algorithm/rollout_correction.hpp"
#include "runtime/base/check.hpp"

#include <utility>

namespace troupe::actors {
namespace {

using Level = RolloutWeightLevel;
using Criterion = RejectionCriterion;

constexpr ProximalSource kBypass = ProximalSource::kRollout;

CorrectionOptions capped(Level level, double high) {
  return {.weight_level = level, .weight_high = high};
}
CorrectionOptions masked(Level level, double low, double high) {
  return {.weight_level = level, .weight_low = low, .weight_high = high, .mask_outside = true};
}
CorrectionOptions rejecting(Rejection rejection, ProximalSource proximal) {
  return {.proximal = proximal, .rejections = {rejection}};
}

constexpr Rejection kGeometric{.criterion = Criterion::kSeqMeanK1, .low = 0.999, .high = 1.001};

CorrectionOptions sequence_is_and_rejection() {
  CorrectionOptions options = capped(Level::kSequence, 2);
  options.rejections = {{.criterion = Criterion::kSeqSumK1, .low = 0.5, .high = 2}};
  return options;
}

}  // namespace

CorrectionRegistry default_corrections() {
  const std::pair<const char*, CorrectionPreset> entries[] = {
      {"none", {}},
      {"naive", {.options = {.proximal = kBypass}}},
      {"tis", {.options = capped(Level::kToken, 2)}},
      {"tis_seq", {.options = capped(Level::kSequence, 2)}},
      {"mis", {.options = masked(Level::kToken, 0.5, 2)}},
      {"mis_seq", {.options = masked(Level::kSequence, 0.5, 2)}},
      {"mis_geo", {.options = masked(Level::kGeometric, 0.999, 1.001)}},
      {"icepop", {.options = masked(Level::kToken, 0.5, 5)}},
      {"decoupled", {.options = capped(Level::kToken, 5)}},
      {"decoupled_loglinear",
       {.options = {.proximal = ProximalSource::kLogLinear}, .policy_loss = "decoupled"}},
      {"cispo", {.options = {.proximal = kBypass}, .policy_loss = "cispo"}},
      {"gspo", {.options = {.proximal = kBypass}, .policy_loss = "gspo"}},
      {"aipo", {.options = {.proximal = kBypass}, .policy_loss = "aipo"}},
      {"topr", {.options = {.proximal = kBypass}, .policy_loss = "topr"}},
      {"m2po", {.options = {.second_moment_max = 0.04}}},
      {"opsm", {.options = {.negative_kl_max = 1e-4}}},
      {"veto", {.options = {.veto_least = 1e-4}}},
      {"decoupled_token_is", {.options = capped(Level::kToken, 2)}},
      {"decoupled_seq_is", {.options = capped(Level::kSequence, 2)}},
      {"decoupled_seq_is_rs", {.options = sequence_is_and_rejection()}},
      {"decoupled_geo_rs", {.options = rejecting(kGeometric, ProximalSource::kRecompute)}},
      {"decoupled_k3_rs",
       {.options = rejecting({.criterion = Criterion::kSeqMeanK3, .high = 0.01},
                             ProximalSource::kRecompute)}},
      {"bypass_ppo_clip", {.options = {.proximal = kBypass}}},
      {"bypass_ppo_clip_geo_rs", {.options = rejecting(kGeometric, kBypass), .on_current = true}},
      {"bypass_pg_is",
       {.options = {.proximal = kBypass},
        .policy_loss = "tis",
        .importance = {.level = Level::kSequence, .high = 2}}},
  };
  CorrectionRegistry registry("rollout_correction");
  for (const auto& [name, preset] : entries) {
    const result<void> added = registry.add(name, preset);
    TROUPE_CHECK(added.has_value(), "rollout_correction: {} is listed twice", name);
  }
  return registry;
}

}  // namespace troupe::actors
