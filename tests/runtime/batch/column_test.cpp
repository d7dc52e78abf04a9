// Proves that columns read back what was put in, that views compose as row lists do, that no view
// copies payload, and that comparison is by bits. Oracle: vectors of row bytes (batch_support.hpp).

#include "tests/runtime/batch/batch_support.hpp"

#include <gmock/gmock.h>

#include <cmath>

namespace troupe::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Column, ReadsDenseRowsInPlace) {
  const Column column = Column::dense<float>({1, 2, 3, 4, 5, 6}, {3});
  ASSERT_EQ(column.rows(), 2);
  EXPECT_THAT(column.row<float>(1), ElementsAre(4, 5, 6));
  EXPECT_EQ(column.row_length(0), 3);
  EXPECT_EQ(column.bytes(), 24);
  EXPECT_EQ(column.type().to_string(), "dense f32 [3]");
}

TEST(Column, ReadsJaggedRowsInPlaceIncludingEmptyOnes) {
  const Column column = Column::jagged<std::int32_t>({7, 8, 9}, {2, 0, 1});
  EXPECT_THAT(column.row<std::int32_t>(0), ElementsAre(7, 8));
  EXPECT_TRUE(column.row<std::int32_t>(1).empty());
  EXPECT_THAT(column.row<std::int32_t>(2), ElementsAre(9));
  EXPECT_THAT(column.row_lengths(), ElementsAre(2, 0, 1));
  EXPECT_EQ(column.elements(), 3);
}

TEST(Column, ReadsBoolsTextsAndJson) {
  const Column flags = Column::dense<bool>({true, false});
  EXPECT_TRUE(flags.scalar<bool>(0));
  EXPECT_THAT(flags.values<bool>(), ElementsAre(true, false));
  const Column texts = Column::strings({"a", "", std::string("\0z", 2)});
  EXPECT_EQ(texts.text(0), "a");
  EXPECT_EQ(texts.text(1), "");
  EXPECT_EQ(texts.text(2), std::string_view("\0z", 2));
  EXPECT_THAT(Column::json({"{}", "1"}).texts(), ElementsAre("{}", "1"));
}

TEST(Column, TakesTheVectorWithoutACopy) {
  std::vector<double> values(1000, 1.5);
  const double* data = values.data();
  const std::int64_t before = CopyCounter::bytes();
  const Column column = Column::dense<double>(std::move(values));
  EXPECT_EQ(column.row<double>(0).data(), data);
  EXPECT_EQ(CopyCounter::bytes(), before);
  EXPECT_EQ(column.values<double>().size(), 1000U);
  EXPECT_EQ(CopyCounter::bytes(), before + 8000);
}

TEST(Column, RowsOfNoElementsKeepTheirCount) {
  const Column column = Column::dense_rows<float>(5, {}, {3, 0});
  EXPECT_EQ(column.rows(), 5);
  EXPECT_EQ(column.row<float>(4).size(), 0U);
  const Column pieces[] = {column.slice(0, 2), column.slice(2, 3)};
  EXPECT_TRUE(Column::concat(pieces).bitwise_equal(column));
}

TEST(Column, RefusesWrongSizesTypesAndRowsWithBothValues) {
  const auto message = [](auto&& body) -> std::string {
    try {
      body();
    } catch (const CheckFailure& failure) {
      return failure.what();
    }
    return "no failure";
  };
  EXPECT_THAT(message([] {
                Column::dense<float>({1, 2, 3}, {2});
              }),
              HasSubstr("3 values, wanted 1 rows of 2"));
  EXPECT_THAT(message([] {
                Column::jagged<float>({1, 2}, {1});
              }),
              HasSubstr("2 values, row lengths sum to 1"));
  EXPECT_THAT(message([] {
                Column::jagged<float>({1}, {2, -1});
              }),
              HasSubstr("row 1 has length -1"));
  EXPECT_THAT(message([] { Column::dense<float>({1}).row<double>(0); }),
              HasSubstr("holds dense f32 [], asked for f64"));
  EXPECT_THAT(message([] { Column::dense<float>({1}).row<float>(1); }),
              HasSubstr("row 1, wanted 0..0"));
  EXPECT_THAT(message([] { Column::dense<float>({1}).row<float>(-1); }), HasSubstr("row -1"));
  EXPECT_THAT(message([] { Column::dense<float>({1}).slice(0, 2); }),
              HasSubstr("slice of 2 rows from 0"));
  const std::vector<std::int64_t> past{0, 1};
  EXPECT_THAT(message([&] { Column::dense<float>({1}).index(past); }), HasSubstr("index 1 at 1"));
  EXPECT_THAT(message([] { Column::json({"{}", "{"}); }), HasSubstr("row 1"));
  EXPECT_THAT(message([] {
                row_elements(std::vector<std::int64_t>{std::int64_t{1} << 40, 1 << 20});
              }),
              HasSubstr("overflows"));
}

TEST(Column, ParsesJsonOrNamesTheRow) {
  EXPECT_TRUE(Column::parse_json({"[]", "null"}));
  const result<Column> bad = Column::parse_json({"[]", "[1,"});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(bad.error().message, HasSubstr("row 1"));
  const std::string deep(200'000, '[');
  EXPECT_FALSE(Column::parse_json({deep}));
}

TEST(Column, IndexThenIndexIsOneIndex) {
  for_seeds(200, [](Rng& rng) {
    const Column column = random_column(rng, 1 + pick(rng, 12), pick(rng, 8));
    std::vector<std::int64_t> first;
    std::vector<std::int64_t> second;
    std::vector<std::int64_t> composed;
    for (std::int64_t i = 1 + pick(rng, 10); i > 0; --i) first.push_back(pick(rng, column.rows()));
    for (std::int64_t i = pick(rng, 10); i > 0; --i) {
      second.push_back(pick(rng, static_cast<std::int64_t>(first.size())));
      composed.push_back(first[static_cast<std::size_t>(second.back())]);
    }
    const std::int64_t before = CopyCounter::bytes();
    const Column twice = column.index(first).index(second);
    const Column once = column.index(composed);
    EXPECT_EQ(CopyCounter::bytes(), before);
    EXPECT_EQ(plain(twice), plain(once));
    EXPECT_TRUE(twice.bitwise_equal(once));
    EXPECT_EQ(plain(twice), plain_rows({{"c", plain(column)}}, composed)["c"]);
  });
}

TEST(Column, ViewsAgreeWithVectorsOfRows) {
  for_seeds(400, [](Rng& rng) {
    const std::int64_t kind = pick(rng, 8);
    const std::int64_t a_rows = pick(rng, 9);
    Column a = random_column(rng, a_rows, kind);
    std::vector<std::string> wanted = plain(a);
    for (int step = 0; step < 6; ++step) {
      const std::int64_t first = pick(rng, a.rows() + 1);
      const std::int64_t count = pick(rng, a.rows() - first + 1);
      const Column pieces[] = {a.slice(first, count), a, a.slice(0, first)};
      std::vector<std::string> joined(wanted.begin() + first, wanted.begin() + first + count);
      joined.insert(joined.end(), wanted.begin(), wanted.end());
      joined.insert(joined.end(), wanted.begin(), wanted.begin() + first);
      a = Column::concat(pieces);
      wanted = joined;
      if (a.rows() > 0) {
        std::vector<std::int64_t> order;
        for (std::int64_t i = pick(rng, 12); i > 0; --i) order.push_back(pick(rng, a.rows()));
        a = a.index(order);
        wanted = plain_rows({{"c", wanted}}, order)["c"];
      }
      ASSERT_EQ(plain(a), wanted);
      std::int64_t bytes = 0;
      for (const std::string& row : wanted) bytes += static_cast<std::int64_t>(row.size());
      ASSERT_EQ(a.bytes(), bytes);
      ASSERT_TRUE(a.compact().bitwise_equal(a));
      ASSERT_EQ(plain(a.compact()), wanted);
    }
  });
}

TEST(Column, ContiguousGivesTheWholeViewOrNothing) {
  const Column column = Column::jagged<std::int64_t>({1, 2, 3, 4, 5}, {2, 1, 2});
  EXPECT_THAT(*column.contiguous<std::int64_t>(), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(*column.slice(1, 2).contiguous<std::int64_t>(), ElementsAre(3, 4, 5));
  const std::vector<std::int64_t> neighbours{1, 2};
  EXPECT_THAT(*column.index(neighbours).contiguous<std::int64_t>(), ElementsAre(3, 4, 5));
  const std::vector<std::int64_t> apart{2, 0};
  EXPECT_FALSE(column.index(apart).contiguous<std::int64_t>());
  EXPECT_THAT(column.index(apart).values<std::int64_t>(), ElementsAre(4, 5, 1, 2));
  EXPECT_TRUE(column.slice(0, 0).contiguous<std::int64_t>()->empty());
}

TEST(Column, FindsTheFirstDifferingRow) {
  for_seeds(300, [](Rng& rng) {
    const std::int64_t rows = 1 + pick(rng, 40);
    const Column column = random_column(rng, rows, pick(rng, 8));
    const Column other = random_column(rng, rows, 2);
    EXPECT_FALSE(column.first_difference(column.compact()));
    if (column.type() != other.type()) return;
    const auto left = plain(column);
    const auto right = plain(other);
    std::optional<std::int64_t> wanted;
    for (std::int64_t i = rows - 1; i >= 0; --i) {
      if (left[static_cast<std::size_t>(i)] != right[static_cast<std::size_t>(i)]) wanted = i;
    }
    EXPECT_EQ(column.first_difference(other), wanted);
  });
}

TEST(Column, FindsOneChangedRowAmongMany) {
  for_seeds(200, [](Rng& rng) {
    const std::int64_t rows = 1 + pick(rng, 200);
    std::vector<std::vector<std::int32_t>> values(static_cast<std::size_t>(rows));
    for (auto& row : values) row.resize(static_cast<std::size_t>(1 + pick(rng, 3)), 5);
    const Column before = Column::jagged<std::int32_t>(values);
    const std::int64_t changed = pick(rng, rows);
    auto& row = values[static_cast<std::size_t>(changed)];
    if (pick(rng, 2) == 0)
      row.push_back(5);
    else
      row.back() = 6;
    values.back().back() = 7;
    EXPECT_EQ(before.first_difference(Column::jagged<std::int32_t>(values)), changed);
  });
}

TEST(Column, ComparesBitsSoNanEqualsNanAndZeroDiffersFromMinusZero) {
  const float nan = std::nanf("");
  EXPECT_TRUE(Column::dense<float>({nan, 1}).bitwise_equal(Column::dense<float>({nan, 1})));
  EXPECT_EQ(Column::dense<float>({1, 0.0F}).first_difference(Column::dense<float>({1, -0.0F})), 1);
  EXPECT_FALSE(Column::dense<float>({1}).bitwise_equal(Column::dense<double>({1})));
  EXPECT_EQ(Column::dense<float>({1, 2}).first_difference(Column::dense<float>({1})), 1);
}

TEST(Column, SlicesOfConcatsLetGoOfOtherStorages) {
  std::vector<std::int64_t> values(100, 1);
  Column a = Column::dense<std::int64_t>(values);
  Column b = Column::dense<std::int64_t>({2, 2});
  const std::int64_t* data = b.row<std::int64_t>(0).data();
  const Column pieces[] = {a, b};
  const Column tail = Column::concat(pieces).slice(100, 2);
  EXPECT_TRUE(tail.same_view(b));
  EXPECT_EQ(tail.row<std::int64_t>(0).data(), data);
}

TEST(Column, MakesZeroRowsOfEveryType) {
  const Column dense = Column::zeros({ColumnKind::kDense, DType::kF32, {2}}, 2);
  EXPECT_THAT(dense.values<float>(), ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(Column::zeros({ColumnKind::kJagged, DType::kI32, {}}, 3).elements(), 0);
  EXPECT_EQ(Column::zeros({ColumnKind::kJson, DType::kU8, {}}, 1).text(0), "null");
  EXPECT_EQ(Column::zeros({ColumnKind::kText, DType::kU8, {}}, 1).text(0), "");
}

TEST(Column, DescribesRowsBriefly) {
  EXPECT_EQ(Column::dense<float>({1.5F, -2}, {2}).describe_row(0), "[1.5, -2]");
  EXPECT_EQ(Column::strings({"hi"}).describe_row(0), "'hi'");
  EXPECT_LT(Column::strings({std::string(500, 'x')}).describe_row(0).size(), 100U);
  EXPECT_THAT(Column::jagged<std::int32_t>({std::vector<std::int32_t>(20, 3)}).describe_row(0),
              HasSubstr("20 elements"));
}

}  // namespace
}  // namespace troupe::runtime
