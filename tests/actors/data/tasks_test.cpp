// Proves the task makers: every answer earns reward 1 from the registry, an independent solver
// agrees, rows depend on the seed only, and no held-out prompt is ever trained on.

#include "actors/data/tasks.hpp"

#include "actors/data/countdown_maker.hpp"
#include "actors/reward/expression.hpp"
#include "actors/reward/reward.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using testing::HasSubstr;

constexpr TaskKind kKinds[] = {TaskKind::kSort, TaskKind::kReverse, TaskKind::kCopy,
                               TaskKind::kChainSum, TaskKind::kCountdown};

TaskOptions options_for(TaskKind kind) {
  TaskOptions options{
      .kind = kind, .train_rows = 300, .validation_rows = 50, .warmup_rows = 100, .seed = 7};
  if (kind == TaskKind::kCountdown) {
    options.items_min = 3;
    options.items_max = 4;
    options.value_min = 1;
    options.value_max = 20;
  }
  return options;
}

std::vector<std::string> prompts_of(const std::vector<PromptRow>& rows) {
  std::vector<std::string> prompts;
  for (const PromptRow& row : rows) prompts.push_back(row.prompt.at(0).content);
  return prompts;
}

/// The integers of a text, in order; signs as operators are read by the caller.
std::vector<std::int64_t> integers(const std::string& text) {
  std::vector<std::int64_t> values;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (word.find_first_not_of("-0123456789") == std::string::npos && word != "-")
      values.push_back(std::stoll(word));
  }
  return values;
}

TEST(Tasks, TheReferenceResponseOfEveryRowEarnsOne) {
  const RewardRegistry rewards = default_rewards();
  for (const TaskKind kind : kKinds) {
    const auto rows = make_task_rows(options_for(kind));
    ASSERT_TRUE(rows) << rows.error().message;
    for (const auto* set : {&rows->train, &rows->validation, &rows->warmup}) {
      for (const PromptRow& row : *set) {
        const auto score =
            rewards.score({row.data_source, row.response, row.ground_truth, row.extra_info});
        ASSERT_TRUE(score) << score.error().message;
        ASSERT_EQ(score->score, 1.0) << row.prompt.at(0).content << " / " << row.response;
        EXPECT_EQ(
            rewards.score({row.data_source, row.response + " 1", row.ground_truth, ""})->score,
            0.0);
        PromptRow read_back = *row_from_json(row_to_json(row), "row");
        read_back.prompt_id = row.prompt_id;
        ASSERT_TRUE(read_back == row) << row_to_json(row) << "\n" << row_to_json(read_back);
      }
    }
  }
}

TEST(Tasks, AnIndependentSolverAgreesWithTheAnswers) {
  for (const TaskKind kind : {TaskKind::kSort, TaskKind::kReverse, TaskKind::kCopy}) {
    const auto rows = make_task_rows(options_for(kind));
    for (const PromptRow& row : rows->train) {
      auto values = integers(row.prompt.at(0).content);
      EXPECT_EQ(values.size(), 5U);
      if (kind == TaskKind::kSort) std::stable_sort(values.begin(), values.end());
      if (kind == TaskKind::kReverse) values = {values.rbegin(), values.rend()};
      EXPECT_EQ(integers(row.ground_truth), values) << row.prompt.at(0).content;
    }
  }
  const auto sums = make_task_rows(options_for(TaskKind::kChainSum));
  for (const PromptRow& row : sums->train) {
    const std::string prompt = row.prompt.at(0).content;
    const std::string terms = prompt.substr(5, prompt.size() - 7);
    EXPECT_EQ(evaluate_expression(terms)->value, Rational::make(std::stoll(row.ground_truth)))
        << prompt;
  }
}

TEST(Tasks, PromptsLookAsDocumented) {
  const auto first = [](TaskKind kind) {
    return make_task_rows(options_for(kind))->train.at(0).prompt.at(0).content;
  };
  EXPECT_THAT(first(TaskKind::kSort), testing::MatchesRegex("sort: [0-9]( [0-9])* ="));
  EXPECT_THAT(first(TaskKind::kReverse), testing::MatchesRegex("reverse: [0-9]( [0-9])* ="));
  EXPECT_THAT(first(TaskKind::kCopy), testing::MatchesRegex("copy: [0-9]( [0-9])* ="));
  EXPECT_THAT(first(TaskKind::kChainSum), testing::MatchesRegex("sum: [0-9]( [-+] [0-9])* ="));
  EXPECT_THAT(first(TaskKind::kCountdown), testing::MatchesRegex("countdown: [0-9 ]+ -> [0-9]+ ="));
}

TEST(Tasks, WordedTasksAskTheSameInASentence) {
  const RewardRegistry rewards = default_rewards();
  for (const TaskKind kind : kKinds) {
    TaskOptions options = options_for(kind);
    const auto plain = make_task_rows(options);
    options.worded = true;
    const auto worded = make_task_rows(options);
    ASSERT_TRUE(worded) << worded.error().message;
    for (std::size_t i = 0; i < worded->train.size(); ++i) {
      const PromptRow& row = worded->train[i];
      EXPECT_THAT(row.prompt.at(0).content, HasSubstr("Answer with the "));
      EXPECT_EQ(row.response, plain->train[i].response) << "the same instances";
      EXPECT_EQ(rewards.score({row.data_source, row.response, row.ground_truth, ""})->score, 1.0);
      EXPECT_EQ(
          rewards.score({row.data_source, row.response + " 1000003", row.ground_truth, ""})->score,
          0.0);
    }
  }
  TaskOptions sums = options_for(TaskKind::kChainSum);
  sums.worded = true;
  const PromptRow row = make_task_rows(sums)->train.at(0);
  EXPECT_THAT(
      row.prompt.at(0).content,
      testing::MatchesRegex("What is [0-9]( [-+] [0-9])*\\? Answer with the number only\\."));
  EXPECT_EQ(
      rewards
          .score({row.data_source, "The sum is " + row.ground_truth + ".", row.ground_truth, ""})
          ->score,
      1.0);
}

TEST(Tasks, NoPromptOccursTwiceInAllSetsTogether) {
  for (const TaskKind kind : kKinds) {
    for (const std::uint64_t seed : {0U, 1U, 99U}) {
      TaskOptions options = options_for(kind);
      options.seed = seed;
      const auto rows = make_task_rows(options);
      ASSERT_TRUE(rows) << rows.error().message;
      std::set<std::string> all;
      for (const auto* set : {&rows->train, &rows->validation, &rows->warmup}) {
        const auto prompts = prompts_of(*set);
        all.insert(prompts.begin(), prompts.end());
      }
      EXPECT_EQ(all.size(), 450U) << task_kind_name(kind) << " seed " << seed;
    }
  }
}

TEST(Tasks, RowsDependOnTheSeedAndHeldOutRowsNotOnOtherSizes) {
  for (const TaskKind kind : kKinds) {
    const TaskOptions options = options_for(kind);
    const auto rows = make_task_rows(options);
    EXPECT_EQ(rows->train, make_task_rows(options)->train);
    TaskOptions other_sizes = options;
    other_sizes.train_rows = 10;
    other_sizes.warmup_rows = 0;
    EXPECT_EQ(rows->validation, make_task_rows(other_sizes)->validation);
    TaskOptions other_seed = options;
    other_seed.seed = 8;
    EXPECT_NE(prompts_of(rows->train), prompts_of(make_task_rows(other_seed)->train));
  }
}

TEST(Tasks, DifficultyOptionsAreKept) {
  TaskOptions options = options_for(TaskKind::kSort);
  options.items_min = 2;
  options.items_max = 6;
  options.value_min = -20;
  options.value_max = 50;
  options.distinct_values = true;
  std::set<std::size_t> sizes;
  const auto sorts = make_task_rows(options);
  for (const PromptRow& row : sorts->train) {
    const auto values = integers(row.prompt.at(0).content);
    sizes.insert(values.size());
    EXPECT_EQ(std::set<std::int64_t>(values.begin(), values.end()).size(), values.size());
    for (const std::int64_t value : values) EXPECT_TRUE(value >= -20 && value <= 50);
  }
  EXPECT_EQ(sizes, (std::set<std::size_t>{2, 3, 4, 5, 6}));
  options = options_for(TaskKind::kChainSum);
  options.subtraction = false;
  const auto sums = make_task_rows(options);
  for (const PromptRow& row : sums->train)
    EXPECT_EQ(row.prompt.at(0).content.find('-'), std::string::npos);
}

TEST(Tasks, TooSmallADifficultyIsAnErrorThatSaysHowManyPromptsThereAre) {
  const TaskOptions options{.kind = TaskKind::kSort,
                            .items_min = 1,
                            .items_max = 1,
                            .train_rows = 11,
                            .validation_rows = 0,
                            .warmup_rows = 0};
  const auto rows = make_task_rows(options);
  ASSERT_FALSE(rows);
  EXPECT_EQ(rows.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(rows.error().message, HasSubstr("found 10 distinct prompts"));
  TaskOptions exact = options;
  exact.train_rows = 10;
  EXPECT_TRUE(make_task_rows(exact)) << "all ten can be used";
}

TEST(Tasks, OptionsOutOfRangeAreErrorsThatNameThem) {
  const auto refused = [](auto change, const char* named) {
    TaskOptions options = options_for(TaskKind::kCountdown);
    change(options);
    const auto rows = make_task_rows(options);
    ASSERT_FALSE(rows) << named;
    EXPECT_EQ(rows.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(rows.error().message, HasSubstr(named));
  };
  refused([](TaskOptions& o) { o.items_min = 1; }, "items_min");
  refused([](TaskOptions& o) { o.items_max = 2; }, "items_max");
  refused([](TaskOptions& o) { o.items_max = 50; }, "items_max");
  refused([](TaskOptions& o) { o.value_min = 0; }, "value_min");
  refused([](TaskOptions& o) { o.value_max = INT64_MAX; }, "value_max");
  refused([](TaskOptions& o) { o.target_max = 0; }, "target_max");
  refused([](TaskOptions& o) { o.train_rows = -1; }, "train_rows");
  refused([](TaskOptions& o) { o.warmup_rows = INT64_MAX; }, "warmup_rows");
  refused([](TaskOptions& o) { o.value_max = 2, o.distinct_values = true; }, "distinct");
  EXPECT_THAT(task_kind_from_name("sorting").error().message, HasSubstr("chain-sum"));
  for (const TaskKind kind : kKinds) EXPECT_EQ(task_kind_from_name(task_kind_name(kind)), kind);
}

TEST(Countdown, EveryPuzzleIsSolvableWithAllItsNumbersByItsExpression) {
  Rng rng(4);
  int made = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::int64_t> numbers;
    for (std::uint64_t i = 0; i < 2 + rng.below(5); ++i)
      numbers.push_back(1 + static_cast<std::int64_t>(rng.below(30)));
    const auto puzzle = make_countdown(numbers, 100, rng);
    if (!puzzle) continue;
    ++made;
    const auto value = evaluate_expression(puzzle->expression);
    ASSERT_TRUE(value) << puzzle->expression;
    EXPECT_EQ(value->value, Rational::make(puzzle->target)) << puzzle->expression;
    auto used = value->numbers;
    std::sort(used.begin(), used.end());
    std::sort(numbers.begin(), numbers.end());
    EXPECT_EQ(used, numbers);
    EXPECT_TRUE(puzzle->target >= 1 && puzzle->target <= 100);
  }
  EXPECT_GT(made, 2500);
}

}  // namespace
}  // namespace troupe::actors
