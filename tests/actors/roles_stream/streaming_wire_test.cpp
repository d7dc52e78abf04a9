// Proves that slices travel: random requests and replies come back equal, pieces cost about what
// their numbers do, and records whose counts do not add up are refused by name.

#include "actors/roles/streaming_wire.hpp"

#include "tests/actors/roles_stream/stream_case.hpp"

#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

SamplePrefix random_piece(Rng& rng, std::uint64_t tokens) {
  SamplePrefix piece;
  std::int64_t version = static_cast<std::int64_t>(rng.below(5));
  for (std::uint64_t i = 0; i < tokens; ++i) {
    piece.tokens.push_back(static_cast<std::int32_t>(rng.below(61)));
    piece.log_probs.push_back(static_cast<float>(-rng.uniform()));
    piece.full_log_probs.push_back(static_cast<float>(-rng.uniform()));
    version += rng.below(4) == 0 ? 1 : 0;
    piece.versions.push_back(WeightVersion{version});
  }
  return piece;
}

AdvanceReply random_reply(Rng& rng) {
  AdvanceReply reply;
  for (std::uint64_t i = rng.below(6); i > 0; --i) {
    SampleNews& news = reply.news.emplace_back();
    news.attempt = rng.next();
    news.from = static_cast<std::int64_t>(rng.below(1000));
    news.piece = random_piece(rng, rng.below(9));
    news.ended = rng.below(2) == 0;
    if (!news.ended) continue;
    news.outcome = static_cast<AttemptOutcome>(rng.below(3));
    news.reason = static_cast<StopReason>(rng.below(5));
    news.text = std::string("\xff\0x", 3);
    if (news.outcome == AttemptOutcome::kFailed)
      news.error = fail(ErrorCode::kInternal, "logits are not finite").value();
  }
  reply.samples_free = static_cast<std::int64_t>(rng.below(100));
  reply.tokens_free = static_cast<std::int64_t>(rng.below(100'000));
  reply.version = WeightVersion{static_cast<std::int64_t>(rng.below(9))};
  reply.steps = static_cast<std::int64_t>(rng.below(64));
  reply.metrics.add("rollout/tokens_generated", 3, runtime::Reduction::kSum);
  return reply;
}

TEST(StreamingWire, RandomRequestsAndRepliesComeBackEqual) {
  constexpr std::uint64_t kSeed = 12;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  Rng rng(kSeed);
  for (int round = 0; round < 100; ++round) {
    AdvanceRequest request{.stops = {rng.next(), 3},
                           .steps_max = static_cast<std::int64_t>(rng.below(99)),
                           .slice = Duration(rng.below(1'000'000'000))};
    Trajectory one = trajectories_of({plain_request(rng.next(), 40)})[0];
    ASSERT_TRUE(one.extend(0, random_piece(rng, rng.below(30))));
    for (std::uint64_t i = rng.below(3); i > 0; --i)
      request.starts.push_back({.attempt = rng.next(), .trajectory = one});
    const AdvanceRequest asked = over_wire(request);
    EXPECT_EQ(asked.stops, request.stops);
    EXPECT_EQ(asked.steps_max, request.steps_max);
    EXPECT_EQ(asked.slice, request.slice);
    ASSERT_EQ(asked.starts.size(), request.starts.size());
    for (std::size_t i = 0; i < asked.starts.size(); ++i) {
      EXPECT_EQ(asked.starts[i].attempt, request.starts[i].attempt);
      EXPECT_EQ(asked.starts[i].trajectory, request.starts[i].trajectory);
    }
    const AdvanceReply reply = random_reply(rng);
    const AdvanceReply told = over_wire(reply);
    EXPECT_TRUE(same_news(told, reply));
    EXPECT_EQ(told.metrics, reply.metrics);
    for (std::size_t i = 0; i < told.news.size(); ++i)
      EXPECT_EQ(told.news[i].error.has_value(), reply.news[i].error.has_value());
  }
}

TEST(StreamingWire, APieceCostsItsNumbers) {
  Rng rng(1);
  AdvanceReply reply;
  reply.news.push_back({.attempt = 1, .piece = random_piece(rng, 4096)});
  for (WeightVersion& version : reply.news[0].piece.versions) version = WeightVersion{7};
  EXPECT_LT(runtime::encode_value(reply)->size(), 4096 * 12 + 1024);
}

TEST(StreamingWire, CountsThatDoNotAddUpAreRefused) {
  Rng rng(2);
  AdvanceReply reply;
  reply.news.push_back({.attempt = 1, .piece = random_piece(rng, 6), .ended = true});
  reply.news.push_back({.attempt = 2, .piece = random_piece(rng, 3), .ended = true});
  const AdvanceReplyRecord good = record_of(reply);
  ASSERT_TRUE(reply_of(good));
  const auto refused = [&](auto damage, const std::string& part) {
    AdvanceReplyRecord record = good;
    damage(record);
    expect_refused(reply_of(record), ErrorCode::kCorrupt, {part});
    const auto bytes = runtime::encode_value(record);
    expect_refused(runtime::decode_value<AdvanceReply>(*bytes), ErrorCode::kCorrupt, {part});
  };
  refused([](auto& r) { r.from.pop_back(); }, "2 attempts, 1 places");
  refused([](auto& r) { r.tokens_count[1] = 4; }, "10 tokens counted, 9 there");
  refused([](auto& r) { r.log_probs.pop_back(); }, "9 there, 8 and 9 log-probs");
  refused([](auto& r) { r.run_count[0] = 4'000'000'000; }, "run 0 of 4000000000");
  refused([](auto& r) { r.run_count[0] = 0; }, "run 0 of 0");
  refused([](auto& r) { r.run_version.pop_back(); }, "versions of");
  refused([](auto& r) { r.ends[1].news = 2; }, "end of news 2");
  refused([](auto& r) { r.ends[1].news = 0; }, "end of news 0, wanted 1");
  AdvanceRequestRecord request = record_of(AdvanceRequest{}).value();
  request.attempts = {4};
  expect_refused(request_of(request), ErrorCode::kCorrupt, {"0 trajectories for 1 attempts"});
  request.trajectories.resize(40);
  expect_refused(runtime::decode_value<AdvanceRequest>(*runtime::encode_value(request)),
                 ErrorCode::kCorrupt, {"trajectories"});
}

}  // namespace
}  // namespace troupe::actors
