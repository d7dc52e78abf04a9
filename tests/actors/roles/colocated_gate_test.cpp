// Proves that colocated roles take turns in the order of submission, that a phase makes room by
// dropping what may be dropped, that one which cannot fit is refused with the table of who holds
// what, and that the lane is free again afterwards.

#include "actors/roles/colocated_gate.hpp"

#include "actors/roles/memory_entries.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace troupe::actors {
namespace {

using runtime::Eviction;
using runtime::Residency;

Deadline soon() { return Deadline::in(std::chrono::milliseconds(200)); }

TEST(RoleGate, DropsTheKvCacheForTrainingAndLoadsItAgainForRollout) {
  DeviceGate device(DeviceId{0}, Bytes{100});
  int drops = 0;
  int loads = 0;
  MemoryEntries rollout(&device.memory(), "rollout");
  ASSERT_TRUE(rollout
                  .add("kv cache", Bytes{60}, Eviction::kDrop, Residency::kResident,
                       {.load = [&loads]() -> result<void> {
                          ++loads;
                          return {};
                        },
                        .offload = {},
                        .drop = [&drops]() -> result<void> {
                          ++drops;
                          return {};
                        }})
                  .has_value());
  MemoryEntries policy(&device.memory(), "policy");
  ASSERT_TRUE(policy.add("weights", Bytes{30}, Eviction::kNever, Residency::kResident).has_value());
  RoleGate train(device, "policy");
  train.declare("train", {"weights"}, Bytes{50});
  RoleGate generate(device, "rollout");
  generate.declare("rollout", {"kv cache"});

  {
    auto turn = train.reserve({"train", "policy rank 0"});
    ASSERT_TRUE(turn.has_value() && (*turn)->wait(soon()).has_value());
    EXPECT_EQ(drops, 1);
    EXPECT_LE(device.memory().snapshot().used().value, 100);
  }
  auto turn = generate.reserve({"rollout", "rollout rank 0"});
  const auto entered = (*turn)->wait(soon());
  ASSERT_TRUE(entered.has_value()) << entered.error().to_string();
  EXPECT_EQ(loads, 1);
}

TEST(RoleGate, RefusesAPhaseThatCannotFitAndFreesTheLane) {
  DeviceGate device(DeviceId{0}, Bytes{100});
  MemoryEntries policy(&device.memory(), "policy");
  ASSERT_TRUE(policy.add("weights", Bytes{80}, Eviction::kNever, Residency::kResident).has_value());
  RoleGate gate(device, "policy");
  gate.declare("train", {"weights"}, Bytes{30});
  {
    auto turn = gate.reserve({"train", "policy rank 0"});
    const auto refused = (*turn)->wait(soon());
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
    EXPECT_NE(refused.error().to_string().find("policy/weights"), std::string::npos)
        << refused.error().to_string();
  }
  auto other = gate.reserve({"undeclared", "policy rank 0"});
  EXPECT_TRUE((*other)->wait(soon()).has_value());
}

TEST(RoleGate, GivesTurnsInTheOrderOfReservation) {
  DeviceGate device(DeviceId{0}, Bytes{100});
  RoleGate a(device, "a");
  RoleGate b(device, "b");
  auto first = a.reserve({"x", "a"});
  auto second = b.reserve({"x", "b"});
  const auto late = (*second)->wait(Deadline::in(std::chrono::milliseconds(20)));
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::kDeadline);
  EXPECT_TRUE((*first)->wait(soon()).has_value());
}

TEST(MemoryEntries, LeaveTheLedgerWithTheirOwner) {
  runtime::DeviceMemory memory(DeviceId{0}, Bytes{100});
  {
    MemoryEntries entries(&memory, "policy");
    ASSERT_TRUE(
        entries.add("weights", Bytes{80}, Eviction::kNever, Residency::kResident).has_value());
    EXPECT_EQ(memory.snapshot().used(), Bytes{80});
    EXPECT_FALSE(
        entries.add("more", Bytes{30}, Eviction::kNever, Residency::kResident).has_value());
  }
  EXPECT_EQ(memory.snapshot().used(), Bytes{0});
}

TEST(ActivationEstimate, CoversWhatTheEngineMeasures) {
  ModelConfig config;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.layer_count = 2;
  config.head_count = 4;
  config.kv_head_count = 2;
  config.head_dim = 8;
  config.vocab_size = 64;
  config.positions_max = 64;
  const WeightSet weights = random_weights(config, 1);
  TrainEngineOptions options;
  options.micro_batch_tokens_max = 256;
  auto engine = TrainEngine::create(config, weights.tensors(), options);
  ASSERT_TRUE(engine.has_value()) << engine.error().to_string();
  SequencePack pack;
  const std::vector<std::int32_t> prompt(16, 3), response(16, 5);
  for (int row = 0; row < 8; ++row) pack.add(prompt, response);
  ASSERT_TRUE((*engine)->update_sft(pack.view()).has_value());
  const Bytes measured = (*engine)->memory().activations_peak;
  EXPECT_GT(measured.value, 0);
  EXPECT_GE(activation_estimate(config, options).value, measured.value);
}

}  // namespace
}  // namespace troupe::actors
