// Proves the advantage estimators right: against formulas written out over padded matrices, by
// laws (permutation, padding, shift, scale), and on the edges where verl goes wrong (groups of
// one, equal scores, masked tokens, ids that look alike).
#include "actors/algorithm/advantage.hpp"

#include "tests/actors/algorithm/matrix_reference.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace troupe::actors {
namespace {

using test::Case;
using test::MaskedMatrix;
using test::Matrix;

constexpr int kTrials = 60;

AdvantageInput input_of(const Case& data) {
  return {
      .tokens = data.view(), .rewards = data.column("rewards"), .values = data.column("values")};
}

/// Columns that only some estimators read.
struct Extra {
  std::vector<float> baselines;
  std::vector<std::vector<float>> components;
};
Extra random_extra(const Case& data, Rng& rng) {
  Extra extra;
  extra.components.resize(2);
  for (std::size_t s = 0; s < data.sequences(); ++s) {
    extra.baselines.push_back(static_cast<float>(rng.normal()));
    extra.components[0].push_back(static_cast<float>(rng.below(3)));
    extra.components[1].push_back(static_cast<float>(rng.normal()));
  }
  return extra;
}
AdvantageInput input_of(const Case& data, const Extra& extra) {
  AdvantageInput input = input_of(data);
  input.baselines = extra.baselines;
  for (const std::vector<float>& component : extra.components)
    input.components.push_back(component);
  input.component_weights = {1.0, 0.5};
  return input;
}

// --- the slow reference -------------------------------------------------------------------------

struct ReferenceOptions {
  double gamma = 1;
  double lambda = 1;
  bool norm = true;
};

std::vector<double> row_scores(const MaskedMatrix& rewards) {
  std::vector<double> scores;
  for (std::size_t b = 0; b < rewards.value.size(); ++b) {
    double sum = 0;
    for (std::size_t j = 0; j < rewards.mask[b].size(); ++j)
      if (rewards.mask[b][j]) sum += rewards.value[b][j];
    scores.push_back(sum);
  }
  return scores;
}

double row_length(const MaskedMatrix& rewards, std::size_t b) {
  return static_cast<double>(std::count(rewards.mask[b].begin(), rewards.mask[b].end(), true));
}

/// Peers of row b: non-empty rows of its group, b included.
std::vector<std::size_t> peers(const Case& data, const MaskedMatrix& rewards, std::size_t b) {
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < data.sequences(); ++i)
    if (data.groups[i] == data.groups[b] && row_length(rewards, i) > 0) rows.push_back(i);
  return rows;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double deviation_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

void whiten_reference(Matrix& values, const std::vector<std::vector<bool>>& mask) {
  std::vector<double> all;
  for (std::size_t b = 0; b < values.size(); ++b)
    for (std::size_t j = 0; j < values[b].size(); ++j)
      if (mask[b][j]) all.push_back(values[b][j]);
  const bool flat =
      all.size() < 2 || std::all_of(all.begin(), all.end(), [&](double x) { return x == all[0]; });
  for (std::size_t b = 0; b < values.size(); ++b)
    for (std::size_t j = 0; j < values[b].size(); ++j) {
      if (!mask[b][j]) continue;
      values[b][j] = flat ? 0
                          : (values[b][j] - mean_of(all)) /
                                std::sqrt(deviation_of(all) * deviation_of(all) + 1e-8);
    }
}

/// Advantage of row b alone, for estimators that give one number to a sequence.
double group_reference(const std::string& name, const Case& data, const MaskedMatrix& rewards,
                       const std::vector<double>& scores, std::size_t b,
                       const ReferenceOptions& o) {
  const std::vector<std::size_t> rows = peers(data, rewards, b);
  if (rows.size() < 2) return 0;
  std::vector<double> group;
  for (const std::size_t row : rows) group.push_back(scores[row]);
  const double centred = scores[b] - mean_of(group);
  const double norm = o.norm ? deviation_of(group) + 1e-6 : 1;
  if (name == "grpo") return centred / norm;
  if (name == "dr_grpo" || name == "reinforce_plus_plus_baseline") return centred;
  if (name == "rloo") {
    // Mean of the others, not the closed form.
    double others = 0;
    for (const std::size_t row : rows) others += row == b ? 0 : scores[row];
    return scores[b] - others / static_cast<double>(rows.size() - 1);
  }
  if (name == "opo") {
    double weighted = 0;
    double lengths = 0;
    for (const std::size_t row : rows) {
      weighted += row_length(rewards, row) * scores[row];
      lengths += row_length(rewards, row);
    }
    return scores[b] - weighted / lengths;
  }
  if (name == "gpg") {
    double nonzero = 0;
    double all = 0;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (row_length(rewards, i) == 0) continue;
      all += 1;
      nonzero += scores[i] != 0 ? 1 : 0;
    }
    return all / std::max(1.0, nonzero) * centred;
  }
  std::sort(group.rbegin(), group.rend());
  return scores[b] == group[0] ? (group[0] - group[1]) / norm : 0;
}

/// [B][W] advantages of an estimator.
Matrix reference(const std::string& name, const Case& data, const Extra& extra,
                 const ReferenceOptions& o) {
  const MaskedMatrix rewards = test::unpack(data, data.column("rewards"));
  const MaskedMatrix values = test::unpack(data, data.column("values"));
  Matrix result = test::zeros_like(rewards);
  const std::vector<double> scores = row_scores(rewards);
  auto whitened_mask = rewards.mask;
  for (std::size_t b = 0; b < data.sequences(); ++b) {
    const std::size_t width = result[b].size();
    std::vector<std::size_t> valid;
    for (std::size_t j = 0; j < width; ++j)
      if (rewards.mask[b][j]) valid.push_back(j);
    if (name == "gae") {
      // Sums of discounted surprises over the compacted sequence, forward and quadratic.
      for (std::size_t i = 0; i < valid.size(); ++i)
        for (std::size_t k = i; k < valid.size(); ++k) {
          const double next = k + 1 < valid.size() ? values.value[b][valid[k + 1]] : 0;
          const double surprise =
              rewards.value[b][valid[k]] + o.gamma * next - values.value[b][valid[k]];
          result[b][valid[i]] +=
              std::pow(o.gamma * o.lambda, static_cast<double>(k - i)) * surprise;
        }
    } else if (name == "reinforce_plus_plus" || name == "remax") {
      for (std::size_t i = 0; i < valid.size(); ++i) {
        for (std::size_t k = i; k < valid.size(); ++k)
          result[b][valid[i]] +=
              std::pow(o.gamma, static_cast<double>(k - i)) * rewards.value[b][valid[k]];
        if (name == "remax") result[b][valid[i]] -= extra.baselines[b];
      }
    } else {
      double advantage = 0;
      if (name == "gdpo") {
        const std::vector<double> first(extra.components[0].begin(), extra.components[0].end());
        const std::vector<double> second(extra.components[1].begin(), extra.components[1].end());
        advantage = group_reference("grpo", data, rewards, first, b, o) +
                    0.5 * group_reference("grpo", data, rewards, second, b, o);
      } else {
        advantage = group_reference(name, data, rewards, scores, b, o);
      }
      for (const std::size_t j : valid) result[b][j] = advantage;
      if (peers(data, rewards, b).size() < 2)
        std::fill(whitened_mask[b].begin(), whitened_mask[b].end(), false);
    }
  }
  if (name == "gae" || name == "reinforce_plus_plus" || name == "gdpo" ||
      name == "reinforce_plus_plus_baseline")
    whiten_reference(result, whitened_mask);
  return result;
}

AdvantageOptions options_for(const std::string& name) {
  AdvantageOptions options;
  if (name == "gae") options = {.gamma = 0.97, .lambda = 0.9};
  if (name == "reinforce_plus_plus") options = {.gamma = 0.95};
  return options;
}

AdvantageOutput compute(const std::string& name, const AdvantageInput& input,
                        const AdvantageOptions& options) {
  const auto output = default_advantages().find(name).value()(input, options);
  EXPECT_TRUE(output.has_value()) << name << ": " << output.error().to_string();
  return output.value_or(AdvantageOutput{});
}

class Estimator : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, Estimator, ::testing::ValuesIn(default_advantages().names()),
                         [](const auto& instance) { return instance.param; });

TEST_P(Estimator, AgreesWithTheMatrixReference) {
  for (int trial = 0; trial < kTrials; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial));
    const Case data = test::random_case(rng);
    const Extra extra = random_extra(data, rng);
    const AdvantageOptions options = options_for(GetParam());
    const AdvantageOutput output = compute(GetParam(), input_of(data, extra), options);
    const std::vector<double> expected = test::repack(
        data,
        reference(GetParam(), data, extra, {.gamma = options.gamma, .lambda = options.lambda}));
    ASSERT_EQ(output.advantages.size(), data.tokens());
    ASSERT_EQ(output.returns.size(), data.tokens());
    for (std::size_t t = 0; t < data.tokens(); ++t)
      ASSERT_NEAR(output.advantages[t], expected[t], 2e-6 * (1 + std::abs(expected[t])))
          << "token " << t;
  }
}

TEST_P(Estimator, DoesNotDependOnTheOrderOfSequences) {
  for (int trial = 0; trial < kTrials; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial) + 1000);
    const Case data = test::random_case(rng);
    const Extra extra = random_extra(data, rng);
    const AdvantageOutput whole =
        compute(GetParam(), input_of(data, extra), options_for(GetParam()));
    const auto order = test::random_split(data.sequences(), 1, rng)[0];
    const Case shuffled = test::take(data, order);
    Extra moved;
    moved.components.resize(2);
    for (const std::size_t s : order) {
      moved.baselines.push_back(extra.baselines[s]);
      for (std::size_t c = 0; c < 2; ++c) moved.components[c].push_back(extra.components[c][s]);
    }
    const AdvantageOutput other =
        compute(GetParam(), input_of(shuffled, moved), options_for(GetParam()));
    const auto tokens = test::tokens_of(data, order);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      ASSERT_NEAR(other.advantages[t], whole.advantages[tokens[t]], 1e-6);
      ASSERT_NEAR(other.returns[t], whole.returns[tokens[t]], 1e-6);
    }
  }
}

TEST_P(Estimator, IsBlindToMaskedGarbageAndPaddingRows) {
  for (int trial = 0; trial < kTrials; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial) + 2000);
    const Case data = test::random_case(rng);
    const Extra extra = random_extra(data, rng);
    const test::Padded padded = test::pad(data, rng);
    Extra wide;
    wide.components.resize(2);
    for (const std::int64_t id : padded.data.ids) {
      const bool real = id >= 0;
      const auto s = static_cast<std::size_t>((id - 1000) / 7);
      wide.baselines.push_back(real ? extra.baselines[s] : test::kGarbage);
      for (std::size_t c = 0; c < 2; ++c)
        wide.components[c].push_back(real ? extra.components[c][s] : test::kGarbage);
    }
    const AdvantageOutput plain =
        compute(GetParam(), input_of(data, extra), options_for(GetParam()));
    const AdvantageOutput other =
        compute(GetParam(), input_of(padded.data, wide), options_for(GetParam()));
    ASSERT_EQ(other.advantages.size(), padded.origin.size());
    for (std::size_t t = 0; t < padded.origin.size(); ++t) {
      const std::int64_t origin = padded.origin[t];
      const float expected = origin < 0 ? 0 : plain.advantages[static_cast<std::size_t>(origin)];
      ASSERT_EQ(other.advantages[t], expected);
      if (padded.data.mask[t] == 0) {
        ASSERT_EQ(other.returns[t], 0);
      }
    }
    EXPECT_EQ(other.report.groups, plain.report.groups);
    EXPECT_EQ(other.report.singleton_groups, plain.report.singleton_groups);
    EXPECT_EQ(other.report.zero_variance_groups, plain.report.zero_variance_groups);
  }
}

TEST_P(Estimator, AcceptsNoSequencesAndFullyMaskedOnes) {
  Case data;
  for (const char* name : {"rewards", "values"}) data.columns[name];
  Rng rng(1);
  EXPECT_TRUE(compute(GetParam(), input_of(data, random_extra(data, rng)), {}).advantages.empty());
  data = test::random_case(rng, {.all_masked = 1.0});
  const AdvantageOutput output = compute(GetParam(), input_of(data, random_extra(data, rng)), {});
  EXPECT_THAT(output.advantages, ::testing::Each(0.0F));
  EXPECT_THAT(output.returns, ::testing::Each(0.0F));
  EXPECT_EQ(output.report.empty_sequences, static_cast<std::int64_t>(data.sequences()));
  EXPECT_EQ(output.report.groups, 0);
}

TEST_P(Estimator, NamesTheTokenThatIsNotANumber) {
  Rng rng(3);
  Case data = test::random_case(rng, {.masked = 0, .all_masked = 0});
  const Extra extra = random_extra(data, rng);
  data.column("rewards")[static_cast<std::size_t>(data.offsets[2])] = NAN;
  const auto output = default_advantages().find(GetParam()).value()(input_of(data, extra), {});
  ASSERT_FALSE(output.has_value());
  EXPECT_EQ(output.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(output.error().message, ::testing::HasSubstr("rewards"));
}

/// One token per sequence with the given scores and groups.
Case one_token_each(const std::vector<float>& scores, const std::vector<std::int64_t>& groups) {
  Case data;
  for (std::size_t s = 0; s < scores.size(); ++s) {
    data.offsets.push_back(static_cast<std::int64_t>(s) + 1);
    data.mask.push_back(1);
    data.ids.push_back(static_cast<std::int64_t>(s));
  }
  data.groups = groups;
  data.columns = {{"rewards", scores}, {"values", std::vector<float>(scores.size(), 0.0F)}};
  return data;
}

TEST(Advantage, EqualScoresGiveExactlyZero) {
  // 0.1 is not a float: in f32 the mean of seven of them is off by an ulp, and dividing by 1e-6
  // makes it hundredths.
  const Case data = one_token_each(std::vector<float>(7, 0.1F), std::vector<std::int64_t>(7, 5));
  for (const char* name :
       {"grpo", "dr_grpo", "grpo_passk", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline"}) {
    const AdvantageOutput output = compute(name, input_of(data), {});
    EXPECT_THAT(output.advantages, ::testing::Each(0.0F)) << name;
    EXPECT_EQ(output.report.zero_variance_groups, 1) << name;
  }
  EXPECT_THAT(compute("reinforce_plus_plus", input_of(data), {}).advantages, ::testing::Each(0.0F));
}

TEST(Advantage, AGroupOfOneIsZeroAndCounted) {
  const Case data = one_token_each({3, 1, 0}, {1, 2, 2});
  for (const char* name :
       {"grpo", "dr_grpo", "grpo_passk", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline"}) {
    const AdvantageOutput output = compute(name, input_of(data), {});
    EXPECT_EQ(output.advantages[0], 0) << name;
    EXPECT_NE(output.advantages[1], 0) << name;
    EXPECT_EQ(output.report.singleton_groups, 1) << name;
    EXPECT_EQ(output.report.groups, 2) << name;
  }
}

TEST(Advantage, GroupsByTheExactId) {
  const std::vector<std::string> ids = {"7", "007", "7", "007", "-7", "-7"};
  const std::vector<std::int64_t> numbers = number_groups(ids);
  EXPECT_THAT(numbers, ::testing::ElementsAre(0, 1, 0, 1, 2, 2));
  const Case data = one_token_each({0, 10, 1, 11, 0, 4}, numbers);
  const AdvantageOutput output = compute("dr_grpo", input_of(data), {});
  EXPECT_THAT(output.advantages, ::testing::ElementsAre(-0.5F, -0.5F, 0.5F, 0.5F, -2.0F, 2.0F));
  const Case extreme = one_token_each({0, 1, 0, 2}, {INT64_MIN, INT64_MIN, INT64_MAX, INT64_MAX});
  EXPECT_THAT(compute("dr_grpo", input_of(extreme), {}).advantages,
              ::testing::ElementsAre(-0.5F, 0.5F, -1.0F, 1.0F));
}

TEST(Advantage, GroupScoresMayShiftAndScale) {
  const std::vector<std::int64_t> groups = {1, 1, 1, 2, 2};
  const Case data = one_token_each({0, 1, 3, 2, 5}, groups);
  const Case shifted = one_token_each({16, 17, 19, 2, 5}, groups);
  const Case scaled = one_token_each({0, 4, 12, 8, 20}, groups);
  const std::vector<float> plain = compute("dr_grpo", input_of(data), {}).advantages;
  EXPECT_EQ(compute("dr_grpo", input_of(shifted), {}).advantages, plain);
  std::vector<float> four = plain;
  for (float& value : four) value *= 4;
  const std::vector<float> found = compute("dr_grpo", input_of(scaled), {}).advantages;
  for (std::size_t i = 0; i < four.size(); ++i) EXPECT_NEAR(found[i], four[i], 1e-5);
  const std::vector<float> grpo = compute("grpo", input_of(data), {}).advantages;
  const std::vector<float> grpo_scaled = compute("grpo", input_of(scaled), {}).advantages;
  for (std::size_t i = 0; i < grpo.size(); ++i) EXPECT_NEAR(grpo[i], grpo_scaled[i], 1e-5);
}

TEST(Advantage, GrpoWithoutDeviationIsDrGrpo) {
  Rng rng(8);
  const Case data = test::random_case(rng, {.sequences = 20});
  EXPECT_EQ(compute("grpo", input_of(data), {.norm_by_std = false}).advantages,
            compute("dr_grpo", input_of(data), {}).advantages);
}

TEST(Advantage, GaeWithGammaAndLambdaOneIsReturnMinusValue) {
  Rng rng(9);
  const Case data = test::random_case(rng, {.sequences = 20});
  const AdvantageOutput gae = compute("gae", input_of(data), {});
  const AdvantageOutput plain = compute("reinforce_plus_plus", input_of(data), {});
  for (std::size_t t = 0; t < data.tokens(); ++t)
    EXPECT_NEAR(gae.returns[t], plain.returns[t], 1e-5);
}

TEST(Advantage, GaeSkipsToolTokens) {
  // Four policy tokens, with and without three tool tokens in their midst.
  Case compact = one_token_each({0, 0, 0, 1}, {1, 1, 1, 1});
  compact.offsets = {0, 4};
  compact.groups = {1};
  compact.ids = {0};
  compact.column("values") = {0.5F, 0.25F, -0.5F, 1.0F};
  Case tools = compact;
  tools.offsets = {0, 7};
  tools.mask = {1, 1, 0, 0, 0, 1, 1};
  tools.column("rewards") = {0, 0, NAN, 5, 5, 0, 1};
  tools.column("values") = {0.5F, 0.25F, NAN, 9, 9, -0.5F, 1.0F};
  const AdvantageOptions options{.gamma = 0.9, .lambda = 0.8};
  const AdvantageOutput expected = compute("gae", input_of(compact), options);
  const AdvantageOutput found = compute("gae", input_of(tools), options);
  const std::size_t kept[] = {0, 1, 5, 6};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(found.advantages[kept[i]], expected.advantages[i]);
  for (const std::size_t t : {2, 3, 4}) EXPECT_EQ(found.advantages[t], 0);
}

TEST(Advantage, WhiteningGivesMeanZeroAndVarianceOne) {
  Rng rng(10);
  const Case data = test::random_case(rng, {.sequences = 40});
  const AdvantageOutput output = compute("gae", input_of(data), {});
  double sum = 0;
  double squares = 0;
  double count = 0;
  for (std::size_t t = 0; t < data.tokens(); ++t) {
    if (data.mask[t] == 0) continue;
    sum += output.advantages[t];
    squares += output.advantages[t] * output.advantages[t];
    count += 1;
  }
  EXPECT_NEAR(sum / count, 0, 1e-6);
  EXPECT_NEAR(squares / (count - 1), 1, 1e-5);
}

TEST(Advantage, OneTokenCannotBeWhitened) {
  const Case data = one_token_each({2}, {1});
  const AdvantageOutput output = compute("gae", input_of(data), {});
  EXPECT_EQ(output.advantages[0], 0);
  EXPECT_EQ(output.returns[0], 2);
  EXPECT_EQ(output.report.unwhitened_tokens, 1);
}

TEST(Advantage, WhiteningEqualValuesGivesExactlyZero) {
  // In double, 0.1 seven times has a mean that is not 0.1.
  const Case data = one_token_each(std::vector<float>(7, 0.0F), std::vector<std::int64_t>(7, 1));
  std::vector<double> values(7, 0.1);
  EXPECT_EQ(whiten(data.view(), values), 7);
  EXPECT_THAT(values, ::testing::Each(0.0));
  values = {0, 1, 0, 1, 0, 1, 0};
  EXPECT_EQ(whiten(data.view(), values), 0);
  EXPECT_GT(values[1], 0);
}

TEST(Advantage, GpgScalesUpWhenFewScoresCount) {
  const Case one = one_token_each({0, 0, 0, 3}, {1, 1, 1, 1});
  EXPECT_THAT(compute("gpg", input_of(one), {}).advantages,
              ::testing::ElementsAre(-3.0F, -3.0F, -3.0F, 9.0F));
  const Case two = one_token_each({0, 0, 3, 3}, {1, 1, 1, 1});
  EXPECT_THAT(compute("gpg", input_of(two), {}).advantages,
              ::testing::ElementsAre(-3.0F, -3.0F, 3.0F, 3.0F));
}

TEST(Advantage, GdpoCountsAGroupAsFlatOnlyWhenEveryComponentIs) {
  const Case data = one_token_each({0, 0, 0, 0, 0}, {1, 1, 2, 2, 3});
  AdvantageInput input = input_of(data);
  const std::vector<float> first = {1, 1, 4, 4, 0};
  const std::vector<float> second = {0, 2, 5, 5, 0};
  input.components = {first, second};
  const AdvantageOutput output = compute("gdpo", input, {});
  EXPECT_EQ(output.report.zero_variance_groups, 1);
  EXPECT_EQ(output.report.singleton_groups, 1);
  EXPECT_LT(output.advantages[0], 0);
  EXPECT_GT(output.advantages[1], 0);
}

TEST(Advantage, PassAtKRewardsOnlyTheBestAndNobodyOnATie) {
  const Case data = one_token_each({1, 4, 2, 3, 3}, {1, 1, 1, 2, 2});
  EXPECT_THAT(compute("grpo_passk", input_of(data), {.norm_by_std = false}).advantages,
              ::testing::ElementsAre(0.0F, 2.0F, 0.0F, 0.0F, 0.0F));
  const Case tie = one_token_each({1, 4, 4}, {1, 1, 1});
  EXPECT_THAT(compute("grpo_passk", input_of(tie), {}).advantages, ::testing::Each(0.0F));
}

TEST(Advantage, AnOptionThatWouldBeIgnoredIsAnError) {
  const Case data = one_token_each({1, 0}, {1, 1});
  const auto expect_config = [&](const char* name, const AdvantageOptions& options,
                                 const char* key) {
    const auto output = default_advantages().find(name).value()(input_of(data), options);
    ASSERT_FALSE(output.has_value()) << name;
    EXPECT_EQ(output.error().code, ErrorCode::kConfig);
    EXPECT_THAT(output.error().message, ::testing::HasSubstr(key));
    EXPECT_THAT(output.error().message, ::testing::HasSubstr(name));
  };
  expect_config("grpo", {.gamma = 0.9}, "gamma");
  expect_config("reinforce_plus_plus", {.lambda = 0.9}, "lambda");
  expect_config("rloo", {.norm_by_std = true}, "norm_by_std");
  expect_config("dr_grpo", {.norm_by_std = true}, "norm_by_std");
  expect_config("grpo", {.whiten = false}, "whiten");
  EXPECT_FALSE(gae_advantage(input_of(data), {.gamma = 1.5}).has_value());
  EXPECT_FALSE(gae_advantage(input_of(data), {.gamma = NAN}).has_value());
  EXPECT_TRUE(rloo_advantage(input_of(data), {.norm_by_std = false}).has_value());
}

TEST(Advantage, GaeThatIsNotWhitenedLooksAtEachSequenceAlone) {
  // Three sequences of two tokens, the last of which is masked in the third.
  const std::vector<std::int64_t> offsets{0, 2, 4, 6};
  const std::vector<std::uint8_t> mask{1, 1, 1, 1, 1, 0};
  const std::vector<float> rewards{0, 1, 0, 3, 2, 0};
  const std::vector<float> values{0.5F, 0.25F, 1, -1, 0.75F, 9};
  const AdvantageOptions options{.gamma = 0.5, .lambda = 0.5, .whiten = false};
  const AdvantageInput all{
      .tokens = {.offsets = offsets, .mask = mask}, .rewards = rewards, .values = values};
  const auto whole = gae_advantage(all, options);
  ASSERT_TRUE(whole.has_value()) << whole.error().to_string();
  // δ₂ = r₂ - v₂ = 0.75; δ₁ = 0 + 0.5 · 0.25 - 0.5 = -0.375, plus 0.25 · δ₂.
  EXPECT_FLOAT_EQ(whole->advantages[1], 0.75F);
  EXPECT_FLOAT_EQ(whole->advantages[0], -0.375F + 0.25F * 0.75F);
  EXPECT_EQ(whole->report.unwhitened_tokens, 0);
  for (std::size_t s = 0; s < 3; ++s) {
    const std::vector<std::int64_t> one{0, 2};
    const auto part = [s](auto& numbers) { return std::span(numbers).subspan(2 * s, 2); };
    const auto alone = gae_advantage({.tokens = {.offsets = one, .mask = part(mask)},
                                      .rewards = part(rewards),
                                      .values = part(values)},
                                     options);
    ASSERT_TRUE(alone.has_value()) << alone.error().to_string();
    for (std::size_t t = 0; t < 2; ++t) {
      EXPECT_EQ(alone->advantages[t], whole->advantages[2 * s + t]);
      EXPECT_EQ(alone->returns[t], whole->returns[2 * s + t]);
    }
  }
}

TEST(Advantage, MissingColumnsAreNamed) {
  const Case data = one_token_each({1, 0}, {1, 1});
  AdvantageInput input{.tokens = data.view(), .rewards = data.column("rewards")};
  EXPECT_THAT(gae_advantage(input, {}).error().message, ::testing::HasSubstr("values"));
  EXPECT_THAT(remax_advantage(input, {}).error().message, ::testing::HasSubstr("baselines"));
  EXPECT_THAT(gdpo_advantage(input, {}).error().message, ::testing::HasSubstr("components"));
  input.tokens.groups = {};
  EXPECT_THAT(grpo_advantage(input, {}).error().message, ::testing::HasSubstr("groups"));
  EXPECT_TRUE(reinforce_plus_plus_advantage(input, {}).has_value());
}

TEST(Advantage, ReportBecomesMetrics) {
  const Case data = one_token_each({3, 1, 1, 0, 2}, {1, 2, 2, 3, 3});
  WeightedSums metrics;
  add_report(compute("grpo", input_of(data), {}).report, metrics);
  EXPECT_EQ(metrics.mean("critic/groups"), 3);
  EXPECT_EQ(metrics.mean("critic/singleton_groups"), 1);
  EXPECT_EQ(metrics.mean("critic/zero_variance_groups"), 1);
}

}  // namespace
}  // namespace troupe::actors
