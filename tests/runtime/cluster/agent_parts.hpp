#pragma once

// What agents, controllers and ranks of the tests have in common: links with short times, so that a
// silent peer is found within a second, and the words in which the helper program is told its part.
//
// **Threads:** plain functions.

#include "runtime/base/clock.hpp"
#include "runtime/link/link_options.hpp"

#include <chrono>
#include <string>

namespace troupe::runtime::testing {

inline constexpr Duration kDeadAfter = std::chrono::seconds(1);

inline LinkOptions link_of(PeerRole role, const std::string& name) {
  LinkOptions options{.self = PeerName{role, name}};
  options.token = "6a6f696e6a6f696e6a6f696e6a6f696e6a6f696e6a6f696e6a6f696e6a6f696e";
  options.heartbeat = std::chrono::milliseconds(150);
  options.dead_after = kDeadAfter;
  return options;
}

}  // namespace troupe::runtime::testing
