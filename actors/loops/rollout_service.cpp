#include "actors/loops/rollout_service.hpp"

namespace troupe::actors {

result<void> ServiceOptions::check() const {
  const auto positive = [](std::string_view name, auto value) -> result<void> {
    if (value > decltype(value){}) return {};
    return fail(ErrorCode::kInvalidArgument, "rollout service: {} is not positive", name);
  };
  TROUPE_TRY_VOID(positive("slice_steps", slice_steps));
  TROUPE_TRY_VOID(positive("slice", slice));
  TROUPE_TRY_VOID(positive("advance_within", advance_within));
  TROUPE_TRY_VOID(positive("revive_within", revive_within));
  TROUPE_TRY_VOID(positive("recall_within", recall_within));
  TROUPE_TRY_VOID(positive("score_rows_max", score_rows_max));
  TROUPE_TRY_VOID(positive("scores_in_flight_max", scores_in_flight_max));
  TROUPE_TRY_VOID(positive("score_within", score_within));
  TROUPE_TRY_VOID(positive("turn_rows_max", turn_rows_max));
  TROUPE_TRY_VOID(positive("turns_in_flight_max", turns_in_flight_max));
  TROUPE_TRY_VOID(positive("turn_within", turn_within));
  TROUPE_TRY_VOID(positive("calls_max", calls_max));
  TROUPE_TRY_VOID(positive("retry_after", retry_after));
  TROUPE_TRY_VOID(positive("no_progress_within", no_progress_within));
  TROUPE_TRY_VOID(positive("tick_every", tick_every));
  return rollout.check();
}

}  // namespace troupe::actors
