// Proves that the canary's comparisons name version, replica and the first token that differs, and
// that its prompt fits models of any size.

#include "actors/roles/canary.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace troupe::actors {
namespace {

using runtime::Column;
using runtime::Mesh;

CanaryAnswer answer() {
  return {.tokens = {5, 6, 7}, .log_probs = {-1.0F, -2.0F, -3.0F}, .version = WeightVersion{4}};
}

TEST(Canary, NamesReplicaRankAndTokenThatDiffer) {
  const Mesh mesh = *Mesh::create({{"dp", 2}, {"tp", 2}});
  std::vector<CanaryAnswer> answers(4, answer());
  EXPECT_TRUE(compare_replicas(answers, mesh, WeightVersion{4}).has_value());
  answers[3].tokens[1] = 9;
  const auto other = compare_replicas(answers, mesh, WeightVersion{4});
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, ErrorCode::kConflict);
  EXPECT_EQ(other.error().message,
            "canary: version 4: replica 1, rank 3: token 1 is 9, replica 0 says 6");
  answers[3].tokens = {5};
  EXPECT_NE(
      compare_replicas(answers, mesh, WeightVersion{4}).error().message.find("token 1 is none"),
      std::string::npos);
  answers[3] = answer();
  answers[1].version = WeightVersion{3};
  EXPECT_NE(compare_replicas(answers, mesh, WeightVersion{4}).error().message.find("version 3"),
            std::string::npos);
}

TEST(Canary, NamesTheTokenThatTheTrainerDoubts) {
  const Column near = Column::jagged(
      std::vector<std::vector<float>>{{-1.0F, -2.0F, -3.0F}, {-1.0F, -2.0005F, -3.0F}});
  const auto distance = compare_log_probs(answer(), near, 1e-3);
  ASSERT_TRUE(distance.has_value()) << distance.error().to_string();
  EXPECT_NEAR(*distance, 5e-4, 1e-6);
  const auto far = compare_log_probs(answer(), near, 1e-4);
  ASSERT_FALSE(far.has_value());
  EXPECT_NE(far.error().message.find("version 4: token 1 (6)"), std::string::npos)
      << far.error().message;
  EXPECT_NE(far.error().message.find("data-parallel rank 1"), std::string::npos);
  const Column none =
      Column::jagged(std::vector<std::vector<float>>{{-1.0F, std::nanf(""), -3.0F}});
  EXPECT_FALSE(compare_log_probs(answer(), none, 1e-3).has_value());
  const Column less = Column::jagged(std::vector<std::vector<float>>{{-1.0F}});
  EXPECT_FALSE(compare_log_probs(answer(), less, 1e-3).has_value());
}

TEST(Canary, AsksForWhatFits) {
  for (const std::int64_t positions : {2, 5, 16, 24, 4096}) {
    for (const std::int64_t vocabulary : {1, 2, 7919, 150000}) {
      const CanaryRequest request = canary_request(vocabulary, positions, 8);
      const auto prompt = static_cast<std::int64_t>(request.prompt.size());
      EXPECT_GE(prompt, 1);
      EXPECT_GE(request.tokens, 1);
      EXPECT_LE(prompt + request.tokens, positions);
      for (const std::int32_t token : request.prompt) EXPECT_LT(token, vocabulary);
    }
  }
}

}  // namespace
}  // namespace troupe::actors
