// Proves that publications over random models, meshes and box partitions end with every byte of
// every target equal to gather-everything-then-slice, whichever way the ranks are spread over
// processes, whether sinks are plain memory or take calls, and with buckets from smaller than a row
// to larger than the model; again with new values; and that bytes that travel are the plan's.
// Seeds are printed.

#include "tests/reshard/execution/world.hpp"
#include "tests/reshard/random_case.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

namespace troupe::reshard::testing {
namespace {

constexpr auto kSpan = std::chrono::seconds(3);  // of each property
constexpr std::uint64_t kCasesMin = 8;           // of each, however slow the machine is

void expect_traffic(const World& world, const PublicationOutcome& outcome) {
  std::int64_t network = 0;
  std::int64_t all = 0;
  for (const auto& [member, received] : outcome.received) {
    network += received.network_bytes;
    all += received.local_bytes + received.pulled_bytes;
  }
  std::int64_t wanted = 0;
  for (const Op& op : world.plan->plan().ops) wanted += world.plan->plan().bytes_of(op);
  EXPECT_EQ(all, wanted);
  if (world.options_.spread == Spread::kRanks) {
    EXPECT_EQ(network, world.plan->plan().network_bytes());
  } else {
    EXPECT_LE(network, world.plan->plan().network_bytes());
  }
}

void run_case(std::uint64_t seed, Spread spread) {
  CaseMaker maker(seed);
  Case one = seed % 3 == 0 ? maker.box_case() : maker.model_case();
  // Cells of single numbers prove little more here and take thousands of messages.
  if (spread != Spread::kOneProcess)
    one.options.cell_bytes_max = std::max<std::int64_t>(one.options.cell_bytes_max, 64);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + one.text);
  Rng rng(seed, 77);
  WorldOptions options;
  options.spread = spread;
  options.call_sinks = rng.below(3) == 0;
  options.mixed_sinks = rng.below(2) == 0;
  options.target.bucket_bytes = std::int64_t{64}
                                << (rng.below(9) + (spread == Spread::kOneProcess ? 0 : 2));
  World world(one.source, one.target, one.options, options);
  ASSERT_TRUE(world.plan);
  for (std::uint64_t round = 1; round <= 2; ++round) {
    world.fill_source(round);
    const auto outcome = world.publish_as(world.id(static_cast<std::int64_t>(round)));
    ASSERT_TRUE(outcome.has_value()) << outcome.error().to_string();
    world.expect_published();
    expect_traffic(world, *outcome);
    if (::testing::Test::HasFailure()) return;
  }
}

void run_cases(Spread spread) {
  const auto seed =
      static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const auto end = std::chrono::steady_clock::now() + kSpan;
  std::uint64_t cases = 0;
  while ((cases < kCasesMin || std::chrono::steady_clock::now() < end) &&
         !::testing::Test::HasFailure())
    run_case(seed + cases++, spread);
  std::printf("%llu cases from seed %llu\n", static_cast<unsigned long long>(cases),
              static_cast<unsigned long long>(seed));
}

TEST(PublishProperty, InOneProcessTargetsEqualGatherThenSlice) { run_cases(Spread::kOneProcess); }

TEST(PublishProperty, WithAProcessPerNodeTargetsEqualGatherThenSlice) { run_cases(Spread::kNodes); }

TEST(PublishProperty, WithAProcessPerRankTargetsEqualGatherThenSlice) { run_cases(Spread::kRanks); }

}  // namespace
}  // namespace troupe::reshard::testing
