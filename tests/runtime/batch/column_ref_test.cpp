// Proves that references know rows, lengths and bytes without payload, compose under every row
// operation, pull each row that a view covers once, free the column with the last view, and turn a
// dead owner into a typed error. Oracle: the same operations on the local batch.

#include "runtime/batch/column_ref.hpp"

#include "tests/runtime/batch/batch_support.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

namespace troupe::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ColumnOwner rank(std::int32_t value) { return {"policy", RankId{value}}; }

Error dead() {
  return Error{.code = ErrorCode::kRankDead, .message = "signal 9", .origin = {}, .causes = {}};
}

TEST(ColumnRef, KnowsEverythingButThePayload) {
  ColumnStore store(rank(2));
  const Column column = Column::jagged<float>({1, 2, 3}, {1, 0, 2});
  const result<Column> reference = store.put(column);
  ASSERT_TRUE(reference);
  EXPECT_TRUE(reference->is_reference());
  EXPECT_EQ(reference->rows(), 3);
  EXPECT_EQ(reference->row_lengths(), column.row_lengths());
  EXPECT_EQ(reference->bytes(), 12);
  EXPECT_EQ(reference->type(), column.type());
  try {
    reference->row<float>(0);
    ADD_FAILURE() << "read a reference";
  } catch (const CheckFailure& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("resolve"));
  }
  EXPECT_THROW(reference->values<float>(), CheckFailure);
  const std::vector<ColumnRef> parts = references(reference->slice(1, 2));
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].owner, rank(2));
  EXPECT_EQ(parts[0].first_row, 1);
  EXPECT_EQ(parts[0].row_lengths, (std::vector<std::int64_t>{0, 2}));
  EXPECT_EQ(parts[0].bytes, 8);
}

TEST(ColumnRef, ResolvesToTheOwnersBytesWithoutACopy) {
  ColumnStore store(rank(0));
  const Column column = Column::dense<double>({1, 2, 3, 4});
  const Column reference = *store.put(column);
  PullMeter meter;
  const std::int64_t before = CopyCounter::bytes();
  const result<Column> back = reference.slice(1, 2).resolve(&meter);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->row<double>(0).data(), column.row<double>(1).data());
  EXPECT_EQ(CopyCounter::bytes(), before);
  EXPECT_EQ(meter.bytes(), 16);
  EXPECT_EQ(meter.pulls(), 1);
  EXPECT_EQ(store.bytes_pulled(), 16);
}

TEST(ColumnRef, EveryRowOperationComposes) {
  for_seeds(200, [](Rng& rng) {
    const std::int64_t rows = 1 + pick(rng, 10);
    const Batch local = random_batch(rng, rows);
    ColumnStore first(rank(0));
    ColumnStore second(rank(1));
    const std::vector<Batch> parts = local.split(2);
    const std::vector<Batch> put{*first.put(parts[0]), *second.put(parts[1])};
    const Batch remote = *Batch::concat(put);
    const std::vector<std::int64_t> order = rng.permutation(rows);
    std::vector<std::int64_t> chosen;
    for (std::int64_t i = pick(rng, 15); i > 0; --i) chosen.push_back(pick(rng, rows));
    const std::int64_t multiple = 1 + pick(rng, 5);
    PullMeter meter;
    const auto agree = [&](const Batch& a, const Batch& b) {
      EXPECT_EQ(a.bytes(), b.bytes());
      const result<Batch> resolved = a.resolve(&meter);
      ASSERT_TRUE(resolved);
      EXPECT_FALSE(resolved->has_references());
      EXPECT_EQ(*resolved, b);
    };
    agree(remote, local);
    EXPECT_EQ(meter.bytes(), local.bytes());
    agree(*remote.reorder(order), *local.reorder(order));
    agree(*remote.index(chosen), *local.index(chosen));
    agree(remote.repeat(3), local.repeat(3));
    agree(remote.pad_to_multiple(multiple), local.pad_to_multiple(multiple));
    agree(remote.pad_to_multiple(multiple).strip_padding(), local);
    const std::vector<Batch> remote_parts = remote.split(3);
    const std::vector<Batch> local_parts = local.split(3);
    for (std::size_t i = 0; i < 3; ++i) agree(remote_parts[i], local_parts[i]);
    agree(*Batch::concat(remote_parts), local);
  });
}

TEST(ColumnRef, PullsOnlyWhatAViewCoversAndEachRowOnce) {
  ColumnStore store(rank(0));
  const Column reference =
      *store.put(Column::dense<std::int64_t>(std::vector<std::int64_t>(100, 1)));
  PullMeter repeated;
  std::vector<std::int64_t> rows;
  for (int i = 0; i < 50; ++i) rows.insert(rows.end(), {7, 8, 3, 7});
  const result<Column> back = reference.index(rows).resolve(&repeated);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->rows(), 200);
  EXPECT_EQ(repeated.bytes(), 3 * 8);
  EXPECT_EQ(repeated.pulls(), 2);  // rows 3 and 7..8
}

TEST(ColumnRef, ConsumersOfPartsPullEachByteOnceTogether) {
  // Four producers, three consumers whose shares straddle: O(N), not O(k N).
  std::vector<std::unique_ptr<ColumnStore>> stores;
  std::vector<Batch> produced;
  for (std::int32_t i = 0; i < 4; ++i) {
    stores.push_back(std::make_unique<ColumnStore>(rank(i)));
    Batch part;
    ASSERT_TRUE(
        part.set("x", Column::dense<float>(std::vector<float>(25, 1.0F * static_cast<float>(i)))));
    produced.push_back(*stores.back()->put(part));
  }
  PullMeter meter;
  for (const Batch& share : Batch::concat(produced)->split(3)) ASSERT_TRUE(share.resolve(&meter));
  EXPECT_EQ(meter.bytes(), 400);
  EXPECT_EQ(meter.pulls(), 6);  // 4 producers, 2 of whose blocks are cut by a boundary
}

TEST(ColumnRef, LastViewFreesTheColumnAtItsOwner) {
  ColumnStore store(rank(0));
  Batch batch;
  ASSERT_TRUE(batch.set("x", Column::dense<float>({1, 2, 3, 4})));
  ASSERT_TRUE(batch.set("y", Column::jagged<float>({1, 2}, {1, 0, 0, 1})));
  std::optional<Batch> reference = *store.put(batch);
  EXPECT_EQ(store.columns_held(), 2);
  EXPECT_EQ(store.bytes_held(), 24);
  std::optional<Batch> part = *reference->slice(1, 2);
  std::optional<Column> one = reference->column("x").slice(3, 1);
  reference.reset();
  EXPECT_EQ(store.columns_held(), 2);
  part.reset();
  EXPECT_EQ(store.columns_held(), 1);
  one.reset();
  EXPECT_EQ(store.columns_held(), 0);
  EXPECT_EQ(store.bytes_held(), 0);
}

TEST(ColumnRef, PartOfAConcatKeepsOnlyItsOwnersColumn) {
  ColumnStore first(rank(0));
  ColumnStore second(rank(1));
  std::optional<Column> tail;
  {
    const Column pieces[] = {*first.put(Column::dense<float>({1, 2})),
                             *second.put(Column::dense<float>({3}))};
    tail = Column::concat(pieces).slice(2, 1);
  }
  EXPECT_EQ(first.columns_held(), 0);
  EXPECT_EQ(second.columns_held(), 1);
}

TEST(ColumnRef, ResolvedRowsOutliveTheReference) {
  ColumnStore store(rank(0));
  std::optional<Column> reference = *store.put(Column::strings({"kept"}));
  const Column resolved = *reference->resolve();
  reference.reset();
  EXPECT_EQ(store.columns_held(), 0);
  EXPECT_EQ(resolved.text(0), "kept");
}

TEST(ColumnRef, RevokedOwnerIsATypedErrorThatNamesIt) {
  ColumnStore store(rank(3));
  Batch batch;
  ASSERT_TRUE(batch.set("log_probs", Column::dense<float>({1, 2})));
  const Batch reference = *store.put(batch);
  store.revoke(dead());
  EXPECT_EQ(store.bytes_held(), 0);
  const result<Batch> back = reference.resolve();
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, ErrorCode::kRankDead);
  EXPECT_THAT(back.error().message, AllOf(HasSubstr("log_probs"), HasSubstr("signal 9")));
  EXPECT_EQ(back.error().origin.group, "policy");
  EXPECT_EQ(back.error().origin.rank, RankId{3});
  EXPECT_FALSE(store.put(batch));
  EXPECT_EQ(reference.rows(), 2);  // metadata stays readable
}

TEST(ColumnRef, StoreThatIsGoneIsADeadOwner) {
  auto store = std::make_unique<ColumnStore>(rank(1));
  const Column reference = *store->put(Column::dense<float>({1}));
  store.reset();
  const result<Column> back = reference.resolve();
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, ErrorCode::kRankDead);
  EXPECT_EQ(back.error().origin.rank, RankId{1});
}

TEST(ColumnRef, PutPassesReferencesThroughAndHoldsTheRest) {
  ColumnStore first(rank(0));
  ColumnStore second(rank(1));
  const Column pieces[] = {*first.put(Column::dense<float>({1, 2})),
                           Column::dense<float>({3, 4, 5})};
  const Column mixed = Column::concat(pieces);
  const Column all = *second.put(mixed);
  EXPECT_EQ(second.bytes_held(), 12);
  const std::vector<ColumnRef> parts = references(all);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].owner, rank(0));
  EXPECT_EQ(parts[1].owner, rank(1));
  EXPECT_EQ(all.resolve()->values<float>(), (std::vector<float>{1, 2, 3, 4, 5}));
}

TEST(ColumnRef, MergeComparesReferencesByViewAndElseByPulling) {
  ColumnStore store(rank(0));
  Batch batch;
  ASSERT_TRUE(batch.set("x", Column::dense<float>({1, 2})));
  Batch reference = *store.put(batch);
  PullMeter meter;
  ASSERT_TRUE(reference.merge(Batch(reference), &meter));
  EXPECT_EQ(meter.bytes(), 0);
  ASSERT_TRUE(reference.merge(batch, &meter));
  EXPECT_EQ(meter.bytes(), 8);
  Batch other;
  ASSERT_TRUE(other.set("x", Column::dense<float>({1, 3})));
  EXPECT_THAT(reference.merge(other).error().message, HasSubstr("row 1"));
}

TEST(ColumnRef, EncodingAReferenceIsRefused) {
  ColumnStore store(rank(0));
  Batch batch;
  ASSERT_TRUE(batch.set("x", Column::dense<float>({1, 2})));
  const result<std::vector<std::byte>> bytes = store.put(batch)->to_bytes();
  ASSERT_FALSE(bytes);
  EXPECT_THAT(bytes.error().message, HasSubstr("column x"));
}

TEST(ColumnRef, ControllerHoldsFarLessThanSixtyFourBytesARow) {
  // A step's columns: per-token ones share their lengths, as `put` finds out by itself.
  constexpr std::int64_t kRows = 1024;
  Rng rng(5);
  std::vector<std::int64_t> prompt;
  std::vector<std::int64_t> response;
  std::int64_t prompt_tokens = 0;
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < kRows; ++i) {
    prompt.push_back(20 + pick(rng, 50));
    response.push_back(100 + pick(rng, 200));
    prompt_tokens += prompt.back();
    tokens += response.back();
  }
  Batch batch;
  const auto floats = [&] {
    return Column::jagged<float>(std::vector<float>(static_cast<std::size_t>(tokens)), response);
  };
  ASSERT_TRUE(batch.set(
      "prompts", Column::jagged<std::int32_t>(
                     std::vector<std::int32_t>(static_cast<std::size_t>(prompt_tokens)), prompt)));
  ASSERT_TRUE(batch.set(
      "responses", Column::jagged<std::int32_t>(
                       std::vector<std::int32_t>(static_cast<std::size_t>(tokens)), response)));
  for (const char* name :
       {"old_log_probs", "ref_log_probs", "rollout_log_probs", "values", "advantages", "returns"})
    ASSERT_TRUE(batch.set(name, floats()));
  ASSERT_TRUE(batch.set("rewards", Column::dense<float>(std::vector<float>(kRows))));
  ColumnStore store(rank(0));
  const Batch reference = *store.put(batch);
  batch = Batch();
  const HeldBytes held = held_bytes(reference);
  EXPECT_EQ(held.payload, 0);
  EXPECT_LT(held.metadata, 64 * kRows);
  EXPECT_LT(held.metadata, 17 * kRows + 2048);  // two length tables
  EXPECT_GT(held.metadata, 16 * kRows);
  EXPECT_GT(store.bytes_held(), 1'000 * kRows);
}

TEST(ColumnRef, StoreServesManyThreadsAtOnce) {
  ColumnStore store(rank(0));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&store, &wrong, t] {
      for (int i = 0; i < 200; ++i) {
        const result<Column> reference = store.put(Column::dense<std::int64_t>({t, i}));
        if (!reference ||
            reference->resolve()->values<std::int64_t>() != std::vector<std::int64_t>{t, i})
          ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(store.columns_held(), 0);
}

TEST(ColumnRef, MovesABatchToTheHostInStorageOfItsOwnAndRefusesOtherDevices) {
  ColumnStore store(rank(0));
  Batch batch;
  ASSERT_TRUE(batch.set("x", Column::dense<float>(std::vector<float>(100, 3.0F))).has_value());
  const Batch slice = *store.put(batch)->slice(10, 5);
  PullMeter meter;
  const result<Batch> here = slice.to("cpu", &meter);
  ASSERT_TRUE(here.has_value()) << here.error().to_string();
  EXPECT_FALSE(here->has_references());
  EXPECT_EQ(here->column("x").values<float>(), std::vector<float>(5, 3.0F));
  EXPECT_EQ(meter.bytes(), 5 * 4);
  EXPECT_EQ(held_bytes(*here).payload, 5 * 4);
  const result<Batch> elsewhere = slice.to("cuda:0");
  ASSERT_FALSE(elsewhere.has_value());
  EXPECT_EQ(elsewhere.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(elsewhere.error().message.find("cuda:0"), std::string::npos);
}

TEST(ColumnRef, RevokeRacingWithReadersNeverHangsOrCrashes) {
  for (int round = 0; round < 20; ++round) {
    ColumnStore store(rank(0));
    const Column reference = *store.put(Column::dense<float>(std::vector<float>(64, 2.0F)));
    std::thread reader([&reference] {
      for (int i = 0; i < 100; ++i) {
        const result<Column> back = reference.resolve();
        if (!back) {
          EXPECT_EQ(back.error().code, ErrorCode::kRankDead);
          return;
        }
        EXPECT_EQ(back->scalar<float>(63), 2.0F);
      }
    });
    store.revoke(dead());
    reader.join();
  }
}

}  // namespace
}  // namespace troupe::runtime
