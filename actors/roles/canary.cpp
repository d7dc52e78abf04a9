#include "actors/roles/canary.hpp"

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace troupe::actors {

using runtime::Batch;
using runtime::Column;

CanaryRequest canary_request(std::int64_t vocabulary, std::int64_t positions, int tokens) {
  constexpr std::int64_t kLongest = 16;
  constexpr std::int64_t kStride = 7919;  // a prime: spreads over any vocabulary
  CanaryRequest request;
  request.tokens = static_cast<std::int32_t>(std::min<std::int64_t>(tokens, positions - 1));
  const std::int64_t length = std::min<std::int64_t>(positions - request.tokens, kLongest);
  for (std::int64_t i = 1; i <= length; ++i)
    request.prompt.push_back(static_cast<std::int32_t>(i * kStride % vocabulary));
  return request;
}

result<void> compare_replicas(std::span<const CanaryAnswer> answers, std::span<const int> replicas,
                              WeightVersion version) {
  TROUPE_CHECK(!answers.empty() && answers.size() == replicas.size(),
               "canary: {} answers of {} ranks", answers.size(), replicas.size());
  const CanaryAnswer& first = answers.front();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const CanaryAnswer& answer = answers[i];
    if (answer.version != version)
      return fail(ErrorCode::kConflict,
                  "canary: replica {}, rank {} answers under version {}, version {} was published",
                  replicas[i], i, answer.version.value, version.value);
    for (std::size_t t = 0; t < std::max(answer.tokens.size(), first.tokens.size()); ++t) {
      const auto token = [t](const CanaryAnswer& one) {
        return t < one.tokens.size() ? std::to_string(one.tokens[t]) : std::string("none");
      };
      if (token(answer) == token(first)) continue;
      return fail(ErrorCode::kConflict,
                  "canary: version {}: replica {}, rank {}: token {} is {}, replica {} says {}",
                  version.value, replicas[i], i, t, token(answer), replicas.front(), token(first));
    }
  }
  return {};
}

result<void> compare_replicas(std::span<const CanaryAnswer> answers, const runtime::Mesh& mesh,
                              WeightVersion version) {
  std::vector<int> replicas;
  for (std::size_t i = 0; i < answers.size(); ++i)
    replicas.push_back(mesh.data_part(RankId{static_cast<std::int32_t>(i)}));
  return compare_replicas(answers, replicas, version);
}

result<double> compare_log_probs(const CanaryAnswer& answer, const Column& trainer,
                                 double tolerance) {
  double largest = 0;
  for (std::int64_t row = 0; row < trainer.rows(); ++row) {
    const auto found = trainer.row<float>(row);
    if (found.size() != answer.log_probs.size())
      return fail(ErrorCode::kConflict, "canary: the trainer gives {} log-probs for {} tokens",
                  found.size(), answer.log_probs.size());
    for (std::size_t t = 0; t < found.size(); ++t) {
      const double difference =
          std::abs(static_cast<double>(found[t]) - static_cast<double>(answer.log_probs[t]));
      if (!(difference <= tolerance))  // also when it is no number
        return fail(ErrorCode::kConflict,
                    "canary: version {}: token {} ({}): log-prob {:.6f} of replica 0, {:.6f} of "
                    "the trainer's data-parallel rank {}, {:.2e} apart with a tolerance of {:.2e}",
                    answer.version.value, t, answer.tokens[t], answer.log_probs[t], found[t], row,
                    difference, tolerance);
      largest = std::max(largest, difference);
    }
  }
  return largest;
}

result<Batch> canary_batch(const std::vector<std::int32_t>& prompt, const CanaryAnswer& answer,
                           int rows) {
  const auto count = static_cast<std::size_t>(rows);
  Batch batch(rows);
  TROUPE_TRY_VOID(batch.set(std::string(column::kPrompts),
                            Column::jagged(std::vector<std::vector<std::int32_t>>(count, prompt))));
  TROUPE_TRY_VOID(
      batch.set(std::string(column::kResponses),
                Column::jagged(std::vector<std::vector<std::int32_t>>(count, answer.tokens))));
  return batch;
}

}  // namespace troupe::actors
