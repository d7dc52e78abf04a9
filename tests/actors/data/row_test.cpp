// Proves that rows of verl's schema and of GSM8K are read, that writing and reading is the
// identity, and that every broken row is one error naming file, line, field, wanted and found.

#include "actors/data/dataset.hpp"
#include "actors/reward/reward.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kGood = R"({"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "1+1?"}],)"
                              R"( "ability": "math", "reward_model": {"style": "rule", "ground_truth": "2"},)"
                              R"( "extra_info": {"split": "train", "index": 7}})";

std::string temporary(const std::string& name) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "troupe_row_test";
  std::filesystem::create_directories(folder);
  return (folder / name).string();
}

std::string write_file(const std::string& name, const std::string& text) {
  const std::string path = temporary(name);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

/// The good row with one JSON pointer replaced (or removed, for `null` text "-").
std::string with(const std::string& pointer, const std::string& value) {
  auto row = nlohmann::json::parse(kGood);
  const nlohmann::json::json_pointer place(pointer);
  if (value == "-") {
    row[place.parent_pointer()].erase(place.back());
  } else {
    row[place] = nlohmann::json::parse(value);
  }
  return row.dump();
}

TEST(Row, ReadsVerlsSchema) {
  const auto row = row_from_json(kGood, "f:1");
  ASSERT_TRUE(row) << row.error().message;
  EXPECT_EQ(row->data_source, "openai/gsm8k");
  ASSERT_EQ(row->prompt.size(), 1U);
  EXPECT_EQ(row->prompt[0].role, "user");
  EXPECT_EQ(row->prompt[0].content, "1+1?");
  EXPECT_EQ(row->ability, "math");
  EXPECT_EQ(row->ground_truth, "2");
  EXPECT_FALSE(row->ground_truth_is_json);
  EXPECT_EQ(nlohmann::json::parse(row->extra_info).at("index"), 7);
}

TEST(Row, WritingAndReadingIsTheIdentity) {
  std::vector<std::string> texts{kGood,
                                 with("/reward_model/ground_truth", "72"),
                                 with("/reward_model/ground_truth", R"({"numbers":[1,2],"target":3})"),
                                 with("/reward_model/ground_truth", R"("\u00e9\ud83d\ude00 \" \\ \n")"),
                                 with("/prompt", R"([{"role":"system","content":""},{"role":"user","content":"é"}])"),
                                 with("/response", R"("because")"),
                                 with("/extra_info", "-"),
                                 with("/ability", "-"),
                                 with("/reward_model/style", R"("model")")};
  for (const std::string& text : texts) {
    const auto row = row_from_json(text, "f:1");
    ASSERT_TRUE(row) << row.error().message;
    const std::string written = row_to_json(*row);
    EXPECT_EQ(written.find('\n'), std::string::npos);
    const auto again = row_from_json(written, "f:1");
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_TRUE(*row == *again) << written;
    EXPECT_EQ(row_to_json(*again), written);
  }
}

TEST(Row, APlainTextPromptIsOneUserMessage) {
  const auto row = row_from_json(with("/prompt", R"("hello")"), "f:1");
  ASSERT_TRUE(row);
  EXPECT_EQ(row->prompt, (std::vector<Message>{{.role = "user", .content = "hello"}}));
}

TEST(Row, BrokenRowsNamePlaceFieldWantedAndFound) {
  struct Broken {
    std::string text;
    std::vector<std::string> named;
  };
  const std::vector<Broken> cases{
      {"", {"f:1"}},
      {"{", {"f:1", "JSON"}},
      {"[1]", {"f:1", "object", "a list of 1"}},
      {"17", {"f:1", "object", "number 17"}},
      {R"({"a": 1, "a": 2})", {"f:1", "a", "twice"}},
      {std::string(100000, '['), {"f:1"}},
      {"{}", {"f:1", "prompt", "nothing"}},
      {with("/data_source", "-"), {"data_source", "text", "nothing", "keys: ability"}},
      {with("/data_source", "5"), {"data_source", "text", "number 5"}},
      {with("/data_source", R"("")"), {"data_source", "not empty"}},
      {with("/prompt", "-"), {"prompt", "list of messages", "nothing"}},
      {with("/prompt", "[]"), {"prompt", "list of messages", "a list of 0"}},
      {with("/prompt", R"("")"), {"prompt", "not empty"}},
      {with("/prompt", "[3]"), {"prompt[0]", "object", "number 3"}},
      {with("/prompt/0/role", "-"), {"prompt[0].role", "nothing"}},
      {with("/prompt/0/role", R"("")"), {"prompt[0].role", "not empty"}},
      {with("/prompt/0/content", "-"), {"prompt[0].content", "nothing"}},
      {with("/prompt/0/content", R"([{"type":"image"}])"), {"prompt[0].content", "text", "a list of 1"}},
      {with("/ability", "1.5"), {"ability", "text", "number 1.5"}},
      {with("/reward_model", "-"), {"reward_model", "object", "nothing"}},
      {with("/reward_model", R"("rule")"), {"reward_model", "object", "text \"rule\""}},
      {with("/reward_model/style", "true"), {"reward_model.style", "text", "true"}},
      {with("/reward_model/ground_truth", "-"), {"reward_model.ground_truth", "nothing"}},
      {with("/reward_model/ground_truth", "null"), {"reward_model.ground_truth", "null"}},
      {with("/extra_info", "[1, 2]"), {"extra_info", "object", "a list of 2"}},
      {with("/response", "8"), {"response", "text", "number 8"}},
      {R"({"question": "q", "answer": "no marker"})", {"answer", "####"}},
      {R"({"question": "q", "answer": "x ####  "})", {"answer", "####"}},
      {R"({"question": "", "answer": "#### 1"})", {"question", "not empty"}},
      {R"({"question": "q"})", {"prompt", "nothing", "keys: question"}},
  };
  for (const Broken& broken : cases) {
    const auto row = row_from_json(broken.text, "f:1");
    ASSERT_FALSE(row) << broken.text.substr(0, 200);
    EXPECT_EQ(row.error().code, ErrorCode::kCorrupt);
    EXPECT_LT(row.error().message.size(), 400U);
    for (const std::string& word : broken.named)
      EXPECT_THAT(row.error().message, HasSubstr(word)) << broken.text.substr(0, 200);
  }
}

TEST(Row, EveryPrefixOfAGoodRowIsAnErrorAndNeverACrash) {
  const std::string good = kGood;
  for (std::size_t length = 0; length < good.size(); ++length)
    EXPECT_FALSE(row_from_json(good.substr(0, length), "f:1")) << length;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const char c : {'\0', '\xFF', '"', '{', '9'}) {
      std::string text = good;
      text[at] = c;
      const auto row = row_from_json(text, "f:1");
      if (!row) {
        EXPECT_THAT(row.error().message, HasSubstr("f:1"));
      }
    }
  }
}

TEST(Row, SupervisedRowsNeedAResponseAndNoGroundTruth) {
  const RowOptions options{.require_ground_truth = false, .require_response = true};
  EXPECT_TRUE(row_from_json(R"({"prompt": "a", "response": "b"})", "f:1", options));
  const auto missing = row_from_json(R"({"prompt": "a"})", "f:1", options);
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, AllOf(HasSubstr("response"), HasSubstr("f:1")));
  const RowOptions named{.prompt_key = "q", .response_key = "a", .require_ground_truth = false};
  EXPECT_EQ(row_from_json(R"({"q": "x", "a": "y"})", "f:1", named)->response, "y");
}

TEST(Gsm8k, RowsOfTheRealFilesLoadAndTheirReferenceAnswersScoreOne) {
  const char* shared = std::getenv("TROUPE_SHARED");
  const auto folder =
      (shared ? std::filesystem::path(shared) : std::filesystem::path(TROUPE_SOURCE_DIR) / ".." / "shared") / "data" /
      "gsm8k";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent";
  const std::vector<std::string> paths{(folder / "train.jsonl").string(), (folder / "test.jsonl").string()};
  const auto dataset = Dataset::load(paths);
  ASSERT_TRUE(dataset) << dataset.error().message;
  ASSERT_EQ(dataset->size(), 7473 + 1319);
  const RewardRegistry rewards = default_rewards();
  for (std::int64_t i = 0; i < dataset->size(); ++i) {
    const PromptRow& row = dataset->row(i);
    ASSERT_EQ(row.prompt_id, static_cast<std::uint64_t>(i));
    ASSERT_THAT(row.prompt.at(0).content, HasSubstr("####"));
    const auto score = rewards.score({.data_source = row.data_source,
                                      .solution = row.response,
                                      .ground_truth = row.ground_truth,
                                      .extra_info = row.extra_info});
    ASSERT_TRUE(score);
    ASSERT_EQ(score->score, 1.0) << row.response;
  }
  EXPECT_EQ(dataset->row(0).ground_truth, "72");
}

TEST(Dataset, SavingAndLoadingGivesTheSameRows) {
  std::vector<PromptRow> rows;
  for (int i = 0; i < 5; ++i)
    rows.push_back(*row_from_json(with("/reward_model/ground_truth", std::to_string(i)), "f:1"));
  const Dataset dataset = Dataset::from_rows(rows);
  const std::string path = temporary("made/new/rows.jsonl");
  ASSERT_TRUE(dataset.save(path));
  const auto again = Dataset::load(std::vector{path});
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(std::equal(dataset.rows().begin(), dataset.rows().end(), again->rows().begin(), again->rows().end()));
}

TEST(Dataset, IdsArePositionsInTheConcatenationOfTheFiles) {
  const std::string a = write_file("a.jsonl", std::string(kGood) + "\n\n" + kGood + "\n");
  const std::string b = write_file("b.jsonl", "\xEF\xBB\xBF" + std::string(kGood) + "\r\n");
  const auto dataset = Dataset::load(std::vector{a, b});
  ASSERT_TRUE(dataset) << dataset.error().message;
  ASSERT_EQ(dataset->size(), 3);
  EXPECT_EQ(dataset->row(2).prompt_id, 2U);
  const auto first = Dataset::load(std::vector{a, b}, {.rows_wanted = 1});
  EXPECT_EQ(first->size(), 1);
}

TEST(Dataset, FaultyFilesAreErrorsNamingFileAndLine) {
  const auto error = [](const std::string& path, DatasetOptions options = {}) {
    const auto dataset = Dataset::load(std::vector{path}, options);
    EXPECT_FALSE(dataset);
    return dataset ? Error{} : dataset.error();
  };
  EXPECT_EQ(error(temporary("absent.jsonl")).code, ErrorCode::kNotFound);
  EXPECT_EQ(error(testing::TempDir()).code, ErrorCode::kIo);
  EXPECT_EQ(error(write_file("empty.jsonl", "")).code, ErrorCode::kCorrupt);
  EXPECT_EQ(error(write_file("blank.jsonl", "\n \n\t\r\n")).code, ErrorCode::kCorrupt);
  const std::string good(kGood);
  EXPECT_THAT(error(write_file("third.jsonl", good + "\n\n{]\n")).message, HasSubstr("third.jsonl:3"));
  const std::string two = write_file("two.jsonl", good + "\n" + good + "\n");
  EXPECT_EQ(error(two, {.rows_max = 1}).code, ErrorCode::kResourceExhausted);
  const Error bound = error(two, {.lines = {.line_bytes_max = 50}});
  EXPECT_EQ(bound.code, ErrorCode::kCorrupt);
  EXPECT_THAT(bound.message, AllOf(HasSubstr("two.jsonl:1"), HasSubstr("50")));
  EXPECT_EQ(error(write_file("long.jsonl", std::string(std::size_t{5} << 20, ' '))).code, ErrorCode::kCorrupt);
  EXPECT_EQ(Dataset::load({}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(Dataset::from_rows({}).save("/proc/nowhere/rows.jsonl"));
}

}  // namespace
}  // namespace troupe::actors
