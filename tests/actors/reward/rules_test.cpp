// Proves the built-in rules on tables of answers, on every reference answer of GSM8K (reward 1 for
// the reference, 0 for a perturbed one) and on hostile texts (linear time, no failure).

#include "actors/reward/rules.hpp"

#include "actors/reward/answer_text.hpp"
#include "actors/reward/number.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <time.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

struct Case {
  std::string solution;
  std::string truth;
  double score;
};

std::filesystem::path shared_folder() {
  const char* named = std::getenv("TROUPE_SHARED");
  return named ? std::filesystem::path(named)
               : std::filesystem::path(TROUPE_SOURCE_DIR) / ".." / "shared";
}

TEST(Gsm8kReward, ReadsTheAnswerWhereverASolutionPutsIt) {
  const std::vector<Case> cases{
      {"so 48+24 = 72 clips\n#### 72", "72", 1},
      {"#### 72.", "72", 1},
      {"####72", "72", 1},
      {"#### $1,080", "1,080", 1},
      {"#### 1080 dollars", "1,080", 1},
      {"#### **18**", "18", 1},
      {"The answer is \\boxed{18}.", "18", 1},
      {"\\boxed{\\text{18 dollars}}", "18", 1},
      {"\\boxed{\\frac{36}{2}}", "18", 1},
      {"\\boxed{x = 18}", "18", 1},
      {"\\boxed{3 + 15 = 18}", "18", 1},
      {"\\boxed{\\boxed{18}}", "18", 1},
      {"\\boxed 18", "18", 1},
      {"I get 18", "18", 1},
      {"I get 18.", "18", 1},
      {"18.0 eggs", "18", 1},
      {"eighteen, that is 36/2", "18", 1},
      {"a loss of -5", "-5", 1},
      {"#### - 5", "-5", 1},
      {"50%", "50", 1},
      {"1.50", "1.5", 1},
      {"#### 7\nno, wait: #### 8", "8", 1},
      {"#### 7 but \\boxed{8}", "8", 1},
      {"\\boxed{8} thus #### 7", "7", 1},
      {"#### \\boxed{9}", "9", 1},
      {"#### unknown, maybe 4", "4", 1},
      {"\\boxed{} so 4", "4", 1},
      {"\\boxed{5", "5", 1},
      {"#### 71", "72", 0},
      {"72 is not it, 71 is", "72", 0},
      {"#### 7.2", "72", 0},
      {"#### -72", "72", 0},
      {"", "72", 0},
      {"no digits here", "72", 0},
      {"nan", "72", 0},
      {"#### inf", "72", 0},
      {"\\boxed{NaN}", "72", 0},
      {"#### 12", "work\n#### 12", 1},
      {"#### 12", "12 apples", 1},
      {"the area is 12 m^2", "12", 1},
      {"the area is 12 $m^{2}$.", "12", 1},
      {"#### 12 m^2", "12", 1},
  };
  for (const Case& c : cases) {
    const RewardScore score = gsm8k_reward(c.solution, c.truth);
    EXPECT_EQ(score.score, c.score) << c.solution << " read as " << score.answer;
    EXPECT_EQ(score.extras.at("acc"), c.score);
  }
  EXPECT_EQ(gsm8k_reward("nothing", "1").extras.at("no_answer"), 1.0);
  EXPECT_EQ(gsm8k_reward("2", "1").extras.at("no_answer"), 0.0);
}

TEST(Gsm8kReward, EveryReferenceAnswerEarnsOneAndEveryPerturbedOneZero) {
  const auto folder = shared_folder() / "data" / "gsm8k";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent";
  int rows = 0;
  for (const char* file : {"train.jsonl", "test.jsonl"}) {
    std::ifstream lines(folder / file);
    for (std::string line; std::getline(lines, line); ++rows) {
      const std::string answer = nlohmann::json::parse(line).at("answer");
      const std::string truth(trim(answer.substr(answer.rfind("####") + 4)));
      ASSERT_EQ(gsm8k_reward(answer, truth).score, 1.0) << file << ": " << answer;
      ASSERT_EQ(gsm8k_reward("It is \\boxed{" + truth + "}.", answer).score, 1.0) << truth;
      ASSERT_EQ(gsm8k_reward("So the answer is " + truth + ".", truth).score, 1.0) << truth;
      for (const std::string& wrong : {truth + "1", truth + ".5", "1" + truth, "-1" + truth}) {
        ASSERT_EQ(gsm8k_reward(answer + "\n#### " + wrong, truth).score, 0.0) << answer << wrong;
        ASSERT_EQ(gsm8k_reward("#### " + wrong, truth).score, 0.0) << wrong << " against " << truth;
      }
    }
  }
  EXPECT_EQ(rows, 7473 + 1319);
}

TEST(MathReward, AcceptsSpellingsOfTheSameAnswer) {
  const std::vector<Case> cases{
      {"\\boxed{\\frac{1}{2}}", "\\dfrac12", 1},
      {"\\boxed{0.5}", "\\frac{1}{2}", 1},
      {"\\boxed{2\\frac{1}{2}}", "2.5", 1},
      {"\\boxed{x = 5}", "5", 1},
      {"\\boxed{5 \\text{ cm}^2}", "5", 1},
      {"\\boxed{5\\,\\mathrm{cm}}", "5", 1},
      {"\\boxed{90^\\circ}", "90", 1},
      {"\\boxed{90^{\\circ}}", "90", 1},
      {"\\boxed{50\\%}", "50", 1},
      {"\\boxed{10,000}", "10000", 1},
      {"\\boxed{10{,}000}", "10000", 1},
      {"\\boxed{10,\\!000}", "10000", 1},
      {"\\boxed{\\$32}", "32", 1},
      {"\\boxed{\\left( 1, 2 \\right)}", "(1,2)", 1},
      {"\\boxed{(0.5, 3)}", "(\\frac{1}{2}, 3)", 1},
      {"\\boxed{\\{1, 2\\}}", "\\{1,2\\}", 1},
      {"\\boxed{[0, \\infty)}", "[0,\\infty)", 1},
      {"\\boxed{\\sqrt3}", "\\sqrt{3}", 1},
      {"\\boxed{\\frac{\\sqrt{3}}{2}}", "\\dfrac{\\sqrt3}{2}", 1},
      {"\\boxed{2 \\cdot 3}", "2*3", 1},
      {"\\boxed{\\pi/4}", "\\dfrac{\\pi}{4}", 1},
      {"\\boxed{\\frac{x+1}{2}}", "(x+1)/2", 1},
      {"\\boxed{\\text{East}}", "east", 1},
      {"\\boxed{a}", "A", 0},
      {"\\boxed{\\frac{x}{2}}", "2/x", 0},
      {"\\boxed{\\text{east}}", "\\text{east}", 1},
      {"\\boxed{\\text{(A)}}", "(A)", 1},
      {"$\\boxed{\\frac{\\pi}{4}}$.", "$\\frac{\\pi}{4}$", 1},
      {"Hence the answer is 7.", "7", 1},
      {"The answer is: $\\frac{3}{6}$. Done.", "0.5", 1},
      {"so 12", "\\boxed{12}", 1},
      {"\\boxed{3/6}", "\\frac12", 1},
      {"\\boxed{(1, 2)}", "(2, 1)", 0},
      {"\\boxed{(1, 2)}", "[1, 2]", 0},
      {"\\boxed{(1, 2)}", "[1, 2)", 0},
      {"\\boxed{(1,234)}", "1234", 0},
      {"\\boxed{\\sqrt{2}}", "\\sqrt{3}", 0},
      {"\\boxed{x = 5}", "6", 0},
      {"\\boxed{}", "0", 0},
      {"", "0", 0},
      {"I do not know", "east", 0},
  };
  for (const Case& c : cases)
    EXPECT_EQ(math_reward(c.solution, c.truth).score, c.score)
        << c.solution << " / " << c.truth << " → " << normalise_math(c.truth);
}

TEST(MathEqual, IsReflexiveAndSymmetricOnAwkwardTexts) {
  const std::vector<std::string> texts{
      "",   "x", "\\",  "\\frac", "\\frac{", "\\text{", "{", "}",          "(((",
      "1,", ",", "\\{", "\\sqrt", "x=",      "=",       "^", "\\text{a}^", "\\text{a}^{"};
  for (const auto& a : texts) {
    EXPECT_TRUE(math_equal(a, a)) << a;
    for (const auto& b : texts) EXPECT_EQ(math_equal(a, b), math_equal(b, a)) << a << " " << b;
  }
}

TEST(SequenceReward, ComparesWordsAndGivesPartialCreditOnRequest) {
  EXPECT_EQ(sequence_reward("1 3 4 7 9", "1 3 4 7 9").score, 1.0);
  EXPECT_EQ(sequence_reward("  1 3\t4 7 9\n", "1 3 4 7 9").score, 1.0);
  EXPECT_EQ(sequence_reward("1 3 4 9 7", "1 3 4 7 9").score, 0.0);
  EXPECT_EQ(sequence_reward("1 3 4 7 9 9", "1 3 4 7 9").score, 0.0);
  EXPECT_EQ(sequence_reward("13479", "1 3 4 7 9").score, 0.0);
  const SequenceRewardOptions partial{.partial_credit = true};
  EXPECT_EQ(sequence_reward("1 3 4 9 7", "1 3 4 7 9", partial).score, 0.6);
  EXPECT_EQ(sequence_reward("1 3 4 9 7", "1 3 4 7 9", partial).extras.at("acc"), 0.0);
  EXPECT_EQ(sequence_reward("1 3", "1 3 4 7", partial).score, 0.5);
  EXPECT_EQ(sequence_reward("1 3 4 7 9 9 9 9 9 9", "1 3 4 7 9", partial).score, 0.5);
  EXPECT_EQ(sequence_reward("", "1", partial).extras.at("no_answer"), 1.0);
}

TEST(CountdownReward, ChecksValueAndUseOfNumbers) {
  const std::string truth = R"({"numbers": [3, 5, 7, 3], "target": 22})";
  const std::vector<std::pair<std::string, double>> cases{
      {"3*5+7", 1},
      {"(3*5)+7", 1},
      {"3*5+7 = 22", 1},
      {"<answer>7 + 5*3</answer>", 1},
      {"3 \xC3\x97 5 + 7", 1},
      {"5*3+7+3-3", 0},
      {"3*5+7+3-3", 0},
      {"5*3+7*(3/3)", 0},
      {"3*5+7 = 21", 0},
      {"22", 0},
      {"7+5+7+3", 0},
      {"3+5+7", 0},
      {"3*5+", 0},
      {"", 0},
      {"3*5+7)", 0},
      {"((3*5+7", 0},
      {"3**5", 0},
      {"3/(5-5)", 0},
      {"3*5+7.0", 0},
      {"0x16", 0},
      {"-3*-5+7", 1},
      {"<answer>3</answer><answer>3*5+7</answer>", 1}};
  for (const auto& [solution, wanted] : cases) {
    const auto score = countdown_reward(solution, truth);
    ASSERT_TRUE(score) << solution;
    EXPECT_EQ(score->score, wanted) << solution;
  }
  const std::string exact = R"({"numbers": [8, 3, 8, 3], "target": 24})";
  EXPECT_EQ(countdown_reward("8/(3-8/3)", exact)->score, 1.0) << "needs exact fractions";
  const CountdownRewardOptions format{.format_score = 0.1};
  EXPECT_EQ(countdown_reward("3+5", truth, format)->score, 0.1);
  EXPECT_EQ(countdown_reward("3+6", truth, format)->score, 0.0);
}

TEST(CountdownReward, ABrokenGroundTruthIsAnErrorOfTheData) {
  for (const char* truth :
       {"", "24", "[]", "{}", R"({"numbers": 3, "target": 3})",
        R"({"numbers": ["a"], "target": 3})", R"({"numbers": [3], "target": "x"})"}) {
    const auto score = countdown_reward("3", truth);
    ASSERT_FALSE(score) << truth;
    EXPECT_EQ(score.error().code, ErrorCode::kCorrupt);
  }
}

std::string repeated(const std::string& piece, std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += piece;
  return text;
}

/// CPU time of this thread: other work on the machine does not count.
double cpu_seconds() {
  ::timespec now{};
  EXPECT_EQ(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// CPU seconds of all rules over one text.
double judge_hostile(const std::string& text) {
  const std::string truth = R"({"numbers": [3, 5], "target": 8})";
  const double begin = cpu_seconds();
  for (const RewardScore& score :
       {gsm8k_reward(text, "5"), math_reward(text, "(1, \\frac{1}{2})"), math_reward(text, text),
        exact_match_reward(text, "5"), sequence_reward(text, "1 2", {.partial_credit = true}),
        countdown_reward(text, truth).value()})
    EXPECT_TRUE(std::isfinite(score.score) && score.score <= 1.0);
  return cpu_seconds() - begin;
}

TEST(Rules, HostileTextsOfOneMegabyteTakeLinearTime) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr std::size_t kBytes = std::size_t{1} << 17;
#else
  constexpr std::size_t kBytes = std::size_t{1} << 20;
#endif
  constexpr std::size_t kBoxedBytes = std::size_t{1} << 17;
  const std::vector<std::string> pieces{"9",          "{",
                                        "}",          "\\boxed{",
                                        "\\boxed{}",  "\\frac",
                                        "\\frac{1",   "\\frac{1}{",
                                        "####",       "#### ",
                                        "1/",         "1 1/",
                                        "1,234,",     "(",
                                        "((1,",       "-",
                                        "\\text{",    "$",
                                        "<answer>",   "</answer>",
                                        "\\",         "1 ",
                                        " ",          "nan ",
                                        "1e9",        "\\boxed ",
                                        "answer is ", "1=",
                                        ".",          "\xE2\x88\x92",
                                        "\xFF",       std::string(1, '\0'),
                                        "\\boxed{1",  "\\{",
                                        "1\\,",       "\\sqrt",
                                        "9.",         "\n",
                                        "^{\\circ",   "=",
                                        "\\boxed{1}"};
  // Four times the text takes four times as long when linear, sixteen times when quadratic.
  constexpr double kRatioMax = 9;
  constexpr double kNoise = 0.05;  // seconds that a busy machine may add to either
  for (const std::string& piece : pieces) {
    SCOPED_TRACE(::testing::Message() << "repeated: '" << piece << "'");
    const auto boxed = [&piece](std::size_t bytes) {
      return "\\boxed{" + repeated(piece, bytes) + "}";
    };
    EXPECT_LE(judge_hostile(repeated(piece, kBytes)),
              kRatioMax * judge_hostile(repeated(piece, kBytes / 4)) + kNoise);
    EXPECT_LE(judge_hostile(boxed(kBoxedBytes)),
              kRatioMax * judge_hostile(boxed(kBoxedBytes / 4)) + kNoise);
  }
}

TEST(LastBoxed, HandlesNestingEscapesAndUnclosedBraces) {
  EXPECT_EQ(last_boxed("\\boxed{a{b{c}d}e} and {x}")->text, "a{b{c}d}e");
  EXPECT_EQ(last_boxed("\\boxed{\\{1\\}}")->text, "\\{1\\}");
  EXPECT_EQ(last_boxed("\\boxed{1} \\boxed{2")->text, "1");
  EXPECT_EQ(last_boxed("\\fbox{7}")->text, "7");
  EXPECT_FALSE(last_boxed("\\boxedfoo{1}"));
  EXPECT_FALSE(last_boxed("boxed{1}"));
  EXPECT_FALSE(last_boxed("\\boxed"));
  EXPECT_FALSE(last_boxed("\\boxed{"));
}

}  // namespace
}  // namespace troupe::actors
