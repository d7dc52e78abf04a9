// What the tests of this folder share: the worlds, the programs, and the `main` that makes a child
// of this very binary a rank.

#include "tests/runtime/rank_host/rank_worlds.hpp"

#include "runtime/cluster/rank_host.hpp"
#include "runtime/comm/collective_gloo.hpp"
#include "runtime/link/channel_pair.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace troupe::runtime::testing {
namespace {

result<std::unique_ptr<Actor>> make_actor(WorkerContext& context,
                                          std::span<const std::byte> bytes) {
  TROUPE_TRY(const ActorSpec spec, decode_value<ActorSpec>(bytes));
  return Actor::make(context, spec);
}

/// A worker whose `echo` is another one: what a rank of another build would have.
struct OtherActor {
  explicit OtherActor(WorkerContext&) {}
  std::int64_t echo(std::int64_t value) { return value; }
  static constexpr auto methods() {
    return std::tuple{method<&OtherActor::echo>("echo", args(broadcast), returns(all))};
  }
};

RankPrograms make_programs() {
  RankPrograms programs;
  programs.add<Actor>("actor", make_actor);
  programs.add<OtherActor>("other");
  return programs;
}

/// Threads that meet by name: the ranks of a group of rank servers in one process.
class LocalMeeting {
 public:
  std::unique_ptr<Collective> join(const CollectiveSite& site) {
    const std::lock_guard lock(mutex_);
    auto& group = groups_[site.group];
    if (group.empty()) group = make_local_group(site.size, {.name = site.group});
    auto own = std::move(group[static_cast<std::size_t>(site.rank)]);
    if (std::none_of(group.begin(), group.end(), [](const auto& one) { return one != nullptr; }))
      groups_.erase(site.group);
    return own;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<std::unique_ptr<Collective>>> groups_;
};

}  // namespace

const RankPrograms& test_programs() {
  static const RankPrograms kPrograms = [] {
    RankPrograms programs = make_programs();
    programs.set_collectives([](const CollectiveSite& site, Deadline deadline) {
      return make_gloo_collective(
          {.name = site.group, .rank = site.rank, .size = site.size, .host = site.host}, site.store,
          deadline);
    });
    return programs;
  }();
  return kPrograms;
}

int (*test_role)(const std::string&) = nullptr;

ThreadLauncher::~ThreadLauncher() {
  for (auto& thread : threads_) thread.join();
}

pending<void> ThreadLauncher::launch(const RankLaunch& launch, std::function<void(Error)> on_exit) {
  const RankRecord record = RankRecord::of(launch);
  auto server = std::make_shared<RankServer>(RankServerOptions{.record = record,
                                                               .programs = &programs_,
                                                               .lanes = TransportLanes::kTcp,
                                                               .device_lanes = lanes_});
  // The controller's end needs its service before the pair is made, and gets it when accepted.
  struct Late final : ChannelService {
    std::shared_ptr<ChannelService> service;
    void on_request(Channel& channel, std::string_view method, std::span<const std::byte> payload,
                    Deadline deadline, Responder responder) override {
      service->on_request(channel, method, payload, deadline, std::move(responder));
    }
    void on_notify(Channel& channel, std::string_view method,
                   std::span<const std::byte> payload) override {
      service->on_notify(channel, method, payload);
    }
    void on_down(Channel& channel, const Error& cause) override {
      service->on_down(channel, cause);
    }
  };
  auto late = std::make_shared<Late>();
  ChannelPairOptions options;
  options.first = PeerName{PeerRole::kController, launch.job};
  options.second = PeerName{PeerRole::kRank, record.peer_name()};
  auto [own, theirs] = make_channel_pair(late, server->service(), options);
  auto accepted = job_->accept(options.second, own);
  if (!accepted) return pending<void>::of(fail(accepted.error()));
  late->service = *accepted;
  const std::lock_guard lock(mutex_);
  running_[{launch.group, launch.rank.value}] = {server, theirs};
  threads_.emplace_back([server, channel = theirs, on_exit = std::move(on_exit)] {
    const RankOutcome outcome = server->serve(channel, std::chrono::seconds(2));
    on_exit(Error{.code = ErrorCode::kRankDead,
                  .message = "its server ended: " + outcome.cause.message,
                  .origin = {},
                  .causes = {}});
  });
  return pending<void>::of({});
}

void ThreadLauncher::stop(const std::string& group, RankId rank) {
  Running running;
  {
    const std::lock_guard lock(mutex_);
    const auto found = running_.find({group, rank.value});
    if (found == running_.end()) return;
    running = found->second;
  }
  running.server->close();
}

std::string_view kind_name(Kind kind) {
  return kind == Kind::kThreads ? "threads" : kind == Kind::kServers ? "servers" : "processes";
}

World::World(Kind kind, WorldOptions options) : kind_(kind) {
  std::string pattern = std::filesystem::temp_directory_path() / "troupe_ranks_XXXXXX";
  TROUPE_CHECK(mkdtemp(pattern.data()) != nullptr, "{}", pattern);
  folder_ = pattern;
  system_ = std::make_unique<ActorSystem>();
  if (kind == Kind::kThreads) return;
  ClusterJobOptions job;
  job.job = "test";
  job.command = {"/proc/self/exe"};
  job.exchange = options.exchange;
  if (kind == Kind::kServers) {
    auto meeting = std::make_shared<LocalMeeting>();
    RankPrograms programs = make_programs();
    programs.set_collectives(
        [meeting](const CollectiveSite& site, Deadline) -> result<std::unique_ptr<Collective>> {
          return meeting->join(site);
        });
    servers_ = std::make_unique<ThreadLauncher>(std::move(programs));
    job.lanes = TransportLanes::kTcp;
    auto opened = ClusterJob::open(*system_, nullptr, *servers_, job);
    TROUPE_CHECK(opened, "{}", opened.error().to_string());
    job_ = std::move(*opened);
    servers_->set_job(*job_);
    return;
  }
  options.link.self = PeerName{PeerRole::kController, "test"};
  options.link.token = options.token;
  auto hub = LinkHub::open(*system_, options.link);
  TROUPE_CHECK(hub, "{}", hub.error().to_string());
  hub_ = std::move(*hub);
  ProcessLauncherOptions launching;
  launching.environment = options.environment;
  launching.token = options.token;
  launching.stop_grace = std::chrono::milliseconds(200);
  launching.print = [](std::string_view) {};
  auto launcher = ProcessLauncher::open(std::move(launching));
  TROUPE_CHECK(launcher, "{}", launcher.error().to_string());
  processes_ = std::move(*launcher);
  auto opened = ClusterJob::open(*system_, hub_.get(), *processes_, job);
  TROUPE_CHECK(opened, "{}", opened.error().to_string());
  job_ = std::move(*opened);
}

World::~World() {
  job_.reset();
  servers_.reset();
  processes_.reset();
  hub_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

result<WorkerGroup<Actor>> World::create(GroupOptions options, const ActorSpec& spec) {
  if (kind_ == Kind::kThreads) {
    return WorkerGroup<Actor>::create(*system_, std::move(options), [spec](WorkerContext& context) {
      return Actor::make(context, spec);
    });
  }
  RemoteProgram program{.name = "actor"};
  TROUPE_TRY(program.spec, encode_value(spec));
  return WorkerGroup<Actor>::create(*job_, std::move(options), std::move(program));
}

result<WorkerGroup<Actor>> World::create(int ranks, const ActorSpec& spec) {
  GroupOptions options;
  options.name = "policy";
  options.mesh = Mesh::data_parallel(ranks);
  options.create_deadline = std::chrono::seconds(20);
  return create(std::move(options), spec);
}

std::string World::door() { return folder_ / fmt::format("door{}", ++doors_); }
void World::open(const std::string& path) { std::ofstream file(path); }
bool World::inside(const std::string& path, int ranks) {
  return becomes_true([&] {
    for (int rank = 0; rank < ranks; ++rank) {
      if (!std::filesystem::exists(fmt::format("{}.{}", path, rank))) return false;
    }
    return true;
  });
}

}  // namespace troupe::runtime::testing

int main(int count, char** words) {
  if (const auto code = troupe::runtime::maybe_run_rank(troupe::runtime::testing::test_programs()))
    return *code;
  if (const char* const role = std::getenv("TROUPE_TEST_ROLE")) {
    const std::string name = role;
    unsetenv("TROUPE_TEST_ROLE");
    return troupe::runtime::testing::test_role(name);
  }
  ::testing::InitGoogleTest(&count, words);
  return RUN_ALL_TESTS();
}
