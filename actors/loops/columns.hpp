#pragma once

// Names of the columns that the roles of a cast hand to each other, with type and meaning.
//
// B rows are samples; a group is the G samples of one prompt. Columns of a prompt batch
// (`prompt_ids`, `prompts`, `data_source`, …) are named in actors/data/prompt_loader.hpp.
// **Threads:** constants only.

#include <string_view>

namespace troupe::actors::column {

inline constexpr std::string_view kGroup = "group";                 ///< i64, exact group id
inline constexpr std::string_view kSampleIndex = "sample_index";    ///< i64, place in the group
inline constexpr std::string_view kResponses = "responses";         ///< jagged i32 token ids
inline constexpr std::string_view kResponseMask = "response_mask";  ///< jagged u8, 1 = sampled
/// jagged f32: log-probs of the untruncated distribution at the sampling temperature
inline constexpr std::string_view kRolloutLogProbs = "rollout_log_probs";
/// jagged f32: of the distribution that was drawn from; only where sampling truncates (`learn` puts
/// it in place of rollout_log_probs where ratios are of that distribution)
inline constexpr std::string_view kProcessedLogProbs = "rollout_processed_log_probs";
inline constexpr std::string_view kVersions = "weight_versions";        ///< jagged i64 per token
inline constexpr std::string_view kStopReason = "stop_reason";          ///< text
inline constexpr std::string_view kScores = "scores";                   ///< f32, one a sample
/// u8, 1 = the rule gave the sample up and asks that its group is dropped; mostly absent
inline constexpr std::string_view kScoreFailed = "score_failed";
inline constexpr std::string_view kAccuracy = "acc";                    ///< f32, 0 or 1 where known
inline constexpr std::string_view kAnswers = "answers";                 ///< text the rule read
inline constexpr std::string_view kOldLogProbs = "old_log_probs";       ///< jagged f32, proximal
inline constexpr std::string_view kRolloutWeights = "rollout_weights";  ///< jagged f32, ≥ 0
inline constexpr std::string_view kReferenceLogProbs = "ref_log_prob";  ///< jagged f32
inline constexpr std::string_view kValues = "values";                   ///< jagged f32
inline constexpr std::string_view kBaselineScores = "baseline_scores";  ///< f32, greedy sample
inline constexpr std::string_view kAdvantages = "advantages";           ///< jagged f32
inline constexpr std::string_view kReturns = "returns";                 ///< jagged f32
inline constexpr std::string_view kSequenceId = "sequence_id";          ///< i64, row of the step

}  // namespace troupe::actors::column
