// Proves the loader: epochs are permutations, a resumed cursor goes on exactly where it was, ids
// survive filtering, truncation keeps the right tokens, and the drop-last rule.
// Oracle: a slow walk over epoch_order; laws over many sizes.

#include "actors/data/prompt_loader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Row i has a prompt of `lengths[i]` bytes, all the letter of its index.
Dataset dataset_of(const std::vector<int>& lengths) {
  std::vector<PromptRow> rows;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    PromptRow row;
    row.data_source = "troupe/copy";
    row.prompt = {{.role = "user", .content = {}}};
    for (int j = 0; j < lengths[i]; ++j) row.prompt[0].content += static_cast<char>('a' + j);
    row.ground_truth = std::to_string(i);
    rows.push_back(row);
  }
  return Dataset::from_rows(rows);
}

result<std::vector<std::int32_t>> bytes_of(std::span<const Message> messages) {
  std::vector<std::int32_t> ids;
  for (const Message& message : messages) ids.insert(ids.end(), message.content.begin(), message.content.end());
  return ids;
}

std::vector<std::int64_t> ids_of(const runtime::Batch& batch) {
  return batch.column(column::kPromptIds).values<std::int64_t>();
}

TEST(EpochOrder, IsAPermutationThatDependsOnSeedAndEpochOnly) {
  for (const std::int64_t count : {0, 1, 2, 17, 1000}) {
    const auto order = epoch_order(count, 3, 5);
    auto sorted = order;
    std::sort(sorted.begin(), sorted.end());
    std::vector<std::int64_t> wanted(static_cast<std::size_t>(count));
    std::iota(wanted.begin(), wanted.end(), 0);
    EXPECT_EQ(sorted, wanted);
    EXPECT_EQ(order, epoch_order(count, 3, 5));
  }
  EXPECT_NE(epoch_order(100, 3, 5), epoch_order(100, 3, 6));
  EXPECT_NE(epoch_order(100, 3, 5), epoch_order(100, 4, 5));
}

TEST(PromptLoader, BatchesHoldTokensTextsAndIdsOfTheirRows) {
  const auto loader = PromptLoader::create(dataset_of({3, 1, 2}), bytes_of, {.batch_size = 3, .shuffle = false});
  ASSERT_TRUE(loader) << loader.error().message;
  const auto step = loader->next({});
  ASSERT_TRUE(step);
  const runtime::Batch& batch = step->batch;
  EXPECT_EQ(batch.rows(), 3);
  EXPECT_THAT(ids_of(batch), ElementsAre(0, 1, 2));
  EXPECT_THAT(batch.column(column::kPrompts).row<std::int32_t>(2), ElementsAre('a', 'b'));
  EXPECT_EQ(batch.column(column::kDataSource).text(0), "troupe/copy");
  EXPECT_EQ(batch.column(column::kGroundTruth).text(1), "1");
  EXPECT_EQ(batch.column(column::kRawPrompt).text(1), R"([{"role":"user","content":"a"}])");
  EXPECT_EQ(batch.column(column::kExtraInfo).text(1), "{}");
}

TEST(PromptLoader, WalksEveryEpochOnceAndResumesFromAnyCursor) {
  for (const int count : {4, 7, 12, 13}) {
    for (const bool drop_last : {true, false}) {
      const auto loader = PromptLoader::create(dataset_of(std::vector<int>(static_cast<std::size_t>(count), 1)),
                                               bytes_of, {.batch_size = 4, .drop_last = drop_last});
      ASSERT_TRUE(loader);
      DataCursor cursor{.seed = 9};
      std::vector<std::vector<std::int64_t>> seen;
      std::vector<DataCursor> cursors;
      const std::int64_t steps = 3 * loader->batches_per_epoch();
      for (std::int64_t i = 0; i < steps; ++i) {
        cursors.push_back(cursor);
        const auto step = loader->next(cursor);
        ASSERT_TRUE(step);
        seen.push_back(ids_of(step->batch));
        cursor = step->next;
      }
      EXPECT_EQ(cursor, (DataCursor{.seed = 9, .epoch = 3, .position = 0}));
      // The oracle: each epoch is a prefix (drop_last) or the whole of its order.
      std::vector<std::int64_t> walked;
      for (const auto& ids : seen) walked.insert(walked.end(), ids.begin(), ids.end());
      std::vector<std::int64_t> wanted;
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        auto order = epoch_order(count, 9, epoch);
        if (drop_last) order.resize(static_cast<std::size_t>(count / 4 * 4));
        wanted.insert(wanted.end(), order.begin(), order.end());
      }
      EXPECT_EQ(walked, wanted) << count << " rows, drop_last " << drop_last;
      for (std::size_t i = 0; i < cursors.size(); ++i) {
        const auto restored = DataCursor::from_json(cursors[i].to_json());
        ASSERT_TRUE(restored);
        EXPECT_EQ(ids_of(loader->next(*restored)->batch), seen[i]);
      }
    }
  }
}

TEST(PromptLoader, FilteringKeepsTheIdsOfTheRowsThatStay) {
  const auto loader =
      PromptLoader::create(dataset_of({2, 9, 2, 9, 2}), bytes_of,
                           {.batch_size = 3, .prompt_tokens_max = 4, .shuffle = false, .filter_overlong = true});
  ASSERT_TRUE(loader);
  EXPECT_THAT(ids_of(loader->next({})->batch), ElementsAre(0, 2, 4));
  EXPECT_EQ(loader->rows_filtered(), 2);
  EXPECT_EQ(loader->rows_truncated(), 0);
}

TEST(PromptLoader, TruncationKeepsTheNamedSide) {
  const auto tokens = [](Truncation how, int length) {
    const auto loader = PromptLoader::create(dataset_of({length}), bytes_of,
                                             {.batch_size = 1, .prompt_tokens_max = 5, .truncation = how});
    EXPECT_EQ(loader->rows_truncated(), length > 5 ? 1 : 0);
    const auto row = loader->next({})->batch.column(column::kPrompts).values<std::int32_t>();
    return std::string(row.begin(), row.end());
  };
  EXPECT_EQ(tokens(Truncation::kLeft, 8), "defgh");
  EXPECT_EQ(tokens(Truncation::kRight, 8), "abcde");
  EXPECT_EQ(tokens(Truncation::kMiddle, 8), "abfgh");
  for (const Truncation how : {Truncation::kError, Truncation::kLeft, Truncation::kMiddle})
    EXPECT_EQ(tokens(how, 5), "abcde");
}

TEST(PromptLoader, RefusesWhatCannotBeTrainedOn) {
  const auto error = [](const std::vector<int>& lengths, const PromptLoaderOptions& options) {
    const auto loader = PromptLoader::create(dataset_of(lengths), bytes_of, options);
    EXPECT_FALSE(loader);
    return loader ? Error{} : loader.error();
  };
  const Error overlong = error({1, 9}, {.batch_size = 1, .prompt_tokens_max = 4});
  EXPECT_EQ(overlong.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(overlong.message, HasSubstr("prompt 1: 9 tokens, at most 4"));
  EXPECT_THAT(error({1, 0}, {.batch_size = 1}).message, HasSubstr("prompt 1: no tokens"));
  EXPECT_THAT(error({1, 1, 1}, {.batch_size = 4}).message, HasSubstr("3 rows"));
  EXPECT_THAT(error({9}, {.batch_size = 1, .prompt_tokens_max = 4, .filter_overlong = true}).message,
              HasSubstr("1 of 1 filtered"));
  EXPECT_EQ(error({}, {.batch_size = 1, .drop_last = false}).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error({1}, {.batch_size = 0}).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error({1}, {.batch_size = 1, .prompt_tokens_max = 0}).code, ErrorCode::kInvalidArgument);
  const auto failing = [](std::span<const Message>) -> result<std::vector<std::int32_t>> {
    return fail(ErrorCode::kUnsupported, "no template");
  };
  EXPECT_EQ(PromptLoader::create(dataset_of({1}), failing, {.batch_size = 1}).error().code, ErrorCode::kUnsupported);
}

TEST(PromptLoader, AllGivesEveryRowOnceInFileOrder) {
  const auto loader =
      PromptLoader::create(dataset_of({1, 1, 1, 1, 1}), bytes_of, {.batch_size = 2, .drop_last = false});
  std::vector<std::int64_t> ids;
  for (const auto& batch : loader->all()) {
    EXPECT_LE(batch.rows(), 2);
    const auto part = ids_of(batch);
    ids.insert(ids.end(), part.begin(), part.end());
  }
  EXPECT_THAT(ids, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(loader->batches_per_epoch(), 3);
}

TEST(DataCursor, ACursorThatDoesNotFitIsAnErrorAndNotAWrongBatch) {
  const auto loader = PromptLoader::create(dataset_of({1, 1, 1}), bytes_of, {.batch_size = 1});
  for (const DataCursor& cursor : {DataCursor{.position = 4}, DataCursor{.position = -1}, DataCursor{.epoch = -1}})
    EXPECT_EQ(loader->next(cursor).error().code, ErrorCode::kInvalidArgument);
  for (const char* text : {"", "3", "[]", "{}", R"({"seed":1,"epoch":2})", R"({"seed":-1,"epoch":0,"position":0})",
                           R"({"seed":1,"epoch":"0","position":0})", R"({"seed":1,"epoch":0.5,"position":0})",
                           R"({"seed":1,"epoch":18446744073709551615,"position":0})"}) {
    const auto cursor = DataCursor::from_json(text);
    ASSERT_FALSE(cursor) << text;
    EXPECT_THAT(cursor.error().message, HasSubstr("data cursor"));
  }
  const DataCursor large{.seed = UINT64_MAX, .epoch = 3, .position = 9};
  EXPECT_EQ(DataCursor::from_json(large.to_json()), large);
}

TEST(Truncation, NamesAreVerlsAndOthersAreErrors) {
  EXPECT_EQ(truncation_from_name("error"), Truncation::kError);
  EXPECT_EQ(truncation_from_name("left"), Truncation::kLeft);
  EXPECT_EQ(truncation_from_name("right"), Truncation::kRight);
  EXPECT_EQ(truncation_from_name("middle"), Truncation::kMiddle);
  EXPECT_THAT(truncation_from_name("both").error().message, HasSubstr("'both'"));
}

}  // namespace
}  // namespace troupe::actors
