// Proves what the asynchronous loops do, over the hash world: with η = 0 each of them ends with the
// weights of the synchronous loop, whatever the times, replicas and deaths, since those weights are
// a hash of all that was trained on; what each bound, end and watchdog does and says; lending;
// metrics; bytes that were saved go on where they were.

#include "actors/loops/episodes.hpp"
#include "tests/actors/loops/asynchronous/hash_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

namespace troupe::actors::testing {
namespace {

using ::testing::HasSubstr;

const bool kQuiet = (log::set_up(log::Level::kOff), true);

struct RunOptions {
  HashOptions world{};
  LedgerOptions ledger{.groups_per_step = 3};
  DispatchOptions dispatch{};
  TakeOrder order = TakeOrder::kReady;
  std::int64_t group_size = 2;
  std::int64_t steps = 5;
  std::int64_t data = 1'000'000;  ///< prompts
  std::int64_t part = 1;
  Loop loop = Loop::kAsynchronous;
  bool remax = false;
  std::function<task<void>(HashWorld&)> meanwhile{};
  std::function<void(ServiceOptions&)> adjust{};
  std::function<void(RolloutService<HashWorld>&, std::int64_t)> after_step{};
};

struct RunResult {
  std::uint64_t weights = 0;
  std::vector<Batch> batches{};
  std::vector<StepReport> reports{};
  std::vector<std::int64_t> part_rows{};
  std::optional<Error> error{};
  StepReport last() const { return reports.back(); }
};

AdvantageStepOptions estimator_of(const RunOptions& options) {
  AdvantageStepOptions step = grpo();
  if (!options.remax) return step;
  step.estimator = *default_advantages().find("remax");
  step.greedy_baseline = true;
  return step;
}

task<void> drive(Cast<HashWorld>& cast, RolloutService<HashWorld>& service,
                 const RunOptions& options, RunResult& out) {
  co_await service.start();
  for (std::int64_t step = 1; step <= options.steps; ++step) {
    std::optional<StepReport> report =
        co_await step_of(options.loop, cast, service, step, options.part);
    service.book().check_invariants();
    if (!report) break;
    out.reports.push_back(std::move(*report));
    if (options.after_step) options.after_step(service, step);
  }
  co_await service.stop();
}

RunResult run(const RunOptions& options) {
  HashWorld world(options.world);
  AdvantageStep advantage(estimator_of(options));
  Cast<HashWorld> cast = cast_of(world, advantage, options.group_size);
  ServiceOptions settings;
  settings.rollout.ledger = options.ledger;
  settings.rollout.dispatch = options.dispatch;
  settings.rollout.order = options.order;
  settings.tick_every = 200ms;
  if (options.adjust) options.adjust(settings);
  std::int64_t next = 0;
  const auto source = [&next, &options]() -> result<std::optional<Batch>> {
    const std::int64_t rows = std::min(options.ledger.groups_per_step, options.data - next);
    if (rows <= 0) return std::optional<Batch>();
    next += rows;
    return std::optional(hash_prompts(next - rows, rows));
  };
  RunResult out;
  auto service = RolloutService<HashWorld>::open(cast, settings, source);
  if (!service) {
    out.error = service.error();
    return out;
  }
  runtime::Executor executor(world.state.clock);
  runtime::pending<void> meanwhile;
  if (options.meanwhile) meanwhile = executor.spawn(options.meanwhile(world));
  const auto outcome = executor.run(drive(cast, **service, options, out));
  if (!outcome) out.error = outcome.error();
  out.weights = world.state.weights;
  out.batches = world.state.batches;
  out.part_rows = world.state.part_rows;
  service->reset();
  return out;
}

RunResult run_synchronous(const RunOptions& options) {
  HashWorld world(options.world);
  AdvantageStep advantage(estimator_of(options));
  Cast<HashWorld> cast = cast_of(world, advantage, options.group_size);
  runtime::Executor executor(world.state.clock);
  RunResult out;
  const std::int64_t rows = options.ledger.groups_per_step;
  for (std::int64_t step = 1; step <= options.steps; ++step) {
    auto report = executor.run(synchronous_step(cast, hash_prompts((step - 1) * rows, rows), step));
    EXPECT_TRUE(report.has_value()) << report.error().to_string();
    out.reports.push_back(std::move(*report));
  }
  out.weights = world.state.weights;
  out.batches = world.state.batches;
  return out;
}

void expect_same(const RunResult& a, const RunResult& b) {
  ASSERT_FALSE(b.error) << b.error->to_string();
  ASSERT_EQ(a.batches.size(), b.batches.size());
  for (std::size_t i = 0; i < a.batches.size(); ++i)
    ASSERT_TRUE(a.batches[i] == b.batches[i]) << "step " << i + 1;
  ASSERT_EQ(a.weights, b.weights);
}

TEST(AsynchronousLoops, WithoutLeadEqualTheSynchronousLoopBitForBit) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    RunOptions options;
    options.world.seed = seed;
    options.world.replicas = 1 + static_cast<std::int64_t>(seed % 3);
    options.world.critic = seed % 2 == 0;
    options.ledger.lead_max = 0;
    const RunResult wanted = run_synchronous(options);
    for (const Loop loop : {Loop::kAsynchronous, Loop::kOneStepOff, Loop::kPipelined}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " loop " << static_cast<int>(loop));
      options.loop = loop;
      options.order = loop == Loop::kPipelined ? TakeOrder::kIssue : TakeOrder::kReady;
      expect_same(wanted, run(options));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(AsynchronousLoops, StayEqualWhenReplicasDieAndStragglerToolsMoveSamples) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RunOptions options;
    options.world.seed = seed;
    options.world.replicas = 3;
    const RunResult wanted = run_synchronous(options);
    options.dispatch.hedge_after = 20ms;
    options.dispatch.repack_below = 3;
    options.dispatch.longest_first = true;
    options.meanwhile = [](HashWorld& world) -> task<void> {
      for (std::int32_t i = 0; i < 4; ++i) {
        co_await sleep_for(37ms);
        world.streaming->kill(RankId{i % 3});
      }
    };
    expect_same(wanted, run(options));
    if (HasFatalFailure()) return;
  }
}

/// Gradients of the step under way are lost, `times` times, 40 ms apart.
std::function<task<void>(HashWorld&)> losing_gradients(int times) {
  return [times](HashWorld& world) -> task<void> {
    for (int i = 0; i < times; ++i) {
      co_await sleep_for(40ms);
      world.state.gradient_fails = 1;
    }
  };
}

TEST(AsynchronousLoops, APipelinedStepWhoseGradientsAreLostBeginsAgainAndEndsTheSame) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RunOptions options;
    options.world.seed = seed;
    options.world.critic = seed % 2 == 0;
    options.ledger.lead_max = static_cast<std::int64_t>(seed % 3 == 0 ? 0 : 1);
    options.loop = Loop::kPipelined;
    options.order = TakeOrder::kIssue;
    const RunResult wanted = options.ledger.lead_max == 0 ? run_synchronous(options) : RunResult{};
    options.meanwhile = losing_gradients(6);
    const RunResult got = run(options);
    ASSERT_FALSE(got.error) << got.error->to_string();
    double again = 0;
    for (const StepReport& report : got.reports)
      again += report.metrics.value("training/steps_begun_again").value_or(0);
    EXPECT_GE(again, 1);
    ASSERT_EQ(got.batches.size(), 5U);
    for (const Batch& batch : got.batches) EXPECT_EQ(batch.rows(), 6) << "no part twice";
    if (options.ledger.lead_max == 0) expect_same(wanted, got);
  }
}

TEST(AsynchronousLoops, APipelinedRunEndsWithTheCauseWhenGradientsAreAlwaysLost) {
  RunOptions options;
  options.loop = Loop::kPipelined;
  options.order = TakeOrder::kIssue;
  options.meanwhile = [](HashWorld& world) -> task<void> {
    world.state.gradient_fails = 1'000'000;
    co_return;
  };
  const RunResult got = run(options);
  ASSERT_TRUE(got.error);
  EXPECT_THAT(got.error->to_string(), HasSubstr("a collective of the gradients failed"));
  EXPECT_TRUE(got.batches.empty());
}

TEST(AsynchronousLoops, EndTheirWaitsWhenTheyAreToldToStop) {
  for (const Loop loop : {Loop::kAsynchronous, Loop::kOneStepOff, Loop::kPipelined}) {
    SCOPED_TRACE(::testing::Message() << "loop " << static_cast<int>(loop));
    RunOptions options;
    options.loop = loop;
    options.order = loop == Loop::kPipelined ? TakeOrder::kIssue : TakeOrder::kReady;
    options.world.endless = SampleId{7, 1};
    bool stop = false;
    options.meanwhile = [&stop](HashWorld&) -> task<void> {
      co_await sleep_for(20s);
      stop = true;
    };
    options.adjust = [&stop](ServiceOptions& settings) {
      settings.stop = [&stop] { return stop; };
    };
    const RunResult got = run(options);
    ASSERT_TRUE(got.error);
    EXPECT_EQ(got.error->code, ErrorCode::kCancelled) << got.error->to_string();
    EXPECT_THAT(got.error->message, HasSubstr("told to stop"));
  }
}

TEST(AsynchronousLoops, CountWaitsForSamplesUnderWayAsIdle) {
  RunOptions options;
  options.loop = Loop::kOneStepOff;
  options.ledger.lead_max = 1;
  options.world.step_time = 40ms;  // rollout is the slow part
  const RunResult got = run(options);
  ASSERT_FALSE(got.error) << got.error->to_string();
  double waited = 0;
  for (std::size_t i = 1; i < got.reports.size(); ++i) {
    const Metrics& metrics = got.reports[i].metrics;
    // A step's account ends before its publication, so that wait is in the next one.
    const double samples = metrics.value("time/wait_for_samples").value_or(-1);
    EXPECT_DOUBLE_EQ(samples,
                     got.reports[i - 1].metrics.value("timing_s/wait_for_samples").value_or(-2));
    const double idle = metrics.value("trainer/idle_ratio").value_or(-1);
    if (samples > 0) {
      EXPECT_GT(idle, 0);
    }
    waited += samples;
  }
  EXPECT_GT(waited, 0);
}

TEST(AsynchronousLoops, GiveRemaxItsGreedyBaseline) {
  RunOptions options;
  options.remax = true;
  options.ledger.lead_max = 0;
  const RunResult wanted = run_synchronous(options);
  for (const Loop loop : {Loop::kAsynchronous, Loop::kOneStepOff}) {
    options.loop = loop;
    expect_same(wanted, run(options));
  }
}

TEST(AsynchronousLoops, CutAPipelinedStepInPartsOfIssueOrder) {
  RunOptions options;
  options.ledger.groups_per_step = 5;
  options.loop = Loop::kPipelined;
  options.order = TakeOrder::kIssue;
  options.part = 2;
  options.steps = 2;
  const RunResult one = run(options);
  options.world.seed = 9;
  const RunResult other = run(options);
  expect_same(one, other);
  EXPECT_THAT(one.part_rows, ::testing::ElementsAre(4, 4, 2, 4, 4, 2));
  const auto groups = one.batches[0].column(column::kGroup).values<std::int64_t>();
  EXPECT_THAT(groups, ::testing::ElementsAre(0, 0, 1, 1, 2, 2, 3, 3, 4, 4));
}

TEST(AsynchronousLoops, OverlapAndKeepTheBound) {
  RunOptions options;
  options.world.replicas = 3;
  options.ledger.lead_max = 2;
  options.steps = 12;
  const RunResult got = run(options);
  ASSERT_FALSE(got.error) << got.error->to_string();
  double oldest = 0;
  for (const StepReport& report : got.reports) {
    oldest = std::max(oldest, *report.metrics.value("staleness/max"));
    EXPECT_LE(*report.metrics.value("staleness/max"), 2);
  }
  EXPECT_GT(oldest, 0) << "nothing ran ahead";
}

TEST(AsynchronousLoops, KeepEachSampleOfOneStepOffInOneVersion) {
  RunOptions options;
  options.loop = Loop::kOneStepOff;
  options.ledger.lead_max = 1;
  options.steps = 10;
  const RunResult got = run(options);
  ASSERT_FALSE(got.error) << got.error->to_string();
  for (std::size_t step = 0; step < got.batches.size(); ++step) {
    const Batch& batch = got.batches[step];
    for (std::int64_t row = 0; row < batch.rows(); ++row) {
      const auto versions = batch.column(column::kVersions).row<std::int64_t>(row);
      for (const std::int64_t version : versions) {
        EXPECT_EQ(version, versions[0]);
        EXPECT_EQ(version, std::max<std::int64_t>(static_cast<std::int64_t>(step) - 1, 0));
      }
    }
  }
}

TEST(AsynchronousLoops, UpdateWeightsInFlight) {
  RunOptions options;
  options.world.replicas = 1;
  options.world.step_time = 20ms;
  options.ledger.lead_max = 4;
  options.steps = 20;
  const RunResult got = run(options);
  ASSERT_FALSE(got.error) << got.error->to_string();
  double span = 0;
  for (const StepReport& report : got.reports)
    span = std::max(span, *report.metrics.value("staleness/span/max"));
  EXPECT_GT(span, 0) << "no sample crossed a version";
}

TEST(AsynchronousLoops, ReportWhatPeopleLookFor) {
  RunOptions options;
  options.ledger.lead_max = 1;
  const RunResult got = run(options);
  ASSERT_FALSE(got.error) << got.error->to_string();
  for (const char* name :
       {"staleness/min",          "staleness/mean",         "staleness/max",
        "staleness/age_0/groups", "staleness/span/max",     "staleness/publish_lag",
        "async/queue_depth",      "async/in_flight",        "async/dropped_stale",
        "async/aborted",          "async/resumed",          "async/requeued",
        "async/wasted_tokens",    "async/oversample_ratio", "async/length_bias",
        "time/wait_for_batch",    "time/wait_for_policy",   "trainer/idle_ratio",
        "rollouter/idle_ratio",   "rollout/steps",          "reward/rows",
        "timing_s/step"})
    EXPECT_TRUE(got.last().metrics.value(name).has_value()) << name;
  EXPECT_EQ(*got.last().metrics.value("async/oversample_ratio"), 1);
}

TEST(AsynchronousLoops, LendTrainerDevicesWhileTheTrainerWaits) {
  RunOptions options;
  options.world.replicas = 3;
  options.world.lent = 2;
  const RunResult wanted = run_synchronous(options);
  options.adjust = [](ServiceOptions& settings) { settings.lend = true; };
  bool learned_alone = true;
  options.after_step = [&](RolloutService<HashWorld>& service, std::int64_t) {
    learned_alone = learned_alone && service.book().running_on(RankId{1}) == 0 &&
                    service.book().running_on(RankId{2}) == 0;
  };
  const RunResult got = run(options);
  expect_same(wanted, got);
  EXPECT_TRUE(learned_alone);
  EXPECT_EQ(*got.last().metrics.value("rollouter/replicas"), 3);
  options.adjust = nullptr;
  EXPECT_EQ(*run(options).last().metrics.value("rollouter/replicas"), 1);
}

TEST(AsynchronousLoops, RunTurnsOfAnEnvironmentWithoutChangingResults) {
  RunOptions options;
  options.world.environment = true;
  options.order = TakeOrder::kIssue;
  const RunResult one = run(options);
  ASSERT_FALSE(one.error) << one.error->to_string();
  options.world.seed = 5;
  options.world.replicas = 3;
  options.meanwhile = [](HashWorld& world) -> task<void> {
    co_await sleep_for(60ms);
    world.streaming->kill(RankId{0});
    world.state.environment_dead_until = world.state.clock.now() + 300ms;
  };
  const RunResult other = run(options);
  expect_same(one, other);
  EXPECT_GT(*one.last().metrics.value("async/environment_turns"), 0);
}

// ---- ends ----------------------------------------------------------------------------------

TEST(AsynchronousLoops, EpisodesOfAnEvaluationAreThoseThatTheServiceSamples) {
  RunOptions options;
  options.world.environment = true;
  options.world.length_max = 1000;  // the budget of 12 tokens is what ends samples
  options.ledger.lead_max = 0;
  options.steps = 1;
  const RunResult trained = run(options);
  ASSERT_FALSE(trained.error) << trained.error->to_string();
  HashWorld world(options.world);
  runtime::Executor executor(world.state.clock);
  Batch samples = value_or_throw(number_samples(hash_prompts(0, 3), options.group_size));
  const auto played =
      executor.run(play_episodes<HashWorld>(world.rollout, world.environment, std::move(samples),
                                            {.max_new_tokens = 12, .seed = step_seed(77, 1)}));
  ASSERT_TRUE(played.has_value()) << played.error().to_string();
  EXPECT_EQ(played->failed(), 0);
  const Batch batch = value_or_throw(played->batch());
  EXPECT_TRUE(value_or_throw(batch.select({std::string(column::kResponses)})) ==
              value_or_throw(trained.batches[0].select({std::string(column::kResponses)})));
  bool any = false;
  for (std::int64_t row = 0; row < batch.rows(); ++row)
    for (const std::int32_t token : batch.column(column::kResponses).row<std::int32_t>(row))
      any = any || token >= 2000;
  EXPECT_TRUE(any) << "no environment said a word";
}

TEST(AsynchronousLoops, EndWithAShortStepWhenTheDataIsOver) {
  RunOptions options;
  options.data = 7;  // two steps of three, one of one
  options.ledger.lead_max = 1;
  options.steps = 100;
  for (const Loop loop : {Loop::kAsynchronous, Loop::kOneStepOff, Loop::kPipelined}) {
    options.loop = loop;
    const RunResult got = run(options);
    ASSERT_FALSE(got.error) << got.error->to_string();
    ASSERT_EQ(got.reports.size(), 3U);
    EXPECT_EQ(got.batches[2].rows(), 2);
  }
}

TEST(AsynchronousLoops, IssueNothingForStepsBehindTheLast) {
  RunOptions options;
  options.ledger.lead_max = 3;
  options.ledger.steps_max = 5;
  std::uint64_t issued = 0;
  options.after_step = [&](RolloutService<HashWorld>& service, std::int64_t) {
    issued = service.ledger().issued();
  };
  ASSERT_FALSE(run(options).error);
  EXPECT_EQ(issued, 15U);
}

TEST(AsynchronousLoops, EndWhenNoRewardEverComes) {
  RunOptions options;
  options.meanwhile = [](HashWorld& world) -> task<void> {
    world.state.reward_dead = true;
    co_return;
  };
  const RunResult got = run(options);
  ASSERT_TRUE(got.error);
  EXPECT_EQ(got.error->code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(got.error->to_string(), HasSubstr("groups in a row were given up"));
  EXPECT_THAT(got.error->to_string(), HasSubstr("the reward worker died"));
}

TEST(AsynchronousLoops, EndWhenTheEnvironmentAlwaysFails) {
  RunOptions options;
  options.world.environment = true;
  options.meanwhile = [](HashWorld& world) -> task<void> {
    world.state.environment_dead = true;
    co_return;
  };
  const RunResult got = run(options);
  ASSERT_TRUE(got.error);
  EXPECT_THAT(got.error->to_string(), HasSubstr("given up"));
  EXPECT_THAT(got.error->to_string(), HasSubstr("the environment died"));
}

TEST(AsynchronousLoops, EndWhenNoGroupHasVariance) {
  RunOptions options;
  options.world.flat_scores = true;
  options.dispatch.drop_zero_variance = true;
  const RunResult got = run(options);
  ASSERT_TRUE(got.error);
  EXPECT_THAT(got.error->to_string(),
              ::testing::AnyOf(HasSubstr("dynamic sampling"), HasSubstr("zero_variance")));
}

TEST(AsynchronousLoops, NameTheSampleThatNeverEnds) {
  RunOptions options;
  options.world.endless = SampleId{4, 1};
  const RunResult got = run(options);
  ASSERT_TRUE(got.error);
  EXPECT_EQ(got.error->code, ErrorCode::kDeadline);
  EXPECT_THAT(got.error->message, HasSubstr("no progress for"));
  EXPECT_THAT(got.error->message, HasSubstr("oldest group 4: 1 of 2 samples scored"));
  EXPECT_THAT(got.error->message, HasSubstr("sample 1 runs on rank"));
}

TEST(AsynchronousLoops, GoOnPastASampleThatNeverEndsWithADeadline) {
  RunOptions options;
  options.world.endless = SampleId{4, 1};
  options.dispatch.sample_deadline = 2s;
  options.dispatch.on_deadline = DeadlineAction::kDrop;
  const RunResult got = run(options);
  ASSERT_FALSE(got.error) << got.error->to_string();
  EXPECT_EQ(got.reports.size(), 5U);
}

TEST(AsynchronousLoops, EndWhenAllReplicasAreLostForGood) {
  RunOptions options;
  options.meanwhile = [](HashWorld& world) -> task<void> {
    co_await sleep_for(50ms);
    for (std::int32_t r = 0; r < 2; ++r) world.streaming->kill(RankId{r}, true);
  };
  const RunResult got = run(options);
  ASSERT_TRUE(got.error);
  EXPECT_EQ(got.error->code, ErrorCode::kRankDead);
  EXPECT_THAT(got.error->to_string(), HasSubstr("all replicas are lost"));
  EXPECT_THAT(got.error->to_string(), HasSubstr("its host is gone"));
}

TEST(AsynchronousLoops, BringWeightsToRevivedReplicasWhenAllWereLost) {
  RunOptions options;
  const RunResult wanted = run_synchronous(options);
  options.meanwhile = [](HashWorld& world) -> task<void> {
    co_await sleep_for(50ms);
    for (std::int32_t r = 0; r < 2; ++r) world.streaming->kill(RankId{r});
  };
  expect_same(wanted, run(options));
}

TEST(AsynchronousLoops, SayWhatTheyCannotDo) {
  RunOptions options;
  options.ledger.open_max = 1;
  const RunResult bound = run(options);
  ASSERT_TRUE(bound.error);
  EXPECT_THAT(bound.error->message, HasSubstr("open_max"));
  options.ledger.open_max = 0;
  options.world.replicas = 1;
  options.world.lent = 1;
  const RunResult lent = run(options);
  ASSERT_TRUE(lent.error);
  EXPECT_THAT(lent.error->message, HasSubstr("no replica to generate on"));
}

}  // namespace
}  // namespace troupe::actors::testing
