#pragma once

// All that a set of colocated roles can be on a number of devices: combinations of layouts that fit
// its memory, without those that another one beats in every stage.
//
// **Ownership:** borrows the times of roles.
// **Threads:** one.
// **Invariants:** for every combination that fits there is one here that is no longer in any stage,
// so a search over these finds the best of all (tests/sim/plan compares with all of them).

#include "sim/plan/estimate.hpp"
#include "sim/plan/role_times.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace troupe::sim {

/// Roles as bits.
using RoleMask = std::uint32_t;
constexpr RoleMask mask_of(PlanRole role) { return 1U << static_cast<unsigned>(role); }
constexpr bool has_role(RoleMask mask, PlanRole role) { return (mask & mask_of(role)) != 0; }
std::vector<PlanRole> roles_in(RoleMask mask);

/// A combination of layouts; `parts.publish_s` is set where policy and rollout share the set.
struct SetOption {
  Estimate parts{};
  double kept_bytes = 0;
  double extra_bytes = 0;
  std::array<const LayoutTimes*, kPlanRoles> layouts{};  ///< of the roles in the set
  EngineTimes engines{};
};

class SetOptions {
 public:
  explicit SetOptions(RoleTimes& times) : times_(times) {}

  /// Empty when nothing fits. `ahead`: steps that rollout may be ahead.
  const std::vector<SetOption>& of(RoleMask set, Place place, int devices, std::int64_t ahead);
  /// The least of each stage over all numbers of devices up to `devices`; null: nothing fits.
  const Estimate* ideal(RoleMask set, Place place, int devices, std::int64_t ahead);
  /// Fewest devices on which the set fits; 0: none.
  int least_devices(RoleMask set, Place place, std::int64_t ahead);
  RoleTimes& times() { return times_; }

 private:
  using Key = std::tuple<RoleMask, Place, int, std::int64_t>;
  std::vector<SetOption> compute(RoleMask set, Place place, int devices, std::int64_t ahead);
  std::vector<SetOption> with_role(const std::vector<SetOption>& before, PlanRole role, Place place,
                                   int devices);
  std::vector<SetOption> with_engines(const std::vector<SetOption>& before, Place place,
                                      int devices, std::int64_t ahead);

  RoleTimes& times_;
  std::map<Key, std::vector<SetOption>> options_;
  std::map<Key, std::optional<Estimate>> ideals_;
};

}  // namespace troupe::sim
