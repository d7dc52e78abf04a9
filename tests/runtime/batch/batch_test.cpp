// Proves the rules of `Batch`: columns of equal rows, row operations as on lists of rows, split and
// concat as inverses, padding that leaves no trace, and merge and concat errors that name column,
// row, key and both values. Oracle: vectors of row bytes; laws over random batches.

#include "tests/runtime/batch/batch_support.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace troupe::runtime {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Batch numbers(std::vector<std::int64_t> values) {
  Batch batch;
  EXPECT_TRUE(batch.set("x", Column::dense<std::int64_t>(std::move(values))));
  return batch;
}

std::vector<std::int64_t> xs(const Batch& batch) {
  return batch.column("x").values<std::int64_t>();
}

std::vector<std::int64_t> up_to(std::int64_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(Batch, KeepsOneRowCount) {
  Batch batch;
  EXPECT_FALSE(batch.rows_fixed());
  ASSERT_TRUE(batch.set("a", Column::dense<float>({1, 2})));
  const result<void> other = batch.set("b", Column::dense<float>({1, 2, 3}));
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::kConflict);
  EXPECT_THAT(other.error().message,
              AllOf(HasSubstr("column b"), HasSubstr("3 rows"), HasSubstr("has 2")));
  EXPECT_THAT(batch.names(), ElementsAre("a"));
  EXPECT_FALSE(batch.set("valid", Column::dense<float>({1, 2})));
}

TEST(Batch, SelectsDropsAndRenamesOrNamesTheMissingColumn) {
  Batch batch = numbers({1, 2});
  ASSERT_TRUE(batch.set("y", Column::strings({"a", "b"})));
  EXPECT_THAT(batch.select({"y"})->names(), ElementsAre("y"));
  EXPECT_THAT(batch.drop({"y"})->names(), ElementsAre("x"));
  EXPECT_THAT(batch.rename("y", "z")->names(), ElementsAre("x", "z"));
  for (const auto& outcome : {batch.select({"q"}), batch.drop({"q"}), batch.rename("q", "r")}) {
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, ErrorCode::kNotFound);
    EXPECT_THAT(outcome.error().message, AllOf(HasSubstr("no column q"), HasSubstr("x, y")));
  }
  EXPECT_EQ(batch.rename("x", "y").error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(batch.rename("y", "valid").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(batch.drop({"x", "y"})->rows(), 2);
  EXPECT_EQ(batch.require("q").error().code, ErrorCode::kNotFound);
  EXPECT_THROW(batch.column("q"), CheckFailure);
}

TEST(Batch, SplitsIntoExactlyKPartsOfEvenSizes) {
  for (std::int64_t rows = 0; rows <= 20; ++rows) {
    for (std::int64_t parts = 1; parts <= 24; ++parts) {
      const std::vector<Batch> all = numbers(up_to(rows)).split(parts);
      ASSERT_EQ(std::ssize(all), parts);
      std::int64_t next = 0;
      for (std::int64_t i = 0; i < parts; ++i) {
        const Batch& part = all[static_cast<std::size_t>(i)];
        ASSERT_EQ(part.rows(), rows / parts + (i < rows % parts ? 1 : 0))
            << rows << " by " << parts;
        ASSERT_TRUE(part.has("x"));
        for (const std::int64_t value : xs(part)) ASSERT_EQ(value, next++);
      }
      ASSERT_EQ(next, rows);
    }
  }
}

TEST(Batch, ConcatOfSplitIsIdentityWithoutCopies) {
  for_seeds(150, [](Rng& rng) {
    const Batch batch = random_batch(rng, pick(rng, 20));
    for (std::int64_t parts = 1; parts <= 24; ++parts) {
      const std::int64_t before = CopyCounter::bytes();
      const result<Batch> whole = Batch::concat(batch.split(parts));
      const result<Batch> by_size = Batch::concat(batch.split_by(parts));
      EXPECT_EQ(CopyCounter::bytes(), before);
      ASSERT_TRUE(whole) << whole.error().message;
      EXPECT_EQ(*whole, batch) << parts << " parts";
      ASSERT_TRUE(by_size);
      EXPECT_EQ(*by_size, batch) << parts << " rows a part";
    }
  });
}

TEST(Batch, RowOperationsAgreeWithListsOfRows) {
  for_seeds(300, [](Rng& rng) {
    const std::int64_t rows = 1 + pick(rng, 12);
    const Batch batch = random_batch(rng, rows);
    const Plain wanted = plain(batch);
    const std::int64_t before = CopyCounter::bytes();
    const std::vector<std::int64_t> order = rng.permutation(rows);
    EXPECT_EQ(plain(*batch.reorder(order)), plain_rows(wanted, order));
    EXPECT_EQ(batch.reorder(order)->metrics(), batch.metrics());
    std::vector<std::int64_t> chosen;
    for (std::int64_t i = pick(rng, 15); i > 0; --i) chosen.push_back(pick(rng, rows));
    EXPECT_EQ(plain(*batch.index(chosen)), plain_rows(wanted, chosen));
    EXPECT_EQ(batch.index(chosen)->metadata(), batch.metadata());
    std::vector<bool> flags;
    std::vector<std::int64_t> marked;
    for (std::int64_t i = 0; i < rows; ++i) {
      flags.push_back(pick(rng, 2) == 1);
      if (flags.back()) marked.push_back(i);
    }
    EXPECT_EQ(plain(*batch.mask(flags)), plain_rows(wanted, marked));
    const std::int64_t times = pick(rng, 4);
    std::vector<std::int64_t> tiled;
    std::vector<std::int64_t> interleaved;
    for (std::int64_t i = 0; i < times; ++i) {
      for (std::int64_t row = 0; row < rows; ++row) tiled.push_back(row);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < times; ++i) interleaved.push_back(row);
    }
    EXPECT_EQ(plain(batch.repeat(times, Repeat::kTiled)), plain_rows(wanted, tiled));
    EXPECT_EQ(plain(batch.repeat(times)), plain_rows(wanted, interleaved));
    const std::int64_t first = pick(rng, rows + 1);
    const std::int64_t count = pick(rng, rows - first + 1);
    std::vector<std::int64_t> window = up_to(count);
    for (std::int64_t& row : window) row += first;
    EXPECT_EQ(plain(*batch.slice(first, count)), plain_rows(wanted, window));
    EXPECT_EQ(CopyCounter::bytes(), before);
  });
}

TEST(Batch, RepeatOfRepeatIsRepeat) {
  for_seeds(50, [](Rng& rng) {
    const Batch batch = random_batch(rng, pick(rng, 6));
    EXPECT_EQ(batch.repeat(2).repeat(3), batch.repeat(6));
    EXPECT_EQ(batch.repeat(2, Repeat::kTiled).repeat(3, Repeat::kTiled),
              batch.repeat(6, Repeat::kTiled));
    EXPECT_EQ(batch.repeat(1), batch);
    EXPECT_EQ(batch.repeat(0).rows(), 0);
    EXPECT_EQ(batch.repeat(0).names(), batch.names());
  });
}

TEST(Batch, RefusesRowsThatAreNotThere) {
  const Batch batch = numbers({1, 2, 3});
  const std::vector<std::int64_t> past{0, 3};
  const std::vector<std::int64_t> before{-1};
  const std::vector<std::int64_t> twice{0, 1, 1};
  const std::vector<std::int64_t> few{0, 1};
  EXPECT_THAT(batch.index(past).error().message,
              AllOf(HasSubstr("entry 1"), HasSubstr("row 3"), HasSubstr("3 rows")));
  EXPECT_FALSE(batch.index(before));
  EXPECT_THAT(batch.reorder(twice).error().message, HasSubstr("row 1 comes twice"));
  EXPECT_FALSE(batch.reorder(few));
  EXPECT_FALSE(batch.mask({true, false}));
  EXPECT_FALSE(batch.slice(2, 2));
  EXPECT_FALSE(batch.slice(-1, 1));
  EXPECT_FALSE(batch.slice(0, -1));
  EXPECT_FALSE(batch.slice(std::numeric_limits<std::int64_t>::max(), 2));
  EXPECT_THROW(batch.split(0), CheckFailure);
  EXPECT_THROW(batch.split_by(0), CheckFailure);
  EXPECT_THROW(batch.repeat(-1), CheckFailure);
  EXPECT_THROW(batch.repeat(std::numeric_limits<std::int64_t>::max()), CheckFailure);
  EXPECT_THROW(batch.pad_to_multiple(0), CheckFailure);
  EXPECT_THROW(batch.minibatches({.rows = 0}), CheckFailure);
}

TEST(Batch, StripOfPadIsIdentityAndTheCallersBatchIsUntouched) {
  for_seeds(200, [](Rng& rng) {
    const Batch batch = random_batch(rng, pick(rng, 12));
    const Batch copy = batch;
    for (std::int64_t multiple = 1; multiple <= 20; ++multiple) {
      const Batch padded = batch.pad_to_multiple(multiple);
      EXPECT_EQ(padded.rows() % multiple, 0);
      EXPECT_LT(padded.rows() - batch.rows(), multiple);
      EXPECT_TRUE(padded.has(kValidColumn));
      EXPECT_EQ(padded.valid_rows(), batch.rows());
      EXPECT_EQ(padded.strip_padding(), batch);
      EXPECT_EQ(*padded.drop({"valid"})->strip_padding(padded.column(kValidColumn)), batch);
      for (const Batch& part : padded.split(multiple))
        EXPECT_EQ(part.rows(), padded.rows() / multiple);
      EXPECT_EQ(batch, copy);
      EXPECT_FALSE(batch.has(kValidColumn));
    }
  });
}

TEST(Batch, PaddingRepeatsRowsFromTheFirstAlsoWhenTheBatchIsSmaller) {
  const Batch padded = numbers({5, 6}).pad_to_multiple(7);
  EXPECT_THAT(xs(padded), ElementsAre(5, 6, 5, 6, 5, 6, 5));
  EXPECT_THAT(padded.column("valid").values<bool>(),
              ElementsAre(true, true, false, false, false, false, false));
}

TEST(Batch, PaddingAnEmptyBatchAddsNothing) {
  const Batch padded = numbers({}).pad_to_multiple(4);
  EXPECT_EQ(padded.rows(), 0);
  EXPECT_TRUE(padded.has(kValidColumn));
  EXPECT_EQ(padded.strip_padding(), numbers({}));
}

TEST(Batch, PaddingTwiceKeepsEarlierFlags) {
  const Batch twice = numbers({1, 2, 3}).pad_to_multiple(2).pad_to_multiple(3);
  EXPECT_EQ(twice.rows(), 6);
  EXPECT_EQ(twice.valid_rows(), 3);
  EXPECT_EQ(twice.strip_padding(), numbers({1, 2, 3}));
}

TEST(Batch, StripRefusesFlagsOfAnotherBatch) {
  const result<Batch> stripped = numbers({1, 2}).strip_padding(Column::dense<bool>({true}));
  ASSERT_FALSE(stripped);
  EXPECT_THAT(stripped.error().message,
              AllOf(HasSubstr("2 rows came back"), HasSubstr("1 were sent")));
}

TEST(Batch, MergeAddsColumnsAndAcceptsEqualOnes) {
  for_seeds(100, [](Rng& rng) {
    const std::int64_t rows = pick(rng, 10);
    const Batch a = random_batch(rng, rows);
    Batch merged = a;
    merged.metrics().clear();
    Batch same(rows);  // the same bits in storage of their own
    for (const auto& [name, column] : a.columns()) ASSERT_TRUE(same.set(name, column.compact()));
    const result<void> outcome = merged.merge(same);
    ASSERT_TRUE(outcome) << outcome.error().message;
    EXPECT_EQ(plain(merged), plain(a));
    Batch extra(rows);
    ASSERT_TRUE(extra.set("extra", random_column(rng, rows, 0)));
    Batch left = a;
    Batch right = extra;
    ASSERT_TRUE(left.merge(extra));
    ASSERT_TRUE(right.merge(a));
    EXPECT_EQ(left, right);
    EXPECT_EQ(left.names().size(), a.names().size() + 1);
  });
}

TEST(Batch, MergeNamesColumnRowAndBothValues) {
  Batch batch;
  ASSERT_TRUE(batch.set("reward", Column::dense<float>({1, std::nanf(""), 3, 4})));
  Batch other;
  ASSERT_TRUE(other.set("reward", Column::dense<float>({1, std::nanf(""), 3.5F, 5})));
  ASSERT_TRUE(other.set("new", Column::dense<float>({0, 0, 0, 0})));
  const Batch before = batch;
  const result<void> outcome = batch.merge(other);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kConflict);
  EXPECT_THAT(outcome.error().message,
              AllOf(HasSubstr("reward"), HasSubstr("row 2"), HasSubstr("[3]"), HasSubstr("[3.5]")));
  EXPECT_EQ(batch, before);
}

TEST(Batch, MergeNamesTypesRowsAndMetadataThatDiffer) {
  Batch batch = numbers({1, 2});
  Batch other;
  ASSERT_TRUE(other.set("x", Column::dense<float>({1, 2})));
  EXPECT_THAT(batch.merge(other).error().message,
              AllOf(HasSubstr("column x"), HasSubstr("i64"), HasSubstr("f32")));
  EXPECT_THAT(batch.merge(numbers({1, 2, 3})).error().message,
              AllOf(HasSubstr("3 rows"), HasSubstr("2")));
  EXPECT_THAT(batch.merge(batch.pad_to_multiple(3)).error().message, HasSubstr("padding"));
  Batch keyed = numbers({1, 2});
  ASSERT_TRUE(batch.set_metadata("temperature", "1.0"));
  ASSERT_TRUE(keyed.set_metadata("temperature", "0.5"));
  const Batch before = batch;
  EXPECT_THAT(batch.merge(keyed).error().message,
              AllOf(HasSubstr("temperature"), HasSubstr("1.0"), HasSubstr("0.5")));
  EXPECT_EQ(batch, before);
  Batch jagged;
  ASSERT_TRUE(jagged.set("j", Column::jagged<std::int32_t>({1, 2, 3}, {1, 2})));
  Batch longer;
  ASSERT_TRUE(longer.set("j", Column::jagged<std::int32_t>({1, 2, 3}, {2, 1})));
  EXPECT_THAT(jagged.merge(longer).error().message,
              AllOf(HasSubstr("row 0"), HasSubstr("[1]"), HasSubstr("[1, 2]")));
}

TEST(Batch, MergeIsAllOrNothingWhenMetricsConflict) {
  Batch batch = numbers({1});
  batch.metrics().add("loss", 1, Reduction::kMean);
  Batch other(1);
  ASSERT_TRUE(other.set("y", Column::dense<float>({1})));
  other.metrics().add("loss", 1, Reduction::kSum);
  const Batch before = batch;
  EXPECT_THAT(batch.merge(other).error().message,
              AllOf(HasSubstr("loss"), HasSubstr("mean"), HasSubstr("sum")));
  EXPECT_EQ(batch, before);
}

TEST(Batch, ConcatNamesWhatDiffers) {
  Batch a = numbers({1});
  Batch b = numbers({2});
  ASSERT_TRUE(b.set("y", Column::dense<float>({1})));
  const std::vector<Batch> more{a, b};
  EXPECT_THAT(Batch::concat(more).error().message,
              AllOf(HasSubstr("column y"), HasSubstr("part 1")));
  const std::vector<Batch> fewer{b, a};
  EXPECT_THAT(Batch::concat(fewer).error().message,
              AllOf(HasSubstr("column y"), HasSubstr("part 1")));
  const std::vector<Batch> empty_part{b, Batch(0)};
  EXPECT_EQ(Batch::concat(empty_part).error().code, ErrorCode::kConflict);
  const std::vector<Batch> renamed{a, *a.rename("x", "z")};
  EXPECT_THAT(Batch::concat(renamed).error().message, HasSubstr("column x"));
  Batch typed;
  ASSERT_TRUE(typed.set("x", Column::dense<float>({1})));
  const std::vector<Batch> types{a, typed};
  EXPECT_THAT(Batch::concat(types).error().message,
              AllOf(HasSubstr("column x"), HasSubstr("i64"), HasSubstr("f32")));
  EXPECT_EQ(Batch::concat({}).error().code, ErrorCode::kInvalidArgument);
}

TEST(Batch, ConcatJoinsMetadataAndMetricsOrNamesTheKey) {
  Batch a = numbers({1});
  Batch b = numbers({2});
  ASSERT_TRUE(a.set_metadata("k", "1"));
  ASSERT_TRUE(b.set_metadata("other", "\"x\""));
  a.metrics().add("timing_s/gen", 2.0, Reduction::kMax);
  b.metrics().add("timing_s/gen", 3.0, Reduction::kMax);
  const std::vector<Batch> parts{a, b};
  const result<Batch> whole = Batch::concat(parts);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->metadata().size(), 2U);
  EXPECT_EQ(whole->metrics().value("timing_s/gen"), 3.0);
  ASSERT_TRUE(b.set_metadata("k", "2"));
  const std::vector<Batch> clash{a, b};
  EXPECT_THAT(Batch::concat(clash).error().message,
              AllOf(HasSubstr("metadata k"), HasSubstr("1 against 2")));
  EXPECT_FALSE(a.set_metadata("k", "{"));
  EXPECT_EQ(a.metadata().at("k"), "1");
}

TEST(Batch, MinibatchesAreAPartitionFixedByTheSeed) {
  const Batch batch = numbers(up_to(23));
  const auto all_rows = [](const std::vector<Batch>& parts) {
    std::vector<std::int64_t> rows;
    for (const Batch& part : parts) {
      for (const std::int64_t x : xs(part)) rows.push_back(x);
    }
    return rows;
  };
  const auto one = all_rows(batch.minibatches({.rows = 5, .shuffle = true, .seed = 7}));
  EXPECT_EQ(one, all_rows(batch.minibatches({.rows = 5, .shuffle = true, .seed = 7})));
  EXPECT_EQ(one, all_rows(batch.minibatches({.rows = 23, .shuffle = true, .seed = 7})));
  EXPECT_NE(one, all_rows(batch.minibatches({.rows = 5, .shuffle = true, .seed = 8})));
  EXPECT_EQ(std::set<std::int64_t>(one.begin(), one.end()).size(), 23U);
  EXPECT_NE(one, up_to(23));
  EXPECT_EQ(all_rows(batch.minibatches({.rows = 5, .shuffle = false})), up_to(23));
  const auto parts = batch.minibatches({.rows = 5, .seed = 7});
  ASSERT_EQ(parts.size(), 5U);
  EXPECT_EQ(parts.back().rows(), 3);
  EXPECT_EQ(batch.minibatches({.rows = 5, .seed = 7, .drop_last = true}).size(), 4U);
  EXPECT_TRUE(numbers({}).minibatches({.rows = 5}).empty());
}

}  // namespace
}  // namespace troupe::runtime
