// Proves fair sharing: cases by hand, and for thousands of random changes the conditions that
// determine max-min rates, with every byte sent once.

#include "sim/network/shared_links.hpp"

#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace troupe::sim {
namespace {

struct Ends : FlowListener {
  void on_sent(Simulation& simulation, std::uint64_t flow) override {
    at[flow] = seconds(simulation.now().time_since_epoch());
  }
  std::map<std::uint64_t, double> at;
};

TEST(SharedLinks, TwoFlowsShareALinkAndTheSecondSpeedsUpWhenTheFirstEnds) {
  Simulation simulation;
  SharedLinks links;
  Ends ends;
  const LinkId link = *links.add_link("nic", 100);
  const auto small = links.send(simulation, {link}, 100, 0, ends);
  const auto large = links.send(simulation, {link}, 300, 0, ends);
  ASSERT_TRUE(simulation.run());
  EXPECT_NEAR(ends.at[small], 2, 1e-8);  // 100 bytes at 50 bytes/s
  EXPECT_NEAR(ends.at[large], 4, 1e-8);  // then 200 bytes at 100 bytes/s
  EXPECT_NEAR(links.bytes_sent(link), 400, 1e-6);
}

TEST(SharedLinks, EightDevicesBehindOneAdapterGetAnEighthEach) {
  Simulation simulation;
  SharedLinks links;
  Ends ends;
  const LinkId nic = *links.add_link("nic", 8e9);
  std::vector<std::uint64_t> flows;
  for (int i = 0; i < 8; ++i) {
    const LinkId port = *links.add_link("port", 300e9);
    flows.push_back(links.send(simulation, {port, nic}, 1e9, 1e-3, ends));
  }
  ASSERT_TRUE(simulation.run());
  for (const std::uint64_t flow : flows) EXPECT_NEAR(ends.at[flow], 1.001, 1e-6);
}

TEST(SharedLinks, AFlowHeldBackElsewhereLeavesItsShareToOthers) {
  Simulation simulation;
  SharedLinks links;
  Ends ends;
  const LinkId wide = *links.add_link("spine", 100);
  const LinkId narrow = *links.add_link("nic", 10);
  const auto held = links.send(simulation, {wide, narrow}, 100, 0, ends);
  const auto free = links.send(simulation, {wide}, 900, 0, ends);
  ASSERT_TRUE(simulation.run_until(TimePoint(Duration(1))));
  EXPECT_NEAR(links.rate_of(held), 10, 1e-9);
  EXPECT_NEAR(links.rate_of(free), 90, 1e-9);
  ASSERT_TRUE(simulation.run());
  EXPECT_NEAR(ends.at[free], 10, 1e-7);
}

TEST(SharedLinks, ALinkThatDegradesSlowsWhatCrossesIt) {
  Simulation simulation;
  SharedLinks links;
  Ends ends;
  const LinkId link = *links.add_link("nic", 100);
  const auto flow = links.send(simulation, {link}, 200, 0, ends);
  ASSERT_TRUE(simulation.run_until(TimePoint(std::chrono::seconds(1))));
  ASSERT_TRUE(links.set_rate(simulation, link, 10));
  ASSERT_TRUE(simulation.run());
  EXPECT_NEAR(ends.at[flow], 11, 1e-7);
  const auto refused = links.set_rate(simulation, link, -5);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("link nic: -5"), std::string::npos);
  EXPECT_FALSE(links.add_link("none", 0));
}

/// Starts, cancels and degrades at random, and checks the rates after each event.
class Traffic : public Process, public FlowListener {
 public:
  explicit Traffic(std::uint64_t seed) : rng_(seed) {
    const std::size_t count = 2 + rng_.below(10);
    for (std::size_t i = 0; i < count; ++i)
      ids_.push_back(*links_.add_link("link", 1 + static_cast<double>(rng_.below(1000))));
    for (int i = 0; i < 80; ++i)
      simulation_.after(Duration(static_cast<std::int64_t>(rng_.below(3'000'000'000))), *this,
                        static_cast<std::uint32_t>(rng_.below(10)));
  }
  void on_event(Simulation& simulation, const Event& event) override {
    if (event.kind < 7) {
      std::vector<LinkId> path;
      for (const LinkId id : ids_) {
        if (rng_.below(3) == 0) path.push_back(id);
      }
      const auto bytes = static_cast<double>(rng_.below(1000));
      const std::uint64_t flow =
          links_.send(simulation, path, bytes, 1e-3 * static_cast<double>(rng_.below(5)), *this);
      bytes_[flow] = bytes;
      for (const LinkId id : path) expected_[id.index] += bytes;
      paths_[flow] = path;
    } else if (event.kind < 9 && !bytes_.empty()) {
      const std::uint64_t flow = bytes_.begin()->first;
      const double left = links_.cancel(simulation, flow);
      EXPECT_GE(left, 0);
      EXPECT_LE(left, bytes_[flow]);
      for (const LinkId id : paths_[flow]) expected_[id.index] -= left;
      bytes_.erase(flow);
    } else {
      EXPECT_TRUE(links_.set_rate(simulation, ids_[rng_.below(ids_.size())],
                                  1 + static_cast<double>(rng_.below(1000))));
    }
    links_.check_rates();
  }
  void on_sent(Simulation&, std::uint64_t flow) override {
    links_.check_rates();
    EXPECT_EQ(bytes_.erase(flow), 1U);
  }
  std::string_view name_of(std::uint32_t) const override { return "traffic"; }

  void run() {
    ASSERT_TRUE(simulation_.run());
    EXPECT_TRUE(bytes_.empty());
    EXPECT_EQ(links_.flows(), 0U);
    for (const LinkId id : ids_)
      EXPECT_NEAR(links_.bytes_sent(id), expected_[id.index], 1e-6 * (1 + expected_[id.index]));
  }

 private:
  Rng rng_;
  Simulation simulation_;
  SharedLinks links_;
  std::vector<LinkId> ids_;
  std::map<std::uint64_t, double> bytes_;
  std::map<std::uint64_t, std::vector<LinkId>> paths_;
  std::map<std::uint32_t, double> expected_;
};

TEST(SharedLinks, RatesAreMaxMinFairAfterEveryEvent) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Traffic traffic(seed);
    traffic.run();
  }
}

}  // namespace
}  // namespace troupe::sim
