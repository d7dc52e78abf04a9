// Proves the rollout engine of the simulator: skipping steps gives the times of one event per step
// to 1e-9 for random work with stops, pauses and a small KV pool; blocks, tokens and prefills are
// counted right; simple cases by hand.

#include "sim/rollout/replica.hpp"

#include "runtime/base/rng.hpp"
#include "sim/catalogue/catalogue.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <vector>

namespace troupe::sim {
namespace {

DecodeCost cost_of(const char* model, const char* device, int tp = 1) {
  EngineLayout layout;
  layout.tp = tp;
  auto cost = DecodeCost::create(*Catalogue::built_in().model(model),
                                 *Catalogue::built_in().device(device), layout, Constants());
  EXPECT_TRUE(cost) << cost.error().to_string();
  return *cost;
}

struct Finishes : ReplicaListener {
  void on_finished(Replica&, const SimSequence& sequence) override {
    at[sequence.id] = simulation->now();
    generated[sequence.id] = sequence.generated;
    if (then) then(sequence);
  }
  Simulation* simulation = nullptr;
  std::map<std::uint64_t, TimePoint> at;
  std::map<std::uint64_t, std::int64_t> generated;
  std::function<void(const SimSequence&)> then;
};

double at_s(const Finishes& finishes, std::uint64_t id) {
  return seconds(finishes.at.at(id).time_since_epoch());
}

TEST(DecodeCost, ClosedFormIsTheSumOfItsSteps) {
  const DecodeCost cost = cost_of("qwen2.5-7b", "h100");
  Rng rng(3);
  for (int i = 0; i < 100; ++i) {
    const auto b = static_cast<std::int64_t>(1 + rng.below(300));
    const double cached = static_cast<double>(rng.below(1'000'000));
    const auto k = static_cast<std::int64_t>(rng.below(2'000));
    double sum = 0;
    for (std::int64_t step = 0; step < k; ++step)
      sum += cost.step_s(b, cached + static_cast<double>(b * step));
    EXPECT_NEAR(cost.steps_s(b, cached, k), sum, 1e-10 * (1 + sum));
  }
}

TEST(DecodeCost, RefusesWhatDoesNotFitAndSaysWhatDoes) {
  EngineLayout layout;
  layout.tp = 3;
  const ModelSpec model = *Catalogue::built_in().model("llama-70b");
  const DeviceSpec device = *Catalogue::built_in().device("a100-80g");
  const auto odd = DecodeCost::create(model, device, layout, Constants());
  ASSERT_FALSE(odd);
  EXPECT_NE(odd.error().message.find("the nearest that does is 2"), std::string::npos)
      << odd.error().to_string();
  layout.tp = 1;
  layout.memory_share = 0.8;
  const auto tokens = DecodeCost::create(model, device, layout, Constants())->kv_tokens();
  ASSERT_FALSE(tokens);
  EXPECT_NE(tokens.error().message.find("the least tensor parallelism that does is 4"),
            std::string::npos)
      << tokens.error().to_string();
}

TEST(Replica, OneSequenceTakesItsPrefillAndItsSteps) {
  const DecodeCost cost = cost_of("llama-3.1-8b", "h100");
  Finishes finishes;
  Simulation simulation;
  finishes.simulation = &simulation;
  auto replica = *Replica::create(cost, {}, finishes);
  ASSERT_TRUE(replica->submit(simulation, {.id = 1, .group = 1, .prompt = 100, .length = 50}));
  ASSERT_TRUE(simulation.run());
  EXPECT_NEAR(at_s(finishes, 1), cost.prefill_s(100, 100.0 * 100) + cost.steps_s(1, 100, 50), 2e-9);
  EXPECT_EQ(replica->statistics().tokens, 50);
  EXPECT_EQ(replica->statistics().prefill_tokens, 100);
}

TEST(Replica, AGroupComputesItsPromptOnce) {
  const DecodeCost cost = cost_of("llama-3.1-8b", "h100");
  for (const bool share : {true, false}) {
    Finishes finishes;
    Simulation simulation;
    finishes.simulation = &simulation;
    ReplicaOptions options;
    options.share_prompt = share;
    auto replica = *Replica::create(cost, options, finishes);
    for (std::uint64_t id = 1; id <= 8; ++id)
      ASSERT_TRUE(replica->submit(simulation, {.id = id, .group = 5, .prompt = 160, .length = 16}));
    ASSERT_TRUE(simulation.run());
    EXPECT_EQ(replica->statistics().prefill_tokens, share ? 160 : 8 * 160);
    EXPECT_EQ(replica->statistics().finished, 8);
  }
}

TEST(Replica, ASmallPoolPreemptsTheYoungestAndLosesNothing) {
  const DecodeCost cost = cost_of("llama-3.1-8b", "h100");
  Finishes finishes;
  Simulation simulation;
  finishes.simulation = &simulation;
  ReplicaOptions options;
  options.kv_tokens = 16 * 40;
  auto replica = *Replica::create(cost, options, finishes);
  for (std::uint64_t id = 1; id <= 10; ++id)
    ASSERT_TRUE(replica->submit(simulation, {.id = id, .group = id, .prompt = 16, .length = 300}));
  ASSERT_TRUE(simulation.run());
  EXPECT_GT(replica->statistics().preemptions, 0);
  EXPECT_LE(replica->statistics().kv_tokens_peak, 16 * 40);
  EXPECT_EQ(replica->statistics().tokens, 3'000);
  for (const auto& [id, generated] : finishes.generated) EXPECT_EQ(generated, 300) << id;
  const auto refused =
      replica->submit(simulation, {.id = 11, .group = 11, .prompt = 16, .length = 640});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
}

/// Random arrivals, stops (resubmitted later) and pauses, driven by events of its own.
class Scenario : public Process {
 public:
  Scenario(std::uint64_t seed, bool skip) : rng_(seed), cost_(cost_of("qwen2.5-1.5b", "l40s")) {
    finishes_.simulation = &simulation_;
    ReplicaOptions options;
    options.sequences_max = 12;
    options.kv_tokens = 16 * (80 + static_cast<std::int64_t>(rng_.below(200)));
    options.share_prompt = rng_.below(2) == 0;
    options.skip = skip;
    replica_ = *Replica::create(cost_, options, finishes_);
    for (std::uint64_t i = 0; i < 60; ++i)
      simulation_.after(Duration(static_cast<std::int64_t>(rng_.below(4'000'000'000))), *this,
                        static_cast<std::uint32_t>(rng_.below(8)), i + 1);
  }
  void on_event(Simulation& simulation, const Event& event) override {
    if (event.kind < 5) {
      const auto submitted = replica_->submit(
          simulation, {.id = event.argument,
                       .group = event.argument / 4,
                       .prompt = 10 + static_cast<std::int64_t>(event.argument / 4 % 50),
                       .length = 1 + static_cast<std::int64_t>(mix_seed(event.argument, 1) % 400)});
      EXPECT_TRUE(submitted);
    } else if (event.kind == 5) {
      for (std::uint64_t id = 1; id <= 60; ++id) {
        auto stopped = replica_->stop(simulation, id);
        if (!stopped) continue;
        stops_.push_back(stopped->generated);
        EXPECT_TRUE(replica_->submit(simulation, *stopped));
        break;
      }
    } else if (event.kind == 6) {
      replica_->pause(simulation);
      simulation.after(Duration(50'000'000), *this, 9);
    } else if (event.kind == 9) {
      replica_->resume(simulation);
    } else {
      for (const SimSequence& sequence : replica_->stop_all(simulation))
        EXPECT_TRUE(replica_->submit(simulation, sequence));
    }
  }
  std::string_view name_of(std::uint32_t) const override { return "scenario"; }
  void run() { EXPECT_TRUE(simulation_.run()); }

  Rng rng_;
  DecodeCost cost_;
  Simulation simulation_;
  Finishes finishes_;
  std::unique_ptr<Replica> replica_;
  std::vector<std::int64_t> stops_;
};

TEST(Replica, SkippingStepsGivesTheTimesOfOneEventPerStep) {
  std::int64_t preemptions = 0;
  std::size_t stops = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    Scenario fast(seed, true);
    Scenario slow(seed, false);
    fast.run();
    slow.run();
    ASSERT_EQ(fast.finishes_.at.size(), slow.finishes_.at.size());
    for (const auto& [id, at] : slow.finishes_.at) {
      const double wanted = seconds(at.time_since_epoch());
      ASSERT_NEAR(at_s(fast.finishes_, id), wanted, 1e-9 * wanted + 1e-9) << id;
    }
    EXPECT_EQ(fast.stops_, slow.stops_);
    EXPECT_EQ(fast.replica_->statistics().tokens, slow.replica_->statistics().tokens);
    EXPECT_EQ(fast.replica_->statistics().preemptions, slow.replica_->statistics().preemptions);
    EXPECT_LT(fast.simulation_.events(), slow.simulation_.events());
    EXPECT_EQ(fast.replica_->running() + fast.replica_->waiting(), 0);
    preemptions += fast.replica_->statistics().preemptions;
    stops += fast.stops_.size();
  }
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(stops, 100U);
}

TEST(Replica, ASlowOneTakesItsFactorLongerForEverything) {
  const DecodeCost cost = cost_of("qwen2.5-7b", "h100");
  double ends[2] = {0, 0};
  for (const bool skip : {true, false}) {
    for (int slow = 0; slow < 2; ++slow) {
      Simulation simulation;
      Finishes finishes;
      finishes.simulation = &simulation;
      auto replica =
          *Replica::create(cost, {.skip = skip, .slowness = slow == 0 ? 1.0 : 2.5}, finishes);
      for (std::uint64_t id = 1; id <= 3; ++id)
        ASSERT_TRUE(replica->submit(
            simulation, {.id = id, .group = id, .prompt = 100, .length = 50 * std::int64_t(id)}));
      ASSERT_TRUE(simulation.run());
      ends[slow] = at_s(finishes, 3);
    }
    EXPECT_NEAR(ends[1], 2.5 * ends[0], 1e-6 * ends[1]);
  }
  Finishes finishes;
  EXPECT_FALSE(Replica::create(cost, {.slowness = 0}, finishes));
}

TEST(Replica, SettlingCountsWhatIsThereAndChangesNothing) {
  const DecodeCost cost = cost_of("qwen2.5-7b", "h100");
  double ends[2] = {0, 0};
  for (const bool looks : {false, true}) {
    Simulation simulation;
    Finishes finishes;
    finishes.simulation = &simulation;
    auto replica = *Replica::create(cost, {}, finishes);
    ASSERT_TRUE(replica->submit(simulation, {.id = 1, .prompt = 100, .length = 400}));
    std::int64_t before = 0;
    for (int i = 1; looks && i < 40; ++i) {
      ASSERT_TRUE(simulation.run_until(TimePoint(std::chrono::milliseconds(37 * i))));
      replica->settle(simulation);
      replica->for_each([&](const SimSequence& one) {
        EXPECT_GE(one.generated, before);
        EXPECT_LE(one.generated, 400);
        before = one.generated;
      });
    }
    EXPECT_EQ(before > 100, looks);
    ASSERT_TRUE(simulation.run());
    EXPECT_EQ(replica->statistics().tokens, 400);
    EXPECT_EQ(replica->statistics().steps, 400);
    ends[looks ? 1 : 0] = at_s(finishes, 1);
  }
  EXPECT_EQ(ends[0], ends[1]);
}

}  // namespace
}  // namespace troupe::sim
