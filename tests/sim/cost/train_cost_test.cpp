// Proves costs of training: FLOPs, bubbles and bytes by hand, refusals that name the nearest
// possible layout, and laws for random layouts.

#include "sim/cost/train_cost.hpp"

#include "runtime/base/rng.hpp"
#include "sim/catalogue/catalogue.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace troupe::sim {
namespace {

ModelSpec model(const char* name) { return *Catalogue::built_in().model(name); }
DeviceSpec device(const char* name) { return *Catalogue::built_in().device(name); }
TrainCost cost_of(const ModelSpec& spec, const DeviceSpec& on, const TrainLayout& layout) {
  auto cost = TrainCost::create(spec, on, layout, Constants());
  EXPECT_TRUE(cost) << cost.error().to_string();
  return *cost;
}
const TrainWork kWork{.tokens = 1e6, .squares = 1e6 * 2048, .sequences = 500, .optimizer_steps = 4};

TEST(TrainCost, ComputeIsSixFlopsAParameterAndToken) {
  const ModelSpec spec = model("llama-7b");
  const DeviceSpec on = device("h100");
  TrainLayout layout;
  layout.recompute = Recompute::kNone;
  const TrainTime time = cost_of(spec, on, layout).update(kWork);
  const Constants constants;
  const double rate = on.flops * constants[Constant::kGemmShare] * constants[Constant::kTrainShare];
  const double flops = 6 * static_cast<double>(size_of(spec).active()) * 1e6 +
                       3 * attention_flops_per_square(spec) * 1e6 * 2048;
  EXPECT_NEAR(time.compute, flops / rate, 1e-9 * time.compute);
  EXPECT_EQ(time.bubble, 0);
  EXPECT_EQ(time.tensor_parallel, 0);
  EXPECT_EQ(time.data_parallel, 0);
  layout.recompute = Recompute::kAll;
  // Layers once more; the head is not recomputed.
  const double again = 2 * static_cast<double>(size_of(spec).active_layers()) * 1e6 +
                       attention_flops_per_square(spec) * 1e6 * 2048;
  EXPECT_NEAR(cost_of(spec, on, layout).update(kWork).compute, (flops + again) / rate,
              1e-9 * time.compute);
}

TEST(TrainCost, BubblesAreThoseOf1F1BAndOfTheInterleavedSchedule) {
  TrainLayout layout;
  layout.pp = 4;
  layout.micro_batch_tokens = 26'000;  // 13 of 125 sequences a step: 10 micro-batches
  const TrainTime plain = cost_of(model("llama-7b"), device("h100"), layout).update(kWork);
  // (p−1)/(m+p−1) of the whole is (p−1)/m of the compute.
  const double work = plain.compute + plain.memory;
  EXPECT_NEAR(plain.bubble / (plain.bubble + work), 3.0 / 13, 1e-9);
  layout.virtual_stages = 2;
  const TrainTime finer = cost_of(model("llama-7b"), device("h100"), layout).update(kWork);
  EXPECT_NEAR(finer.bubble / (finer.bubble + work), 3.0 / 23, 1e-9);
}

TEST(TrainCost, LongSequencesLeaveMicroBatchesEmpty) {
  TrainLayout layout;
  layout.pp = 4;
  layout.micro_batch_tokens = 3'000;  // one sequence of 2,000 each
  const TrainTime time = cost_of(model("llama-7b"), device("h100"), layout).update(kWork);
  EXPECT_NEAR(time.bubble / (time.compute + time.memory), 3.0 / 125, 1e-9);
}

TEST(TrainCost, WhatIsOffloadedCrossesPcieBothWays) {
  TrainLayout layout;
  const DeviceSpec on = device("h100");
  const TrainCost stays = cost_of(model("llama-7b"), on, layout);
  layout.offload_idle = true;
  const TrainCost goes = cost_of(model("llama-7b"), on, layout);
  const TrainMemory memory = stays.memory(false);
  EXPECT_EQ(stays.update(kWork).offload, 0);
  EXPECT_NEAR(goes.update(kWork).total() - stays.update(kWork).total(),
              (memory.weights + 2 * memory.optimizer) / on.pcie_rate, 1e-6);
  EXPECT_NEAR(goes.forward(kWork).offload, memory.weights / on.pcie_rate, 1e-9);
}

TEST(TrainCost, RoutedExpertsMultiplyLessWell) {
  Constants even;
  ASSERT_TRUE(even.set(Constant::kExpertShare, 0.9));
  Constants poor;
  ASSERT_TRUE(poor.set(Constant::kExpertShare, 0.3));
  const auto compute = [&](const char* name, const Constants& constants) {
    return TrainCost::create(model(name), device("h100"), {}, constants)->update(kWork).compute;
  };
  EXPECT_EQ(compute("llama-7b", even), compute("llama-7b", poor));
  EXPECT_GT(compute("qwen3-30b-a3b", poor), 1.5 * compute("qwen3-30b-a3b", even));
}

TEST(TrainCost, MemoryIsEighteenBytesAParameterWithoutSharding) {
  TrainLayout layout;
  layout.sharding = TrainSharding::kNone;
  const ModelSpec spec = model("llama-7b");
  const auto parameters = static_cast<double>(size_of(spec).parameters);
  const TrainMemory whole = cost_of(spec, device("h100"), layout).memory(false);
  EXPECT_NEAR(whole.weights + whole.gradients + whole.optimizer, 18 * parameters, 1);
  layout.sharding = TrainSharding::kZero1;
  layout.dp = 8;
  const TrainMemory zero = cost_of(spec, device("h100"), layout).memory(false);
  EXPECT_NEAR(zero.weights + zero.gradients + zero.optimizer, (6 + 12.0 / 8) * parameters, 1);
  const TrainMemory frozen = cost_of(spec, device("h100"), layout).memory(true);
  EXPECT_EQ(frozen.gradients + frozen.optimizer, 0);
}

TEST(TrainCost, RefusesLayoutsThatDoNotDivideAndNamesTheNearest) {
  struct Wrong {
    const char* name;
    TrainLayout layout;
    const char* says;
  };
  std::vector<Wrong> wrong(5);
  wrong[0] = {
      "llama-7b", {}, "tensor parallelism 5 does not divide 32 heads; the nearest that does is 4"};
  wrong[0].layout.tp = 5;
  wrong[1] = {"llama-7b", {}, "40 stages of 32 layers; at most 32"};
  wrong[1].layout.pp = 40;
  wrong[2] = {
      "llama-7b", {}, "expert parallelism 2 does not divide 0 experts; the nearest that does is 1"};
  wrong[2].layout.ep = 2;
  wrong[2].layout.dp = 2;
  wrong[3] = {"qwen3-30b-a3b",
              {},
              "expert parallelism 12 does not divide 128 experts; the nearest that does is 8"};
  wrong[3].layout.ep = 12;
  wrong[4] = {"llama-7b", {}, "wanted at least 1"};
  wrong[4].layout.dp = 0;
  for (const Wrong& one : wrong) {
    const auto cost = TrainCost::create(model(one.name), device("h100"), one.layout, Constants());
    ASSERT_FALSE(cost) << one.says;
    EXPECT_NE(cost.error().message.find(one.says), std::string::npos) << cost.error().to_string();
  }
}

TEST(TrainCost, LawsHoldForRandomLayouts) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const char* const kModels[] = {"llama-7b", "llama-70b", "qwen3-30b-a3b", "deepseek-v3"};
    const ModelSpec spec = model(kModels[rng.below(4)]);
    TrainLayout layout;
    layout.tp = 1 << rng.below(4);
    layout.pp = 1 << rng.below(4);
    layout.dp = 1 << rng.below(5);
    if (spec.shape.expert.experts > 0)
      layout.ep =
          1 << rng.below(1 + static_cast<std::uint64_t>(
                                 std::bit_width(static_cast<unsigned>(layout.dp * layout.tp)) - 1));
    layout.sharding = static_cast<TrainSharding>(rng.below(3));
    layout.recompute = static_cast<Recompute>(rng.below(3));
    const DeviceSpec on = device("h100");
    const TrainCost cost = cost_of(spec, on, layout);
    const TrainTime update = cost.update(kWork);
    const TrainTime forward = cost.forward(kWork);
    EXPECT_GT(update.total(), forward.total());
    EXPECT_NEAR(update.total(),
                update.compute + update.memory + update.bubble + update.tensor_parallel +
                    update.experts + update.data_parallel + update.optimizer + update.host,
                1e-12 * update.total());
    TrainLayout wider = layout;
    wider.dp *= 2;
    const TrainMemory memory = cost.memory(false);
    EXPECT_LE(cost_of(spec, on, wider).memory(false).total(), memory.total() * (1 + 1e-12));
    EXPECT_LE(cost.memory(true).total(), memory.total());
    DeviceSpec faster = on;
    faster.nic_rate *= 2;
    faster.nvlink_rate *= 2;
    faster.flops *= 2;
    EXPECT_LE(cost_of(spec, faster, layout).update(kWork).total(), update.total());
    TrainWork more = kWork;
    more.tokens *= 2;
    more.squares *= 2;
    EXPECT_GE(cost.update(more).total(), update.total());
  }
}

TEST(TrainCost, AnOptimizerStepEndsWithTheRankThatHasMostWork) {
  TrainLayout layout;
  layout.dp = 4;
  const TrainCost cost = cost_of(model("llama-7b"), device("h100"), layout);
  TrainWork uneven = kWork;
  uneven.unevenness = 1.5;
  EXPECT_NEAR(cost.update(uneven).compute, 1.5 * cost.update(kWork).compute, 1e-9);
}

TEST(TrainCost, RanksOfOneSequenceShareItsTokensAndExchangeHeads) {
  TrainLayout layout;
  layout.dp = 8;
  const TrainTime whole = cost_of(model("llama-7b"), device("h100"), layout).update(kWork);
  layout.cp = 4;
  const TrainTime shared = cost_of(model("llama-7b"), device("h100"), layout).update(kWork);
  EXPECT_NEAR(shared.compute, whole.compute, 1e-9 * whole.compute);
  EXPECT_EQ(whole.tensor_parallel, 0);
  EXPECT_GT(shared.tensor_parallel, 0);
  layout.cp = 3;
  const auto refused = TrainCost::create(model("llama-7b"), device("h100"), layout, Constants());
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("nearest"), std::string::npos);
}

TEST(TrainCost, ExpertsAreReducedOverTheRanksThatHoldTheSameOnes) {
  const ModelSpec spec = model("qwen3-30b-a3b");
  TrainLayout layout;
  layout.dp = 8;
  layout.ep = 8;  // every expert is on one rank: its gradients stay there
  const TrainCost cost = cost_of(spec, device("h100"), layout);
  const ModelSize size = size_of(spec);
  const auto experts = static_cast<double>(size.expert_layers * size.experts * size.expert);
  const double others = static_cast<double>(size.parameters) - experts;
  const Fabric fabric(device("h100"), Constants());
  const double wanted = fabric.gather(8, 4 * others, 1) + fabric.gather(8, 2 * others, 1);
  EXPECT_NEAR(cost.update({.optimizer_steps = 1}).data_parallel, wanted, 1e-9 * wanted);
  // Masters and moments of everything are shared out over all ranks.
  EXPECT_NEAR(cost.memory(false).optimizer, 12 * static_cast<double>(size.parameters) / 8, 1);
}

}  // namespace
}  // namespace troupe::sim
