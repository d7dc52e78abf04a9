// Proves the pure parts of execution against slow references: checksums, pieces of boxes, buckets,
// deltas, and names of columns.

#include "reshard/execution/bucket.hpp"
#include "reshard/execution/checksum.hpp"
#include "reshard/execution/checksum_paths.hpp"
#include "reshard/execution/delta.hpp"
#include "reshard/execution/landing_sums.hpp"
#include "reshard/execution/piece.hpp"
#include "reshard/execution/piece_columns.hpp"
#include "reshard/execution/piece_sums.hpp"
#include "reshard/run_boxes.hpp"
#include "runtime/base/rng.hpp"
#include "tests/reshard/random_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace troupe::reshard {
namespace {

std::vector<std::byte> random_bytes(Rng& rng, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
  return bytes;
}

std::int64_t below(Rng& rng, std::int64_t bound) {
  return static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(bound)));
}

TEST(Checksum, IsTheFormulaForEveryWidthAndIndex) {
  Rng rng(1);
  for (int i = 0; i < 300; ++i) {
    const std::int64_t element = std::int64_t{1} << rng.below(4);
    const std::int64_t count = below(rng, 200);
    std::int64_t index = below(rng, 1 << 20);
    if (i % 3 == 0) index = (std::int64_t{1} << 32) - below(rng, 100);  // across 2^32
    const auto bytes = random_bytes(rng, static_cast<std::size_t>(element * count));
    EXPECT_EQ(sum_elements(bytes.data(), element, index, count),
              sum_elements_slowly(bytes.data(), element, index, count));
  }
}

TEST(Checksum, EveryPathSumsAndCopiesTheSame) {
  Rng rng(11);
  for (int i = 0; i < 400; ++i) {
    const std::int64_t bytes = below(rng, i % 4 == 0 ? 40'000 : 300);
    std::int64_t position = below(rng, 1 << 20);
    if (i % 3 == 0) position = (std::int64_t{1} << 34) - below(rng, 100);
    const std::int64_t skew = below(rng, 64);
    const auto data = random_bytes(rng, static_cast<std::size_t>(bytes + 64));
    const std::byte* from = data.data() + (i % 2 == 0 ? 0 : below(rng, 64));
    const std::uint64_t wanted = sum_elements_slowly(from, 1, position, bytes);
    for (const SumPath& path : sum_paths()) {
      SCOPED_TRACE(path.name);
      EXPECT_EQ(sum_by_path(path, nullptr, from, position, bytes, false), wanted);
      for (const bool stream : {false, true}) {
        std::vector<std::byte> copy(static_cast<std::size_t>(bytes + 128), std::byte{0xA5});
        std::byte* to = copy.data() + skew;
        EXPECT_EQ(sum_by_path(path, to, from, position, bytes, stream), wanted);
        end_stream();
        EXPECT_TRUE(std::equal(from, from + bytes, to));
        const auto untouched = [](std::byte b) { return b == std::byte{0xA5}; };
        EXPECT_TRUE(std::all_of(copy.data(), to, untouched));
        EXPECT_TRUE(std::all_of(to + bytes, copy.data() + copy.size(), untouched));
      }
    }
  }
}

TEST(Checksum, WeightsAreOddAndAllDifferent) {
  std::set<std::uint32_t> seen;
  for (const std::uint32_t weight : word_weights()) {
    EXPECT_EQ(weight % 2, 1U);
    EXPECT_TRUE(seen.insert(weight).second);
  }
}

TEST(Checksum, SeesEveryByteOfASmallTensorFlipped) {
  Rng rng(12);
  for (const std::int64_t element : {1, 2, 4, 8}) {
    const Box box{0, 5, 0, 7};
    auto bytes = random_bytes(rng, static_cast<std::size_t>(box.elements() * element));
    const std::uint64_t before = sum_box(box, 7, bytes.data(), 7, element);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      for (const unsigned mask : {0x01U, 0x80U, 0xFFU}) {
        bytes[i] ^= static_cast<std::byte>(mask);
        EXPECT_NE(sum_box(box, 7, bytes.data(), 7, element), before)
            << "byte " << i << ", elements of " << element;
        bytes[i] ^= static_cast<std::byte>(mask);
      }
    }
  }
}

TEST(Checksum, AddsUpOverAnyCut) {
  Rng rng(2);
  const Box whole_box{0, 13, 0, 17};
  const auto bytes = random_bytes(rng, 13 * 17 * 4);
  const std::uint64_t all = sum_box(whole_box, 17, bytes.data(), 17, 4);
  for (int i = 0; i < 100; ++i) {
    const std::int64_t row = 1 + below(rng, 12);
    const std::int64_t col = 1 + below(rng, 16);
    std::uint64_t sum = 0;
    for (const Box& box :
         {Box{0, row, 0, col}, Box{0, row, col, 17}, Box{row, 13, 0, col}, Box{row, 13, col, 17}})
      sum += sum_box(box, 17, bytes.data() + (box.row_begin * 17 + box.col_begin) * 4, 17, 4);
    EXPECT_EQ(sum, all);
  }
}

TEST(Checksum, SeesElementsThatAreChangedExchangedOrShifted) {
  Rng rng(3);
  for (int i = 0; i < 2000; ++i) {
    auto bytes = random_bytes(rng, 64 * 4);
    const std::uint64_t before = sum_elements(bytes.data(), 4, 100, 64);
    const auto a = rng.below(64);
    const auto b = (a + 1 + rng.below(63)) % 64;
    auto* words = reinterpret_cast<std::uint32_t*>(bytes.data());
    if (i % 3 == 0) {
      words[a] ^= 1U << rng.below(32);
    } else if (i % 3 == 1) {
      std::swap(words[a], words[b]);
    } else {
      std::rotate(words, words + 1 + rng.below(63), words + 64);
    }
    EXPECT_NE(sum_elements(bytes.data(), 4, 100, 64), before);
  }
}

TEST(OpPiece, BoxesAndSpansHoldItsElementsInOrder) {
  Rng rng(4);
  for (int i = 0; i < 500; ++i) {
    const std::int64_t rows = 1 + below(rng, 6);
    const std::int64_t cols = 1 + below(rng, 6);
    const Box box{3, 3 + rows, 2, 2 + cols};
    const std::int64_t first = below(rng, rows * cols);
    const std::int64_t count = 1 + below(rng, rows * cols - first);
    std::vector<std::pair<std::int64_t, std::int64_t>> wanted;
    for (std::int64_t e = first; e < first + count; ++e)
      wanted.emplace_back(3 + e / cols, 2 + e % cols);
    std::vector<std::pair<std::int64_t, std::int64_t>> found;
    for (const Box& one : run_boxes(box, first, count)) {
      for (std::int64_t r = one.row_begin; r < one.row_end; ++r) {
        for (std::int64_t c = one.col_begin; c < one.col_end; ++c) found.emplace_back(r, c);
      }
    }
    EXPECT_EQ(found, wanted);

    const Region region{.buffer = 0,
                        .offset = below(rng, 5),
                        .row_stride = cols + below(rng, 3),
                        .rows = rows,
                        .cols = cols};
    const auto memory =
        random_bytes(rng, static_cast<std::size_t>(2 * (region.offset + rows * region.row_stride)));
    std::vector<std::byte> dense;
    for (const auto& span : piece_spans(memory, region, 2, first, count))
      dense.insert(dense.end(), span.begin(), span.end());
    for (std::int64_t e = 0; e < count; ++e) {
      const std::int64_t at =
          region.offset + (first + e) / cols * region.row_stride + (first + e) % cols;
      EXPECT_EQ(dense[static_cast<std::size_t>(2 * e)], memory[static_cast<std::size_t>(2 * at)]);
    }
    std::vector<std::byte> copy(memory.size());
    scatter_piece(dense, copy, region, 2, first, count);
    for (std::int64_t e = 0; e < count; ++e) {
      const auto at = static_cast<std::size_t>(
          2 * (region.offset + (first + e) / cols * region.row_stride + (first + e) % cols) + 1);
      EXPECT_EQ(copy[at], memory[at]);
    }
  }
}

TEST(LandingSums, AreTheSumsOfThePiecesHoweverTheyLand) {
  const ModelShape shape{.vocab = 512,
                         .hidden = 1024,
                         .intermediate = 1536,
                         .layers = 1,
                         .heads = 16,
                         .kv_heads = 8,
                         .head_dim = 64};
  const auto source = train_roster(shape, {.tp = 1, .dp = 1}, {.ranks_per_node = 8});
  const auto target = rollout_roster(shape, {.replicas = 1, .tp = 2},
                                     {.first_rank = 8, .first_node = 1, .ranks_per_node = 8});
  const auto plan = *PublicationPlan::make(*source, *target, {});
  Rng rng(21);
  for (const std::int32_t index : plan->receive_order(8).ops) {
    const Op& op = plan->op(index);
    const std::int64_t element = element_bytes(plan->tensor_of(op).dtype);
    const std::int64_t count = 1 + below(rng, op.elements());
    const OpPiece piece{
        .op = index, .first = below(rng, op.elements() - count + 1), .count = count};
    const auto sent = random_bytes(rng, static_cast<std::size_t>(count * element));
    // Between two stretches that belong to no piece.
    const std::size_t around = 64 + static_cast<std::size_t>(below(rng, 64));
    std::vector<std::byte> wire(around, std::byte{1});
    wire.insert(wire.end(), sent.begin(), sent.end());
    wire.insert(wire.end(), around, std::byte{2});
    std::vector<std::byte> memory(wire.size());
    const std::span<std::byte> place = std::span(memory).subspan(around, sent.size());
    LandingSums sums(plan);
    sums.add(piece, place);
    for (std::size_t at = 0; at < wire.size();) {
      const std::size_t take = std::min<std::size_t>(
          wire.size() - at, 1 + static_cast<std::size_t>(below(rng, 300'000)));
      EXPECT_FALSE(at < around + sent.size() && sums.take(place)) << "before all of it is here";
      const auto bytes = std::span<const std::byte>(wire).subspan(at, take);
      if (below(rng, 2) == 0) {
        sums.bring(memory.data() + at, bytes);
      } else {
        std::copy(bytes.begin(), bytes.end(), memory.begin() + static_cast<std::ptrdiff_t>(at));
        sums.landed(std::span(memory).subspan(at, take));
      }
      at += take;
    }
    EXPECT_EQ(memory, wire);
    const std::span<const std::byte> dense = sent;
    EXPECT_EQ(sums.take(place), sums_of(*plan, piece, std::span(&dense, 1)).tensor);
  }
}

TEST(CopyRows, LargeOnesAroundTheCachesAreTheSame) {
  Rng rng(5);
  for (const std::int64_t row_bytes : {513, 700, 4096, 5001}) {
    const std::int64_t rows = (std::int64_t{3} << 20) / row_bytes;
    const auto from = random_bytes(rng, static_cast<std::size_t>(rows * (row_bytes + 40)));
    std::vector<std::byte> to(from.size());
    copy_rows(to.data() + 3, row_bytes + 24, from.data() + 1, row_bytes + 33, rows, row_bytes);
    for (std::int64_t row = 0; row < rows; ++row) {
      ASSERT_EQ(0, std::memcmp(to.data() + 3 + row * (row_bytes + 24),
                               from.data() + 1 + row * (row_bytes + 33),
                               static_cast<std::size_t>(row_bytes)))
          << row;
    }
  }
}

TEST(Buckets, HoldTheReceiveOrderOnceWithinTheirBounds) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    testing::CaseMaker maker(seed);
    const testing::Case one = maker.model_case();
    const auto plan = *PublicationPlan::make(one.source, one.target, one.options);
    Rng rng(seed);
    const std::int64_t bytes = std::int64_t{64} << rng.below(8);
    for (const RankLayout& rank : plan->target().ranks) {
      const auto route = [&](const Op& op) {
        return op.tensor % 5 == 0 ? Route::kLocal : Route::kStaged;
      };
      const auto buckets = cut_buckets(*plan, rank.rank, {.bucket_bytes = bytes, .route = route});
      std::vector<OpPiece> pieces;
      std::int64_t at = 0;
      for (const Bucket& bucket : buckets) {
        EXPECT_EQ(bucket.begin, at);
        EXPECT_LE(bucket.bytes, bytes);
        EXPECT_LE(static_cast<std::int64_t>(bucket.pieces.size()), kBucketPiecesMax);
        for (const BucketPiece& piece : bucket.pieces) {
          at += piece.piece.count;
          if (!pieces.empty() && pieces.back().op == piece.piece.op) {
            EXPECT_EQ(piece.piece.first, pieces.back().first + pieces.back().count);
            pieces.back().count += piece.piece.count;
          } else {
            EXPECT_EQ(piece.piece.first, 0);
            pieces.push_back(piece.piece);
          }
        }
        EXPECT_EQ(bucket.end, at);
      }
      std::vector<std::int32_t> ops;
      for (const OpPiece& piece : pieces) {
        EXPECT_EQ(piece.count, plan->op(piece.op).elements());
        ops.push_back(piece.op);
      }
      EXPECT_EQ(ops, plan->receive_order(rank.rank).ops);
    }
  }
}

TEST(Delta, AppliedToTheBaseGivesTheNewBytes) {
  Rng rng(6);
  for (int i = 0; i < 500; ++i) {
    const auto count = static_cast<std::size_t>(1 + rng.below(3000));
    const auto base = random_bytes(rng, count);
    auto now = base;
    const std::uint64_t changes = rng.below(20);
    for (std::uint64_t c = 0; c < changes; ++c) {
      const auto at = rng.below(count);
      for (std::size_t b = at; b < std::min<std::size_t>(count, at + rng.below(12)); ++b)
        now[b] = static_cast<std::byte>(rng.below(256));
    }
    const auto cut = rng.below(count);
    const std::vector<std::span<const std::byte>> now_spans{std::span(now).first(cut),
                                                            std::span(now).subspan(cut)};
    const std::vector<std::span<const std::byte>> base_spans{base};
    const auto delta = encode_delta(now_spans, base_spans);
    const std::int64_t size = delta_bytes(now_spans, base_spans);
    if (size >= 0) {
      EXPECT_EQ(size, static_cast<std::int64_t>(delta.size()));
    } else {
      EXPECT_GE(delta.size(), count);
    }
    const auto runs = decode_delta(delta, static_cast<std::int64_t>(count));
    ASSERT_TRUE(runs.has_value()) << runs.error().to_string();
    auto applied = base;
    for (const DeltaRun& run : *runs)
      std::copy(run.bytes.begin(), run.bytes.end(), applied.begin() + run.at);
    EXPECT_EQ(applied, now);
  }
}

TEST(Delta, WhatIsTornOrReachesOutsideIsRefused) {
  const std::vector<std::byte> base(100);
  std::vector<std::byte> now = base;
  now[50] = std::byte{1};
  const std::vector<std::span<const std::byte>> now_spans{now};
  const std::vector<std::span<const std::byte>> base_spans{base};
  const auto delta = encode_delta(now_spans, base_spans);
  EXPECT_TRUE(decode_delta(delta, 100).has_value());
  EXPECT_FALSE(decode_delta(delta, 50).has_value());
  for (std::size_t cut = 1; cut < delta.size(); ++cut)
    EXPECT_FALSE(decode_delta(std::span(delta).first(cut), 100).has_value()) << cut;
}

TEST(PieceColumn, ComesBackFromItsName) {
  const PieceColumn column{.kind = ColumnKind::kDelta, .epoch = short_epoch(~0ULL), .op = 1 << 30};
  const PieceColumn back = decode_column(encode_column(column));
  EXPECT_EQ(back.kind, column.kind);
  EXPECT_EQ(back.epoch, column.epoch);
  EXPECT_EQ(back.op, column.op);
  const PieceColumn progress{
      .kind = ColumnKind::kProgress, .epoch = 1, .op = progress_op(32767, 5)};
  EXPECT_EQ(progress_ranks(decode_column(encode_column(progress))), std::pair(32767, 5));
}

}  // namespace
}  // namespace troupe::reshard
