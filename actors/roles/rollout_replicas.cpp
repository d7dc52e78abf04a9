#include "actors/roles/rollout_replicas.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/task/failure.hpp"

#include <utility>

namespace troupe::actors {

using runtime::Failure;
using runtime::task;

result<std::unique_ptr<RolloutReplicas>> RolloutReplicas::create(Make make,
                                                                 std::vector<RolloutSeat> seats,
                                                                 Turnstile& publishing,
                                                                 const ReplicaOptions& options) {
  std::unique_ptr<RolloutReplicas> made(new RolloutReplicas(std::move(make), publishing, options));
  std::vector<runtime::pending<Made>> starting;
  for (RolloutSeat& seat : seats) {
    Slot& slot = made->slots_.emplace_back();
    slot.seat = std::move(seat);
    starting.push_back(made->start_making(slot, options.create_within, nullptr));
  }
  const Deadline until = Deadline::in(options.create_within + options.revive_within);
  for (std::size_t i = 0; i < starting.size(); ++i) {
    TROUPE_TRY(Made one, starting[i].wait(until));
    made->slots_[i].group = std::move(one.group);
    made->slots_[i].capacity = one.capacity;
  }
  return made;
}

runtime::pending<RolloutReplicas::Made> RolloutReplicas::start_making(
    Slot& slot, Duration within, std::unique_ptr<Group> predecessor) {
  const GroupMaking making{.generation = slot.generation, .within = within};
  return slot.job.run<Made>([make = make_, making, seat = slot.seat,
                             predecessor = std::move(predecessor)]() mutable -> result<Made> {
    predecessor.reset();  // what it still holds of its devices must be free
    Made made;
    TROUPE_TRY(Group group, make(making, seat));
    made.group = std::make_unique<Group>(std::move(group));
    TROUPE_TRY(made.capacity, made.group->template call<&RolloutWorker::capacity>().wait(
                                  Deadline::in(making.within)));
    return made;
  });
}

RolloutReplicas::State RolloutReplicas::state(int replica) {
  Slot& slot = at(replica);
  if (slot.state == State::kFresh || slot.state == State::kServing) {
    if (auto cause = slot.group->dead_cause()) note_lost(replica, *std::move(cause));
  }
  return slot.state;
}

RolloutReplicas::Group& RolloutReplicas::group(int replica) {
  Slot& slot = at(replica);
  TROUPE_CHECK(slot.group != nullptr, "{}: it is being made anew", slot.seat.name);
  return *slot.group;
}

std::vector<int> RolloutReplicas::alive() {
  std::vector<int> found;
  for (int replica = 0; replica < size(); ++replica) {
    const State now = state(replica);
    if (now == State::kFresh || now == State::kServing) found.push_back(replica);
  }
  return found;
}

std::vector<int> RolloutReplicas::serving() {
  std::vector<int> found;
  for (int replica = 0; replica < size(); ++replica) {
    if (state(replica) == State::kServing) found.push_back(replica);
  }
  return found;
}

void RolloutReplicas::set_serving(int replica) {
  if (state(replica) == State::kFresh) at(replica).state = State::kServing;
}

void RolloutReplicas::note_lost(int replica, Error cause) {
  Slot& slot = at(replica);
  slot.state = State::kLost;
  ++losses_;
  if (options_.survive) log::warn("{} is lost: {}", slot.seat.name, cause.to_string());
  last_loss_ = cause;
  slot.cause = std::move(cause);
}

void RolloutReplicas::lose(int replica, Error cause) {
  const State now = state(replica);
  if (now != State::kFresh && now != State::kServing) return;
  Group& group = *at(replica).group;
  for (int rank = 0; rank < group.size(); ++rank) group.kill(RankId{rank}, cause);
  note_lost(replica, std::move(cause));
}

task<void> RolloutReplicas::revive(int replica) {
  Slot& slot = at(replica);
  if (state(replica) != State::kLost)
    runtime::value_or_throw<void>(fail(ErrorCode::kConflict, "{}: it is not lost", slot.seat.name));
  if (slot.generation > options_.revives_max)
    throw Failure(Error(*slot.cause)
                      .wrap(ErrorCode::kResourceExhausted,
                            fmt::format("{}: lost again after it was made anew {} times",
                                        slot.seat.name, options_.revives_max)));
  slot.state = State::kReviving;
  std::optional<Error> failed;
  try {
    {
      const Turnstile::Pass pass = co_await publishing_.enter();
      ++slot.generation;
    }
    Made made = co_await start_making(slot, options_.revive_within, std::move(slot.group));
    slot.group = std::move(made.group);
    slot.capacity = made.capacity;
    slot.state = State::kFresh;
    ++revivals_;
    co_return;
  } catch (const Failure& failure) {
    failed = failure.error();
  }
  slot.state = State::kLost;
  slot.cause = *failed;
  last_loss_ = *failed;
  throw Failure(*std::move(failed));
}

std::optional<Error> RolloutReplicas::dead_cause() {
  bool any_left = false;
  for (int replica = 0; replica < size(); ++replica) {
    const State now = state(replica);
    if (now == State::kLost && !options_.survive) return at(replica).cause;
    any_left = any_left || now != State::kLost;
  }
  return any_left ? std::nullopt : last_loss_;
}

}  // namespace troupe::actors
