#pragma once

// What the estimators share: input checks, the rule that no option loses silently, whitening and
// the walk over groups. Internal to actors/algorithm.
//
// **Threads:** pure functions.

#include "actors/algorithm/advantage.hpp"
#include "actors/algorithm/group_scores.hpp"

#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// Which options an estimator reads.
struct OptionsRead {
  bool gamma = false;
  bool lambda = false;
  bool norm_by_std = false;
  bool whiten = false;
};

/// Layout, rewards and options; kConfig for an option that is set and not read.
result<void> check_advantage(const AdvantageInput& input, const AdvantageOptions& options,
                             std::string_view estimator, OptionsRead read);

/// One number per row of a group of two or more: `fill(rows, scores, statistics, out)`, each of
/// the group's length; `out` starts at 0. Groups of one and of equal scores are left at 0 and
/// counted.
using GroupRule =
    std::function<void(std::span<const std::size_t> rows, std::span<const double> scores,
                       const GroupStatistics& statistics, std::span<double> out)>;
struct GroupAdvantages {
  std::vector<double> per_sequence;    ///< [S]
  std::vector<std::uint8_t> compared;  ///< [S] 1 where the group has two or more rows
  std::vector<std::uint8_t> varied;    ///< [S] 1 where their scores are not all equal
  AdvantageReport report;
};
result<GroupAdvantages> per_group(const TokenBatchView& batch, std::span<const double> scores,
                                  const GroupRule& fill);

/// f64 [S] on every unmasked token, 0 elsewhere; returns = advantages.
AdvantageOutput broadcast(const TokenBatchView& batch, const GroupAdvantages& advantages);

/// The same, whitened over the tokens of compared rows; the others stay 0.
AdvantageOutput broadcast_whitened(const TokenBatchView& batch, GroupAdvantages advantages);

/// Rounds to f32 [T].
std::vector<float> to_floats(std::span<const double> values);

}  // namespace troupe::actors
