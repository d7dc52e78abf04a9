// Proves declared generation times: draws depend on the sample alone and are log-normal; a sample
// ends at its time and not before, by a clock that only moves when somebody sleeps; stopped, moved
// and met by new weights it goes on with the share of time that its missing tokens stand for; ranks
// whose clocks differ answer alike; a drained update waits. Makespans against a slow reference.

#include "actors/roles/simulated_delay.hpp"

#include "tests/actors/roles_stream/stream_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;

TEST(SimulatedDelay, DependsOnTheSampleAloneAndIsLogNormal) {
  const SimulatedDelay delay{.median_s = 2.0, .sigma = 0.9, .seed = 5};
  EXPECT_EQ(delay.of(3, 1, 7), delay.of(3, 1, 7));
  std::vector<double> logs;
  for (std::uint64_t prompt = 0; prompt < 100; ++prompt)
    for (std::uint32_t sample = 0; sample < 20; ++sample)
      for (std::uint64_t seed = 0; seed < 2; ++seed)
        logs.push_back(std::log(seconds(delay.of(prompt, sample, seed)) / 2.0));
  auto sorted = logs;
  std::ranges::sort(sorted);
  EXPECT_EQ(std::ranges::unique(sorted).begin(), sorted.end()) << "each sample has its own";
  double mean = 0;
  double square = 0;
  for (const double one : logs) mean += one / static_cast<double>(logs.size());
  for (const double one : logs)
    square += (one - mean) * (one - mean) / static_cast<double>(logs.size());
  EXPECT_NEAR(mean, 0.0, 0.06);  // standard error 0.9 / √4000 = 0.014
  EXPECT_NEAR(std::sqrt(square), 0.9, 0.05);
  const SimulatedDelay other{.median_s = 2.0, .sigma = 0.9, .seed = 6};
  EXPECT_NE(other.of(3, 1, 7), delay.of(3, 1, 7));
  const SimulatedDelay same{.median_s = 0.25, .sigma = 0};
  EXPECT_EQ(same.of(1, 2, 3), 250ms);
  EXPECT_FALSE(SimulatedDelay{}.on());
}

TEST(SimulatedDelay, NamesTheFieldThatIsOutOfRange) {
  EXPECT_TRUE(SimulatedDelay{}.check());
  expect_refused(SimulatedDelay{.median_s = -1}.check(), ErrorCode::kInvalidArgument,
                 {"median_s is -1"});
  expect_refused(SimulatedDelay{.median_s = 1, .sigma = 9}.check(), ErrorCode::kInvalidArgument,
                 {"sigma is 9"});
  expect_refused(SimulatedDelay{.median_s = std::nan("")}.check(), ErrorCode::kInvalidArgument,
                 {"median_s"});
}

TEST(SimulatedDelay, MakespanEqualsWalkingThroughTime) {
  constexpr std::uint64_t kSeed = 4;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  Rng rng(kSeed);
  for (int round = 0; round < 200; ++round) {
    std::vector<Duration> durations;
    for (std::uint64_t i = rng.below(12); i > 0; --i) durations.emplace_back(1 + rng.below(9));
    const auto slots = static_cast<std::int64_t>(1 + rng.below(4));
    // A tick at a time: free slots take the next ones in order.
    std::vector<Duration> left;
    std::size_t next = 0;
    Duration time{0};
    while (true) {
      std::erase(left, Duration(0));
      while (static_cast<std::int64_t>(left.size()) < slots && next < durations.size())
        left.push_back(durations[next++]);
      if (left.empty()) break;
      for (Duration& one : left) --one;
      ++time;
    }
    EXPECT_EQ(simulated_makespan(durations, slots), time);
  }
}

class Delayed : public ::testing::Test {
 protected:
  static constexpr SimulatedDelay kSecond{.median_s = 1.0, .sigma = 0};

  Replica make(const SimulatedDelay& delay = kSecond, int ranks = 1) {
    return Replica(config_, weights_, {.max_num_seqs = 8}, ranks, delay);
  }
  SampleStart start(const GenerateRequest& request) {
    return keeper_.start(trajectories_of({request})[0]);
  }
  AdvanceReply advance(Replica& replica, AdvanceRequest request) {
    AdvanceReply reply = replica.advance(request).value();
    keeper_.take(reply);
    return reply;
  }
  ModelConfig config_ = tiny_config();
  WeightSet weights_ = weights_for(config_);
  Keeper keeper_;
};

TEST_F(Delayed, ASampleEndsAtItsTimeToTheNanosecond) {
  Replica replica = make({.median_s = 1.5, .sigma = 0.9, .seed = 2});
  const auto wanted = generate_all(replica.engine(), {plain_request(1, 20), plain_request(2, 12)});
  const SimulatedDelay delay{.median_s = 1.5, .sigma = 0.9, .seed = 2};
  const Duration first = delay.of(1, 0, 11);
  const Duration second = delay.of(2, 0, 11);
  AdvanceRequest request{.starts = {start(plain_request(1, 20)), start(plain_request(2, 12))},
                         .slice = kLong};
  AdvanceReply reply = advance(replica, request);
  EXPECT_EQ(replica.rank().clock.slept(), std::min(first, second));
  EXPECT_EQ(keeper_.ended().size(), 1u);
  EXPECT_NEAR(*reply.metrics.value("simulated/waited_s"), seconds(std::min(first, second)), 1e-9);
  EXPECT_NEAR(*reply.metrics.value("simulated/generation_delay_s"),
              seconds(std::min(first, second)), 1e-9);
  run_to_end(replica, keeper_);
  EXPECT_EQ(replica.rank().clock.slept(), std::max(first, second));
  expect_same_sample(keeper_.done(1), wanted[0], "first");
  expect_same_sample(keeper_.done(2), wanted[1], "second");
}

TEST_F(Delayed, TokensAreToldAtTheDeclaredPace) {
  Replica replica = make();
  AdvanceReply reply = advance(replica, {.starts = {start(plain_request(1, 20))}, .slice = 250ms});
  EXPECT_EQ(replica.rank().clock.slept(), 250ms) << "a slice ends in time, its sample held";
  ASSERT_EQ(reply.news.size(), 1u);
  EXPECT_EQ(reply.news[0].piece.tokens.size(), 5u) << "a quarter of 20";
  EXPECT_EQ(reply.samples_free, 7);
  reply = advance(replica, {.slice = 740ms});
  EXPECT_EQ(keeper_.under_way().at(1).length(), 19) << "its end is what it waits for";
  reply = advance(replica, {.slice = kLong});
  EXPECT_TRUE(reply.news[0].ended);
  EXPECT_EQ(replica.rank().clock.slept(), 1s);
}

TEST_F(Delayed, StoppedAndMovedItTakesTheTimeThatIsLeftInAll) {
  constexpr std::uint64_t kSeed = 8;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  Rng rng(kSeed);
  Replica here = make();
  Replica there = make();
  const auto wanted = generate_all(here.engine(), {plain_request(1, 37)});
  for (int round = 0; round < 20; ++round) {
    const Duration before = here.rank().clock.slept() + there.rank().clock.slept();
    SampleStart next = start(plain_request(1, 37));
    int moves = 0;
    for (int slice = 0;; ++slice) {
      ASSERT_LT(slice, 100);
      Replica& replica = slice % 2 == 0 ? here : there;
      const std::uint64_t attempt = next.attempt;
      advance(replica, {.starts = {next}, .slice = Duration(1 + rng.below(400'000'000))});
      if (!keeper_.ended().contains(attempt)) advance(replica, {.stops = {attempt}});
      const AttemptOutcome outcome = keeper_.ended().at(attempt);
      Trajectory one = keeper_.take_done(attempt);
      if (outcome == AttemptOutcome::kFinished) {
        expect_same_sample(one, wanted[0], "moved");
        break;
      }
      ++moves;
      next = keeper_.start(std::move(one));
    }
    const Duration took = here.rank().clock.slept() + there.rank().clock.slept() - before;
    EXPECT_GE(took, 1s - Duration(100)) << "not before its time (rounding of shares apart)";
    // What was begun of a token when it was stopped is done again.
    EXPECT_LE(took, Duration(1s) + (moves + 1) * Duration(1s) / 37);
  }
}

TEST_F(Delayed, NewWeightsMakeTheTokensThatWereNotDueYet) {
  Replica replica = make();
  const WeightSet fresh = weights_for(config_, 2);
  advance(replica, {.starts = {start(plain_request(1, 20))}, .slice = 300ms});
  EXPECT_EQ(keeper_.under_way().at(1).length(), 6);
  ASSERT_TRUE(
      replica.engine().load_weights(fresh.tensors(), WeightVersion{2}, WeightUpdate::kRecompute));
  run_to_end(replica, keeper_);
  const Trajectory& one = keeper_.done(1);
  EXPECT_EQ(std::ranges::count(one.versions, WeightVersion{1}), 6);
  EXPECT_EQ(std::ranges::count(one.versions, WeightVersion{2}), 14);
  EXPECT_EQ(replica.rank().clock.slept(), 1s);
  // As if it had been resumed under the new weights.
  Trajectory prefix = one;
  prefix.rewind(6);
  auto other = engine_for(config_, fresh);
  const auto wanted = generate_all(*other, {prefix.resume_request().value()});
  EXPECT_EQ(one.tokens, wanted[0].tokens);
  EXPECT_EQ(bits_of(one.log_probs), bits_of(wanted[0].log_probs));
}

TEST_F(Delayed, ADrainedUpdateWaitsForTheDeclaredEnd) {
  Replica replica = make();
  advance(replica, {.starts = {start(plain_request(1, 20))}, .slice = 300ms});
  ASSERT_TRUE(replica.rank().stream->settle(late()));
  EXPECT_EQ(replica.rank().clock.slept(), 1s);
  const WeightSet fresh = weights_for(config_, 2);
  ASSERT_TRUE(replica.engine().load_weights(fresh.tensors(), WeightVersion{2}));
  advance(replica, {});
  EXPECT_EQ(std::ranges::count(keeper_.done(1).versions, WeightVersion{1}), 20);
  advance(replica, {.starts = {start(plain_request(2, 20))}, .slice = 10ms});
  expect_refused(replica.rank().stream->settle(Deadline::in(Duration(-1))), ErrorCode::kDeadline,
                 {"0.990 s"});
}

TEST_F(Delayed, RanksWhoseClocksDifferAnswerAlike) {
  Replica replica = make({.median_s = 1.0, .sigma = 0.9, .seed = 3}, 2);
  std::vector<SampleStart> starts;
  for (std::uint64_t id = 1; id <= 4; ++id) starts.push_back(start(plain_request(id, 12)));
  AdvanceRequest request{.starts = starts, .slice = 120ms};
  for (int slice = 0; slice < 200 && keeper_.ended().size() < 4; ++slice) {
    advance(replica, request);  // CHECKs that both ranks say the same
    request.starts.clear();
    request.stops.clear();
    if (slice == 2) request.stops = {2};
  }
  EXPECT_EQ(keeper_.ended().size(), 4u);
}

}  // namespace
}  // namespace troupe::actors
