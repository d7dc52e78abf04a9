#include "actors/loops/response_columns.hpp"

#include "actors/loops/columns.hpp"

#include <string_view>
#include <utility>

namespace troupe::actors {

using runtime::Batch;
using runtime::Column;

namespace {

template <class T>
void append(std::vector<T>& to, std::span<const T> from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void ResponseColumns::add(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask,
                          std::span<const float> full_log_probs,
                          std::span<const float> drawn_log_probs,
                          std::span<const WeightVersion> versions, StopReason reason) {
  lengths_.push_back(static_cast<std::int64_t>(tokens.size()));
  append(tokens_, tokens);
  append(mask_, mask);
  append(full_log_probs_, full_log_probs);
  if (processed_) append(drawn_log_probs_, drawn_log_probs);
  for (const WeightVersion version : versions) versions_.push_back(version.value);
  reasons_.emplace_back(stop_reason_name(reason));
}

result<Batch> ResponseColumns::batch() && {
  Batch out(static_cast<std::int64_t>(lengths_.size()));
  const auto set = [&out](std::string_view name, Column column) {
    return out.set(std::string(name), std::move(column));
  };
  TROUPE_TRY_VOID(set(column::kResponses, Column::jagged(std::move(tokens_), lengths_)));
  TROUPE_TRY_VOID(set(column::kResponseMask, Column::jagged(std::move(mask_), lengths_)));
  TROUPE_TRY_VOID(
      set(column::kRolloutLogProbs, Column::jagged(std::move(full_log_probs_), lengths_)));
  if (processed_)
    TROUPE_TRY_VOID(
        set(column::kProcessedLogProbs, Column::jagged(std::move(drawn_log_probs_), lengths_)));
  TROUPE_TRY_VOID(set(column::kVersions, Column::jagged(std::move(versions_), lengths_)));
  TROUPE_TRY_VOID(set(column::kStopReason, Column::strings(reasons_)));
  return out;
}

}  // namespace troupe::actors
