// The frame reader against streams cut anywhere, damaged anywhere, or never meant for it: what it
// hands out is what was written, and it keeps no more than one frame of bounded size.

#include "runtime/link/frame_reader.hpp"

#include "runtime/base/rng.hpp"

#include <gmock/gmock.h>

#include <algorithm>

namespace troupe::runtime {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

SealKey key_of(int number) {
  SealKey key{};
  key[0] = static_cast<std::byte>(number);
  return key;
}

Bytes random_bytes(Rng& rng, std::size_t size) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
  return bytes;
}

struct Stream {
  std::vector<Bytes> payloads;
  std::vector<char> bytes;
};

Stream stream_of(Rng& rng, std::size_t frames, std::size_t bytes_max, const SealKey* key) {
  Stream stream;
  FrameWriter writer;
  if (key != nullptr) writer.set_seal(FrameSeal(*key));
  for (std::size_t i = 0; i < frames; ++i) {
    stream.payloads.push_back(random_bytes(rng, rng.below(bytes_max + 1)));
    writer.append(FrameKind::kEnvelope, stream.payloads.back(), stream.bytes);
  }
  return stream;
}

std::span<const std::byte> raw(const std::vector<char>& bytes) {
  return std::as_bytes(std::span(bytes));
}

/// Reads all of `bytes`; the frames, or the error.
result<std::vector<Bytes>> read_all(FrameReader& reader, std::span<const std::byte> bytes) {
  std::vector<Bytes> frames;
  reader.feed(bytes);
  while (true) {
    TROUPE_TRY(const auto frame, reader.next());
    if (!frame) return frames;
    frames.emplace_back(frame->payload.begin(), frame->payload.end());
  }
}

Error error_of(std::span<const std::byte> bytes, std::size_t bytes_max = 1024) {
  FrameReader reader(bytes_max);
  const auto frames = read_all(reader, bytes);
  EXPECT_FALSE(frames);
  return frames ? Error{} : frames.error();
}

TEST(FrameReader, GivesBackWhatWasWrittenHoweverTheStreamIsCut) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const SealKey key = key_of(3);
    const bool keyed = rng.below(2) == 1;
    const Stream stream = stream_of(rng, 1 + rng.below(40), 700, keyed ? &key : nullptr);
    FrameReader reader(700);
    if (keyed) reader.set_seal(FrameSeal(key));
    std::vector<Bytes> found;
    for (std::size_t at = 0; at < stream.bytes.size();) {
      const std::size_t most = rng.below(3) == 0 ? 3 : 2000;
      const std::size_t size = std::min<std::size_t>(1 + rng.below(most), stream.bytes.size() - at);
      // A copy of its own, so that a reader that looks back at earlier pieces is caught.
      const Bytes piece(raw(stream.bytes).begin() + static_cast<std::ptrdiff_t>(at),
                        raw(stream.bytes).begin() + static_cast<std::ptrdiff_t>(at + size));
      auto frames = read_all(reader, piece);
      ASSERT_TRUE(frames) << frames.error().to_string();
      for (Bytes& frame : *frames) found.push_back(std::move(frame));
      ASSERT_LE(reader.bytes_held(), kLinkPrefixBytes + 700);
      at += size;
    }
    ASSERT_EQ(found, stream.payloads);
    EXPECT_EQ(reader.bytes_held(), 0U);
  }
}

TEST(FrameReader, RefusesEverySingleFlippedBit) {
  Rng rng(7);
  for (const bool keyed : {false, true}) {
    const SealKey key = key_of(9);
    const Stream stream = stream_of(rng, 2, 24, keyed ? &key : nullptr);
    for (std::size_t bit = 0; bit < stream.bytes.size() * 8; ++bit) {
      std::vector<char> damaged = stream.bytes;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
      FrameReader reader(64);
      if (keyed) reader.set_seal(FrameSeal(key));
      const auto frames = read_all(reader, raw(damaged));
      // A length that grew within its bound waits for more bytes; it never gives the frame out.
      if (frames) {
        ASSERT_LT(frames->size(), 2U) << "bit " << bit;
      }
    }
  }
}

TEST(FrameReader, RefusesALengthBeforeAnyOfItHasCome) {
  FrameWriter writer;
  std::vector<char> bytes;
  writer.append(FrameKind::kEnvelope, Bytes(2000), bytes);
  bytes.resize(kLinkPrefixBytes);
  const Error error = error_of(raw(bytes));
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_THAT(error.message, HasSubstr("2000 bytes, wanted at most 1024"));
}

TEST(FrameReader, StaysInErrorAfterAnError) {
  Rng rng(3);
  const Stream stream = stream_of(rng, 1, 24, nullptr);
  FrameReader reader(64);
  const Bytes garbage(64, std::byte{0x55});
  ASSERT_FALSE(read_all(reader, garbage));
  const auto again = read_all(reader, raw(stream.bytes));
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message, HasSubstr("starts with 55555555"));
  EXPECT_EQ(reader.bytes_held(), 0U);
}

TEST(FrameReader, RefusesRepeatedMissingAndReorderedFrames) {
  const SealKey key = key_of(5);
  FrameWriter writer;
  writer.set_seal(FrameSeal(key));
  std::vector<std::vector<char>> frames(3);
  for (auto& frame : frames) writer.append(FrameKind::kEnvelope, Bytes(16), frame);
  const auto joined = [&](std::initializer_list<std::size_t> order) {
    std::vector<char> bytes;
    for (const std::size_t i : order) bytes.insert(bytes.end(), frames[i].begin(), frames[i].end());
    return bytes;
  };
  const auto read = [&](const std::vector<char>& bytes) {
    FrameReader reader(64);
    reader.set_seal(FrameSeal(key));
    return read_all(reader, raw(bytes));
  };
  EXPECT_TRUE(read(joined({0, 1, 2})));
  EXPECT_FALSE(read(joined({0, 0})));
  EXPECT_FALSE(read(joined({0, 2})));
  EXPECT_FALSE(read(joined({1, 0})));
}

TEST(FrameReader, RefusesFramesSealedUnderAnotherKeyOrWithoutOne) {
  Rng rng(4);
  const SealKey ours = key_of(1);
  const SealKey other = key_of(2);
  for (const SealKey* key : {&other, static_cast<const SealKey*>(nullptr)}) {
    const Stream stream = stream_of(rng, 1, 24, key);
    FrameReader reader(64);
    reader.set_seal(FrameSeal(ours));
    const auto frames = read_all(reader, raw(stream.bytes));
    ASSERT_FALSE(frames);
    EXPECT_THAT(frames.error().message, HasSubstr("its MAC does not fit"));
  }
}

TEST(FrameReader, KnowsStrangersByTheirFirstBytes) {
  const auto bytes = [](std::initializer_list<int> values) {
    Bytes made;
    for (const int value : values) made.push_back(static_cast<std::byte>(value));
    return made;
  };
  const Error tls = error_of(bytes({0x16, 0x03, 0x01, 0x02}));
  EXPECT_EQ(tls.code, ErrorCode::kConflict);
  EXPECT_THAT(tls.message, HasSubstr("speaks TLS"));
  EXPECT_THAT(error_of(bytes({'G', 'E', 'T', ' '})).message, HasSubstr("starts with 47455420"));
  FrameReader reader;
  EXPECT_TRUE(read_all(reader, bytes({'T', 'r'})));  // may still become a frame
}

TEST(FrameReader, NamesVersionKindAndReservedBytesThatAreWrong) {
  const auto patched = [](std::size_t at, char value) {
    FrameWriter writer;
    std::vector<char> bytes;
    writer.append(FrameKind::kHello, Bytes(8), bytes);
    bytes[at] = value;
    return error_of(raw(bytes)).message;
  };
  EXPECT_THAT(patched(4, 9), HasSubstr("protocol version 9, wanted 1"));
  EXPECT_THAT(patched(5, 77), HasSubstr("kind 77"));
  EXPECT_THAT(patched(6, 1), HasSubstr("reserved bytes"));
  EXPECT_THAT(patched(12, 1), HasSubstr("reserved bytes"));
  EXPECT_THAT(patched(16, 1), HasSubstr("sequence number 1"));
  EXPECT_THAT(patched(24, 1), HasSubstr("checksum"));
}

TEST(FrameSeal, DependsOnKeySequencePrefixAndPayload) {
  FrameSeal seal(key_of(1));
  FrameSeal other(key_of(2));
  const Bytes prefix(24, std::byte{1});
  const Bytes payload(40, std::byte{2});
  const SealBytes made = seal.make(7, prefix, payload);
  EXPECT_EQ(made, seal.make(7, prefix, payload));
  EXPECT_TRUE(seal.check(7, prefix, payload, made));
  EXPECT_FALSE(seal.check(8, prefix, payload, made));
  EXPECT_FALSE(other.check(7, prefix, payload, made));
  EXPECT_FALSE(seal.check(7, payload, prefix, made));
  EXPECT_FALSE(seal.check(7, prefix, Bytes(41, std::byte{2}), made));
  EXPECT_FALSE(seal.check(7, prefix, payload, std::span(made).first(15)));
  EXPECT_EQ(FrameSeal().kind(), SealKind::kChecksum);
  EXPECT_EQ(seal.kind(), SealKind::kKeyed);
}

}  // namespace
}  // namespace troupe::runtime
