// Proves that exported frames and notices come back as they were, that row tables are exact and
// small, and that torn, flipped or lying bytes are one kCorrupt error and no memory. Oracle: round
// trips over random tables with a printed seed.

#include "runtime/exchange/exchange_codec.hpp"

#include "runtime/exchange/row_tables.hpp"
#include "tests/runtime/batch/batch_support.hpp"

#include <gmock/gmock.h>

#include <numeric>

namespace troupe::runtime {
namespace {

std::vector<std::int64_t> sums(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

TEST(RowTables, LengthsComeBackAndConstantOnesAreSmall) {
  for_seeds(200, [](Rng& rng) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = pick(rng, 200); i > 0; --i) {
      const std::int64_t length = pick(rng, 3) == 0 ? pick(rng, 1 << 20) : pick(rng, 2);
      for (std::int64_t k = 1 + pick(rng, pick(rng, 3) == 0 ? 30 : 2); k > 0; --k)
        lengths.push_back(length);
    }
    const auto offsets = sums(lengths);
    const std::string bytes = encode_lengths(offsets);
    const auto back = decode_lengths(bytes, 1 << 20, std::int64_t{1} << 40);
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(*back, offsets);
    EXPECT_FALSE(decode_lengths(bytes, static_cast<std::int64_t>(lengths.size()) - 1, 1L << 40) &&
                 !lengths.empty());
    if (offsets.back() > 0) {
      EXPECT_FALSE(decode_lengths(bytes, 1 << 20, offsets.back() - 1));
    }
  });
  EXPECT_LE(encode_lengths(sums(std::vector<std::int64_t>(1'000'000, 257))).size(), 8U);
  EXPECT_LE(encode_lengths(sums(std::vector<std::int64_t>(1000, 3))).size(), 4U);
}

TEST(RowTables, RunsComeBackAndMustCoverAllRows) {
  for_seeds(200, [](Rng& rng) {
    std::vector<ExchangeRun> runs;
    std::int64_t rows = 0;
    for (std::int64_t i = pick(rng, 100); i > 0; --i) {
      runs.push_back({static_cast<std::uint32_t>(pick(rng, 3)), pick(rng, 1000), 1 + pick(rng, 9)});
      rows += runs.back().count;
    }
    const std::string bytes = encode_runs(runs);
    const auto back = decode_runs(bytes, rows);
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(*back, runs);
    EXPECT_FALSE(decode_runs(bytes, rows + 1));
    if (rows > 0) {
      EXPECT_FALSE(decode_runs(bytes, rows - 1));
      EXPECT_FALSE(decode_runs(std::string_view(bytes).substr(0, bytes.size() - 1), rows));
    }
  });
}

TEST(RowTables, RandomBytesNeverBuildMoreThanTheirBound) {
  for_seeds(500, [](Rng& rng) {
    std::string bytes;
    for (std::int64_t i = pick(rng, 40); i > 0; --i) bytes += static_cast<char>(pick(rng, 256));
    const auto offsets = decode_lengths(bytes, 1000, 1 << 20);
    if (offsets) {
      EXPECT_LE(offsets->size(), 1001U);
    }
    (void)decode_runs(bytes, 1000);
  });
}

/// A frame with everything in it.
ExchangeBatch some_batch(Rng& rng) {
  ExchangeBatch batch;
  batch.inlined = random_batch(rng, 6);
  batch.owners = {{{"policy", RankId{0}}, 11}, {{"policy", RankId{1}}, 12}};
  const auto runs = std::make_shared<const std::vector<ExchangeRun>>(
      std::vector<ExchangeRun>{{0, 2, 2}, {1, 0, 3}, {0, 0, 1}});
  const auto offsets = std::make_shared<const std::vector<std::int64_t>>(sums({3, 0, 1, 9}));
  for (int i = 0; i < 3; ++i) {
    ExchangeColumn column{.name = fmt::format("far{}", i),
                          .type = {ColumnKind::kJagged, DType::kF32, {}},
                          .pieces = {},
                          .runs = runs};
    for (std::uint32_t owner = 0; owner < 2; ++owner)
      column.pieces.push_back({.owner = owner,
                               .column = ColumnId{100 + owner},
                               .first_row = 5,
                               .rows = 4,
                               .offsets = offsets,
                               .granted = owner == 1});
    batch.columns.push_back(std::move(column));
  }
  batch.columns.back().type = {ColumnKind::kDense, DType::kI64, {2, 3}};
  for (ExchangePiece& piece : batch.columns.back().pieces) piece.offsets = nullptr;
  return batch;
}

TEST(ExchangeFrame, ComesBackWithTablesShared) {
  for_seeds(30, [](Rng& rng) {
    const ExchangeBatch batch = some_batch(rng);
    const auto bytes = encode_exchange(batch);
    ASSERT_TRUE(bytes);
    const auto frame = decode_exchange(*bytes, {});
    ASSERT_TRUE(frame) << frame.error().message;
    const auto& back = std::get<ExchangeBatch>(*frame);
    EXPECT_EQ(back.inlined, batch.inlined);
    EXPECT_EQ(back.owners, batch.owners);
    ASSERT_EQ(back.columns.size(), 3U);
    EXPECT_EQ(back.columns[0].pieces[0].offsets, back.columns[1].pieces[1].offsets) << "one table";
    EXPECT_EQ(*back.columns[0].runs, *batch.columns[0].runs);
    EXPECT_EQ(back.columns[2].type, batch.columns[2].type);
    EXPECT_TRUE(back.columns[0].pieces[1].granted);
    EXPECT_EQ(*encode_exchange(back), *bytes);
  });
}

TEST(ExchangeFrame, RefusesTornAndFlippedBytes) {
  Rng rng(5);
  std::vector<std::byte> bytes = *encode_exchange(some_batch(rng));
  for (std::size_t size = 0; size < bytes.size(); size += 3)
    EXPECT_FALSE(decode_exchange(std::span(bytes).first(size), {})) << size;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{0x10};
    EXPECT_FALSE(decode_exchange(bytes, {})) << "byte " << i;
    bytes[i] ^= std::byte{0x10};
  }
  ExchangeLimits unchecked;
  unchecked.batch.checksums = false;
  for (int round = 0; round < 3000; ++round) {  // past the checksum: no crash, whatever the verdict
    const auto place = static_cast<std::size_t>(rng.below(bytes.size() - 32)) + 32;
    const std::byte kept = bytes[place];
    bytes[place] = static_cast<std::byte>(rng.below(256));
    (void)decode_exchange(bytes, unchecked);
    bytes[place] = kept;
  }
}

TEST(ExchangeFrame, RefusesPiecesAndRunsThatDoNotFit) {
  Rng rng(5);
  const auto refused = [](const ExchangeBatch& batch) {
    const auto frame = decode_exchange(*encode_exchange(batch), {});
    return !frame && frame.error().code == ErrorCode::kCorrupt;
  };
  ExchangeBatch batch = some_batch(rng);
  batch.columns[0].pieces[0].owner = 2;
  EXPECT_TRUE(refused(batch)) << "owner";
  batch = some_batch(rng);
  batch.columns[2].pieces[0].rows = 2;
  EXPECT_TRUE(refused(batch)) << "run past its piece";
  batch = some_batch(rng);
  batch.columns[0].pieces[0].offsets = nullptr;
  EXPECT_TRUE(refused(batch)) << "jagged without lengths";
  batch = some_batch(rng);
  batch.columns[1].name = "far0";
  EXPECT_TRUE(refused(batch)) << "name twice";
  batch = some_batch(rng);
  batch.columns[2].pieces[0].first_row = -1;
  EXPECT_TRUE(refused(batch)) << "row -1";
  ExchangeLimits small;
  small.table_rows_max = 3;
  EXPECT_FALSE(decode_exchange(*encode_exchange(some_batch(rng)), small));
}

TEST(ExchangeFrame, HeldFramesAndNoticesComeBack) {
  const ExchangeHeld held{.owner = {{"policy", RankId{3}}, 9},
                          .column = ColumnId{4},
                          .bytes = 300'000,
                          .checksum = 77,
                          .granted = true};
  const auto frame = decode_exchange(*encode_exchange(held), {});
  ASSERT_TRUE(frame);
  const auto& back = std::get<ExchangeHeld>(*frame);
  EXPECT_EQ(back.owner, held.owner);
  EXPECT_EQ(back.bytes, held.bytes);
  EXPECT_EQ(back.checksum, held.checksum);
  LeaseNotice notice{.epoch = 5, .releases = {{ColumnId{1}, 1}, {ColumnId{9}, 3}}};
  const auto bytes = encode_lease_notice(notice);
  const auto again = decode_lease_notice(bytes);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->releases, notice.releases);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode_lease_notice(std::span(bytes).first(size)));
}

}  // namespace
}  // namespace troupe::runtime
