#pragma once

// Where generated tokens went, and whether choosing by finish order favoured short answers.
//
// **Threads:** value types.
// **Invariants:** generated = used + wasted (all reasons) + what is still under way; the dispatcher
// checks it against its samples.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::actors {

enum class WasteReason : std::uint8_t {
  kRestart,    ///< started over instead of resumed
  kHedge,      ///< the slower of two requests for one sample
  kRedundant,  ///< a sample beyond those that the group needed
  kFailed,     ///< of an attempt that failed
  kDropped,    ///< of a group that was given up
};
inline constexpr std::size_t kWasteReasons = 5;
/// `restart`, `hedge`, `redundant`, `failed`, `dropped`.
std::string_view waste_reason_name(WasteReason reason);

struct TokenAccount {
  std::int64_t generated = 0;  ///< reported by ranks, and brought along by resumed samples
  std::int64_t used = 0;       ///< of samples in complete groups
  std::array<std::int64_t, kWasteReasons> wasted{};
  std::int64_t recomputed = 0;  ///< prompt and prefix tokens that were prefilled again
  std::int64_t resumed = 0;     ///< starts from a prefix
  std::int64_t moved = 0;       ///< samples taken off a rank so that it gets free
  bool operator==(const TokenAccount&) const = default;

  void waste(WasteReason reason, std::int64_t tokens) {
    wasted[static_cast<std::size_t>(reason)] += tokens;
  }
  std::int64_t wasted_total() const;
  std::int64_t under_way() const { return generated - used - wasted_total(); }
};

/// Lengths of samples: of those kept, and of all that were started. A sample that was given up
/// half-way counts with what it had, so `started` is a lower bound and the bias at least this
/// large.
struct LengthBias {
  static constexpr std::size_t kBuckets = 24;  ///< bucket b: lengths of b significant bits
  struct Side {
    std::int64_t samples = 0;
    std::int64_t tokens = 0;
    std::array<std::int64_t, kBuckets> histogram{};
    bool operator==(const Side&) const = default;
    void add(std::int64_t length);
    double mean() const;
  };
  Side kept;
  Side started;
  bool operator==(const LengthBias&) const = default;

  /// mean(kept) / mean(started); 1 without bias, below when short answers were preferred.
  double ratio() const;
  std::string to_string() const;
};

}  // namespace troupe::actors
