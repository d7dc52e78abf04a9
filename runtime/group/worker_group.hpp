#pragma once

// `WorkerGroup<W>`: a set of ranks, each with one `W`, called as one object.
//
//   auto group = WorkerGroup<PolicyWorker>::create(system, {.name = "policy", .mesh = mesh},
//       [](WorkerContext& context) { return std::make_unique<PolicyWorker>(context); });
//   pending<Batch> scored = group->call<&PolicyWorker::log_probs>(batch);   // started already
//
// W lists its methods in `static constexpr auto methods()`, see dispatch.hpp. A rank is a shell (a
// typed CAF actor: status, heartbeat, abort, kill; it answers while the engine is busy or stuck) in
// front of an engine thread that constructs W and runs its methods, and may block in collectives.
// Ranks are threads of this process, or processes of a `ClusterJob` (docs/remote_groups.md): the
// same calls, and all that is said here holds for both.
// Ownership: the caller owns the group; the actor system, lanes and trace outlive it.
// **Threads:** `call` from any thread; calls of one group are FIFO in the order of their
// submission. Destruction blocks for at most `shutdown_wait`.
// **Invariants:** a call ends in exactly one of: its result; an error that names group, method,
// rank and cause; kDeadline. An error result or `Failure` of one rank ends the call at once, frees
// peers that wait for that rank in a collective, and leaves the group usable. A failed CHECK or a
// foreign exception kills the rank: peers get kAborted, the call in progress ends with that cause,
// and later calls end at once with kRankDead naming it. Destroying the group ends all calls with
// kCancelled, also when an engine is stuck: its thread is then left behind with a warning.
// A call that is cancelled before any rank began it runs on none; after that it runs on all.
// **Cost:** parts are split once, ranks share them, and payload columns are not copied. A call goes
// straight into the engines' queues and the shells only observe: through the shells it costs one
// actor message per rank more and gives nothing, since a shell must never hold a call back. p50 of
// call and gather, bench/dispatch on 2 cores with other work: direct 36 µs at 8 ranks and 230 µs
// at 64, through the shells 52 to 87 and 330 to 445; waking bare threads 56 and 225.

#include "runtime/group/dispatch.hpp"
#include "runtime/group/group_core.hpp"
#include "runtime/group/local_ranks.hpp"
#include "runtime/group/remote_program.hpp"
#include "runtime/group/typed_call.hpp"
#include "runtime/task/pending.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe::runtime {

template <class W>
class WorkerGroup {
 public:
  using Worker = W;

  /// Constructs one worker per rank with `factory(WorkerContext&)`, which returns
  /// `std::unique_ptr<W>` or a result of it, on the rank's own engine thread; ranks construct in
  /// parallel and may use collectives. The error names group, rank and cause. W may be a base
  /// class of what the factory makes.
  template <class Factory>
  static result<WorkerGroup> create(ActorSystem& system, GroupOptions options, Factory factory) {
    TROUPE_TRY(auto plan, plan_group<W>(options.mesh));
    MakeWorker make = [factory = std::move(factory)](WorkerContext& context) {
      return own_worker<W>(factory(context));
    };
    TROUPE_TRY(auto core, GroupCore::create(system, std::move(options),
                                            std::make_unique<LocalRanks>(system, std::move(make))));
    return WorkerGroup(std::move(core), std::move(plan));
  }
  /// With workers made by W's constructor from WorkerContext&.
  static result<WorkerGroup> create(ActorSystem& system, GroupOptions options) {
    return create(system, std::move(options),
                  [](WorkerContext& context) { return std::make_unique<W>(context); });
  }

  /// Ranks are processes that run `program`, whose RankPrograms has a W of the same declaration
  /// under its name. Link `runtime_remote_group`.
  static result<WorkerGroup> create(ClusterJob& job, GroupOptions options, RemoteProgram program) {
    TROUPE_TRY(auto plan, plan_group<W>(options.mesh));
    std::vector<std::pair<std::string, std::uint64_t>> methods;
    for (const ServedMethod& method : served_methods<W>())
      methods.emplace_back(std::string(method.name), method.signature);
    TROUPE_TRY(auto core,
               GroupCore::create(actor_system_of(job), std::move(options),
                                 make_remote_ranks(job, std::move(program), std::move(methods))));
    return WorkerGroup(std::move(core), std::move(plan));
  }

  WorkerGroup(WorkerGroup&&) noexcept = default;
  WorkerGroup& operator=(WorkerGroup&& other) noexcept {
    if (this != &other) {
      if (core_) core_->shutdown();
      core_ = std::move(other.core_);
      plan_ = std::move(other.plan_);
    }
    return *this;
  }
  ~WorkerGroup() {
    if (core_) core_->shutdown();
  }

  /// Starts the method on all ranks. Never throws and never blocks; all errors are in the pending.
  template <auto M, class... Given>
  auto call(Given&&... given) {
    return call_with<M>(CallOptions{}, std::forward<Given>(given)...);
  }

  template <auto M, class... Given>
  auto call_with(const CallOptions& options, Given&&... given) {
    constexpr CallFault kFault = call_fault<W, M, Given...>();
    static_assert(kFault != CallFault::kUnregistered,
                  "group.call: this method is not in the worker's methods()");
    static_assert(kFault != CallFault::kWrongCount,
                  "group.call: wrong number of arguments for this method");
    static_assert(kFault != CallFault::kWrongType,
                  "group.call: an argument does not convert to the method's parameter type (a "
                  "per_rank argument is a std::vector of it, one per rank)");
    if constexpr (kFault == CallFault::kNone) {
      using Typed = TypedCall<W, M>;
      auto ends = make_pending<typename Typed::Outcome>();
      const auto deadline =
          options.deadline().value_or(Deadline::in(core_->options().call_deadline));
      auto typed = make_ref<Typed>(plan_, std::move(ends.second), deadline);
      auto ready = typed->set_arguments(std::forward<Given>(given)...);
      if (!ready) {
        typed->fail(std::move(ready).error().at({.group = name(), .rank = {}, .node = {}}));
        return std::move(ends.first);
      }
      ends.first.shared()->set_hook([core = core_, typed](const Error&) { core->abandon(*typed); });
      core_->submit(typed, options.cancel());
      return std::move(ends.first);
    }
  }

  const std::string& name() const { return core_->options().name; }
  const Mesh& mesh() const { return core_->options().mesh; }
  int size() const { return mesh().size(); }
  std::size_t calls_open() const { return core_->calls_open(); }
  /// Why the group cannot be called any more, if so.
  std::optional<Error> dead_cause() const { return core_->dead_cause(); }
  /// Asks all shells; blocks until they answered or `deadline`.
  result<std::vector<RankStatus>> status(
      Deadline deadline = Deadline::in(std::chrono::seconds(3))) const {
    return core_->status(deadline);
  }
  /// Kills one rank, as a supervisor would: the group is dead afterwards.
  void kill(RankId rank, Error cause) { core_->kill(rank, std::move(cause)); }
  /// Frees ranks that wait in collectives; their call ends with kAborted and `cause`.
  void abort(Error cause) { core_->request_abort(RankId{0}, std::move(cause)); }

 private:
  WorkerGroup(Ref<GroupCore> core, Ref<const GroupPlan> plan)
      : core_(std::move(core)), plan_(std::move(plan)) {}

  Ref<GroupCore> core_;
  Ref<const GroupPlan> plan_;
};

}  // namespace troupe::runtime
