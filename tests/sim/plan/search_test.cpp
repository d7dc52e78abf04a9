// Proves that the search finds what looking at every candidate finds, on random small requests;
// that partitions are as many as Bell numbers say; that its estimate follows the simulator; and
// that it says what is missing when nothing fits.

#include "sim/plan/search.hpp"

#include "sim/catalogue/catalogue.hpp"
#include "sim/plan/plan.hpp"
#include "sim/plan/why.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>

namespace troupe::sim {
namespace {

DeviceSpec device(const std::string& name) { return *Catalogue::built_in().device(name); }
ModelSpec model(const std::string& name) { return *Catalogue::built_in().model(name); }

PlanRequest small_request(int devices = 8) {
  PlanRequest request;
  request.base.policy.model = model("qwen2.5-7b");
  request.base.reference = request.base.policy;
  request.base.prompts_per_step = 64;
  request.base.group_size = 8;
  request.base.minibatch_prompts = 64;
  request.base.prompt_lengths.shape = FixedLength{512};
  request.base.prompt_lengths.tokens_max = 512;
  request.base.answer_lengths.shape = LogNormalLength{800, 0.8};
  request.base.answer_lengths.tokens_max = 4'096;
  request.offers = {{.name = "all", .device = device("h100"), .devices = devices}};
  return request;
}

Searched searched(const PlanRequest& request, SearchOptions wanted = {}) {
  auto times = RoleTimes::create(request);
  EXPECT_TRUE(times) << times.error().to_string();
  SetOptions options(*times);
  auto found = search(options, wanted);
  EXPECT_TRUE(found) << found.error().to_string();
  return *found;
}

TEST(Partitions, AreAsManyAsBellNumbersSay) {
  std::vector<PlanRole> roles;
  std::size_t role = 0;
  for (const std::size_t bell : {1U, 2U, 5U, 15U, 52U}) {
    roles.push_back(static_cast<PlanRole>(role++));
    const auto all = partitions_of(roles);
    EXPECT_EQ(all.size(), bell);
    EXPECT_EQ(std::set(all.begin(), all.end()).size(), bell);
    for (const auto& sets : all) {
      RoleMask sum = 0;
      for (const RoleMask set : sets) {
        EXPECT_EQ(sum & set, 0U);
        sum |= set;
      }
      EXPECT_EQ(sum, (1U << roles.size()) - 1);
    }
  }
}

PlanRequest random_request(std::mt19937_64& random) {
  const auto pick = [&random](auto... values) {
    const std::array choices{values...};
    return choices[random() % choices.size()];
  };
  PlanRequest request = small_request(pick(2, 4));
  const char* const policy = pick("qwen2.5-1.5b", "qwen2.5-7b", "llama-7b", "qwen3-30b-a3b");
  request.base.policy.model = model(policy);
  request.base.reference.reset();
  if (pick(true, false)) request.base.reference = request.base.policy;
  if (pick(true, false, false)) {
    request.base.critic = request.base.policy;
    request.base.critic->model = model(pick("qwen2.5-0.5b", "qwen2.5-7b"));
  }
  request.base.answer_lengths.shape = LogNormalLength{pick(200.0, 1'000.0, 3'000.0), 0.9};
  request.base.prompts_per_step = pick(8, 32, 128);
  request.base.minibatch_prompts = request.base.prompts_per_step / pick(1, 4);
  request.base.rollout.engine.sequences_max = pick(8, 64, 256);
  request.offers[0].device = device(pick("h100", "a100-80g", "l40s"));
  if (pick(true, false))
    request.offers.push_back(
        {.name = "other", .device = device(pick("h20", "h200")), .devices = 2});
  if (pick(true, false)) request.offers[0].nodes = pick(1, 2);
  request.modes = {SimMode::kSynchronous, pick(SimMode::kOneStepOff, SimMode::kAsynchronous)};
  request.staleness_max = pick(1, 2);
  request.objective = pick(PlanObjective::kTime, PlanObjective::kCost);
  request.granularity = pick(0, 2);
  request.micro_batches = {1};
  return request;
}

TEST(Search, FindsWhatLookingAtEveryCandidateFinds) {
  int feasible = 0;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    PlanRequest request = random_request(random);
    // Looking at everything multiplies layouts of all roles; few roles or few devices bound that.
    if (request.base.critic && request.base.reference) request.base.reference.reset();
    auto times = RoleTimes::create(request);
    ASSERT_TRUE(times) << times.error().to_string();
    const auto all = search_all(*times);
    ASSERT_TRUE(all) << all.error().to_string();
    const Searched found = searched(request);
    ASSERT_EQ(found.best.empty(), !all->has_value());
    if (found.best.empty()) continue;
    ++feasible;
    EXPECT_DOUBLE_EQ(found.best[0].estimate.objective, (*all)->estimate.objective)
        << found.best[0].candidate.describe(request) << " against "
        << (*all)->candidate.describe(request);
    for (const Found& one : found.best) {
      const auto again = estimate(request, one.candidate);
      ASSERT_TRUE(again) << again.error().to_string();
      EXPECT_DOUBLE_EQ(again->objective, one.estimate.objective);
    }
  }
  EXPECT_GE(feasible, 12);
}

/// HybridFlow's work on its testbed (arXiv 2409.19256, §8.1): PPO of four 13B models.
PlanRequest hybridflow(int devices) {
  PlanRequest request = small_request(devices);
  request.base.policy.model = model("llama-13b");
  request.base.reference = request.base.policy;
  request.base.critic = request.base.policy;
  request.base.prompts_per_step = 1'024;
  request.base.group_size = 1;
  request.base.minibatch_prompts = 128;
  for (LengthOptions* lengths : {&request.base.prompt_lengths, &request.base.answer_lengths}) {
    lengths->shape = FixedLength{1'024};
    lengths->tokens_max = 1'024;
  }
  request.offers[0].device = device("a100-80g-hybridflow");
  request.modes = {SimMode::kSynchronous};
  return request;
}

/// Best step of one partition.
double step_of_form(const PlanRequest& request, const std::vector<RoleMask>& sets) {
  SearchOptions wanted;
  wanted.best = wanted.of_shape = 1;
  wanted.wanted = [&sets](const PlanShape& shape) { return shape.sets == sets; };
  const Searched found = searched(request, wanted);
  EXPECT_FALSE(found.best.empty());
  return found.best.empty() ? 0 : found.best.front().estimate.step_s;
}

TEST(Search, SharesDevicesWhenThereAreFewAndSplittingCatchesUpWithMore) {
  const RoleMask critic = mask_of(PlanRole::kCritic);
  const RoleMask all = 0b1111;
  double before = std::numeric_limits<double>::infinity();
  for (const int devices : {32, 64, 128}) {
    const PlanRequest request = hybridflow(devices);
    const double together = step_of_form(request, {all});
    const double ratio = step_of_form(request, {all & ~critic, critic}) / together;
    fmt::print("{} devices: split takes {:.3f} of colocated, {:.1f} s\n", devices, ratio, together);
    EXPECT_LT(ratio, before);
    before = ratio;
    if (devices <= 64) {
      EXPECT_GT(ratio, 1);
    }
  }
}

TEST(Search, GivesTheSameAgain) {
  const PlanRequest request = small_request(16);
  const Searched one = searched(request);
  const Searched again = searched(request);
  ASSERT_EQ(one.best.size(), again.best.size());
  for (std::size_t i = 0; i < one.best.size(); ++i) {
    EXPECT_EQ(one.best[i].candidate.sets, again.best[i].candidate.sets);
    EXPECT_EQ(one.best[i].candidate.describe(request), again.best[i].candidate.describe(request));
    EXPECT_EQ(one.best[i].estimate.objective, again.best[i].estimate.objective);
  }
}

TEST(Search, MoreOrBetterDevicesAreNeverSlower) {
  PlanRequest request = small_request(8);
  double before = searched(request).best.front().estimate.step_s;
  for (const int devices : {16, 32}) {
    request.offers[0].devices = devices;
    const double step_s = searched(request).best.front().estimate.step_s;
    EXPECT_LE(step_s, before);
    before = step_s;
  }
  request.offers[0].device.memory_bytes *= 2;
  EXPECT_LE(searched(request).best.front().estimate.step_s, before);
  request.offers.push_back({.name = "more", .device = device("h20"), .devices = 8});
  EXPECT_LE(searched(request).best.front().estimate.step_s, before);
}

TEST(Search, OnlyWhatRealRunsCanPlaceWhenAskedFor) {
  PlanRequest request = small_request(16);
  request.base.critic = request.base.policy;
  request.split_trained = false;
  const Searched found = searched(request);
  ASSERT_FALSE(found.best.empty());
  for (const Found& one : found.best)
    EXPECT_TRUE(one.candidate.is_runnable()) << one.candidate.describe(request);
}

TEST(Infeasible, SaysWhatIsMissingAndHowManyDevicesWouldDo) {
  PlanRequest request = small_request(8);
  request.base.policy.model = model("llama-70b");
  request.base.reference = request.base.policy;
  const auto plan = make_plan(request);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::kResourceExhausted);
  const std::string text = plan.error().message;
  EXPECT_NE(text.find("policy (llama-70b)"), std::string::npos) << text;
  const auto at = text.rfind("; ");
  const int enough = std::stoi(text.substr(at + 2));
  EXPECT_GT(enough, 8) << text;
  request.offers[0].devices = enough;
  EXPECT_FALSE(searched(request).best.empty());
  request.offers[0].devices = enough - 8;
  EXPECT_TRUE(searched(request).best.empty());
}

TEST(Requests, AreRefusedWithTheFieldThatIsWrong) {
  PlanRequest request = small_request();
  request.offers[0].devices = 0;
  EXPECT_EQ(request.check().error().code, ErrorCode::kInvalidArgument);
  request = small_request(16);
  request.offers[0].nodes = 1;
  EXPECT_NE(request.check().error().message.find("2 nodes"), std::string::npos);
  request = small_request();
  request.modes.clear();
  EXPECT_FALSE(request.check());
  request = small_request();
  request.offers.clear();
  EXPECT_FALSE(request.check());
}

TEST(Spread, PutsAsManyDevicesOnANodeAsThePlacementCoreDoes) {
  DeviceOffer offer{.name = "half", .device = device("h100"), .devices = 16, .nodes = 4};
  EXPECT_EQ(device_as_placed(offer, placement::Strategy::kPack)->per_node, 8);
  EXPECT_EQ(device_as_placed(offer, placement::Strategy::kSpread)->per_node, 4);
  offer.nodes = 16;
  EXPECT_EQ(device_as_placed(offer, placement::Strategy::kSpread)->per_node, 1);
}

}  // namespace
}  // namespace troupe::sim
