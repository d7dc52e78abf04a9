// Proves that a worker group behaves the same wherever its ranks run: every test runs with ranks as
// threads, as rank servers behind in-memory channels, and as child processes with Gloo between
// them.

#include "runtime/group/call_trace.hpp"
#include "tests/runtime/rank_host/rank_worlds.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::runtime::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

class Behaviour : public ::testing::TestWithParam<Kind> {
 protected:
  WorkerGroup<Actor> group(int ranks, const ActorSpec& spec = {}) {
    auto made = world_.create(ranks, spec);
    TROUPE_CHECK(made, "{}", made.error().to_string());
    return std::move(*made);
  }
  World world_{GetParam()};
};

Deadline soon() { return Deadline::in(20s); }

TEST_P(Behaviour, CallsRunOnAllRanksAndResultsCome) {
  auto actors = group(3);
  EXPECT_THAT(actors.call<&Actor::echo>(4).wait(soon()).value(), ElementsAre(40, 41, 42));
  const Summary summary{"numbers:", {1.5, -2}};
  const std::vector<std::map<std::string, int>> numbers{{{"a", 1}}, {}, {{"b", 2}, {"c", 3}}};
  const auto described = actors.call<&Actor::describe>(summary, numbers).wait(soon());
  ASSERT_TRUE(described) << described.error().to_string();
  EXPECT_EQ(described->at(0).text, "numbers: a=1");
  EXPECT_EQ(described->at(2).text, "numbers: b=2 c=3");
  EXPECT_THAT(described->at(1).numbers, ElementsAre(1.5, -2, 1));
  EXPECT_THAT(actors.call<&Actor::double_all>(std::vector<int>{1, 2, 3, 4}).wait(soon()).value(),
              ElementsAre(2, 4, 6, 8));
  const auto metrics = actors.call<&Actor::measure>(4).wait(soon());
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->find("step")->count, 12);
  EXPECT_DOUBLE_EQ(*metrics->value("step"), 1);
}

TEST_P(Behaviour, CallsKeepTheirOrderFromManyThreads) {
  auto actors = group(2);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&actors, t] {
      for (int i = 0; i < 100; ++i) actors.call<&Actor::append>(t * 1000 + i).forget();
    });
  }
  for (auto& thread : threads) thread.join();
  const auto history = actors.call<&Actor::history>().wait(soon());
  ASSERT_TRUE(history) << history.error().to_string();
  ASSERT_EQ(history->at(0).size(), 400U);
  EXPECT_EQ(history->at(0), history->at(1));
  std::map<int, int> next;
  for (const int value : history->at(0)) EXPECT_EQ(next[value / 1000]++, value % 1000);
}

TEST_P(Behaviour, AnErrorResultNamesGroupRankMethodAndLeavesTheGroupUsable) {
  auto actors = group(3);
  const auto failed = actors.call<&Actor::fail_on>(1).wait(soon());
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kConflict);
  EXPECT_EQ(failed.error().message, "fail_on: it does not add up");
  EXPECT_EQ(failed.error().origin.group, "policy");
  EXPECT_EQ(failed.error().origin.rank, RankId{1});
  EXPECT_THAT(actors.call<&Actor::echo>(1).wait(soon()).value(), ElementsAre(10, 11, 12));
  EXPECT_FALSE(actors.dead_cause());
}

TEST_P(Behaviour, CollectivesWorkAndAreRebuiltAfterAFailure) {
  auto actors = group(3);
  EXPECT_THAT(actors.call<&Actor::sum>(1.0).wait(soon()).value(), ElementsAre(6, 6, 6));
  for (int round = 0; round < 3; ++round) {
    const auto begun = SteadyClock().now();
    const auto failed = actors.call<&Actor::fail_before_sum>(round).wait(soon());
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().message, "fail_before_sum: it does not add up");
    EXPECT_EQ(failed.error().origin.rank, RankId{round});
    const auto sums = actors.call<&Actor::sum>(2.0).wait(soon());
    ASSERT_TRUE(sums) << sums.error().to_string();
    EXPECT_THAT(*sums, ElementsAre(9, 9, 9));
    EXPECT_LT(SteadyClock().now() - begun, 8s);
  }
}

TEST_P(Behaviour, CallsBehindAFailedOneRunOnAllRanksOrNone) {
  auto actors = group(2);
  std::vector<pending<std::vector<double>>> calls;
  for (int i = 0; i < 12; ++i) {
    if (i == 3) calls.push_back(actors.call<&Actor::fail_before_sum>(1));
    calls.push_back(actors.call<&Actor::sum>(static_cast<double>(i)));
    actors.call<&Actor::append>(i).forget();
  }
  int good = 0;
  for (auto& call : calls) {
    auto sums = call.wait(soon());
    if (!sums) continue;
    ++good;
    EXPECT_EQ(sums->at(0), sums->at(1));
  }
  EXPECT_GE(good, 3);
  const auto sums = actors.call<&Actor::sum>(5.0).wait(soon());
  ASSERT_TRUE(sums) << sums.error().to_string();
  EXPECT_THAT(*sums, ElementsAre(11, 11));
  const auto history = actors.call<&Actor::history>().wait(soon());
  ASSERT_TRUE(history);
  EXPECT_EQ(history->at(0), history->at(1));
  EXPECT_EQ(history->at(0).size(), 12U);
}

TEST_P(Behaviour, CollectivesAlongAnAxisSurviveARebuild) {
  GroupOptions options;
  options.name = "meshed";
  options.mesh = Mesh::create({{"dp", 2}, {"tp", 2}}).value();
  auto actors = world_.create(options);
  ASSERT_TRUE(actors) << actors.error().to_string();
  EXPECT_THAT(actors->call<&Actor::sum_along>("tp").wait(soon()).value(), ElementsAre(3, 3, 7, 7));
  EXPECT_FALSE(actors->call<&Actor::fail_before_sum>(2).wait(soon()));
  const auto sums = actors->call<&Actor::sum_along>("tp").wait(soon());
  ASSERT_TRUE(sums) << sums.error().to_string();
  EXPECT_THAT(*sums, ElementsAre(3, 3, 7, 7));
}

TEST_P(Behaviour, DeadlinesTravelAndEndCalls) {
  auto actors = group(2);
  const auto left = actors.call_with<&Actor::seconds_left>(CallOptions().within(5s)).wait(soon());
  ASSERT_TRUE(left);
  EXPECT_GT(*left, 3);
  EXPECT_LE(*left, 5);
  const std::string door = world_.door();
  auto late = actors.call_with<&Actor::polite>(CallOptions().within(300ms), door).wait(soon());
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(late.error().message, HasSubstr("polite: deadline passed after 0.3"));
  EXPECT_TRUE(becomes_true([&] {
    return std::filesystem::exists(door + ".left.0") && std::filesystem::exists(door + ".left.1");
  }));
  EXPECT_THAT(actors.call<&Actor::echo>(1).wait(soon()).value(), ElementsAre(10, 11));
}

TEST_P(Behaviour, ACallThatIsCancelledBeforeItBeganRunsOnNoRank) {
  auto actors = group(2);
  const std::string door = world_.door();
  auto waiting = actors.call<&Actor::wait_at_door>(door);
  ASSERT_TRUE(World::inside(door, 2));
  auto called_off = actors.call<&Actor::append>(1);
  actors.call<&Actor::append>(2).forget();
  called_off.cancel();
  std::this_thread::sleep_for(100ms);  // the agreement is on its way
  World::open(door);
  ASSERT_TRUE(waiting.wait(soon()));
  const auto history = actors.call<&Actor::history>().wait(soon());
  ASSERT_TRUE(history);
  EXPECT_THAT(history->at(0), ElementsAre(2));
  EXPECT_THAT(history->at(1), ElementsAre(2));
}

TEST_P(Behaviour, ACallThatIsCancelledWhileItRunsIsToldTo) {
  auto actors = group(2);
  const std::string door = world_.door();
  CancelSource source;
  auto running = actors.call_with<&Actor::polite>(CallOptions().under(source.token()), door);
  ASSERT_TRUE(World::inside(door, 2));
  source.cancel();
  const auto ended = running.wait(soon());
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(becomes_true([&] {
    return std::filesystem::exists(door + ".left.0") && std::filesystem::exists(door + ".left.1");
  }));
}

TEST_P(Behaviour, AFailedCheckKillsTheGroupWithThatCause) {
  auto actors = group(2);
  const auto failed = actors.call<&Actor::check_on>(1).wait(soon());
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kInternal);
  EXPECT_THAT(failed.error().message, HasSubstr("check_on: "));
  EXPECT_THAT(failed.error().message, HasSubstr("rank 1 is 1"));
  EXPECT_EQ(failed.error().origin.rank, RankId{1});
  const auto later = actors.call<&Actor::echo>(1).wait(soon());
  ASSERT_FALSE(later);
  EXPECT_EQ(later.error().code, ErrorCode::kRankDead);
  EXPECT_THAT(later.error().to_string(), HasSubstr("rank 1 is 1"));
  ASSERT_TRUE(actors.dead_cause());
}

TEST_P(Behaviour, AForeignExceptionKillsTheGroupWithThatCause) {
  auto actors = group(2);
  auto first = actors.call<&Actor::throw_on>(0);
  auto queued = actors.call<&Actor::echo>(1);
  const auto failed = first.wait(soon());
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message, HasSubstr("throw_on: exception: foreign trouble"));
  EXPECT_EQ(failed.error().origin.rank, RankId{0});
  const auto later = queued.wait(soon());
  ASSERT_FALSE(later);
  EXPECT_THAT(later.error().to_string(), HasSubstr("foreign trouble"));
}

TEST_P(Behaviour, AConstructorThatFailsIsTheErrorOfCreate) {
  auto failed = world_.create(3, {.fail_rank = 1, .meet = true});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kConfig);
  EXPECT_EQ(failed.error().message, "constructor: rank 1 does not like its spec");
  EXPECT_EQ(failed.error().origin.rank, RankId{1});
  auto thrown = world_.create(2, {.throw_rank = 0});
  ASSERT_FALSE(thrown);
  EXPECT_THAT(thrown.error().message, HasSubstr("no weights"));
  EXPECT_TRUE(world_.create(2, {.meet = true}));
}

TEST_P(Behaviour, StatusAnswersWhileTheEngineIsBusy) {
  auto actors = group(2);
  const std::string door = world_.door();
  auto waiting = actors.call<&Actor::wait_at_door>(door);
  ASSERT_TRUE(World::inside(door, 2));
  const auto status = actors.status();
  ASSERT_TRUE(status) << status.error().to_string();
  ASSERT_EQ(status->size(), 2U);
  EXPECT_TRUE(status->at(1).busy);
  EXPECT_EQ(status->at(1).rank, RankId{1});
  EXPECT_EQ(status->at(1).method, "wait_at_door");
  EXPECT_EQ(status->at(1).waits_for, "the door");
  World::open(door);
  EXPECT_TRUE(waiting.wait(soon()));
}

TEST_P(Behaviour, AKilledRankEndsTheGroup) {
  auto actors = group(2);
  const std::string door = world_.door();
  auto waiting = actors.call<&Actor::wait_at_door>(door);
  ASSERT_TRUE(World::inside(door, 2));
  actors.kill(RankId{1}, Error{.code = ErrorCode::kRankDead,
                               .message = "the supervisor is displeased",
                               .origin = {},
                               .causes = {}});
  const auto ended = waiting.wait(soon());
  ASSERT_FALSE(ended);
  EXPECT_THAT(ended.error().message, HasSubstr("the supervisor is displeased"));
  EXPECT_EQ(ended.error().origin.rank, RankId{1});
  World::open(door);
}

TEST_P(Behaviour, DestroyingTheGroupEndsItsCalls) {
  const std::string door = world_.door();
  pending<std::vector<int>> running;
  pending<std::vector<int>> queued;
  {
    auto actors = group(2);
    running = actors.call<&Actor::wait_at_door>(door);
    queued = actors.call<&Actor::echo>(1);
    ASSERT_TRUE(World::inside(door, 2));
    World::open(door);
  }
  const auto first = running.wait(soon());
  if (!first) {
    EXPECT_EQ(first.error().code, ErrorCode::kCancelled);
  }
  const auto second = queued.wait(soon());
  if (!second) {
    EXPECT_EQ(second.error().code, ErrorCode::kCancelled);
  }
}

TEST_P(Behaviour, TooManyCallsAreRefused) {
  GroupOptions options;
  options.calls_max = 4;
  auto actors = world_.create(options);
  ASSERT_TRUE(actors) << actors.error().to_string();
  const std::string door = world_.door();
  std::vector<pending<std::vector<int>>> calls;
  for (int i = 0; i < 6; ++i) calls.push_back(actors->call<&Actor::wait_at_door>(door));
  const auto refused = calls[5].wait(soon());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  World::open(door);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(calls[static_cast<std::size_t>(i)].wait(soon()));
}

TEST_P(Behaviour, BatchesArriveWithTheirColumnsAndKeptOnesStay) {
  auto actors = group(2);
  for (const std::int64_t rows : {std::int64_t{6}, std::int64_t{60'000}}) {
    Batch batch;
    std::vector<float> x(static_cast<std::size_t>(rows));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 1000);
    ASSERT_TRUE(batch.set("x", Column::dense(x)));
    const auto scored = actors.call<&Actor::score>(batch).wait(soon());
    ASSERT_TRUE(scored) << scored.error().to_string();
    EXPECT_FALSE(scored->has_references());
    ASSERT_EQ(scored->rows(), rows);
    EXPECT_FLOAT_EQ(scored->column("score").scalar<float>(5), 10);
    EXPECT_EQ(scored->metrics().value("rows"), static_cast<double>(rows));
    const auto kept = actors.call<&Actor::score_kept>(batch).wait(soon());
    ASSERT_TRUE(kept) << kept.error().to_string();
    double expected = 0;
    for (const float value : x) expected += 2 * static_cast<double>(value);
    // Rows cross: the second half of the references is pulled by the first rank.
    std::vector<std::int64_t> reversed(static_cast<std::size_t>(rows));
    for (std::int64_t i = 0; i < rows; ++i) reversed[static_cast<std::size_t>(i)] = rows - 1 - i;
    const auto total = actors.call<&Actor::total>(kept->reorder(reversed).value()).wait(soon());
    ASSERT_TRUE(total) << total.error().to_string();
    EXPECT_DOUBLE_EQ(*total, expected);
    const auto here = kept->resolve();
    ASSERT_TRUE(here) << here.error().to_string();
    EXPECT_TRUE(here->column("score").bitwise_equal(scored->column("score")));
  }
  EXPECT_TRUE(becomes_true([&] {
    const auto held = actors.call<&Actor::columns_held>().wait(soon());
    return held && *held == std::vector<std::int64_t>{0, 0};
  }));
}

TEST_P(Behaviour, LargeValuesTravelBothWays) {
  auto actors = group(2);
  const auto numbers = actors.call<&Actor::numbers>(1'000'000).wait(soon());
  ASSERT_TRUE(numbers) << numbers.error().to_string();
  EXPECT_EQ(numbers->size(), 1'000'000U);
  const auto counts = actors.call<&Actor::count>(*numbers).wait(soon());
  ASSERT_TRUE(counts) << counts.error().to_string();
  EXPECT_THAT(*counts, ElementsAre(1'000'000, 1'000'000));
}

class Spans final : public CallTrace {
 public:
  void on_call(const CallSpan& span) override {
    const std::lock_guard lock(mutex_);
    spans_.push_back(
        {std::string(span.method), span.rank, span.submitted, span.begin, span.end, span.ok});
  }
  struct Span {
    std::string method;
    RankId rank;
    TimePoint submitted;
    TimePoint begin;
    TimePoint end;
    bool ok;
  };
  std::vector<Span> spans() {
    const std::lock_guard lock(mutex_);
    return spans_;
  }

 private:
  std::mutex mutex_;
  std::vector<Span> spans_;
};

TEST_P(Behaviour, TheTraceShowsEveryRank) {
  Spans spans;
  GroupOptions options;
  options.name = "traced";
  options.mesh = Mesh::data_parallel(2);
  options.trace = &spans;
  {
    auto actors = world_.create(options);
    ASSERT_TRUE(actors) << actors.error().to_string();
    const auto before = SteadyClock().now();
    ASSERT_TRUE(actors->call<&Actor::echo>(1).wait(soon()));
    ASSERT_FALSE(actors->call<&Actor::fail_on>(1).wait(soon()));
    ASSERT_TRUE(actors->call<&Actor::echo>(1).wait(soon()));
    const auto seen = spans.spans();
    // The rank that had not begun the failed call skips it.
    ASSERT_GE(seen.size(), 5U);
    ASSERT_LE(seen.size(), 6U);
    for (const auto& span : seen) {
      EXPECT_EQ(span.ok, span.method == "echo" || span.rank == RankId{0});
      EXPECT_GE(span.submitted, before);
      EXPECT_GE(span.begin, span.submitted);
      EXPECT_GE(span.end, span.begin);
      EXPECT_LE(span.end, SteadyClock().now());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, Behaviour,
                         ::testing::Values(Kind::kThreads, Kind::kServers, Kind::kProcesses),
                         [](const auto& one) { return std::string(kind_name(one.param)); });

}  // namespace
}  // namespace troupe::runtime::testing
