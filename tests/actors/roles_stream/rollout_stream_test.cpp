// Proves that slices change nothing but when samples are told: under random slices, stops and moves
// between replicas (through the bytes that processes exchange, and over two ranks) every sample is
// bit for bit what one call of `generate` makes. Then where a slice ends, what is shared, what is
// refused, and what a failure does to the others.

#include "tests/actors/roles_stream/stream_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

namespace troupe::actors {
namespace {

struct Journey {
  std::string name;
  ModelConfig config;
  int ranks = 1;
  int replicas = 2;
  bool wire = false;
  std::uint64_t seed = 0;
};

/// Samples that wait for a replica, and those that are there.
class Travel {
 public:
  explicit Travel(const Journey& journey)
      : journey_(journey), rng_(journey.seed), weights_(weights_for(journey.config)) {
    options_.max_num_seqs = 6;
    options_.max_num_batched_tokens = 24;
    for (int i = 0; i < journey.replicas; ++i)
      replicas_.push_back(
          std::make_unique<Replica>(journey.config, weights_, options_, journey.ranks));
    where_.resize(replicas_.size());
  }

  void run() {
    const auto requests = random_requests(rng_, 7, journey_.config.vocab_size);
    // One engine of as many ranks: sums over ranks round in their own way.
    const auto wanted = plain(requests);
    std::vector<Trajectory> waiting = trajectories_of(requests);
    std::map<std::pair<std::uint64_t, std::uint32_t>, const GeneratedSequence*> by_sample;
    for (const GeneratedSequence& one : wanted) by_sample[{one.prompt_id, one.sample_index}] = &one;
    std::size_t finished = 0;
    for (int turn = 0; finished < wanted.size(); ++turn) {
      ASSERT_LT(turn, 5000) << "no end";
      for (std::size_t at = 0; at < replicas_.size(); ++at) {
        ASSERT_NO_FATAL_FAILURE(slice(at, waiting));
        for (const std::uint64_t attempt : std::set(where_[at])) {
          const auto over = keeper_.ended().find(attempt);
          if (over == keeper_.ended().end()) continue;
          where_[at].erase(attempt);
          const AttemptOutcome outcome = over->second;
          Trajectory one = keeper_.take_done(attempt);
          if (outcome == AttemptOutcome::kInterrupted) {
            ++moves_;
            waiting.push_back(std::move(one));
            continue;
          }
          expect_same_sample(one, *by_sample.at({one.prompt_id, one.sample_index}),
                             fmt::format("{}, seed {}", journey_.name, journey_.seed));
          ++finished;
        }
      }
    }
    EXPECT_TRUE(waiting.empty());
    EXPECT_GT(moves_, 3);
  }

 private:
  std::vector<GeneratedSequence> plain(const std::vector<GenerateRequest>& requests) {
    Replica alone(journey_.config, weights_, options_, journey_.ranks);
    std::vector<std::vector<GeneratedSequence>> found(static_cast<std::size_t>(journey_.ranks));
    alone.on_all(
        [&](std::size_t rank) { found[rank] = generate_all(*alone.rank(rank).engine, requests); });
    return found[0];
  }

  void slice(std::size_t at, std::vector<Trajectory>& waiting) {
    AdvanceRequest request{.steps_max = 1 + static_cast<std::int64_t>(rng_.below(6)),
                           .slice = rng_.below(4) == 0 ? Duration(0) : kLong};
    for (const std::uint64_t& attempt : where_[at])
      if (rng_.below(6) == 0) request.stops.push_back(attempt);
    const std::size_t staying = where_[at].size() - request.stops.size();
    std::size_t room = std::min<std::size_t>(rng_.below(4), 6 - staying);
    while (room-- > 0 && !waiting.empty()) {
      // Neighbours often belong together, so that some share a prefill.
      const auto pick =
          static_cast<std::ptrdiff_t>(rng_.below(std::min<std::uint64_t>(waiting.size(), 2)));
      request.starts.push_back(keeper_.start(std::move(waiting[static_cast<std::size_t>(pick)])));
      waiting.erase(waiting.begin() + pick);
      where_[at].insert(request.starts.back().attempt);
      if (rng_.below(10) == 0) request.stops.push_back(request.starts.back().attempt);
    }
    auto reply = replicas_[at]->advance(journey_.wire ? over_wire(request) : request);
    ASSERT_TRUE(reply.has_value()) << reply.error().to_string();
    EXPECT_LE(reply->steps, request.steps_max);
    keeper_.take(journey_.wire ? over_wire(*reply) : *reply);
    std::size_t still = 0;
    for (const std::uint64_t& attempt : where_[at])
      still += keeper_.ended().contains(attempt) ? 0 : 1;
    EXPECT_EQ(reply->samples_free, 6 - static_cast<std::int64_t>(still));
  }

  const Journey journey_;
  Rng rng_;
  const WeightSet weights_;
  EngineOptions options_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::vector<std::set<std::uint64_t>> where_;
  Keeper keeper_;
  int moves_ = 0;
};

TEST(RolloutStream, SamplesAreWhatTheyWouldHaveBeenThroughSlicesStopsAndMoves) {
  const std::vector<ModelConfig> models{tiny_config(), switched_config(ModelFamily::kQwen3),
                                        switched_config(ModelFamily::kLlama)};
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    ASSERT_NO_FATAL_FAILURE(Travel({.name = "in one process",
                                    .config = models[seed % models.size()],
                                    .wire = seed % 2 == 0,
                                    .seed = seed})
                                .run());
  }
}

TEST(RolloutStream, TwoRanksOfAnEngineAnswerAlikeAndMoveSamplesBitForBit) {
  for (std::uint64_t seed = 31; seed <= 32; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    ASSERT_NO_FATAL_FAILURE(
        Travel(
            {.name = "two ranks", .config = tiny_config(), .ranks = 2, .wire = true, .seed = seed})
            .run());
  }
}

class Streamed : public ::testing::Test {
 protected:
  Replica make(EngineOptions options = {.max_num_seqs = 8}) {
    return Replica(config_, weights_, options);
  }
  std::vector<SampleStart> starts(const std::vector<GenerateRequest>& requests) {
    std::vector<SampleStart> made;
    for (Trajectory& one : trajectories_of(requests)) made.push_back(keeper_.start(std::move(one)));
    return made;
  }
  ModelConfig config_ = tiny_config();
  WeightSet weights_ = weights_for(config_);
  Keeper keeper_;
};

TEST_F(Streamed, SamplesShareThePrefillOfThoseTheyStartWithAndOfThoseUnderWay) {
  Replica replica = make();
  GenerateRequest request = plain_request(1, 10);
  request.sample_indices = {0, 1, 2, 3};
  AdvanceReply reply = replica.advance({.starts = starts({request}), .steps_max = 2}).value();
  keeper_.take(reply);
  EXPECT_EQ(reply.metrics.value("rollout/prefill_tokens"), 5.0) << "one prompt of 5 tokens";
  EXPECT_EQ(reply.metrics.value("rollout/prefix_tokens_shared"), 15.0);
  request.sample_indices = {4};
  reply = replica.advance({.starts = starts({request}), .steps_max = 1}).value();
  keeper_.take(reply);
  EXPECT_EQ(reply.metrics.value("rollout/prefill_tokens"), 1.0) << "the last one, for its logits";
  EXPECT_EQ(reply.metrics.value("rollout/prefix_tokens_shared"), 4.0);
  EXPECT_EQ(reply.metrics.value("rollout/tokens_generated"), 5.0);
  run_to_end(replica, keeper_);
  request.sample_indices = {0, 1, 2, 3, 4};
  const auto wanted = generate_all(replica.engine(), {request});
  for (std::uint64_t attempt = 1; attempt <= 5; ++attempt)
    expect_same_sample(keeper_.done(attempt), wanted[attempt - 1], "whoever prefilled");
}

TEST_F(Streamed, GroupsStartedOneSampleAtATimePrefillTheirPromptOnceAndKeepEveryBit) {
  for (const std::size_t prompt : {2, 15, 16, 17, 31, 32, 33}) {
    SCOPED_TRACE(fmt::format("prompt of {} tokens", prompt));
    Keeper keeper;
    Replica replica = make();
    GenerateRequest request = plain_request(1, 24);
    request.prompt.clear();
    for (std::size_t i = 0; i < prompt; ++i)
      request.prompt.push_back(static_cast<std::int32_t>(i * 7 % 61));
    request.sample_indices = {0, 1, 2, 3, 4, 5};
    const auto wanted = generate_all(*engine_for(config_, weights_), {request});
    double prefilled = 0;
    for (const Trajectory& one : trajectories_of({request})) {
      const AdvanceReply reply =
          replica.advance({.starts = {keeper.start(one)}, .steps_max = 2, .slice = kLong}).value();
      keeper.take(reply);
      prefilled += *reply.metrics.value("rollout/prefill_tokens");
    }
    EXPECT_EQ(prefilled, static_cast<double>(prompt) + 5.0);
    run_to_end(replica, keeper);
    for (std::uint64_t attempt = 1; attempt <= 6; ++attempt)
      expect_same_sample(keeper.done(attempt), wanted[attempt - 1], "whoever prefilled");
  }
}

TEST_F(Streamed, ASliceEndsAtItsStepsItsTimeAnEndOrWhenNothingRuns) {
  Replica replica = make();
  AdvanceReply reply = replica
                           .advance({.starts = starts({plain_request(1, 9), plain_request(2, 30)}),
                                     .steps_max = 3,
                                     .slice = kLong})
                           .value();
  keeper_.take(reply);
  EXPECT_EQ(reply.steps, 3);
  ASSERT_EQ(reply.news.size(), 2u);
  EXPECT_EQ(reply.news[0].piece.tokens.size(), 3u);
  reply = replica.advance({.slice = Duration(0)}).value();
  EXPECT_EQ(reply.steps, 1) << "a slice without time is one step";
  keeper_.take(reply);
  reply = replica.advance({.slice = kLong}).value();
  keeper_.take(reply);
  EXPECT_EQ(reply.steps, 5) << "the first sample ends with its ninth token";
  ASSERT_EQ(reply.news.size(), 2u);
  EXPECT_TRUE(reply.news[0].ended);
  EXPECT_EQ(reply.news[0].outcome, AttemptOutcome::kFinished);
  EXPECT_EQ(reply.news[0].reason, StopReason::kLength);
  EXPECT_FALSE(reply.news[1].ended);
  EXPECT_EQ(reply.samples_free, 7);
  EXPECT_EQ(reply.version, WeightVersion{1});
  run_to_end(replica, keeper_);
  reply = replica.advance({}).value();
  EXPECT_EQ(reply.steps, 0);
  EXPECT_TRUE(reply.news.empty());
  EXPECT_EQ(reply.samples_free, 8);
  EXPECT_EQ(reply.tokens_free, replica.engine().options().kv_blocks * 16);
}

TEST_F(Streamed, AStopKeepsWhatThereIsAndIsAnsweredOnce) {
  Replica replica = make();
  const auto wanted = generate_all(replica.engine(), {plain_request(1, 20)});
  keeper_.take(
      replica.advance({.starts = starts({plain_request(1, 20)}), .steps_max = 4, .slice = kLong})
          .value());
  AdvanceReply reply = replica.advance({.stops = {1, 1, 99}, .steps_max = 4}).value();
  ASSERT_EQ(reply.news.size(), 1u) << "99 was never here";
  EXPECT_TRUE(reply.news[0].ended);
  EXPECT_EQ(reply.news[0].outcome, AttemptOutcome::kInterrupted);
  EXPECT_EQ(reply.news[0].reason, StopReason::kAborted);
  EXPECT_EQ(reply.steps, 0) << "an end ends the slice";
  keeper_.take(reply);
  const Trajectory& partial = keeper_.done(1);
  EXPECT_EQ(partial.length(), 4);
  EXPECT_TRUE(std::equal(partial.tokens.begin(), partial.tokens.end(), wanted[0].tokens.begin()));
  EXPECT_TRUE(replica.advance({.stops = {1}}).value().news.empty());
  const auto again = keeper_.start(keeper_.done(1));
  reply = replica.advance({.starts = {again}, .stops = {again.attempt}}).value();
  ASSERT_EQ(reply.news.size(), 1u);
  EXPECT_TRUE(reply.news[0].ended && reply.news[0].piece.tokens.empty());
  EXPECT_EQ(reply.news[0].from, 4);
  EXPECT_EQ(replica.engine().unfinished(), 0);
}

TEST_F(Streamed, RefusesWrongRequestsByNameAndChangesNothing) {
  Replica replica = make({.max_num_seqs = 2});
  keeper_.take(
      replica.advance({.starts = starts({plain_request(1, 20)}), .steps_max = 2, .slice = kLong})
          .value());
  const auto refused = [&](AdvanceRequest request, ErrorCode code,
                           const std::vector<std::string>& parts) {
    const auto good = Trajectory::begin(8, 8, 0, WeightVersion{1}, {4, 5}, {});
    request.starts.insert(request.starts.begin(), {.attempt = 50, .trajectory = good});
    request.stops.push_back(1);
    expect_refused(replica.advance(request), code, parts);
    EXPECT_EQ(replica.engine().unfinished(), 1);
  };
  const auto one = [](std::uint64_t attempt, std::vector<std::int32_t> prompt,
                      SamplingOptions sampling = {}) {
    return SampleStart{.attempt = attempt,
                       .trajectory = Trajectory::begin(9, 9, 0, WeightVersion{1}, std::move(prompt),
                                                       std::move(sampling))};
  };
  refused({.steps_max = 0}, ErrorCode::kInvalidArgument, {"steps_max 0"});
  refused({.slice = Duration(-1)}, ErrorCode::kInvalidArgument, {"slice -1"});
  refused({.starts = {one(1, {3})}}, ErrorCode::kConflict, {"attempt 1", "here already"});
  refused({.starts = {one(50, {3})}}, ErrorCode::kConflict, {"attempt 50", "here already"});
  refused({.starts = {one(51, {3}), one(52, {3})}}, ErrorCode::kResourceExhausted,
          {"3 starts beside 0", "max_num_seqs is 2"});
  refused({.starts = {one(51, {})}}, ErrorCode::kInvalidArgument, {"attempt 51", "0 tokens"});
  refused({.starts = {one(51, {61})}}, ErrorCode::kInvalidArgument,
          {"attempt 51", "prompt token 0 is 61"});
  refused({.starts = {one(51, {3}, {.top_p = 2.0})}}, ErrorCode::kInvalidArgument,
          {"attempt 51", "top_p is 2"});
  refused({.starts = {one(51, {3}, {.max_new_tokens = 500})}}, ErrorCode::kInvalidArgument,
          {"attempt 51", "max_model_tokens is 160"});
  SampleStart finished = one(51, {3}, {.max_new_tokens = 1});
  ASSERT_TRUE(finished.trajectory.extend(
      0, {.tokens = {1}, .log_probs = {-1}, .full_log_probs = {-1}, .versions = {{1}}},
      StopReason::kLength));
  refused({.starts = {finished}}, ErrorCode::kConflict, {"attempt 51", "ended by length"});
  run_to_end(replica, keeper_);
  const auto wanted = generate_all(replica.engine(), {plain_request(1, 20)});
  expect_same_sample(keeper_.done(1), wanted[0], "as if nothing had been asked");

  auto empty = std::move(RolloutEngine::create(config_, {}).value());
  StreamRank unborn(std::move(empty));
  expect_refused(unborn.stream->advance({.starts = {one(1, {3})}}, late()), ErrorCode::kConflict,
                 {"no weights"});
  replica.engine().release_kv();
  expect_refused(replica.advance({}), ErrorCode::kConflict, {"no KV cache"});
}

TEST_F(Streamed, AFailedSampleFailsAloneAndTellsNothing) {
  config_.tie_embeddings = false;
  WeightSet poisoned = weights_for(config_);
  const auto rows = poisoned.mutable_data("model.embed_tokens.weight");
  std::fill_n(rows.begin() + 13 * config_.hidden_size, config_.hidden_size,
              std::numeric_limits<float>::quiet_NaN());
  Replica replica(config_, poisoned, {.max_num_seqs = 8});
  GenerateRequest bad = plain_request(1, 12);
  bad.prompt[2] = 13;
  GenerateRequest good = plain_request(2, 12);
  good.sampling.temperature = 0;
  const auto wanted = generate_all(replica.engine(), {good});
  ASSERT_NE(wanted[0].reason, StopReason::kFailed) << "the good one does not draw the poison";
  AdvanceReply reply = replica.advance({.starts = starts({bad, good}), .slice = kLong}).value();
  keeper_.take(reply);
  EXPECT_EQ(reply.news[0].outcome, AttemptOutcome::kFailed);
  EXPECT_EQ(reply.news[0].reason, StopReason::kFailed);
  EXPECT_TRUE(reply.news[0].piece.tokens.empty());
  ASSERT_TRUE(reply.news[0].error.has_value());
  EXPECT_NE(reply.news[0].error->to_report().find("prompt 1 sample 0"), std::string::npos);
  EXPECT_EQ(over_wire(reply).news[0].error->message, reply.news[0].error->message);
  run_to_end(replica, keeper_);
  expect_same_sample(keeper_.done(2), wanted[0], "the other one");
}

TEST_F(Streamed, OtherCallsBetweenSlicesLeaveSamplesAlone) {
  Replica replica = make();
  const auto wanted = generate_all(replica.engine(), {plain_request(1, 20), plain_request(2, 20)});
  keeper_.take(replica
                   .advance({.starts = starts({plain_request(1, 20), plain_request(2, 20)}),
                             .steps_max = 3,
                             .slice = kLong})
                   .value());
  // As evaluation does; long enough for the samples under way to end in it.
  EXPECT_EQ(generate_all(replica.engine(), {plain_request(7, 40)}).size(), 1u);
  replica.engine().release_kv();
  ASSERT_TRUE(replica.engine().acquire_kv());
  run_to_end(replica, keeper_);
  expect_same_sample(keeper_.done(1), wanted[0], "first");
  expect_same_sample(keeper_.done(2), wanted[1], "second");
}

TEST_F(Streamed, GoesOnBehindTheTokensOfAnEnvironment) {
  Replica replica = make();
  Trajectory one = trajectories_of({plain_request(1, 30)})[0];
  AdvanceReply reply =
      replica.advance({.starts = {keeper_.start(one)}, .steps_max = 6, .slice = kLong}).value();
  keeper_.take(reply);
  keeper_.take(replica.advance({.stops = {1}}).value());
  one = keeper_.done(1);
  ASSERT_EQ(one.length(), 6);
  ASSERT_TRUE(one.append_environment(std::vector<std::int32_t>{20, 21, 22}, {}));
  const auto wanted = generate_all(replica.engine(), {one.resume_request().value()});
  const auto second = keeper_.start(one);
  reply = replica.advance({.starts = {second}, .steps_max = 2, .slice = kLong}).value();
  EXPECT_EQ(reply.news[0].from, 9) << "behind the environment's";
  keeper_.take(reply);
  run_to_end(replica, keeper_);
  const Trajectory& whole = keeper_.done(second.attempt);
  EXPECT_EQ(whole.length(), 30);
  EXPECT_TRUE(std::equal(whole.tokens.begin() + 9, whole.tokens.end(), wanted[0].tokens.begin()));
}

}  // namespace
}  // namespace troupe::actors
