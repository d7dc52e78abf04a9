// Proves that the data plane's bytes are read only when they are whole and of this session: MACs
// against published vectors, forged, torn, foreign and replayed messages refused, every bound kept,
// and chunk plans that cover each byte once. Oracles: vectors, round trips, slow references.

#include "runtime/comm/transport_wire.hpp"

#include "runtime/base/rng.hpp"
#include "runtime/comm/pull_plan.hpp"
#include "runtime/comm/session_mac.hpp"
#include "tests/support/line_child.hpp"

#include <gmock/gmock.h>

#include <set>

namespace troupe::runtime {
namespace {

using ::testing::HasSubstr;

SessionKey counting_key() {
  SessionKey key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  return key;
}

std::vector<std::byte> random_bytes(Rng& rng, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
  return bytes;
}

TEST(SessionMac, AgreesWithThePublishedVectors) {
  std::vector<std::byte> message;
  const auto mac = [&] { return test::to_hex(session_mac(counting_key(), message)); };
  EXPECT_EQ(mac(), "a3817f04ba25a8e66df67214c7550293");
  message.push_back(std::byte{0});
  EXPECT_EQ(mac(), "da87c1d86b99af44347659119b22fc45");
  for (int i = 1; i < 15; ++i) message.push_back(static_cast<std::byte>(i));
  EXPECT_EQ(mac(), "5493e99933b0a8117e08ec0f97cfc3d9");
}

TEST(SessionMac, CoversHeadAndTailAsOneText) {
  Rng rng(11);
  for (int round = 0; round < 200; ++round) {
    const auto text = random_bytes(rng, rng.below(60));
    const std::size_t cut = rng.below(text.size() + 1);
    const std::span<const std::byte> all(text);
    EXPECT_EQ(session_mac(counting_key(), all),
              session_mac(counting_key(), all.first(cut), all.subspan(cut)));
  }
}

MessageHeader some_header() {
  return {.type = MessageType::kRequest,
          .from = 0x1111,
          .to = 0x2222,
          .sequence = 7,
          .pull = 3,
          .chunk = 2,
          .flags = kFlagPlaces,
          .connection = 1,
          .bytes = 56,
          .remaining_ns = 1'000'000};
}

TEST(TransportMessage, OpensWhatWasSealed) {
  const std::vector<std::byte> control(56);
  const MessageBytes head = seal_message(counting_key(), some_header(), control);
  const auto opened = open_message(counting_key(), 0x2222, head, control.size(), control);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(*opened, some_header());
}

TEST(TransportMessage, RefusesEveryFlippedBitTornLengthAndOtherSession) {
  std::vector<std::byte> control(56, std::byte{9});
  MessageBytes head = seal_message(counting_key(), some_header(), control);
  const auto refused = [&](std::span<const std::byte> bytes, std::size_t payload) {
    return !open_message(counting_key(), 0x2222, bytes, payload, control);
  };
  for (std::size_t bit = 0; bit < head.size() * 8; ++bit) {
    head[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_TRUE(refused(head, control.size())) << "bit " << bit;
    head[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
  for (std::size_t bit = 0; bit < control.size() * 8; ++bit) {
    control[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_TRUE(refused(head, control.size())) << "payload bit " << bit;
    control[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
  for (std::size_t size = 0; size < head.size(); ++size)
    EXPECT_TRUE(refused(std::span<const std::byte>(head).first(size), control.size()));
  EXPECT_TRUE(refused(head, control.size() + 1));
  SessionKey other = counting_key();
  other[0] = std::byte{1};
  EXPECT_FALSE(open_message(other, 0x2222, head, control.size(), control));
  EXPECT_FALSE(open_message(counting_key(), 0x2223, head, control.size(), control)) << "epoch";
  EXPECT_FALSE(refused(head, control.size()));
}

TEST(TransportMessage, RefusesPayloadBeyondItsBounds) {
  const std::vector<std::byte> control(kControlBytesMax + 1);
  MessageHeader header = some_header();
  header.bytes = control.size();
  const MessageBytes head = seal_message(counting_key(), header, control);
  EXPECT_FALSE(open_message(counting_key(), 0x2222, head, control.size(), control));
  header.type = MessageType::kData;
  header.bytes = static_cast<std::uint64_t>(kChunkBytesMax) + 1;
  const MessageBytes data = seal_message(counting_key(), header, {});
  EXPECT_FALSE(open_message(counting_key(), 0x2222, data, header.bytes, {}));
}

TEST(TransportAddress, ComesBackAndRefusesTornBytes) {
  TransportAddress address;
  address.name = "policy rank 3";
  address.host = "host";
  address.lane_version = "1.13.1";
  address.epoch = 99;
  address.pid = 4;
  address.probe_place = 77;
  address.lanes = {std::byte{1}, std::byte{2}};
  address.network_lanes = {std::byte{3}};
  const auto bytes = encode_address(address);
  const auto back = decode_address(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(*back, address);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode_address(std::span(bytes).first(size))) << size;
}

TEST(TransportRequest, RefusesAReaderLongerThanTheMessage) {
  // The length says more than is there, and what follows is as long as whole parts.
  std::vector<std::byte> bytes(4 + 2 * 56, std::byte{0x7f});
  MessageHeader header;
  header.flags = kFlagIntroduced;
  const auto request = decode_request(header, bytes);
  ASSERT_FALSE(request);
  EXPECT_EQ(request.error().code, ErrorCode::kCorrupt);
}

TEST(TransportRequest, ComesBackAndIsBounded) {
  Request request{.reader = {std::byte{5}}, .parts = {}};
  for (std::uint64_t i = 0; i < 3; ++i)
    request.parts.push_back({.column = i, .first = 1, .rows = 2, .bytes = 8, .skip = 4, .take = 4});
  MessageHeader header;
  header.flags = kFlagIntroduced;
  const auto back = decode_request(header, encode_request(request));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->reader, request.reader);
  EXPECT_EQ(back->parts, request.parts);
  const auto refused = [](const RequestPart& part) {
    return !decode_request({}, encode_request({.reader = {}, .parts = {part}}));
  };
  EXPECT_TRUE(refused({.column = 1, .first = -1, .rows = 1, .bytes = 4, .skip = 0, .take = 4}));
  EXPECT_TRUE(refused({.column = 1, .first = 0, .rows = -1, .bytes = 4, .skip = 0, .take = 4}));
  EXPECT_TRUE(refused({.column = 1, .first = 0, .rows = 1, .bytes = 4, .skip = 1, .take = 4}));
  EXPECT_TRUE(refused({.column = 1, .first = 0, .rows = 1, .bytes = 4, .skip = -1, .take = 4}));
  EXPECT_TRUE(refused({.column = 1,
                       .first = 0,
                       .rows = 1,
                       .bytes = kChunkBytesMax + 1,
                       .skip = 0,
                       .take = kChunkBytesMax + 1}));
  EXPECT_FALSE(decode_request({}, {})) << "no parts";
  request.parts.assign(kRequestPartsMax + 1, {});
  EXPECT_FALSE(decode_request(header, encode_request(request)));
}

TEST(TransportAnswer, PlacesMustHoldExactlyWhatWasAsked) {
  const std::vector<MemoryPlace> places{{0x1000, 40}, {0x2000, 60}};
  const auto back = decode_places(encode_places(places), 100);
  ASSERT_TRUE(back);
  EXPECT_EQ(*back, places);
  EXPECT_FALSE(decode_places(encode_places(places), 99));
  EXPECT_FALSE(decode_places(encode_places(places), 101));
}

TEST(TransportAnswer, ErrorsKeepCodeMessageAndOrigin) {
  Error error{.code = ErrorCode::kNotFound, .message = "column 7", .origin = {}, .causes = {}};
  error.origin.group = "policy";
  error.origin.rank = RankId{3};
  EXPECT_EQ(decode_failure(encode_failure(error)), error);
  EXPECT_EQ(decode_failure({}).code, ErrorCode::kCorrupt);
}

TEST(TransportBytes, NoRandomBytesAreTakenForAnything) {
  Rng rng(23);
  for (int round = 0; round < 3000; ++round) {
    const auto bytes = random_bytes(rng, rng.below(200));
    EXPECT_FALSE(open_message(counting_key(), 1, bytes, 0, {}));
    EXPECT_FALSE(decode_address(bytes));
    (void)decode_request({}, bytes);
    (void)decode_places(bytes, 100);
    (void)decode_failure(bytes);
  }
}

TEST(ReplayWindow, AdmitsEachNumberOnceInAnyNearOrder) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    ReplayWindow window;
    std::set<std::uint64_t> seen;
    std::uint64_t newest = 0;
    for (int i = 0; i < 5000; ++i) {
      const std::uint64_t base = newest > 6000 ? newest - 6000 : 0;
      const std::uint64_t sequence = base + rng.below(6100);
      const bool too_old = sequence == 0 || sequence + ReplayWindow::kSpan <= newest;
      EXPECT_EQ(window.admit(sequence), !too_old && !seen.contains(sequence)) << sequence;
      if (too_old) continue;
      seen.insert(sequence);
      newest = std::max(newest, sequence);
    }
  }
}

TEST(PullPlan, CoversEveryByteOnceWithinItsBounds) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    std::vector<std::byte> room(1 << 16);
    std::vector<PullPart> parts;
    std::size_t at = 0;
    const bool gaps = rng.below(2) == 0;
    for (std::uint64_t i = 0; i < rng.below(40); ++i) {
      const std::size_t size = rng.below(4) == 0 ? 0 : rng.below(3000);
      if (gaps) at += rng.below(2) * 8;
      if (at + size > room.size()) break;
      parts.push_back({ColumnId{i}, 0, 1, std::span(room).subspan(at, size)});
      at += size;
    }
    const PlanOptions options{.chunk_bytes = 1000 + static_cast<std::int64_t>(rng.below(3000)),
                              .scatter_bytes_max = 800,
                              .scatter_part_max = 500};
    std::vector<std::pair<std::uint64_t, std::int64_t>> wanted;  // (column, byte) in order
    for (const PullPart& part : parts) {
      for (std::size_t i = 0; i < part.into.size(); ++i)
        wanted.emplace_back(part.column.value, static_cast<std::int64_t>(i));
    }
    std::vector<std::pair<std::uint64_t, std::int64_t>> found;
    std::vector<const std::byte*> places;
    std::set<std::uint64_t> columns;
    for (const ChunkPlan& chunk : plan_chunks(parts, options)) {
      EXPECT_LE(chunk.bytes, options.chunk_bytes);
      EXPECT_LE(chunk.parts.size(), kRequestPartsMax);
      if (chunk.targets.size() > 1) {
        EXPECT_LE(chunk.bytes, options.scatter_bytes_max);
      }
      for (const RequestPart& part : chunk.parts) {
        columns.insert(part.column);
        for (std::int64_t i = 0; i < part.take; ++i) found.emplace_back(part.column, part.skip + i);
      }
      std::int64_t bytes = 0;
      for (const auto& target : chunk.targets) {
        for (const std::byte& byte : target) places.push_back(&byte);
        bytes += static_cast<std::int64_t>(target.size());
      }
      EXPECT_EQ(bytes, chunk.bytes);
    }
    EXPECT_EQ(found, wanted);
    EXPECT_EQ(columns.size(), parts.size()) << "rows without bytes ask too";
    std::size_t next = 0;
    for (const PullPart& part : parts) {
      for (const std::byte& byte : part.into) ASSERT_EQ(places.at(next++), &byte);
    }
  }
}

}  // namespace
}  // namespace troupe::runtime
