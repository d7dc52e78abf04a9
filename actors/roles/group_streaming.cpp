#include "actors/roles/group_streaming.hpp"

#include "actors/roles/settled.hpp"
#include "runtime/task/failure.hpp"

#include <string>
#include <utility>

namespace troupe::actors {

using runtime::Failure;
using runtime::task;
using State = RolloutReplicas::State;

std::vector<ReplicaInfo> GroupStreamingRollout::replicas() {
  std::vector<ReplicaInfo> found;
  for (const int replica : replicas_.serving()) {
    const RolloutCapacity& room = replicas_.capacity(replica);
    found.push_back({.replica = RankId{replica},
                     .samples_max = room.samples_max,
                     .tokens_max = room.tokens_max,
                     .lent = replicas_.seat(replica).lent});
  }
  return found;
}

task<AdvanceReply> GroupStreamingRollout::advance(RankId replica, AdvanceRequest request) {
  const int number = replica.value;
  if (number < 0 || number >= replicas_.size())
    runtime::value_or_throw<void>(
        fail(ErrorCode::kInvalidArgument, "advance: replica {} of {}", number, replicas_.size()));
  const std::string& name = replicas_.seat(number).name;
  const auto is_lost = [&](Error why) {
    return Failure(std::move(why).wrap(ErrorCode::kRankDead, fmt::format("{} is lost", name)));
  };
  if (replicas_.state(number) != State::kServing) {
    if (const auto& cause = replicas_.cause(number)) throw is_lost(*cause);
    runtime::value_or_throw<void>(
        fail(ErrorCode::kRankDead, "advance: {} has no weights yet", name));
  }
  const int generation = replicas_.generation(number);
  auto reply = co_await settled(replicas_.group(number).call_with<&RolloutWorker::advance>(
      runtime::CallOptions().within(within_), std::move(request)));
  if (reply) co_return *std::move(reply);
  Error error = std::move(reply).error();
  const bool same = replicas_.generation(number) == generation;
  if (same && error.code == ErrorCode::kDeadline) replicas_.lose(number, error);
  if (!same || replicas_.state(number) != State::kServing) throw is_lost(std::move(error));
  throw Failure(std::move(error));
}

task<void> GroupStreamingRollout::revive(RankId replica) {
  co_await replicas_.revive(replica.value);
}

}  // namespace troupe::actors
