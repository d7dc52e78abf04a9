#pragma once

// `RemoteProgram`: what the rank processes of a group run, and where.
//
// **Threads:** a plain value.

#include "runtime/group/group_ranks.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troupe::runtime {

class ActorSystem;
class ClusterJob;

struct RemoteProgram {
  std::string name;                       ///< as given to RankPrograms::add in the rank's program
  std::vector<std::byte> spec = {};       ///< for the program's factory, ≤ 512 KiB
  std::vector<std::string> command = {};  ///< of the process; empty: the job's
  std::map<std::string, std::string> environment = {};
  std::string reservation = {};   ///< placement group; empty: none
  std::vector<int> bundles = {};  ///< [R] of the reservation; empty: rank i on bundle i
};

/// The ranks of a group that runs `program`; methods by name and signature, in their order.
std::unique_ptr<GroupRanks> make_remote_ranks(
    ClusterJob& job, RemoteProgram program,
    std::vector<std::pair<std::string, std::uint64_t>> methods);
ActorSystem& actor_system_of(ClusterJob& job);

}  // namespace troupe::runtime
