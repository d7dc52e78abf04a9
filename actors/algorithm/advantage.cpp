#include "actors/algorithm/advantage.hpp"

#include "actors/algorithm/advantage_common.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace troupe::actors {
namespace {

constexpr double kDeviationFloor = 1e-6;  ///< added to a group's standard deviation, as in verl

double divisor(const GroupStatistics& group, bool norm_by_std) {
  return norm_by_std ? group.deviation + kDeviationFloor : 1.0;
}

/// (s - mean) · factor(group) for every row.
template <class Factor>
GroupRule centred(Factor factor) {
  return [factor](std::span<const std::size_t>, std::span<const double> scores,
                  const GroupStatistics& group, std::span<double> out) {
    const double scale = factor(group);
    for (std::size_t i = 0; i < scores.size(); ++i) out[i] = (scores[i] - group.mean) * scale;
  };
}

result<AdvantageOutput> by_group(const AdvantageInput& input, const GroupRule& rule) {
  const std::vector<double> scores = sequence_scores(input.tokens, input.rewards);
  TROUPE_TRY(const GroupAdvantages advantages, per_group(input.tokens, scores, rule));
  return broadcast(input.tokens, advantages);
}

result<void> check_components(const AdvantageInput& input) {
  if (input.components.empty())
    return fail(ErrorCode::kInvalidArgument, "gdpo: no reward components, wanted at least one");
  if (!input.component_weights.empty() && input.component_weights.size() != input.components.size())
    return fail(ErrorCode::kInvalidArgument, "gdpo: {} weights for {} reward components",
                input.component_weights.size(), input.components.size());
  for (std::size_t c = 0; c < input.components.size(); ++c) {
    const std::span<const float> scores = input.components[c];
    if (scores.size() != input.tokens.sequences())
      return fail(ErrorCode::kInvalidArgument, "gdpo: component {} has {} scores, wanted {}", c,
                  scores.size(), input.tokens.sequences());
    for (std::size_t s = 0; s < scores.size(); ++s)
      if (!std::isfinite(scores[s]) && valid_length(input.tokens, s) > 0)
        return fail(ErrorCode::kInvalidArgument, "gdpo: component {} of sequence {} is {}", c, s,
                    scores[s]);
  }
  return {};
}

}  // namespace

result<AdvantageOutput> grpo_advantage(const AdvantageInput& input,
                                       const AdvantageOptions& options) {
  TROUPE_TRY_VOID(check_advantage(input, options, "grpo", {.norm_by_std = true}));
  const bool norm = options.norm_by_std.value_or(true);
  return by_group(
      input, centred([norm](const GroupStatistics& group) { return 1.0 / divisor(group, norm); }));
}

result<AdvantageOutput> dr_grpo_advantage(const AdvantageInput& input,
                                          const AdvantageOptions& options) {
  TROUPE_TRY_VOID(check_advantage(input, options, "dr_grpo", {}));
  return by_group(input, centred([](const GroupStatistics&) { return 1.0; }));
}

result<AdvantageOutput> grpo_passk_advantage(const AdvantageInput& input,
                                             const AdvantageOptions& options) {
  TROUPE_TRY_VOID(check_advantage(input, options, "grpo_passk", {.norm_by_std = true}));
  const bool norm = options.norm_by_std.value_or(true);
  return by_group(input, [norm](std::span<const std::size_t>, std::span<const double> scores,
                                const GroupStatistics& group, std::span<double> out) {
    const auto best = std::max_element(scores.begin(), scores.end()) - scores.begin();
    out[static_cast<std::size_t>(best)] = (group.largest - group.second) / divisor(group, norm);
  });
}

result<AdvantageOutput> gdpo_advantage(const AdvantageInput& input,
                                       const AdvantageOptions& options) {
  TROUPE_TRY_VOID(check_advantage(input, options, "gdpo", {.norm_by_std = true}));
  TROUPE_TRY_VOID(check_components(input));
  const bool norm = options.norm_by_std.value_or(true);
  GroupAdvantages total;
  for (std::size_t c = 0; c < input.components.size(); ++c) {
    const std::vector<double> scores(input.components[c].begin(), input.components[c].end());
    TROUPE_TRY(GroupAdvantages part,
               per_group(input.tokens, scores, centred([norm](const GroupStatistics& group) {
                           return 1.0 / divisor(group, norm);
                         })));
    const double weight = input.component_weights.empty() ? 1.0 : input.component_weights[c];
    for (double& advantage : part.per_sequence) advantage *= weight;
    if (c == 0) {
      total = std::move(part);
      continue;
    }
    for (std::size_t s = 0; s < total.per_sequence.size(); ++s) {
      total.per_sequence[s] += part.per_sequence[s];
      total.varied[s] |= part.varied[s];
    }
  }
  // A group teaches something as soon as one component varies in it.
  TROUPE_TRY(const SequenceGroups groups, SequenceGroups::make(input.tokens));
  total.report.zero_variance_groups = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::size_t first = groups.rows(g).front();
    if (total.compared[first] != 0 && total.varied[first] == 0) ++total.report.zero_variance_groups;
  }
  return broadcast_whitened(input.tokens, std::move(total));
}

result<AdvantageOutput> rloo_advantage(const AdvantageInput& input,
                                       const AdvantageOptions& options) {
  TROUPE_TRY_VOID(check_advantage(input, options, "rloo", {}));
  return by_group(input, centred([](const GroupStatistics& group) {
                    const auto count = static_cast<double>(group.count);
                    return count / (count - 1);
                  }));
}

result<AdvantageOutput> reinforce_plus_plus_baseline_advantage(const AdvantageInput& input,
                                                               const AdvantageOptions& options) {
  TROUPE_TRY_VOID(check_advantage(input, options, "reinforce_plus_plus_baseline", {}));
  const std::vector<double> scores = sequence_scores(input.tokens, input.rewards);
  TROUPE_TRY(GroupAdvantages advantages,
             per_group(input.tokens, scores, centred([](const GroupStatistics&) { return 1.0; })));
  return broadcast_whitened(input.tokens, std::move(advantages));
}

result<AdvantageOutput> opo_advantage(const AdvantageInput& input,
                                      const AdvantageOptions& options) {
  TROUPE_TRY_VOID(check_advantage(input, options, "opo", {}));
  return by_group(input, [&batch = input.tokens](std::span<const std::size_t> rows,
                                                 std::span<const double> scores,
                                                 const GroupStatistics&, std::span<double> out) {
    double weighted = 0;
    double lengths = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto length = static_cast<double>(valid_length(batch, rows[i]));
      weighted += length * scores[i];
      lengths += length;
    }
    for (std::size_t i = 0; i < rows.size(); ++i) out[i] = scores[i] - weighted / lengths;
  });
}

result<AdvantageOutput> gpg_advantage(const AdvantageInput& input,
                                      const AdvantageOptions& options) {
  TROUPE_TRY_VOID(check_advantage(input, options, "gpg", {}));
  const std::vector<double> scores = sequence_scores(input.tokens, input.rewards);
  std::int64_t nonzero = 0;
  for (const double score : scores) nonzero += score != 0 ? 1 : 0;
  const double alpha = static_cast<double>(count_tokens(input.tokens).sequences) /
                       static_cast<double>(std::max<std::int64_t>(1, nonzero));
  return by_group(input, centred([alpha](const GroupStatistics&) { return alpha; }));
}

AdvantageRegistry default_advantages() {
  AdvantageRegistry registry("adv_estimator");
  const std::pair<const char*, AdvantageFunction> entries[] = {
      {"gae", gae_advantage},
      {"grpo", grpo_advantage},
      {"dr_grpo", dr_grpo_advantage},
      {"grpo_passk", grpo_passk_advantage},
      {"gdpo", gdpo_advantage},
      {"rloo", rloo_advantage},
      {"reinforce_plus_plus", reinforce_plus_plus_advantage},
      {"reinforce_plus_plus_baseline", reinforce_plus_plus_baseline_advantage},
      {"remax", remax_advantage},
      {"opo", opo_advantage},
      {"gpg", gpg_advantage},
  };
  for (const auto& [name, estimator] : entries) {
    const result<void> added = registry.add(name, estimator);
    TROUPE_CHECK(added.has_value(), "adv_estimator: {} is listed twice", name);
  }
  return registry;
}

}  // namespace troupe::actors
