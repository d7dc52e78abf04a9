#include "runtime/group/group_actors.hpp"

#include "runtime/base/log.hpp"
#include "runtime/caf.hpp"
#include "runtime/group/group_core.hpp"
#include "runtime/group/messages.hpp"

#include <mutex>
#include <utility>

namespace troupe::runtime {
namespace {

using Shell =
    caf::typed_actor<Signature<void, submit_atom, CallMessage>,
                     Signature<StatusMessage, status_atom>, Signature<std::int64_t, heartbeat_atom>,
                     Signature<void, abort_atom, ErrorMessage>,
                     Signature<void, kill_atom, ErrorMessage>>;
using Watch = caf::typed_actor<Signature<void, watch_atom>>;

Shell::behavior_type shell(Shell::pointer self, const Ref<GroupCore>& core, const Ref<Rank>& rank) {
  return {
      [core, rank](submit_atom, const CallMessage& message) {
        rank->push(message.call);
        rank->wake();
      },
      [rank](status_atom) { return StatusMessage{rank->status()}; },
      [rank](heartbeat_atom) { return rank->heartbeat(); },
      [core, rank](abort_atom, const ErrorMessage& message) {
        core->abort(rank->cell().rank, message.error);
      },
      [self, core, rank](kill_atom, const ErrorMessage& message) {
        core->rank_died(rank->cell().rank, message.error, nullptr);
        self->quit(caf::exit_reason::kill);
      },
  };
}

/// What the watch remembers of one rank.
struct Watched {
  Shell shell;
  Ref<Rank> rank;
  std::int64_t heartbeat = -1;
  bool said_stuck = false;
  bool gone = false;
};

struct WatchState {
  Ref<GroupCore> core;
  std::vector<Watched> ranks;
  Monitor monitor;
};

void note_heartbeat(WatchState& state, std::size_t i, std::int64_t heartbeat) {
  Watched& watched = state.ranks[i];
  if (heartbeat != watched.heartbeat) {
    watched.heartbeat = heartbeat;
    watched.said_stuck = false;
    return;
  }
  const RankStatus status = watched.rank->status();
  if (watched.said_stuck || !status.busy ||
      status.busy_seconds < seconds(state.core->options().stuck_after)) {
    return;
  }
  watched.said_stuck = true;
  log::warn("{}: no progress: {}", state.core->options().name, status.to_string());
}

void rank_lost(WatchState& state, std::size_t i, const std::string& why) {
  Watched& watched = state.ranks[i];
  if (std::exchange(watched.gone, true)) return;
  const Error cause{.code = ErrorCode::kRankDead, .message = why, .origin = {}, .causes = {}};
  state.core->rank_died(watched.rank->cell().rank, cause, nullptr);
}

Watch::behavior_type watch(Watch::pointer self, const std::shared_ptr<WatchState>& state) {
  // Plain pointers: the monitor keeps these callbacks and is itself part of the state, which lives
  // as long as the actor's behaviour.
  for (std::size_t i = 0; i < state->ranks.size(); ++i) {
    state->monitor.watch(self, state->ranks[i].shell,
                         [raw = state.get(), i] { rank_lost(*raw, i, "its shell actor ended"); });
  }
  const Duration every = state->core->options().heartbeat;
  const Duration limit = state->core->options().heartbeat_deadline;
  send_later(self, Watch(self), every, watch_atom_v);
  return {[self, state, every, limit](watch_atom) {
    for (std::size_t i = 0; i < state->ranks.size(); ++i) {
      if (state->ranks[i].gone) continue;
      request(self, state->ranks[i].shell, limit, heartbeat_atom_v)
          .then([state, i](std::int64_t heartbeat) { note_heartbeat(*state, i, heartbeat); },
                [state, i, limit](const caf::error&) {
                  rank_lost(*state, i,
                            fmt::format("its shell did not answer in {:.1f} s", seconds(limit)));
                });
    }
    send_later(self, Watch(self), every, watch_atom_v);
  }};
}

}  // namespace

struct GroupActors::Impl {
  ActorSystem& system;
  std::vector<Ref<Rank>> ranks;
  std::mutex mutex;  // guards what follows
  std::vector<Shell> shells;
  Watch watch;
};

GroupActors::GroupActors(ActorSystem& system, const Ref<GroupCore>& core,
                         const std::vector<Ref<Rank>>& ranks)
    : impl_(new Impl{system, ranks, {}, {}, {}}) {
  auto state = std::make_shared<WatchState>();
  state->core = core;
  auto& actors = system.native().system;
  for (const auto& rank : ranks) {
    impl_->shells.push_back(actors.spawn(shell, core, rank));
    state->ranks.push_back(Watched{impl_->shells.back(), rank});
  }
  impl_->watch = actors.spawn(watch, std::move(state));
}

GroupActors::~GroupActors() = default;

void GroupActors::submit(const Ref<Call>& call) {
  const std::lock_guard lock(impl_->mutex);
  for (std::size_t i = 0; i < impl_->shells.size(); ++i) {
    impl_->ranks[i]->fence();
    send_from_outside(impl_->shells[i], submit_atom_v, CallMessage{call});
  }
}

result<std::vector<RankStatus>> GroupActors::status(Deadline deadline) {
  std::vector<Shell> shells;
  {
    const std::lock_guard lock(impl_->mutex);
    shells = impl_->shells;
  }
  std::vector<RankStatus> all;
  caf::scoped_actor self(impl_->system.native().system);
  for (std::size_t i = 0; i < shells.size(); ++i) {
    const auto left = deadline.at - steady_now();
    bool answered = false;
    if (left > Duration::zero()) {
      request(self, shells[i], left, status_atom_v)
          .receive(
              [&](const StatusMessage& message) {
                all.push_back(message.status);
                answered = true;
              },
              [](const caf::error&) {});
    }
    if (answered) continue;
    RankStatus status = impl_->ranks[i]->status();
    if (!status.dead) {
      return fail(ErrorCode::kDeadline, "status: the shell of rank {} did not answer", i);
    }
    all.push_back(std::move(status));
  }
  return all;
}

void GroupActors::kill(RankId rank, Error cause) {
  const std::lock_guard lock(impl_->mutex);
  const auto i = static_cast<std::size_t>(rank.value);
  if (i < impl_->shells.size())
    send_from_outside(impl_->shells[i], kill_atom_v, ErrorMessage{std::move(cause)});
}

void GroupActors::abort(RankId rank, Error cause) {
  const std::lock_guard lock(impl_->mutex);
  const auto i = static_cast<std::size_t>(rank.value);
  if (i < impl_->shells.size())
    send_from_outside(impl_->shells[i], abort_atom_v, ErrorMessage{std::move(cause)});
}

void GroupActors::stop() {
  const std::lock_guard lock(impl_->mutex);
  // The watch first, or it would take the end of the shells for deaths.
  if (impl_->watch) stop_actor(impl_->watch);
  impl_->watch = nullptr;
  for (const auto& shell : impl_->shells) stop_actor(shell);
  impl_->shells.clear();
  impl_->ranks.clear();
}

}  // namespace troupe::runtime
