#pragma once

// `RankPrograms`: the worker classes that a rank process can be, by name, and the parts that other
// layers plug into it.
//
// Ownership: made by `main`, outlives `run_rank`.
// **Threads:** filled before `run_rank`; factories run on the engine thread.
// **Invariants:** names are unique (CHECK). A controller that knows the program's methods by other
// signatures is refused before anything is constructed.

#include "runtime/comm/collective.hpp"
#include "runtime/comm/rendezvous_store.hpp"
#include "runtime/group/rank_lanes.hpp"
#include "runtime/group/rank_launcher.hpp"
#include "runtime/group/served_method.hpp"
#include "runtime/group/typed_call.hpp"
#include "runtime/link/channel.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::runtime {

/// Where a rank makes its collectives.
struct CollectiveSite {
  std::string group;  ///< name of the worker group
  int rank = 0;
  int size = 1;
  std::string host;  ///< address of this host towards its controller, to listen on
  /// Kept by the controller; keys belong to the group.
  std::shared_ptr<RendezvousStore> store;
};

/// Makes the collective of all ranks of a group, on the engine thread, before the worker. Its
/// `rebuild(epoch)` and `split` are used as those of `make_local_group`.
using MakeCollective =
    std::function<result<std::unique_ptr<Collective>>(const CollectiveSite&, Deadline)>;

/// What a rank gets from its node's agent: turns on the device, and answers to what the agent asks.
struct AgentParts {
  std::shared_ptr<RankLanes> lanes;  ///< may be null: methods with a phase of groups that have
                                     ///< lanes then fail
  /// By prefix of the method, e.g. `memory.`.
  std::vector<std::pair<std::string, std::shared_ptr<ChannelService>>> services;
};
/// Called once the channel to the agent is up, before the worker is constructed.
using MakeAgentParts = std::function<result<AgentParts>(Ref<Channel> agent, const RankRecord&)>;

/// One worker class under its name.
struct RankProgram {
  std::function<result<OwnedWorker>(WorkerContext&, std::span<const std::byte> spec)> make;
  std::vector<ServedMethod> methods;
};

class RankPrograms {
 public:
  /// `factory(WorkerContext&, std::span<const std::byte> spec)` returns `std::unique_ptr<W>` or a
  /// result of it; `spec` is what the controller gave to `create`.
  template <class W, class Factory>
  void add(std::string name, Factory factory) {
    add_program(std::move(name),
                RankProgram{[factory = std::move(factory)](WorkerContext& context,
                                                           std::span<const std::byte> spec) {
                              return own_worker<W>(factory(context, spec));
                            },
                            served_methods<W>()});
  }
  /// Constructs W from WorkerContext&.
  template <class W>
  void add(std::string name) {
    add<W>(std::move(name), [](WorkerContext& context, std::span<const std::byte>) {
      return std::make_unique<W>(context);
    });
  }
  const RankProgram* find(std::string_view name) const;
  std::vector<std::string> names() const;

  /// Without it, groups of several ranks have no collectives and say so.
  void set_collectives(MakeCollective make) { make_collective_ = std::move(make); }
  const MakeCollective& collectives() const { return make_collective_; }
  void set_agent_parts(MakeAgentParts make) { make_agent_parts_ = std::move(make); }
  const MakeAgentParts& agent_parts() const { return make_agent_parts_; }

 private:
  void add_program(std::string name, RankProgram program);
  std::map<std::string, RankProgram, std::less<>> programs_;
  MakeCollective make_collective_;
  MakeAgentParts make_agent_parts_;
};

}  // namespace troupe::runtime
