// Proves that sharded training and publication between rank processes give the bits of one process,
// and that a rank of either side that is killed while weights are published ends the run soon, with
// one error that names it, while the targets go on serving the version that they had. Rank
// processes are children of this binary.

#include "tests/actors/roles_sharded/sharded_case.hpp"
#include "tests/support/process_job.hpp"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>
#include <thread>

namespace troupe::actors {
namespace {

using namespace testing;

class ShardedClusterTest : public ShardedCase {
 protected:
  void SetUp() override {
    ShardedCase::SetUp();
    job_.open(system_);
  }

  result<std::unique_ptr<GroupWorld>> cluster_world(const WorldOptions& options) {
    return job_.world(options);
  }

  troupe::testing::ProcessJob job_;
};

TEST_F(ShardedClusterTest, GivesTheBitsOfOneProcessOnEveryKindOfLayout) {
  for (const Layout& layout : std::vector<Layout>{{.name = "tp2·fsdp2 → tp2",
                              .train = {.tp = 2, .sharding = Sharding::kFsdp},
                              .rollout_tp = 2},
                                                  {.name = "pp2·dp2 zero1 → tp4",
                                                  .train = {.pp = 2, .sharding = Sharding::kZero1},
                                                  .rollout_tp = 4}}) {
    const auto here = run_here(layout, 2);
    ASSERT_TRUE(here.has_value()) << layout.name << ": " << here.error().to_string();
    auto cluster = cluster_world(options(layout));
    ASSERT_TRUE(cluster.has_value()) << layout.name << ": " << cluster.error().to_string();
    runtime::Executor executor;
    const auto there = executor.run(sharded_run(**cluster, 1, 2));
    ASSERT_TRUE(there.has_value()) << layout.name << ": " << there.error().to_string();
    expect_same_bits(*here, *there, layout.name);
  }
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The child of this process that is rank `rank` of `group`; 0 when there is none.
pid_t process_of(const std::string& group, int rank) {
  const std::string parent = std::to_string(::getpid());
  DIR* const folder = ::opendir("/proc");
  if (folder == nullptr) return 0;
  pid_t found = 0;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string_view name(entry->d_name);
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc()) continue;
    const std::string status = text_of("/proc/" + std::to_string(pid) + "/status");
    if (status.find("PPid:\t" + parent + "\n") == std::string::npos) continue;
    const std::string environment = text_of("/proc/" + std::to_string(pid) + "/environ");
    if (environment.find("\"group\":\"" + group + "\"") == std::string::npos) continue;
    if (environment.find("\"rank\":" + std::to_string(rank)) != std::string::npos) found = pid;
  }
  ::closedir(folder);
  return found;
}

/// Publishes until it fails; the number that went well.
runtime::task<std::int64_t> publish_until_it_fails(GroupWorld& world, std::optional<Error>& error,
                                                   TimePoint& failed) {
  for (std::int64_t done = 0;; ++done) {
    try {
      co_await world.weights().publish();
    } catch (const runtime::Failure& failure) {
      error = failure.error();
      failed = SteadyClock().now();
      co_return done;
    }
  }
}

runtime::task<Batch> sample_once(GroupWorld& world) {
  SamplingOptions sampling;
  sampling.max_new_tokens = 4;
  Batch numbered = value_or_throw(number_samples(sharded_prompts(), 2));
  Batch batch = co_await world.rollout().generate(std::move(numbered), std::move(sampling));
  co_return value_or_throw(batch.resolve());
}

TEST_F(ShardedClusterTest, NoticesARankThatIsKilledWhileWeightsArePublished) {
  WorldOptions wanted =
      options({.name = "tp2 → tp2", .train = {.tp = 2}, .rollout_tp = 2, .devices = 2});
  wanted.publication.canary_tokens = 0;  // nothing but the transactions
  wanted.publication.sleep = std::nullopt;
  constexpr int kTrials = 4;
  for (int trial = 0; trial < kTrials; ++trial) {
    const std::string victim = trial % 2 == 0 ? "policy" : "rollout";
    auto world = cluster_world(wanted);
    ASSERT_TRUE(world.has_value()) << world.error().to_string();
    const pid_t pid = process_of(victim, 1);
    ASSERT_GT(pid, 0) << victim;
    TimePoint killed{};
    std::thread killer([&killed, pid, trial] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300 + 17 * trial));
      killed = SteadyClock().now();
      ::kill(pid, SIGKILL);
    });
    std::optional<Error> error;
    TimePoint failed{};
    runtime::Executor executor;
    const auto done = executor.run(publish_until_it_fails(**world, error, failed));
    killer.join();
    ASSERT_TRUE(done.has_value()) << done.error().to_string();
    ASSERT_TRUE(error.has_value());
    EXPECT_GT(*done, 0) << victim;
    EXPECT_LT(seconds(failed - killed), 1.5) << victim << ": " << error->to_string();
    EXPECT_NE(error->to_string().find("rank 1"), std::string::npos) << error->to_string();
    RecordProperty(victim + std::to_string(trial), error->to_string());
    if (victim == "rollout") continue;
    // The old version serves: what was committed last, and nothing newer.
    const auto batch = executor.run(sample_once(**world));
    ASSERT_TRUE(batch.has_value()) << batch.error().to_string();
    for (const std::int64_t version : batch->column(column::kVersions).values<std::int64_t>())
      EXPECT_EQ(version, (*world)->weights().version().value);
  }
}

}  // namespace

}  // namespace troupe::actors

int main(int count, char** words) { return troupe::testing::run_as_rank_or_tests(count, words); }
