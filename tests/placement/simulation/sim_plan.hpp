#pragma once

// What a seed decides before anything happens: the cluster, the options, which faults occur and
// how often. Also where requests of random groups come from.
//
// **Threads:** one.
// **Invariants:** a pure function of the seed.

#include "placement/node_reservations.hpp"
#include "placement/placement_core.hpp"
#include "runtime/base/rng.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::placement::simulation {

/// Chance of each fault per second of virtual time, and of some per message or step.
struct FaultRates {
  double node_death = 0;
  double node_silent_death = 0;
  double block_one_way = 0;
  double block_two_way = 0;
  double swizzle = 0;  ///< clogs several links one by one and frees them in another order
  double head_crash = 0;
  double head_crash_per_step = 0;  ///< in the middle of carrying out effects
  double client_death = 0;
  double slow_disk = 0;
  double clock_jump = 0;
  double drain = 0;
  double device_failure = 0;
  double lose_message = 0;  ///< per pass or reply
  double repeat_message = 0;
  double delay_message = 0;  ///< so that later ones overtake it
  double storm = 0;
};

struct SimPlan {
  std::uint64_t seed = 0;
  std::vector<NodeSpec> nodes{};
  std::size_t clients = 1;
  CoreOptions core{};
  FaultRates faults{};
  Duration chaos{};        ///< length of the phase with faults
  Duration latency_max{};  ///< of a message
  Duration flush_max{};    ///< of the disk
  double requests_per_second = 0;
  std::int32_t bundles_max = 0;  ///< of a random group
};

SimPlan make_plan(std::uint64_t seed);

/// A group that somebody might ask for; now and then one that must be refused.
GroupRequest random_request(Rng& rng, const SimPlan& plan, const std::string& name);
GroupTerms random_terms(Rng& rng);
Bundle random_bundle(Rng& rng);
bool chance(Rng& rng, double probability);
Duration random_span(Rng& rng, Duration most);

}  // namespace troupe::placement::simulation
