// Proves how device time is shared out: by hand on small logs, and by conservation on random ones.

#include "sim/world/pool_use.hpp"

#include "runtime/base/rng.hpp"
#include "sim/engine/duration.hpp"

#include <gtest/gtest.h>

namespace troupe::sim {
namespace {

TimePoint at(double s) { return TimePoint{} + to_duration(s); }

std::vector<DevicePool> two_pools() {
  return {{.name = "train", .device = {}, .devices = 4},
          {.name = "rollout", .device = {}, .devices = 2}};
}

PhaseSpan span(const char* role, const char* phase, std::size_t pool, int first, int devices,
               double begin, double end) {
  return {.role = role,
          .phase = phase,
          .pool = pool,
          .first_device = first,
          .devices = devices,
          .begin = at(begin),
          .end = at(end)};
}

TEST(PoolUse, NamesWhatADeviceWaitsFor) {
  const std::vector<PhaseSpan> spans{
      span("rollout", "generate", 1, 0, 1, 0, 4), span("rollout", "generate", 1, 1, 1, 0, 2),
      span("reward", "score", 0, 0, 0, 4, 5), span("policy", "update", 0, 0, 4, 5, 8),
      span("policy", "publish", 0, 0, 4, 8, 9)};
  const auto uses = pool_use(two_pools(), spans, at(0), at(10));
  EXPECT_NEAR(uses[0].busy_by.at("policy/update"), 0.3, 1e-12);
  EXPECT_NEAR(uses[0].busy_by.at("policy/publish"), 0.1, 1e-12);
  EXPECT_NEAR(uses[0].idle_by.at("rollout"), 0.4, 1e-12);
  EXPECT_NEAR(uses[0].idle_by.at("reward"), 0.1, 1e-12);
  EXPECT_NEAR(uses[0].idle_by.at("host"), 0.1, 1e-12);
  EXPECT_NEAR(uses[1].busy_by.at("rollout/generate"), 0.3, 1e-12);
  EXPECT_NEAR(uses[1].idle_by.at("rollout"), 0.1, 1e-12) << "the other one still generates";
  EXPECT_NEAR(uses[1].idle_by.at("training"), 0.3, 1e-12);
  EXPECT_NEAR(uses[1].idle_by.at("weights"), 0.1, 1e-12);
}

TEST(PoolUse, CountsADeadReplicaAsIdleByItsFailure) {
  const auto uses =
      pool_use(two_pools(), std::vector{span("rollout", "failed", 1, 0, 1, 1, 3)}, at(0), at(4));
  EXPECT_NEAR(uses[1].idle_by.at("failure"), 0.25, 1e-12);
  EXPECT_NEAR(uses[1].idle_by.at("host"), 0.75, 1e-12);
  EXPECT_NEAR(uses[1].idle_share, 1, 1e-12);
}

TEST(PoolUse, SharesAddUpWhateverOverlaps) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    std::vector<PhaseSpan> spans;
    const char* phases[] = {"generate", "update", "forward", "publish", "failed", "checkpoint"};
    for (std::uint64_t i = rng.below(30); i > 0; --i) {
      const double begin = static_cast<double>(rng.below(100)) / 10;
      spans.push_back(span("role", phases[rng.below(6)], rng.below(2),
                           static_cast<int>(rng.below(4)), static_cast<int>(rng.below(4)), begin,
                           begin + static_cast<double>(rng.below(50)) / 10));
    }
    for (const PoolUse& use : pool_use(two_pools(), spans, at(2), at(9))) {
      double busy = 0;
      double idle = 0;
      for (const auto& [who, share] : use.busy_by) busy += share;
      for (const auto& [cause, share] : use.idle_by) idle += share;
      EXPECT_NEAR(busy + idle, 1, 1e-9);
      EXPECT_NEAR(idle, use.idle_share, 1e-9);
    }
  }
}

}  // namespace
}  // namespace troupe::sim
