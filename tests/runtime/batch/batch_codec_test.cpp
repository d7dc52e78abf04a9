// Proves that a batch comes back from bytes and from disk bit for bit, NaN payloads included, and
// that no truncated, flipped or hostile bytes are taken for a batch or crash the decoder. Oracle:
// equality with the original; with checksums on, every changed bit must be noticed.

#include "runtime/batch/batch_codec.hpp"

#include "runtime/batch/checksum.hpp"
#include "tests/runtime/batch/batch_support.hpp"

#include <gmock/gmock.h>

#include <cstring>
#include <fstream>

namespace troupe::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr DecodeLimits kUnchecked{.rows_max = 1 << 20, .checksums = false};

Batch small_batch() {
  Batch batch;
  EXPECT_TRUE(batch.set("tokens", Column::jagged<std::int32_t>({1, 2, 3}, {2, 1})));
  EXPECT_TRUE(batch.set("reward", Column::dense<float>({0.5F, -1})));
  EXPECT_TRUE(batch.set("extra", Column::json({"{}", "[1]"})));
  EXPECT_TRUE(batch.set("text", Column::strings({"a", "bc"})));
  EXPECT_TRUE(batch.set("valid", Column::dense<bool>({true, false})));
  EXPECT_TRUE(batch.set_metadata("step", "3"));
  batch.metrics().add("score", 2.5, Reduction::kHistogram);
  batch.metrics().add("loss", 1, Reduction::kMean, 4);
  return batch;
}

/// Reads every byte that the decoded batch claims to have.
void touch(const Batch& batch) {
  std::size_t sum = 0;
  for (const auto& [name, column] : batch.columns()) {
    for (std::int64_t i = 0; i < std::min<std::int64_t>(column.rows(), 1000); ++i) {
      for (const std::byte byte : column.row_bytes(i)) sum += static_cast<std::size_t>(byte);
    }
  }
  EXPECT_LT(sum, std::size_t{1} << 60);
  EXPECT_TRUE(batch.to_bytes());
}

TEST(BatchCodec, ComesBackBitForBit) {
  for_seeds(300, [](Rng& rng) {
    const Batch batch = random_batch(rng, pick(rng, 20));
    const auto bytes = batch.to_bytes();
    ASSERT_TRUE(bytes);
    const result<Batch> back = Batch::from_bytes(*bytes);
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(*back, batch);
    EXPECT_EQ(plain(*back), plain(batch));
    EXPECT_EQ(back->rows_fixed(), batch.rows_fixed());
    EXPECT_EQ(*back->to_bytes(), *bytes);  // one encoding for one content, whatever the views
  });
}

TEST(BatchCodec, KeepsEmptyBatchesAndThoseWithoutColumns) {
  for (const Batch& batch : {Batch(), Batch(0), Batch(17), small_batch().repeat(0)}) {
    const result<Batch> back = Batch::from_bytes(*batch.to_bytes());
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(*back, batch);
    EXPECT_EQ(back->rows_fixed(), batch.rows_fixed());
    EXPECT_EQ(back->names(), batch.names());
  }
}

TEST(BatchCodec, KeepsZeroBytesInNames) {
  const std::string name("a\0b", 3);
  Batch batch;
  ASSERT_TRUE(batch.set(name, Column::dense<float>({1})));
  ASSERT_TRUE(batch.set("a", Column::dense<float>({2})));
  ASSERT_TRUE(batch.set_metadata(name, "1"));
  batch.metrics().add(name, 1, Reduction::kSum);
  const result<Batch> back = Batch::from_bytes(*batch.to_bytes());
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(*back, batch);
}

TEST(BatchCodec, SavesAndLoads) {
  const TemporaryFolder folder;
  for_seeds(20, [&](Rng& rng) {
    const Batch batch = random_batch(rng, pick(rng, 20));
    const auto path = folder.path() / "batch.bin";
    ASSERT_TRUE(batch.save(path));
    const result<Batch> back = Batch::load(path);
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(*back, batch);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  });
}

TEST(BatchCodec, LoadedColumnsAreAligned) {
  const Batch back = *Batch::from_bytes(*small_batch().to_bytes());
  for (const auto& [name, column] : back.columns())
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(column.row_bytes(0).data()) % 64, 0U) << name;
}

TEST(BatchCodec, FileErrorsNameThePath) {
  const TemporaryFolder folder;
  EXPECT_EQ(Batch::load(folder.path() / "none").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Batch::load(folder.path()).error().code, ErrorCode::kIo);
  const auto path = folder.path() / "batch.bin";
  std::ofstream(path) << "not a batch, but long enough to have a prefix of its own";
  const result<Batch> bad = Batch::load(path);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(bad.error().message, AllOf(HasSubstr(path.string()), HasSubstr("TRPBATCH")));
  EXPECT_FALSE(small_batch().save(folder.path() / "missing" / "batch.bin"));
}

TEST(BatchCodec, EveryTruncationIsRefused) {
  const std::vector<std::byte> bytes = *small_batch().to_bytes();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const result<Batch> back = Batch::from_bytes(std::span(bytes).first(size));
    ASSERT_FALSE(back) << size;
    ASSERT_EQ(back.error().code, ErrorCode::kCorrupt);
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(Batch::from_bytes(longer));
}

TEST(BatchCodec, EveryFlippedBitIsNoticed) {
  std::vector<std::byte> bytes = *small_batch().to_bytes();
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1U << (bit % 8));
    bytes[bit / 8] ^= mask;
    const result<Batch> back = Batch::from_bytes(bytes);
    ASSERT_FALSE(back) << "byte " << bit / 8 << " bit " << bit % 8;
    ASSERT_EQ(back.error().code, ErrorCode::kCorrupt);
    bytes[bit / 8] ^= mask;
  }
}

TEST(BatchCodec, FlippedBitsPastTheChecksumsNeverCrash) {
  std::vector<std::byte> bytes = *small_batch().to_bytes();
  int accepted = 0;
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1U << (bit % 8));
    bytes[bit / 8] ^= mask;
    if (const result<Batch> back = Batch::from_bytes(bytes, kUnchecked)) {
      touch(*back);
      ++accepted;
    }
    bytes[bit / 8] ^= mask;
  }
  EXPECT_GT(accepted, 0);  // or the checksums were still on
}

TEST(BatchCodec, ManyRandomChangesPastTheChecksumsNeverCrash) {
  const std::vector<std::byte> original = *small_batch().to_bytes();
  for_seeds(3000, [&](Rng& rng) {
    std::vector<std::byte> bytes = original;
    for (std::int64_t i = 1 + pick(rng, 4); i > 0; --i) {
      const auto at = static_cast<std::size_t>(pick(rng, std::ssize(bytes)));
      constexpr std::uint8_t kTelling[] = {0, 1, 0x7F, 0x80, 0xFF};
      bytes[at] = pick(rng, 2) == 0 ? static_cast<std::byte>(rng.below(256))
                                    : std::byte{kTelling[pick(rng, 5)]};
    }
    if (const result<Batch> back = Batch::from_bytes(bytes, kUnchecked)) touch(*back);
  });
}

TEST(BatchCodec, BoundsAreErrorsThatNameThem) {
  const std::vector<std::byte> bytes = *small_batch().to_bytes();
  DecodeLimits limits;
  limits.rows_max = 1;
  EXPECT_THAT(Batch::from_bytes(bytes, limits).error().message,
              AllOf(HasSubstr("2 rows"), HasSubstr("0..1")));
  limits = {};
  limits.columns_max = 4;
  EXPECT_THAT(Batch::from_bytes(bytes, limits).error().message,
              AllOf(HasSubstr("5 columns"), HasSubstr("4")));
  limits = {};
  limits.bytes_max = 100;
  EXPECT_THAT(Batch::from_bytes(bytes, limits).error().message, HasSubstr("at most 100"));
  limits = {};
  limits.header_bytes_max = 64;
  EXPECT_THAT(Batch::from_bytes(bytes, limits).error().message, HasSubstr("at most 64"));
  Batch large(1);
  ASSERT_TRUE(large.set_metadata("big", "\"" + std::string(17 << 20, 'x') + "\""));
  EXPECT_EQ(large.to_bytes().error().code, ErrorCode::kInvalidArgument);
}

TEST(BatchCodec, DamagedPayloadNamesColumnAndBothChecksums) {
  Batch batch;
  ASSERT_TRUE(batch.set("reward", Column::dense<float>({1, 2})));
  std::vector<std::byte> bytes = *batch.to_bytes();
  const std::size_t payload = bytes.size() - 64;
  const std::uint32_t wanted = crc32c(std::span(bytes).subspan(payload, 8));
  bytes[payload] ^= std::byte{1};
  const std::uint32_t found = crc32c(std::span(bytes).subspan(payload, 8));
  const result<Batch> back = Batch::from_bytes(bytes);
  ASSERT_FALSE(back);
  EXPECT_THAT(back.error().message,
              AllOf(HasSubstr("column reward"), HasSubstr(fmt::format("{:08x}", wanted)),
                    HasSubstr(fmt::format("{:08x}", found))));
}

TEST(BatchCodec, ValuesThatNoBatchHasAreRefused) {
  Batch flags;
  ASSERT_TRUE(flags.set("flag", Column::dense<bool>({true})));
  std::vector<std::byte> bytes = *flags.to_bytes();
  bytes[bytes.size() - 64] = std::byte{2};
  EXPECT_THAT(Batch::from_bytes(bytes, kUnchecked).error().message,
              AllOf(HasSubstr("column flag"), HasSubstr("2")));
  Batch json;
  ASSERT_TRUE(json.set("extra", Column::json({"1"})));
  bytes = *json.to_bytes();
  bytes[bytes.size() - 64] = std::byte{'x'};
  EXPECT_THAT(Batch::from_bytes(bytes, kUnchecked).error().message,
              AllOf(HasSubstr("column extra"), HasSubstr("row 0")));
  Batch jagged;
  ASSERT_TRUE(jagged.set("j", Column::jagged<float>({1, 2}, {1, 1})));
  bytes = *jagged.to_bytes();
  const std::int64_t negative = -1;
  std::memcpy(bytes.data() + bytes.size() - 128, &negative, 8);
  EXPECT_THAT(Batch::from_bytes(bytes, kUnchecked).error().message,
              AllOf(HasSubstr("column j"), HasSubstr("length -1")));
}

TEST(BatchCodec, DecodesFromUnalignedBytes) {
  const std::vector<std::byte> bytes = *small_batch().to_bytes();
  for (std::size_t shift = 1; shift < 8; ++shift) {
    std::vector<std::byte> moved(shift);
    moved.insert(moved.end(), bytes.begin(), bytes.end());
    const result<Batch> back = Batch::from_bytes(std::span(moved).subspan(shift));
    ASSERT_TRUE(back);
    EXPECT_EQ(*back, small_batch());
  }
}

}  // namespace
}  // namespace troupe::runtime
