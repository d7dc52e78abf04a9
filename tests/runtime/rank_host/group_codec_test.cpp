// Proves that frames of calls and results come back equal, in order, and that damaged bytes are
// refused and never crash.

#include "runtime/group/group_codec.hpp"

#include "runtime/base/rng.hpp"
#include "runtime/group/rank_launcher.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace troupe::runtime {
namespace {

std::vector<std::byte> some_bytes(Rng& rng) {
  std::vector<std::byte> bytes(rng.below(40));
  for (auto& byte : bytes) byte = static_cast<std::byte>(rng.next());
  return bytes;
}

TEST(GroupCodec, CallsComeBackInOrder) {
  Rng rng(5);
  std::vector<std::vector<std::byte>> payloads;
  for (int i = 0; i < 30; ++i) payloads.push_back(some_bytes(rng));
  std::vector<CallFrame> calls;
  for (std::uint64_t i = 0; i < 10; ++i) {
    CallFrame call;
    call.id = CallId{i + 1};
    call.method = static_cast<std::uint16_t>(i * 7);
    call.wanted = i % 2 == 0;
    call.rebuild_epoch = i == 3 ? 12 : 0;
    call.remaining = Duration(static_cast<std::int64_t>(i) * 1000 - 2000);
    if (i % 3 == 0) call.ticket = {"job/0", i + 5, i + 2};
    for (std::uint64_t a = 0; a < i % 4; ++a)
      call.arguments.push_back({payloads[i * 3 + a], a == 1});
    calls.push_back(call);
  }
  const auto bytes = encode_calls(calls);
  FrameDecoder decoder;
  const auto back = decoder.calls(bytes);
  ASSERT_TRUE(back) << back.error().to_string();
  ASSERT_EQ(back->size(), calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const CallFrame& in = calls[i];
    const CallFrame& out = (*back)[i];
    EXPECT_EQ(out.id, in.id);
    EXPECT_EQ(out.method, in.method);
    EXPECT_EQ(out.wanted, in.wanted);
    EXPECT_EQ(out.rebuild_epoch, in.rebuild_epoch);
    EXPECT_EQ(out.remaining, in.remaining);
    EXPECT_EQ(out.ticket, in.ticket);
    ASSERT_EQ(out.arguments.size(), in.arguments.size());
    for (std::size_t a = 0; a < in.arguments.size(); ++a) {
      EXPECT_EQ(out.arguments[a].held, in.arguments[a].held);
      EXPECT_TRUE(std::ranges::equal(out.arguments[a].bytes, in.arguments[a].bytes));
    }
  }
}

TEST(GroupCodec, ResultsComeBackWithValuesAndErrors) {
  const std::vector<std::byte> value(16, std::byte{7});
  std::vector<ResultFrame> results(3);
  results[0].id = CallId{1};
  results[0].ran = true;
  results[0].begin = TimePoint(Duration(5));
  results[0].end = TimePoint(Duration(9));
  results[0].value = WirePartView{value, true};
  results[1].id = CallId{2};
  results[1].broken = true;
  results[1].error = Error{.code = ErrorCode::kConflict,
                           .message = "no",
                           .origin = {.group = "g", .rank = RankId{2}, .node = {}},
                           .causes = {}};
  results[2].id = CallId{3};
  const auto bytes = encode_results(results);
  FrameDecoder decoder;
  const auto back = decoder.results(bytes);
  ASSERT_TRUE(back) << back.error().to_string();
  ASSERT_EQ(back->size(), 3U);
  EXPECT_TRUE(back->at(0).value->held);
  EXPECT_TRUE(std::ranges::equal(back->at(0).value->bytes, value));
  EXPECT_EQ(back->at(0).end, results[0].end);
  EXPECT_TRUE(back->at(1).broken);
  EXPECT_EQ(back->at(1).error, results[1].error);
  EXPECT_FALSE(back->at(2).ran || back->at(2).value || back->at(2).error);
}

TEST(GroupCodec, DamagedFramesAreRefused) {
  Rng rng(6);
  const auto payload = some_bytes(rng);
  std::vector<CallFrame> calls(3);
  for (auto& call : calls) call.arguments.push_back({payload, false});
  const auto good = encode_calls(calls);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    auto bytes = good;
    bytes[rng.below(bytes.size())] ^= static_cast<std::byte>(1 + rng.below(255));
    if (i % 5 == 0) bytes.resize(rng.below(bytes.size()));
    FrameDecoder decoder;
    const auto back = decoder.calls(bytes);
    FrameDecoder other;
    (void)other.results(bytes);
    if (back) continue;
    ++refused;
    EXPECT_EQ(back.error().code, ErrorCode::kCorrupt);
  }
  EXPECT_GT(refused, 500);
}

TEST(RankRecord, SurvivesItsEnvironmentVariable) {
  RankRecord record{.job = "job7",
                    .group = "policy",
                    .rank = RankId{3},
                    .bundle = 2,
                    .controller = "10.0.0.1:4711",
                    .agent = "10.0.0.2:80",
                    .node = "gpu-1",
                    .devices = {4, 5}};
  const auto back = RankRecord::from_json(record.to_json());
  ASSERT_TRUE(back) << back.error().to_string();
  EXPECT_EQ(*back, record);
  EXPECT_EQ(record.peer_name(), "job7/policy/3");
  EXPECT_EQ(RankRecord::from_json("").error().code, ErrorCode::kConfig);
  EXPECT_EQ(RankRecord::from_json("[1]").error().code, ErrorCode::kConfig);
  EXPECT_EQ(RankRecord::from_json("{\"job\": 3}").error().message, "TROUPE_RANK: job is 3");
  record.group = "a/b";
  EXPECT_FALSE(RankRecord::from_json(record.to_json()));
}

}  // namespace
}  // namespace troupe::runtime
