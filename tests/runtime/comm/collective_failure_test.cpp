// Proves that a dead, aborting or late rank ends every peer's operation with an error that names
// it, never with a hang, at every point of a random program; and that a group can be rebuilt.

#include "runtime/base/rng.hpp"
#include "runtime/comm/collective.hpp"
#include "tests/runtime/comm/group_maker.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <thread>

namespace troupe::runtime {
namespace {

Deadline soon() { return Deadline::in(std::chrono::seconds(20)); }
Deadline in_ms(int count) { return Deadline::in(std::chrono::milliseconds(count)); }

class CollectiveFailure : public GroupTest {};
INSTANTIATE_TEST_SUITE_P(Groups, CollectiveFailure,
                         ::testing::Values(GroupKind::kLocal, GroupKind::kGloo), group_kind_name);

/// One step of a program that touches every operation; step decides which.
result<void> step_of_program(Collective& group, int step) {
  const auto size = static_cast<std::size_t>(group.size());
  std::vector<float> data(size * 5, 1.0F);
  switch (step % 8) {
    case 0:
      return group.all_reduce(data, ReduceOp::kSum, soon());
    case 1:
      return group.barrier(soon());
    case 2: {
      std::vector<float> whole(data.size() * size);
      return group.all_gather(data, whole, soon());
    }
    case 3: {
      std::vector<float> part(5);
      return group.reduce_scatter(data, part, ReduceOp::kMax, soon());
    }
    case 4:
      return group.broadcast(data, step % group.size(), soon());
    case 5: {
      auto parts = group.all_gather_bytes(std::as_bytes(std::span(data)), soon());
      if (!parts) return fail(parts.error());
      return {};
    }
    case 6: {
      TROUPE_TRY_VOID(group.send(data, (group.rank() + 1) % group.size(), step, soon()));
      return group.recv(data, (group.rank() + group.size() - 1) % group.size(), step, soon());
    }
    default: {
      auto sub = group.split(group.rank() % 2, 0, soon());
      if (!sub) return fail(sub.error());
      // A sub-group of the dead rank's peers goes on; only its own group notices.
      return {};
    }
  }
}

enum class Death { kDestroyed, kAborted };

void check_death_at(GroupTest& test, Death death, int ranks, int victim, int at_step) {
  auto handles = test.make_group(ranks, {.name = "policy"});
  std::vector<std::optional<Error>> ends(handles.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto handle = std::move(handles[static_cast<std::size_t>(rank)]);
      for (int step = 0; step < at_step + 20; ++step) {
        if (rank == victim && step == at_step) {
          if (death == Death::kAborted) {
            handle->abort(Error{ErrorCode::kInternal, "loss became nan", {}, {}});
          }
          return;  // destroys the handle
        }
        if (auto done = step_of_program(*handle, step); !done) {
          ends[static_cast<std::size_t>(rank)] = done.error();
          // Every later operation fails at once.
          const auto before = std::chrono::steady_clock::now();
          EXPECT_FALSE(handle->barrier(soon()));
          EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
          return;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& end = ends[static_cast<std::size_t>(rank)];
    if (rank == victim) continue;
    ASSERT_TRUE(end) << "rank " << rank << " did not notice, death at step " << at_step;
    // Peers leave too once they fail, so any dead rank may be named where death is silent.
    if (death == Death::kAborted) {
      EXPECT_EQ(end->code, ErrorCode::kAborted) << end->to_string();
      EXPECT_EQ(end->origin.rank, RankId{victim});
      EXPECT_EQ(end->root_cause().message, "loss became nan");
    } else {
      EXPECT_EQ(end->code, ErrorCode::kRankDead) << end->to_string();
    }
  }
}

TEST_P(CollectiveFailure, DeathAtEveryPointEndsEveryPeer) {
  const int stride = over_gloo() ? 3 : 1;  // connecting takes its time
  for (int at_step = 0; at_step < 16; at_step += stride) {
    for (int ranks : {2, 3, 5}) {
      check_death_at(*this, Death::kDestroyed, ranks, at_step % ranks, at_step);
      check_death_at(*this, Death::kAborted, ranks, (at_step + 1) % ranks, at_step);
    }
  }
}

TEST_P(CollectiveFailure, DestroyedHandleIsNamedToWaitingAndLaterCallers) {
  auto handles = make_group(3, {.name = "policy"});
  std::thread waiting([&] {
    const auto done = handles[0]->barrier(soon());
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::kRankDead);
    EXPECT_EQ(done.error().origin.rank, RankId{2});
    EXPECT_NE(done.error().message.find("policy: rank 2 is gone"), std::string::npos);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  handles[2].reset();
  waiting.join();
  EXPECT_EQ(handles[1]->barrier(soon()).error().origin.rank, RankId{2});
  EXPECT_EQ(handles[1]->failure()->code, ErrorCode::kRankDead);
}

TEST_P(CollectiveFailure, LateRankIsNamedAndThenFailsItself) {
  auto handles = make_group(4, {.name = "policy"});
  std::vector<std::thread> threads;
  for (std::size_t rank : {0U, 2U}) {
    threads.emplace_back([&, rank] {
      std::vector<float> data(12);
      const auto done = handles[rank]->all_reduce(data, ReduceOp::kSum, in_ms(1500));
      ASSERT_FALSE(done);
      EXPECT_EQ(done.error().code, ErrorCode::kDeadline);
      const std::string& message = done.error().message;
      EXPECT_NE(message.find("missing rank 1, rank 3"), std::string::npos) << message;
      EXPECT_NE(message.find("all_reduce(sum, f32 × 12)"), std::string::npos) << message;
    });
  }
  for (auto& thread : threads) thread.join();
  std::vector<float> data(12);
  EXPECT_EQ(handles[1]->all_reduce(data, ReduceOp::kSum, soon()).error().code,
            ErrorCode::kDeadline);
}

TEST_P(CollectiveFailure, AnOperationSucceedsOnAllRanksOrOnNone) {
  for (std::uint64_t seed = 0; seed < (over_gloo() ? 20 : 60); ++seed) {
    Rng rng(seed);
    auto handles = make_group(4);
    std::vector<int> succeeded(4, 0);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const auto pause = std::chrono::microseconds(rng.below(1500));
      const auto limit = Deadline::in(std::chrono::microseconds(500 + rng.below(1500)));
      threads.emplace_back([&, rank, pause, limit] {
        std::this_thread::sleep_for(pause);
        std::vector<float> data(1000, 1.0F);
        succeeded[rank] = handles[rank]->all_reduce(data, ReduceOp::kSum, limit).has_value();
        if (succeeded[rank]) {
          EXPECT_EQ(data, std::vector<float>(1000, 4.0F));
        }
      });
    }
    for (auto& thread : threads) thread.join();
    const int total = std::accumulate(succeeded.begin(), succeeded.end(), 0);
    EXPECT_TRUE(total == 0 || total == 4) << total << " of 4 succeeded, seed " << seed;
  }
}

TEST_P(CollectiveFailure, AbortReachesSubGroupsAndPointToPoint) {
  auto handles = make_group(4, {.name = "policy"});
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      auto sub = handles[rank]->split(static_cast<int>(rank / 2), 0, soon());
      ASSERT_TRUE(sub);
      std::vector<float> data(1);
      if (rank == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        handles[0]->abort(Error{ErrorCode::kIo, "disk full", {}, {}});
      } else if (rank == 1) {
        const auto done = (*sub)->barrier(soon());  // rank 0 never comes
        ASSERT_FALSE(done);
        EXPECT_EQ(done.error().code, ErrorCode::kAborted);
        EXPECT_EQ(done.error().root_cause().message, "disk full");
      } else if (rank == 2) {
        const auto done = handles[2]->recv(data, 0, 0, soon());
        ASSERT_FALSE(done);
        EXPECT_EQ(done.error().root_cause().message, "disk full");
      } else {
        const auto done = (*sub)->recv(data, 0, 0, soon());
        ASSERT_FALSE(done);
        EXPECT_EQ(done.error().root_cause().message, "disk full");
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_P(CollectiveFailure, MessagesOfARankThatLeftInGoodOrderAreStillHeard) {
  auto handles = make_group(2);
  ASSERT_TRUE(handles[0]->send(std::vector<float>{7}, 1, 0, soon()));
  handles[0].reset();
  std::vector<float> got(1);
  ASSERT_TRUE(handles[1]->recv(got, 0, 0, soon()));
  EXPECT_EQ(got[0], 7);
  EXPECT_EQ(handles[1]->recv(got, 0, 0, soon()).error().code, ErrorCode::kRankDead);
  EXPECT_EQ(handles[1]->send(got, 0, 0, soon()).error().code, ErrorCode::kRankDead);
}

TEST_P(CollectiveFailure, ReceiveDeadlineIsLocal) {
  auto handles = make_group(2);
  std::vector<float> got(1);
  const auto done = handles[1]->recv(got, 0, 3, in_ms(20));
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kDeadline);
  EXPECT_NE(done.error().message.find("tag 3"), std::string::npos);
  EXPECT_FALSE(handles[1]->failure());
  ASSERT_TRUE(handles[0]->send(std::vector<float>{1}, 1, 3, soon()));
  EXPECT_TRUE(handles[1]->recv(got, 0, 3, soon()));
}

TEST_P(CollectiveFailure, FirstCauseStays) {
  auto handles = make_group(3);
  handles[1]->abort(Error{ErrorCode::kInternal, "first", {}, {}});
  handles[2]->abort(Error{ErrorCode::kInternal, "second", {}, {}});
  handles[2].reset();
  EXPECT_EQ(handles[0]->barrier(soon()).error().root_cause().message, "first");
}

TEST_P(CollectiveFailure, RebuildUnderANewEpochWorksAgainAndForgetsOldMessages) {
  auto handles = make_group(3);
  ASSERT_TRUE(handles[0]->send(std::vector<float>{9}, 1, 0, soon()));
  handles[1]->abort(Error{ErrorCode::kInternal, "gone wrong", {}, {}});
  std::vector<std::thread> threads;
  for (auto& handle : handles) {
    threads.emplace_back([&handle] {
      EXPECT_FALSE(handle->barrier(soon()));
      ASSERT_TRUE(handle->rebuild(5, soon()));
      EXPECT_EQ(handle->epoch(), 5);
      EXPECT_EQ(*all_reduce_value(*handle, 1.0, ReduceOp::kSum, soon()), 3.0);
    });
  }
  for (auto& thread : threads) thread.join();
  std::vector<float> got(1);
  EXPECT_EQ(handles[1]->recv(got, 0, 0, in_ms(10)).error().code, ErrorCode::kDeadline);
  EXPECT_EQ(handles[0]->rebuild(5, soon()).error().code, ErrorCode::kInvalidArgument);
}

TEST_P(CollectiveFailure, RebuildNeedsEveryRankAndOneEpoch) {
  auto handles = make_group(2);
  const auto late = handles[0]->rebuild(1, in_ms(20));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kDeadline);
  EXPECT_NE(late.error().message.find("missing rank 1"), std::string::npos);
  std::thread first(
      [&] { EXPECT_EQ(handles[0]->rebuild(1, soon()).error().code, ErrorCode::kConflict); });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(handles[1]->rebuild(2, soon()).error().code, ErrorCode::kConflict);
  first.join();
  std::thread waiting(
      [&] { EXPECT_EQ(handles[0]->rebuild(3, soon()).error().code, ErrorCode::kRankDead); });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  handles[1].reset();
  waiting.join();
}

TEST_P(CollectiveFailure, ReplacedRankJoinsByRebuild) {
  auto handles = make_group(3);
  if (!over_gloo()) {  // where the replacement is a new process, which knows of no survivor
    EXPECT_EQ(replace_rank(*handles[0], 1).error().code, ErrorCode::kAlreadyExists);
    EXPECT_EQ(replace_rank(*handles[0], 3).error().code, ErrorCode::kInvalidArgument);
  }
  handles[1].reset();
  EXPECT_EQ(handles[0]->rebuild(1, soon()).error().code, ErrorCode::kRankDead);
  handles[1] = replace(*handles[0], 1);
  ASSERT_TRUE(handles[1]);
  EXPECT_EQ(handles[1]->barrier(soon()).error().code, ErrorCode::kRankDead);  // not before rebuild
  std::vector<std::thread> threads;
  for (auto& handle : handles) {
    threads.emplace_back([&handle] {
      const auto rebuilt = handle->rebuild(1, soon());
      ASSERT_TRUE(rebuilt) << rebuilt.error().to_string();
      EXPECT_EQ(*all_reduce_value(*handle, std::int64_t{handle->rank()}, ReduceOp::kSum, soon()),
                3);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_P(CollectiveFailure, ARankThatRebuildsReleasesPeersWaitingInAnOperation) {
  auto handles = make_group(2);
  std::thread peer([&] {
    EXPECT_EQ(handles[1]->barrier(soon()).error().code, ErrorCode::kAborted);
    EXPECT_TRUE(handles[1]->rebuild(1, soon()));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(handles[0]->rebuild(1, soon()));
  peer.join();
}

}  // namespace
}  // namespace troupe::runtime
