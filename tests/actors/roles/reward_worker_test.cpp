// Proves what the reward rank makes of responses: the rule of each row's source or the one rule for
// all, accuracy from the rule or its score, answers, metrics, and an error that names the row.

#include "actors/roles/reward_worker.hpp"

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "actors/text/byte_level_tokenizer.hpp"
#include "tests/support/test_files.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using runtime::Batch;
using runtime::Column;

Tokenizer byte_tokenizer(const std::filesystem::path& folder) {
  EXPECT_TRUE(write_byte_level_tokenizer(folder).has_value());
  return std::move(Tokenizer::load(folder).value());
}

Batch answers(const Tokenizer& tokenizer, const std::vector<std::string>& texts,
              const std::vector<std::string>& sources) {
  std::vector<std::vector<std::int32_t>> tokens;
  for (const std::string& text : texts) tokens.push_back(tokenizer.encode(text));
  Batch batch;
  const auto put = [&batch](std::string_view name, Column column) {
    EXPECT_TRUE(batch.set(std::string(name), std::move(column)).has_value());
  };
  put(column::kResponses, Column::jagged(tokens));
  put(column::kDataSource, Column::strings(sources));
  put(column::kGroundTruth, Column::strings(std::vector<std::string>(texts.size(), "yes")));
  put(column::kExtraInfo, Column::json(std::vector<std::string>(texts.size(), "{}")));
  return batch;
}

RewardRegistry rules() {
  RewardRegistry registry;
  EXPECT_TRUE(
      registry
          .add("length",
               [](const RewardInput& input) { return static_cast<double>(input.solution.size()); })
          .has_value());
  EXPECT_TRUE(registry
                  .add("same",
                       [](const RewardInput& input) {
                         return input.solution == input.ground_truth ? 1.0 : 0.0;
                       })
                  .has_value());
  return registry;
}

TEST(RewardWorker, AppliesTheRuleOfEachRowsSource) {
  testing::TemporaryFolder folder;
  const Tokenizer tokenizer = byte_tokenizer(folder.path());
  const RewardRegistry registry = rules();
  RewardWorker worker(tokenizer, registry);
  const auto scored =
      worker.score(answers(tokenizer, {"yes", "nope", "no"}, {"same", "length", "same"}));
  ASSERT_TRUE(scored.has_value()) << scored.error().to_string();
  EXPECT_EQ(scored->column(column::kScores).values<float>(), (std::vector<float>{1, 4, 0}));
  EXPECT_EQ(scored->column(column::kAccuracy).values<float>(), (std::vector<float>{1, 4, 0}));
  EXPECT_EQ(scored->column(column::kAnswers).rows(), 3);
}

TEST(RewardWorker, AppliesOneRuleToAllRowsWhenItIsNamed) {
  testing::TemporaryFolder folder;
  const Tokenizer tokenizer = byte_tokenizer(folder.path());
  const RewardRegistry registry = rules();
  RewardWorker worker(tokenizer, registry, "length");
  const auto scored = worker.score(answers(tokenizer, {"yes", "no"}, {"same", "unknown"}));
  ASSERT_TRUE(scored.has_value()) << scored.error().to_string();
  EXPECT_EQ(scored->column(column::kScores).values<float>(), (std::vector<float>{3, 2}));
}

TEST(RewardWorker, NamesTheRowThatNoRuleCoversAndTheColumnThatIsMissing) {
  testing::TemporaryFolder folder;
  const Tokenizer tokenizer = byte_tokenizer(folder.path());
  const RewardRegistry registry = rules();
  RewardWorker worker(tokenizer, registry);
  const auto unknown = worker.score(answers(tokenizer, {"yes", "no"}, {"same", "unknown"}));
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().to_string().find("row 1 (unknown)"), std::string::npos)
      << unknown.error().to_string();

  const auto missing = worker.score(Batch(1));
  ASSERT_FALSE(missing.has_value());
  EXPECT_NE(missing.error().message.find("responses"), std::string::npos);
}

}  // namespace
}  // namespace troupe::actors
