// Proves that every kind of envelope comes back as it was sent, that the deadline travels as time
// left, that frames over 1 MiB are refused both ways, and that changed bytes never crash the
// decoder. Oracle: equality with the original.

#include "runtime/batch/envelope_codec.hpp"

#include "tests/runtime/batch/batch_support.hpp"

#include <gmock/gmock.h>

namespace troupe::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Error nested_error(std::size_t depth) {
  Error error{.code = ErrorCode::kInternal, .message = "root", .origin = {}, .causes = {}};
  for (std::size_t i = 0; i < depth; ++i)
    error = std::move(error).wrap(ErrorCode::kAborted, fmt::format("level {}", i));
  error.origin = {.group = "policy", .rank = RankId{3}, .node = NodeId{0}};
  return error;
}

Envelope call() {
  Envelope envelope;
  envelope.kind = MessageKind::kCall;
  envelope.call = CallId{77};
  envelope.group = "policy";
  envelope.method = "log_probs";
  envelope.remaining = std::chrono::seconds(30);
  envelope.sent_wall_ns = 1'764'600'000'000'000'000;
  envelope.source = RankId{0};
  envelope.epoch = 4;
  envelope.trace = 0xFFFF'FFFF'FFFF'FFFFULL;
  envelope.payload = payload_in_frame({std::byte{1}, std::byte{2}, std::byte{0}});
  return envelope;
}

Envelope failure() {
  Envelope envelope = call();
  envelope.kind = MessageKind::kError;
  envelope.payload = {};
  envelope.error = nested_error(3);
  return envelope;
}

TEST(Envelope, EveryKindComesBackAsSent) {
  std::vector<Envelope> all{call(), failure(), Envelope{}};
  all.push_back(failure());
  all.back().kind = MessageKind::kAbort;
  all.back().source = std::nullopt;
  all.push_back(call());
  all.back().kind = MessageKind::kResult;
  all.back().payload = {
      .place = HeldPayload{"rollout", RankId{2}, 99}, .bytes = 1ULL << 40, .checksum = 5};
  all.push_back(Envelope{.kind = MessageKind::kHeartbeat});
  all.back().remaining = std::chrono::nanoseconds(-5);
  for (const Envelope& envelope : all) {
    const auto bytes = encode_envelope(envelope);
    ASSERT_TRUE(bytes) << bytes.error().message;
    const result<Envelope> back = decode_envelope(*bytes);
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(*back, envelope) << message_kind_name(envelope.kind);
  }
}

TEST(Envelope, KeepsZeroBytesInTexts) {
  Envelope envelope = failure();
  envelope.group = std::string("a\0b", 3);
  envelope.method = std::string("\0", 1);
  envelope.error->message = std::string("sig\0nal", 7);
  envelope.error->origin.group = std::string("\0x", 2);
  EXPECT_EQ(*decode_envelope(*encode_envelope(envelope)), envelope);
}

TEST(Envelope, DeadlineTravelsAsTimeLeft) {
  const TimePoint now = std::chrono::steady_clock::now();
  Envelope envelope = call();
  envelope.set_deadline(Deadline{now + std::chrono::seconds(2)}, now);
  const Envelope back = *decode_envelope(*encode_envelope(envelope));
  const TimePoint there = now + std::chrono::hours(1000);  // another machine's clock
  EXPECT_EQ(back.deadline(there).at, there + std::chrono::seconds(2));
  Envelope hostile = call();
  hostile.remaining = Duration::max();
  EXPECT_GT(decode_envelope(*encode_envelope(hostile))->deadline(there).at, there);
  hostile.remaining = Duration::min();
  EXPECT_LT(decode_envelope(*encode_envelope(hostile))->deadline(there).at, there);
}

TEST(Envelope, DeepAndWideCausesAreCutNotRefused) {
  Envelope envelope = failure();
  envelope.error = nested_error(40);
  result<Envelope> back = decode_envelope(*encode_envelope(envelope));
  ASSERT_TRUE(back) << back.error().message;
  std::size_t depth = 0;
  for (const Error* error = &*back->error; !error->causes.empty(); error = &error->causes.front())
    ++depth;
  EXPECT_EQ(depth, kCauseDepthMax);
  envelope.error = nested_error(0);
  envelope.error->causes.assign(1000, nested_error(0));
  back = decode_envelope(*encode_envelope(envelope));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->error->causes.size(), kCausesMax);
}

TEST(Envelope, FramesOverOneMebibyteAreRefusedBothWays) {
  Envelope envelope = call();
  envelope.payload = payload_in_frame(std::vector<std::byte>(kControlFrameBytesMax - 4096));
  ASSERT_TRUE(encode_envelope(envelope));
  envelope.payload = payload_in_frame(std::vector<std::byte>(kControlFrameBytesMax));
  const auto over = encode_envelope(envelope);
  ASSERT_FALSE(over);
  EXPECT_EQ(over.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(over.error().message, HasSubstr("1048576"));
  const result<Envelope> back = decode_envelope(std::vector<std::byte>(kControlFrameBytesMax + 8));
  ASSERT_FALSE(back);
  EXPECT_THAT(back.error().message, AllOf(HasSubstr("1048584"), HasSubstr("1048576")));
}

TEST(Envelope, InconsistentEnvelopesAreNotSent) {
  Envelope envelope = call();
  envelope.error = nested_error(0);
  EXPECT_THAT(encode_envelope(envelope).error().message, HasSubstr("call carries an error"));
  envelope = failure();
  envelope.error.reset();
  EXPECT_THAT(encode_envelope(envelope).error().message, HasSubstr("error lacks an error"));
  envelope = call();
  envelope.payload.bytes = 4;
  EXPECT_THAT(encode_envelope(envelope).error().message,
              AllOf(HasSubstr("3 bytes"), HasSubstr("4")));
}

TEST(Envelope, TruncationsAreRefused) {
  const std::vector<std::byte> bytes = *encode_envelope(failure());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const result<Envelope> back = decode_envelope(std::span(bytes).first(size));
    ASSERT_FALSE(back) << size;
    ASSERT_EQ(back.error().code, ErrorCode::kCorrupt);
  }
}

TEST(Envelope, DamagedPayloadNamesBothChecksums) {
  Envelope envelope = call();
  envelope.payload.checksum ^= 1;
  const result<Envelope> back = decode_envelope(*encode_envelope(envelope));
  ASSERT_FALSE(back);
  EXPECT_THAT(back.error().message, HasSubstr(fmt::format("{:08x}", envelope.payload.checksum)));
  EXPECT_TRUE(decode_envelope(*encode_envelope(envelope), false));
}

TEST(Envelope, ChangedBytesNeverCrash) {
  for (const Envelope& envelope : {call(), failure()}) {
    const std::vector<std::byte> original = *encode_envelope(envelope);
    for (std::size_t bit = 0; bit < original.size() * 8; ++bit) {
      std::vector<std::byte> bytes = original;
      bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      const result<Envelope> back = decode_envelope(bytes, false);
      EXPECT_TRUE(!back || encode_envelope(*back)) << "bit " << bit;
    }
    for_seeds(3000, [&](Rng& rng) {
      std::vector<std::byte> bytes = original;
      for (std::int64_t i = 1 + pick(rng, 4); i > 0; --i)
        bytes[static_cast<std::size_t>(pick(rng, std::ssize(bytes)))] =
            static_cast<std::byte>(rng.below(256));
      const result<Envelope> back = decode_envelope(bytes, false);
      EXPECT_TRUE(back || back.error().code == ErrorCode::kCorrupt) << back.error().to_string();
    });
  }
}

}  // namespace
}  // namespace troupe::runtime
