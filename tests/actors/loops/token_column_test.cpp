// Proves that a per-token column is accepted only when every row is as long as its response.

#include "actors/loops/token_column.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace troupe::actors {
namespace {

TEST(TokenColumn, IsGivenOnlyWhenEveryRowHasTheLengthOfItsResponse) {
  runtime::Batch batch;
  const std::vector<std::vector<float>> rows{{1, 2}, {}, {3}};
  ASSERT_TRUE(batch.set("values", runtime::Column::jagged(rows)).has_value());
  const std::vector<std::int64_t> same{2, 0, 1};
  const auto found = require_token_column(batch, "values", same, "here");
  ASSERT_TRUE(found.has_value()) << found.error().to_string();
  EXPECT_EQ(found->values<float>(), (std::vector<float>{1, 2, 3}));

  const std::vector<std::int64_t> other{2, 1, 0};  // the same sum, but not row by row
  const auto refused = require_token_column(batch, "values", other, "here");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_EQ(refused.error().message, "here: column values row 1: 0 tokens, responses has 1");
  EXPECT_EQ(require_token_column(batch, "nothing", same, "here").error().code,
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace troupe::actors
