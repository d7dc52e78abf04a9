#pragma once

// Why a group was given up. One list for the ledger, the dispatcher, metrics and logs.
//
// **Threads:** constants and pure functions.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace troupe::actors {

enum class CancelReason : std::uint8_t {
  kStale,         ///< older than the age bound when it should have been used
  kSpan,          ///< a trajectory crossed more versions than allowed
  kZeroVariance,  ///< all its samples have the same score: nothing to learn
  kCut,           ///< lost the race of an over-sampled round, and partials are not kept
  kFailed,        ///< generation, environment or reward failed more often than allowed
  kDeadline,      ///< a sample or its reward took too long
  kEndOfRun,      ///< nothing will train on it any more
  kAsked,         ///< the caller gave it up
};
inline constexpr std::size_t kCancelReasons = 8;

/// `stale`, `span`, `zero_variance`, `cut`, `failed`, `deadline`, `end_of_run`, `asked`.
constexpr std::string_view cancel_reason_name(CancelReason reason) {
  constexpr std::array<std::string_view, kCancelReasons> kNames{
      "stale", "span", "zero_variance", "cut", "failed", "deadline", "end_of_run", "asked"};
  return kNames[static_cast<std::size_t>(reason)];
}

}  // namespace troupe::actors
