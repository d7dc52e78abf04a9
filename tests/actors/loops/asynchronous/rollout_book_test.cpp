// Proves what the book keeps, without a service: saved bytes come back equal and go on, damage and
// other options are refused by name, partial samples start again from what they had, forks and
// strangers' news are refused, samples given up drop their group.

#include "actors/loops/rollout_book.hpp"

#include "actors/loops/columns.hpp"
#include "tests/actors/loops/asynchronous/hash_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors::testing {
namespace {

using ::testing::HasSubstr;

constexpr TimePoint kNow{std::chrono::hours(1)};

RolloutOptions book_options() {
  RolloutOptions options;
  options.ledger = {.groups_per_step = 2, .lead_max = 1};
  options.sampling = {.max_new_tokens = 8, .seed = 3};
  options.group_size = 2;
  return options;
}

RolloutBook book_with(const RolloutOptions& options, std::int64_t groups) {
  RolloutBook book = RolloutBook::create(options).value();
  for (std::int64_t i = 0; i < groups; ++i) value_or_throw(book.issue(hash_prompts(i, 1), kNow));
  book.join({.replica = RankId{0}, .samples_max = 8, .tokens_max = 1000}, kNow);
  return book;
}

SamplePrefix tokens(std::int32_t first, std::size_t count, std::int64_t version = 0) {
  SamplePrefix piece;
  for (std::size_t i = 0; i < count; ++i) {
    piece.tokens.push_back(first + static_cast<std::int32_t>(i));
    piece.log_probs.push_back(-1);
    piece.full_log_probs.push_back(-2);
    piece.versions.push_back(WeightVersion{version});
  }
  return piece;
}

AdvanceReply reply_of(std::vector<SampleNews> news) {
  return {.news = std::move(news), .samples_free = 4, .tokens_free = 500, .steps = 1};
}

SampleNews finished(std::uint64_t attempt, std::size_t count) {
  return {.attempt = attempt,
          .piece = tokens(10, count),
          .ended = true,
          .outcome = AttemptOutcome::kFinished,
          .reason = StopReason::kStopId};
}

Batch reward(float score) {
  Batch row;
  value_or_throw(row.set(std::string(column::kScores), Column::dense(std::vector<float>{score})));
  return row;
}

/// Two groups: one complete; of the other one sample is whole and one has three tokens.
RolloutBook half_done() {
  RolloutBook book = book_with(book_options(), 2);
  const AdvanceRequest request = book.next_request(RankId{0});
  EXPECT_EQ(request.starts.size(), 4U);
  std::vector<SampleNews> news;
  for (std::size_t i = 0; i < 3; ++i) news.push_back(finished(request.starts[i].attempt, 4 + i));
  news.push_back({.attempt = request.starts[3].attempt, .piece = tokens(90, 3)});
  value_or_throw(book.replied(RankId{0}, reply_of(std::move(news)), kNow));
  for (const ScoreJob& job : book.next_score_jobs(2))
    value_or_throw(book.scored(job.sample, reward(1), kNow));
  book.check_invariants();
  return book;
}

TEST(RolloutBook, ComesBackFromItsBytesAndGoesOn) {
  const RolloutBook book = half_done();
  const Batch unissued = hash_prompts(2, 3);
  const auto bytes = book.save(unissued).value();
  RolloutBook back = RolloutBook::restore(book_options(), bytes, kNow).value();
  back.check_invariants();
  EXPECT_EQ(back.save(unissued).value(), bytes);
  EXPECT_TRUE(back.take_unissued() == unissued);
  EXPECT_EQ(back.ready(), 1);
  // The whole sample is scored without being generated again; the partial goes on behind its three.
  const auto jobs = back.next_score_jobs(9);
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0].sample, (SampleId{1, 0}));
  back.join({.replica = RankId{5}, .samples_max = 8, .tokens_max = 1000}, kNow);
  const AdvanceRequest request = back.next_request(RankId{5});
  ASSERT_EQ(request.starts.size(), 1U);
  EXPECT_EQ(request.starts[0].trajectory.tokens, (std::vector<std::int32_t>{90, 91, 92}));
  EXPECT_EQ(request.starts[0].trajectory.sampling.seed, step_seed(3, 1));
  SampleNews news = finished(request.starts[0].attempt, 2);
  news.from = 3;
  value_or_throw(back.replied(RankId{5}, reply_of({news}), kNow));
  value_or_throw(back.scored({1, 0}, reward(0), kNow));
  value_or_throw(back.scored({1, 1}, reward(0.5), kNow));
  ASSERT_EQ(back.ready(), 2);
  const RolloutBook::Taken taken = back.take(2, kNow);
  const Batch batch = trajectory_batch(taken.rows, taken.first).value();
  EXPECT_EQ(batch.column(column::kResponses).row_lengths(),
            (std::vector<std::int64_t>{4, 5, 6, 5}));
  EXPECT_EQ(batch.column(column::kScores).values<float>(), (std::vector<float>{1, 1, 0, 0.5}));
  EXPECT_EQ(back.end_step().value().groups, 2);
}

TEST(RolloutBook, SavesWhatAStepUnderWayHadTakenAsFinished) {
  RolloutBook book = half_done();
  ASSERT_EQ(book.take(1, kNow).groups.size(), 1U);
  RolloutBook back = RolloutBook::restore(book_options(), book.save({}).value(), kNow).value();
  EXPECT_EQ(back.ready(), 1);
  book.abandon_step();
  EXPECT_EQ(book.ready(), 1);
}

TEST(RolloutBook, RefusesEveryCutAndMostFlippedBytes) {
  const auto bytes = half_done().save(hash_prompts(2, 1)).value();
  for (std::size_t length = 0; length < bytes.size(); length += 7) {
    const auto cut = RolloutBook::restore(book_options(), std::span(bytes).first(length), kNow);
    ASSERT_FALSE(cut.has_value()) << length;
    ASSERT_EQ(cut.error().code, ErrorCode::kCorrupt) << cut.error().to_string();
  }
  std::size_t accepted = 0;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    auto damaged = bytes;
    damaged[at] ^= std::byte{0x10};
    const auto back = RolloutBook::restore(book_options(), damaged, kNow);
    if (back)
      ++accepted;  // padding of a blob
    else
      ASSERT_EQ(back.error().code, ErrorCode::kCorrupt) << at << back.error().to_string();
  }
  EXPECT_LT(accepted, bytes.size() / 3 / 20);
}

TEST(RolloutBook, NamesAnOptionThatTheBytesDoNotFit) {
  const auto bytes = half_done().save({}).value();
  RolloutOptions options = book_options();
  options.group_size = 3;
  auto back = RolloutBook::restore(options, bytes, kNow);
  ASSERT_FALSE(back);
  EXPECT_THAT(back.error().message, HasSubstr("group size was 2, now it is 3"));
  options = book_options();
  options.dispatch.samples_extra = 1;
  back = RolloutBook::restore(options, bytes, kNow);
  ASSERT_FALSE(back);
  EXPECT_THAT(back.error().message, HasSubstr("samples of a group was 2, now it is 3"));
  options = book_options();
  options.ledger.groups_per_step = 4;
  back = RolloutBook::restore(options, bytes, kNow);
  ASSERT_FALSE(back);
  EXPECT_THAT(back.error().message, HasSubstr("groups per step was 2, now it is 4"));
}

TEST(RolloutBook, BeginsBehindStepsThatWereTrainedWithoutIt) {
  RolloutOptions options = book_options();
  options.first_step = 5;
  RolloutBook book = book_with(options, 1);
  EXPECT_EQ(book.ledger().steps_trained(), 5);
  const AdvanceRequest request = book.next_request(RankId{0});
  EXPECT_EQ(request.starts[0].trajectory.group, 10U);
  EXPECT_EQ(request.starts[0].trajectory.sampling.seed, step_seed(3, 6));
}

TEST(RolloutBook, RefusesForksAndNewsOfOthers) {
  RolloutBook book = book_with(book_options(), 1);
  book.join({.replica = RankId{1}, .samples_max = 1, .tokens_max = 10}, kNow);
  const std::uint64_t attempt = book.next_request(RankId{0}).starts.at(0).attempt;
  value_or_throw(
      book.replied(RankId{0}, reply_of({{.attempt = attempt, .piece = tokens(5, 2)}}), kNow));
  const auto fork =
      book.replied(RankId{0}, reply_of({{.attempt = attempt, .piece = tokens(6, 2)}}), kNow);
  ASSERT_FALSE(fork);
  EXPECT_THAT(fork.error().message, HasSubstr("token 0 is 5 of version 0, the piece says 6"));
  const auto gap = book.replied(
      RankId{0}, reply_of({{.attempt = attempt, .from = 3, .piece = tokens(6, 2)}}), kNow);
  ASSERT_FALSE(gap);
  EXPECT_THAT(gap.error().message, HasSubstr("piece begins at 3"));
  const auto stranger =
      book.replied(RankId{1}, reply_of({{.attempt = attempt, .piece = tokens(5, 3)}}), kNow);
  ASSERT_FALSE(stranger);
  EXPECT_THAT(stranger.error().message, HasSubstr("replica 1 speaks of attempt"));
  // Of attempts that are over nobody wants to hear.
  EXPECT_TRUE(book.replied(RankId{0}, reply_of({{.attempt = 999}}), kNow).has_value());
}

TEST(RolloutBook, GoesOnElsewhereWhenAReplicaIsLostOrRecalled) {
  RolloutBook book = book_with(book_options(), 1);
  const AdvanceRequest first = book.next_request(RankId{0});
  value_or_throw(book.replied(
      RankId{0}, reply_of({{.attempt = first.starts[0].attempt, .piece = tokens(5, 2)}}), kNow));
  book.lose(RankId{0}, kNow);
  book.join({.replica = RankId{1}, .samples_max = 8, .tokens_max = 1000}, kNow);
  const AdvanceRequest second = book.next_request(RankId{1});
  ASSERT_EQ(second.starts.size(), 2U);
  EXPECT_EQ(second.starts[0].trajectory.tokens, (std::vector<std::int32_t>{5, 6}));
  book.recall(RankId{1}, kNow);
  const AdvanceRequest third = book.next_request(RankId{1});
  EXPECT_EQ(third.stops.size(), 2U);
  EXPECT_TRUE(third.starts.empty());
  SampleNews stopped{.attempt = second.starts[0].attempt, .from = 2, .piece = tokens(7, 1)};
  stopped.ended = true;
  value_or_throw(book.replied(RankId{1}, reply_of({stopped}), kNow));
  book.join({.replica = RankId{2}, .samples_max = 8, .tokens_max = 1000}, kNow);
  const AdvanceRequest fourth = book.next_request(RankId{2});
  ASSERT_EQ(fourth.starts.size(), 1U);
  EXPECT_EQ(fourth.starts[0].trajectory.tokens, (std::vector<std::int32_t>{5, 6, 7}));
  book.check_invariants();
}

TEST(RolloutBook, DropsAGroupThatRewardOrEnvironmentGiveUp) {
  RolloutBook book = half_done();
  Batch given_up = reward(0);
  value_or_throw(
      given_up.set(std::string(column::kScoreFailed), Column::dense(std::vector<std::uint8_t>{1})));
  value_or_throw(book.scored({1, 0}, given_up, kNow));
  EXPECT_EQ(book.ledger().cancelled(CancelReason::kFailed), 1);
  EXPECT_THAT(book.explain(kNow), HasSubstr("the reward gave group 1 sample 0 up"));
  book.check_invariants();

  RolloutOptions options = book_options();
  options.environment = true;
  RolloutBook turns = book_with(options, 1);
  const std::uint64_t attempt = turns.next_request(RankId{0}).starts[0].attempt;
  value_or_throw(turns.replied(RankId{0}, reply_of({finished(attempt, 2)}), kNow));
  const auto jobs = turns.next_environment_jobs(9);
  ASSERT_EQ(jobs.size(), 1U);
  EnvironmentAnswer answer;
  answer.done = true;
  answer.failure = "the game crashed";
  value_or_throw(turns.answered(attempt, answer, kNow));
  EXPECT_EQ(turns.ledger().cancelled(CancelReason::kFailed), 1);
  EXPECT_THAT(turns.explain(kNow), HasSubstr("the game crashed"));
  turns.check_invariants();
}

TEST(RolloutBook, TakesTheScoreOfAnEnvironmentThatGivesOne) {
  RolloutOptions options = book_options();
  options.environment = true;
  RolloutBook book = book_with(options, 1);
  const AdvanceRequest request = book.next_request(RankId{0});
  for (const SampleStart& start : request.starts) {
    value_or_throw(book.replied(RankId{0}, reply_of({finished(start.attempt, 2)}), kNow));
    ASSERT_EQ(book.next_environment_jobs(9).size(), 1U);
    EnvironmentAnswer answer;
    answer.done = true;
    answer.score = 0.75;
    value_or_throw(book.answered(start.attempt, answer, kNow));
  }
  EXPECT_FALSE(book.has_score_jobs());
  ASSERT_EQ(book.ready(), 1);
  const RolloutBook::Taken taken = book.take(1, kNow);
  const Batch batch = trajectory_batch(taken.rows, taken.first).value();
  EXPECT_EQ(batch.column(column::kScores).values<float>(), (std::vector<float>{0.75, 0.75}));
}

}  // namespace
}  // namespace troupe::actors::testing
