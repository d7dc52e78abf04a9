// Proves with child processes that a group ends well whatever happens to its ranks and its
// controller: killed and stopped ranks (idle, in a call, in a constructor), ranks of another build,
// strangers that dial in, arguments that are too large, and that nothing is left behind.

#include "runtime/base/log.hpp"
#include "tests/runtime/rank_host/rank_worlds.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>

namespace troupe::runtime::testing {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

Deadline soon() { return Deadline::in(20s); }

class RemoteFaults : public ::testing::Test {
 protected:
  WorkerGroup<Actor> group(int ranks, const ActorSpec& spec = {}) {
    auto made = world_.create(ranks, spec);
    TROUPE_CHECK(made, "{}", made.error().to_string());
    return std::move(*made);
  }
  int pid_of(int rank) { return world_.processes().pid_of("policy", RankId{rank}); }
  World world_{Kind::kProcesses};
};

TEST_F(RemoteFaults, ARankKilledInACallIsTheCauseWithItsSignal) {
  auto actors = group(3);
  const std::string door = world_.door();
  auto waiting = actors.call<&Actor::wait_at_door>(door);
  auto queued = actors.call<&Actor::echo>(1);
  ASSERT_TRUE(World::inside(door, 3));
  const auto at = SteadyClock().now();
  kill(pid_of(1), SIGKILL);
  const auto ended = waiting.wait(soon());
  ASSERT_FALSE(ended);
  EXPECT_LT(SteadyClock().now() - at, 3s);
  EXPECT_EQ(ended.error().code, ErrorCode::kRankDead);
  EXPECT_EQ(ended.error().origin.rank, RankId{1});
  EXPECT_THAT(ended.error().message, HasSubstr("signal 9 (SIGKILL)"));
  EXPECT_THAT(ended.error().message, ::testing::StartsWith("wait_at_door: policy rank 1"));
  const auto later = queued.wait(soon());
  ASSERT_FALSE(later);
  EXPECT_EQ(later.error().code, ErrorCode::kRankDead);
  EXPECT_THAT(later.error().to_string(), HasSubstr("SIGKILL"));
}

TEST_F(RemoteFaults, ARankKilledWhileIdleEndsTheNextCallWithItsCause) {
  auto actors = group(2);
  ASSERT_TRUE(actors.call<&Actor::echo>(1).wait(soon()));
  kill(pid_of(0), SIGKILL);
  ASSERT_TRUE(becomes_true([&] { return actors.dead_cause().has_value(); }));
  EXPECT_THAT(actors.dead_cause()->message, HasSubstr("SIGKILL"));
  const auto later = actors.call<&Actor::echo>(1).wait(soon());
  ASSERT_FALSE(later);
  EXPECT_EQ(later.error().code, ErrorCode::kRankDead);
}

TEST_F(RemoteFaults, PeersInACollectiveAreFreedWhenARankDies) {
  auto actors = group(3);
  const auto at = SteadyClock().now();
  const auto ended = actors.call<&Actor::kill_before_sum>(2).wait(soon());
  ASSERT_FALSE(ended);
  EXPECT_THAT(ended.error().to_string(), AnyOf(HasSubstr("SIGKILL"), HasSubstr("rank 2")));
  ASSERT_TRUE(becomes_true([&] { return actors.dead_cause().has_value(); }));
  EXPECT_THAT(actors.dead_cause()->message, HasSubstr("SIGKILL"));
  EXPECT_LT(SteadyClock().now() - at, 5s);
}

TEST_F(RemoteFaults, AStoppedRankIsDeadWithinItsSilenceAndThenKilled) {
  auto actors = group(2);
  const std::string door = world_.door();
  auto waiting = actors.call<&Actor::wait_at_door>(door);
  ASSERT_TRUE(World::inside(door, 2));
  const int stopped = pid_of(1);
  const auto at = SteadyClock().now();
  kill(stopped, SIGSTOP);
  const auto ended = waiting.wait(soon());
  ASSERT_FALSE(ended);
  EXPECT_LT(SteadyClock().now() - at, 4s);
  EXPECT_GT(SteadyClock().now() - at, 2s);
  EXPECT_EQ(ended.error().origin.rank, RankId{1});
  EXPECT_THAT(ended.error().to_string(), AnyOf(HasSubstr("silent"), HasSubstr("did not answer")));
  EXPECT_TRUE(becomes_true([&] { return pid_of(1) == 0; }));
}

TEST_F(RemoteFaults, ARankThatDiesInItsConstructorIsTheErrorOfCreate) {
  const auto at = SteadyClock().now();
  auto failed = world_.create(3, {.kill_rank = 2, .meet = true});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().origin.rank, RankId{2});
  EXPECT_THAT(failed.error().to_string(), HasSubstr("SIGKILL"));
  EXPECT_LT(SteadyClock().now() - at, 8s);
}

TEST_F(RemoteFaults, AConstructorThatHangsEndsAtTheCreateDeadline) {
  GroupOptions options;
  options.name = "policy";
  options.mesh = Mesh::data_parallel(2);
  options.create_deadline = 700ms;
  options.shutdown_wait = 300ms;
  const auto at = SteadyClock().now();
  auto failed = world_.create(options, {.hang_rank = 1});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(failed.error().message, HasSubstr("1 of 2 workers were constructed"));
  EXPECT_LT(SteadyClock().now() - at, 6s);
  EXPECT_TRUE(becomes_true([&] { return world_.processes().size() == 0; }));
}

TEST_F(RemoteFaults, AProgramThatIsNotThereOrEndsEarlyIsSaid) {
  RemoteProgram missing{.name = "actor", .command = {"/nowhere/rank"}};
  auto failed = WorkerGroup<Actor>::create(world_.job(), {.name = "a"}, missing);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().to_string(), HasSubstr("/nowhere/rank"));
  RemoteProgram early{.name = "actor", .command = {"/bin/false"}};
  failed = WorkerGroup<Actor>::create(world_.job(), {.name = "b"}, early);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().to_string(), HasSubstr("ended before it had connected"));
  EXPECT_THAT(failed.error().to_string(), HasSubstr("code 1"));
  failed = WorkerGroup<Actor>::create(world_.job(), {.name = "c"}, {.name = "unheard_of"});
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().to_string(),
              HasSubstr("no program 'unheard_of', it has actor, other"));
}

TEST_F(RemoteFaults, AnotherBuildOfTheWorkerIsRefused) {
  auto failed = WorkerGroup<Actor>::create(world_.job(), {.name = "a"}, {.name = "other"});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kConflict);
  EXPECT_THAT(failed.error().message, HasSubstr("program other: method echo has signature"));
}

TEST_F(RemoteFaults, NamesAreUniqueAndPlain) {
  auto actors = group(1);
  auto again = world_.create(1);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kAlreadyExists);
  GroupOptions options;
  options.name = "a/b";
  EXPECT_EQ(world_.create(options).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(actors.call<&Actor::echo>(1).wait(soon()));
}

TEST_F(RemoteFaults, StrangersAreRefused) {
  auto actors = group(1);
  struct Deaf final : ChannelService {
    void on_request(Channel&, std::string_view, std::span<const std::byte>, Deadline,
                    Responder) override {}
  };
  for (const std::string name : {"test/policy/0", "test/policy/7", "other/policy/0"}) {
    LinkOptions options;
    options.self = PeerName{PeerRole::kRank, name};
    auto hub = LinkHub::open(world_.system(), options);
    ASSERT_TRUE(hub);
    auto channel = (*hub)->connect(world_.job().address(), std::make_shared<Deaf>(), soon());
    const auto refused = channel.wait(soon());
    ASSERT_FALSE(refused) << name;
    EXPECT_THAT(refused.error().to_string(), AnyOf(HasSubstr("not expected"), HasSubstr("before")));
  }
  EXPECT_THAT(actors.call<&Actor::echo>(1).wait(soon()).value(), ElementsAre(10));
}

TEST_F(RemoteFaults, ATypeWithoutAWireFormIsRefusedByName) {
  auto actors = group(1);
  int number = 3;
  const auto refused = actors.call<&Actor::pointer>(&number).wait(soon());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("pointer: argument 0: "));
}

TEST(RemoteGroup, WithoutAnExchangeLargeArgumentsAreRefusedByName) {
  World world(Kind::kProcesses, {.exchange = false});
  auto actors = world.create(1);
  ASSERT_TRUE(actors) << actors.error().to_string();
  const auto refused = actors->call<&Actor::count>(std::vector<float>(300'000)).wait(soon());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("count: argument 0: 1200"));
  const auto large = actors->call<&Actor::numbers>(300'000).wait(soon());
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code, ErrorCode::kResourceExhausted);
  Batch batch;
  ASSERT_TRUE(batch.set("x", Column::dense<float>({1, 2, 3})));
  EXPECT_TRUE(actors->call<&Actor::score>(batch).wait(soon()));
}

TEST(RemoteGroup, RanksJoinWithTheTokenOnly) {
  World world(Kind::kProcesses, {.token = std::string(64, 'a')});
  {
    auto actors = world.create(2);
    ASSERT_TRUE(actors) << actors.error().to_string();
    EXPECT_TRUE(actors->call<&Actor::sum>(1.0).wait(soon()));
  }
  struct Deaf final : ChannelService {
    void on_request(Channel&, std::string_view, std::span<const std::byte>, Deadline,
                    Responder) override {}
  };
  LinkOptions options;
  options.self = PeerName{PeerRole::kRank, "test/policy/0"};
  options.token = std::string(64, 'b');
  auto hub = LinkHub::open(world.system(), options);
  ASSERT_TRUE(hub);
  auto channel = (*hub)->connect(world.job().address(), std::make_shared<Deaf>(), soon());
  EXPECT_FALSE(channel.wait(soon()));
}

TEST_F(RemoteFaults, TenThousandCallsKeepTheirOrder) {
  GroupOptions options;
  options.name = "policy";
  options.mesh = Mesh::data_parallel(2);
  options.calls_max = 20'000;
  auto actors = world_.create(options);
  ASSERT_TRUE(actors) << actors.error().to_string();
  std::vector<pending<std::vector<int>>> calls;
  for (int i = 0; i < 5'000; ++i) {
    actors->call<&Actor::append>(i).forget();
    calls.push_back(actors->call<&Actor::echo>(i));
  }
  for (int i = 0; i < 5'000; ++i) {
    const auto echo = calls[static_cast<std::size_t>(i)].wait(soon());
    ASSERT_TRUE(echo) << echo.error().to_string();
    ASSERT_THAT(*echo, ElementsAre(i * 10, i * 10 + 1));
  }
  const auto history = actors->call<&Actor::history>().wait(soon());
  ASSERT_TRUE(history);
  ASSERT_EQ(history->at(0).size(), 5'000U);
  for (int i = 0; i < 5'000; ++i) ASSERT_EQ(history->at(1)[static_cast<std::size_t>(i)], i);
}

TEST_F(RemoteFaults, DestroyingAGroupWithAStuckEngineKillsTheProcess) {
  GroupOptions options;
  options.name = "policy";
  options.mesh = Mesh::data_parallel(2);
  options.shutdown_wait = 300ms;
  pending<std::vector<int>> waiting;
  const auto at = SteadyClock().now();
  {
    auto actors = world_.create(options);
    ASSERT_TRUE(actors) << actors.error().to_string();
    const std::string door = world_.door();
    waiting = actors->call<&Actor::wait_at_door>(door);
    ASSERT_TRUE(World::inside(door, 2));
  }
  EXPECT_LT(SteadyClock().now() - at, 5s);
  const auto ended = waiting.wait(soon());
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(becomes_true([&] { return world_.processes().size() == 0; }));
}

/// A child that is a controller of its own, with one rank that waits at a door.
int run_controller(const std::string& door, const std::string& pid_file) {
  World world(Kind::kProcesses);
  auto actors = world.create(1);
  if (!actors) return 1;
  std::ofstream(pid_file) << actors->call<&Actor::pid>().wait(soon()).value().at(0) << std::endl;
  (void)actors->call<&Actor::wait_at_door>(door).wait(Deadline::in(60s));
  return 0;
}

TEST(RemoteGroup, RanksEndWhenTheirControllerIsStopped) {
  World folder(Kind::kThreads);
  const std::string door = folder.door();
  const std::string pid_file = folder.door();
  // By exec, since a fork of a process with threads may not go on.
  const pid_t controller = fork();
  ASSERT_GE(controller, 0);
  if (controller == 0) {
    setenv("TROUPE_TEST_ROLE", (door + "\n" + pid_file).c_str(), 1);
    execl("/proc/self/exe", "controller", nullptr);
    _exit(127);
  }
  ASSERT_TRUE(World::inside(door, 1));
  int rank = 0;
  std::ifstream(pid_file) >> rank;
  ASSERT_GT(rank, 1);
  const auto at = SteadyClock().now();
  kill(controller, SIGSTOP);
  // Its rank hears nothing for 3 s and goes, though its engine is stuck; as a zombie of the stopped
  // controller its id stays.
  EXPECT_TRUE(becomes_true([&] {
    std::ifstream stat("/proc/" + std::to_string(rank) + "/stat");
    std::string text;
    std::getline(stat, text);
    return text.empty() || text.find(") Z ") != std::string::npos;
  }));
  EXPECT_LT(SteadyClock().now() - at, 8s);
  kill(controller, SIGKILL);
  waitpid(controller, nullptr, 0);
}

std::size_t entries_of(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

TEST(RemoteGroup, NothingIsLeftBehind) {
  const auto round = [] {
    World world(Kind::kProcesses);
    for (int i = 0; i < 2; ++i) {
      auto actors = world.create(2);
      ASSERT_TRUE(actors) << actors.error().to_string();
      ASSERT_TRUE(actors->call<&Actor::sum>(1.0).wait(soon()));
      if (i == 1) (void)actors->call<&Actor::kill_on>(1, SIGKILL).wait(soon());
    }
  };
  round();  // what is made once
  const std::size_t files = entries_of("/proc/self/fd");
  const std::size_t threads = entries_of("/proc/self/task");
  round();
  round();
  EXPECT_TRUE(becomes_true([&] {
    return entries_of("/proc/self/fd") <= files && entries_of("/proc/self/task") <= threads;
  })) << entries_of("/proc/self/fd")
      << " files, before " << files << "; " << entries_of("/proc/self/task") << " threads, before "
      << threads;
}

const bool kRoleIsSet = [] {
  test_role = [](const std::string& role) {
    const std::size_t line = role.find('\n');
    return run_controller(role.substr(0, line), role.substr(line + 1));
  };
  return true;
}();

}  // namespace
}  // namespace troupe::runtime::testing
