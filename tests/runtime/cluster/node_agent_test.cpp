// Proves with real links and processes that a node agent and an AgentLauncher keep their promises:
// places, exits with their root cause, log lines, liveness of ranks, controllers and agents (killed
// and stopped), revoked reservations, drains, and a head that comes, goes and comes back.

#include "runtime/cluster/node_agent.hpp"

#include "runtime/cluster/agent_launcher.hpp"
#include "runtime/cluster/head_messages.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/link/link_hub.hpp"
#include "tests/runtime/cluster/agent_parts.hpp"
#include "tests/runtime/cluster/process_watch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <mutex>

namespace troupe::runtime {
namespace {

using testing::alive;
using testing::becomes_true;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ProcessWatch;
using ::testing::SizeIs;
using ::testing::StartsWith;
using namespace std::chrono_literals;

std::vector<std::string> rank(std::vector<std::string> words) {
  words.insert(words.begin(), {TROUPE_CLUSTER_AGENT, "rank"});
  return words;
}

/// A controller in this process.
class Controller {
 public:
  explicit Controller(ActorSystem& system, const std::string& address,
                      const std::string& job = "job")
      : hub_(*LinkHub::open(system, testing::link_of(PeerRole::kController, job))), job_(job) {
    AgentLauncherOptions options;
    options.job = job;
    options.agent_grace = 1s;
    options.locate = [address](const std::string&, int) -> result<AgentPlace> {
      return AgentPlace{.node = "gpu-1", .address = address};
    };
    options.print = [this](std::string_view text) {
      const std::lock_guard lock(mutex_);
      printed_ += text;
    };
    launcher_ = *AgentLauncher::open(system, *hub_, std::move(options));
  }
  result<void> launch(int number, std::vector<std::string> command,
                      const std::string& reservation = "pool") {
    RankLaunch launch{.job = job_,
                      .group = "policy",
                      .rank = RankId{number},
                      .reservation = reservation,
                      .bundle = number,
                      .controller = "127.0.0.1:1",
                      .command = std::move(command)};
    return launcher_
        ->launch(launch,
                 [this](Error error) {
                   const std::lock_guard lock(mutex_);
                   exits_.push_back(std::move(error));
                 })
        .wait(Deadline::in(20s));
  }
  std::vector<Error> exits(std::size_t count, Duration span = 10s) {
    becomes_true(
        [&] {
          const std::lock_guard lock(mutex_);
          return exits_.size() >= count;
        },
        span);
    const std::lock_guard lock(mutex_);
    return exits_;
  }
  std::string first_exit(Duration span = 10s) {
    const auto all = exits(1, span);
    return all.empty() ? "no exit" : all[0].message;
  }
  bool prints(const std::string& text) {
    return becomes_true(
        [&] {
          const std::lock_guard lock(mutex_);
          return printed_.find(text) != std::string::npos;
        },
        10s);
  }
  std::string printed() {
    const std::lock_guard lock(mutex_);
    return printed_;
  }
  AgentLauncher& launcher() { return *launcher_; }
  void end() { launcher_ = nullptr; }

 private:
  std::mutex mutex_;
  std::vector<Error> exits_;
  std::string printed_;
  std::unique_ptr<LinkHub> hub_;
  std::string job_;
  std::unique_ptr<AgentLauncher> launcher_;
};

class NodeAgentTest : public ::testing::Test {
 protected:
  void open(NodeAgentOptions options = {}) {
    options.name = "gpu-1";
    options.policy.controller_grace = 500ms;
    hub_ = *LinkHub::open(system_, testing::link_of(PeerRole::kNode, "gpu-1"));
    auto agent = NodeAgent::open(system_, hub_.get(), std::move(options));
    ASSERT_TRUE(agent) << agent.error().to_string();
    agent_ = std::move(*agent);
  }
  int pid_of(int number) {
    for (const RankState& state : agent_->state().ranks) {
      if (state.rank.value == number && state.phase != RankPhase::kEnded) return state.pid;
    }
    return 0;
  }

  ActorSystem system_;
  std::unique_ptr<LinkHub> hub_;
  std::unique_ptr<NodeAgent> agent_;
};

TEST_F(NodeAgentTest, ARankRunsWhereItsReservationSays) {
  NodeAgentOptions options;
  std::string asked;
  options.place = [&](const RankStart& start) -> result<RankPlace> {
    asked = start.reservation + " " + std::to_string(start.bundle);
    if (start.reservation != "pool")
      return fail(ErrorCode::kNotFound, "no reservation {}", start.reservation);
    return RankPlace{.cores = {0}, .devices = {1}, .visible = {"GPU-x"}, .memory_max = {}};
  };
  open(std::move(options));
  Controller controller(system_, agent_->address());
  ASSERT_TRUE(controller.launch(3, rank({"say", "hello", "say", "there", "sleep"})));
  EXPECT_EQ(asked, "pool 3");
  EXPECT_TRUE(controller.prints("[gpu-1 policy/3] hello\n"));
  const NodeState state = agent_->state();
  ASSERT_THAT(state.ranks, SizeIs(1));
  EXPECT_THAT(state.ranks[0].cores, ElementsAre(0));
  EXPECT_THAT(state.ranks[0].devices, ElementsAre("GPU-x"));
  EXPECT_EQ(state.ranks[0].phase, RankPhase::kRunning);
  const auto refused = controller.launch(4, rank({"sleep"}), "gone");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("no reservation gone"));
}

TEST_F(NodeAgentTest, ExitsCarryTheirRootCauseAndLastLines) {
  open();
  Controller controller(system_, agent_->address());
  ASSERT_TRUE(controller.launch(0, rank({"say", "it breaks", "exit", "7"})));
  EXPECT_THAT(controller.first_exit(),
              StartsWith("policy rank 0 on gpu-1 exited with code 7 after "));
  EXPECT_THAT(controller.first_exit(), HasSubstr("| it breaks"));
  EXPECT_TRUE(controller.prints("it breaks"));
  const auto failed = controller.launch(1, {"/no/rank"});
  ASSERT_FALSE(failed);
  EXPECT_EQ(
      failed.error().message,
      "policy rank 1 on gpu-1 could not be started: exec /no/rank: No such file or directory");
  EXPECT_THAT(controller.exits(1), SizeIs(1));
}

TEST_F(NodeAgentTest, AKilledRankIsReportedAsKilled) {
  open();
  Controller controller(system_, agent_->address());
  ASSERT_TRUE(controller.launch(0, rank({"say", "up", "sleep"})));
  ASSERT_TRUE(controller.prints("up"));
  ::kill(pid_of(0), SIGKILL);
  EXPECT_THAT(controller.first_exit(),
              StartsWith("policy rank 0 on gpu-1 was killed by signal 9 (SIGKILL) after"));
}

TEST_F(NodeAgentTest, AStoppedRankIsFoundAndKilledWithinItsLease) {
  open();
  Controller controller(system_, agent_->address());
  ASSERT_TRUE(controller.launch(0, rank({"say", "up", "sleep"})));
  ASSERT_TRUE(controller.prints("up"));
  const int pid = pid_of(0);
  ::kill(pid, SIGSTOP);
  const auto before = SteadyClock().now();
  const std::string said = controller.first_exit();
  EXPECT_LT(SteadyClock().now() - before, testing::kDeadAfter + 1500ms);
  EXPECT_THAT(said, StartsWith("policy rank 0 on gpu-1 was stopped by its agent after"));
  EXPECT_THAT(said, HasSubstr("silent"));
  EXPECT_THAT(said, HasSubstr("T (stopped)")) << "what its threads were doing";
  EXPECT_FALSE(alive(pid));
}

TEST_F(NodeAgentTest, ARankThatClosesItsChannelButStaysIsKilled) {
  open();
  Controller controller(system_, agent_->address());
  ASSERT_TRUE(controller.launch(0, rank({"ignore", "15", "leave", "sleep"})));
  EXPECT_THAT(controller.first_exit(), HasSubstr("its channel to the agent is down"));
}

TEST_F(NodeAgentTest, ARankThatNeverDialsIsKilled) {
  NodeAgentOptions options;
  options.policy.rank_connects_within = 300ms;
  open(std::move(options));
  Controller controller(system_, agent_->address());
  ASSERT_TRUE(controller.launch(0, testing::child({"sleep"})));
  EXPECT_THAT(controller.first_exit(), HasSubstr("it has not dialled its agent within 0.3 s"));
}

TEST_F(NodeAgentTest, ARankThatIsStoppedBeforeItDialsIsKilledWithin3Seconds) {
  open();
  Controller controller(system_, agent_->address());
  ASSERT_TRUE(controller.launch(0, rank({"stop", "sleep"})));
  const auto before = SteadyClock().now();
  const std::string said = controller.first_exit();
  EXPECT_LT(SteadyClock().now() - before, 3s + 1500ms);
  EXPECT_THAT(said, HasSubstr("it has been in a stop (SIGSTOP) for 2."));
  EXPECT_THAT(said, HasSubstr("has not dialled its agent"));
  EXPECT_THAT(said, HasSubstr("T (stopped)")) << "what its threads were doing";
}

TEST_F(NodeAgentTest, AStuckRankIsSaidOnceWithWhatItsThreadsDo) {
  NodeAgentOptions options;
  options.policy.stuck_after = 300ms;
  open(std::move(options));
  Controller controller(system_, agent_->address());
  ASSERT_TRUE(controller.launch(0, rank({"progress", "5", "update", "sleep"})));
  EXPECT_TRUE(controller.prints("stuck: policy rank 0 has been in update for"));
  EXPECT_TRUE(controller.prints("S (sleeping)"));
  EXPECT_TRUE(agent_->state().ranks.at(0).stuck);
  EXPECT_EQ(agent_->state().ranks.at(0).doing, "update");
  ::kill(pid_of(0), SIGKILL);
  EXPECT_THAT(controller.first_exit(), HasSubstr("has been in update for"));
}

TEST_F(NodeAgentTest, StopEndsOneRankAndTheEndOfTheJobAll) {
  std::atomic<int> over = 0;
  std::atomic<int> jobs_over = 0;
  NodeAgentOptions options;
  options.rank_over = [&](const RankExit& exit) {
    EXPECT_TRUE(exit.expected);
    ++over;
  };
  options.job_over = [&](const std::string& job) {
    EXPECT_EQ(job, "job");
    ++jobs_over;
  };
  open(std::move(options));
  Controller controller(system_, agent_->address());
  ASSERT_TRUE(controller.launch(0, rank({"sleep"})));
  ASSERT_TRUE(controller.launch(1, rank({"sleep"})));
  controller.launcher().stop("policy", RankId{0});
  EXPECT_THAT(controller.first_exit(), StartsWith("policy rank 0 on gpu-1 ended as asked after"));
  EXPECT_EQ(over, 1);
  controller.end();
  EXPECT_TRUE(becomes_true([&] { return over == 2 && jobs_over == 1; }));
  EXPECT_TRUE(agent_->state().jobs.empty());
}

TEST_F(NodeAgentTest, AConnectionThatBreaksIsMadeAgainAndNothingIsLost) {
  open();
  Controller controller(system_, agent_->address());
  ASSERT_TRUE(controller.launch(0, rank({"say", "zero", "sleep"})));
  ASSERT_TRUE(controller.launch(1, rank({"say", "one", "sleep"})));
  ASSERT_TRUE(controller.prints("zero") && controller.prints("one"));
  const int first = pid_of(0);
  const int second = pid_of(1);
  const auto channel = controller.launcher().channel_to(agent_->address());
  ASSERT_TRUE(channel);
  channel->close(Error{.code = ErrorCode::kIo, .message = "cable", .origin = {}, .causes = {}});
  ::kill(second, SIGKILL);  // ends while nobody is there to hear it
  EXPECT_THAT(controller.first_exit(), StartsWith("policy rank 1 on gpu-1 was killed by signal 9"));
  std::this_thread::sleep_for(800ms);  // more than the controller's grace
  EXPECT_TRUE(alive(first));
  ASSERT_TRUE(controller.launch(2, rank({"sleep"})));
  controller.end();
  EXPECT_THAT(controller.exits(3), SizeIs(3)) << "each launch has one exit";
  EXPECT_TRUE(becomes_true([&] { return !alive(first); }));
}

TEST_F(NodeAgentTest, ARevokedReservationKillsItsRanks) {
  open();
  Controller controller(system_, agent_->address());
  ASSERT_TRUE(controller.launch(0, rank({"sleep"})));
  agent_->revoke(
      "pool",
      Error{.code = ErrorCode::kDeadline, .message = "lease expired", .origin = {}, .causes = {}});
  EXPECT_THAT(controller.first_exit(), HasSubstr("its reservation pool is over: lease expired"));
}

TEST_F(NodeAgentTest, OnlyTheRightPeersAreHeard) {
  open();
  const auto stranger = *LinkHub::open(system_, testing::link_of(PeerRole::kRank, "job/policy/0"));
  const auto refused = stranger->connect(agent_->address(), nullptr, Deadline::in(5s)).wait();
  ASSERT_FALSE(refused) << "no such rank runs here";
  const auto hub = *LinkHub::open(system_, testing::link_of(PeerRole::kController, "mine"));
  const auto channel = hub->connect(agent_->address(), nullptr, Deadline::in(5s)).wait();
  ASSERT_TRUE(channel) << channel.error().to_string();
  const auto ask = [&](std::string_view method, auto message) {
    const auto answer =
        (*channel)->request(method, *encode_value(message), Deadline::in(5s)).wait();
    return answer ? std::string("yes") : answer.error().message;
  };
  EXPECT_THAT(ask(kJobHello, JobHello{.job = "other", .instance = 1}),
              HasSubstr("is not the controller of job other"));
  RankStart start;
  start.job = "other";
  EXPECT_THAT(ask(kRankStart, start), HasSubstr("may not start ranks of job other"));
  start.job = "mine";
  EXPECT_THAT(ask(kRankStart, start), HasSubstr("group name ''"));
  start.group = "policy";
  EXPECT_THAT(ask(kRankStart, start), HasSubstr("not its controller's")) << "before its hello";
  EXPECT_THAT(ask(kAgentDrain, AgentDrain{.grace = 0s, .reason = "no"}),
              HasSubstr("may not drain"));
  EXPECT_THAT(ask(kJobEnd, JobEnd{.job = "x", .grace = 0s}), HasSubstr("not known"));
  EXPECT_THAT(ask(kRankStart, JobEnd{.job = "x", .grace = 0s}), HasSubstr("RankStart"));
  EXPECT_THAT(ask("rank.dance", start), HasSubstr("no method"));
  EXPECT_EQ(ask(kAgentStatus, start), "yes");
}

TEST_F(NodeAgentTest, AFloodOfLinesDoesNotHoldUpControl) {
  NodeAgentOptions options;
  options.policy.rank_connects_within = 0s;
  open(std::move(options));
  Controller controller(system_, agent_->address());
  ASSERT_TRUE(controller.launch(
      0, testing::child({"flood", "2", "a line of some eighty bytes as programs like it"})));
  ASSERT_TRUE(controller.launch(1, testing::child({"sleep"})));
  const auto before = SteadyClock().now();
  controller.launcher().stop("policy", RankId{1});
  EXPECT_THAT(controller.first_exit(), HasSubstr("policy rank 1"));
  EXPECT_LT(SteadyClock().now() - before, 1500ms);
  EXPECT_THAT(controller.exits(2), SizeIs(2));
  EXPECT_TRUE(controller.prints("dropped "));
  EXPECT_LT(controller.printed().size(), 4U << 20U);
}

/// Counts registrations, as a head.
class FakeHead final : public ChannelService {
 public:
  void on_request(Channel& channel, std::string_view method, std::span<const std::byte> payload,
                  Deadline, Responder responder) override {
    const std::lock_guard lock(mutex_);
    if (method == "node.leave") left_ = true;
    if (method == kNodeRegister) {
      registered_.push_back(*decode_value<NodeRegister>(payload));
      channel_ = Ref<Channel>(&channel);
      if (refuse_once_) {
        refuse_once_ = false;
        return responder.reply(fail(ErrorCode::kAlreadyExists, "an earlier gpu-1 is up"));
      }
    }
    responder.reply(encode_value(NodeRegistered{.head_instance = 5, .cluster = "test"}));
  }
  void on_notify(Channel&, std::string_view method, std::span<const std::byte> payload) override {
    const std::lock_guard lock(mutex_);
    if (method == kNodeState) states_.push_back(*decode_value<NodeState>(payload));
  }
  std::vector<NodeRegister> registered() {
    const std::lock_guard lock(mutex_);
    return registered_;
  }
  std::vector<NodeState> states() {
    const std::lock_guard lock(mutex_);
    return states_;
  }
  bool left() {
    const std::lock_guard lock(mutex_);
    return left_;
  }
  Ref<Channel> channel() {
    const std::lock_guard lock(mutex_);
    return channel_;
  }
  void refuse_once() {
    const std::lock_guard lock(mutex_);
    refuse_once_ = true;
  }

 private:
  std::mutex mutex_;
  std::vector<NodeRegister> registered_;
  std::vector<NodeState> states_;
  Ref<Channel> channel_;
  bool left_ = false;
  bool refuse_once_ = false;
};

TEST_F(NodeAgentTest, TheHeadMayComeAndGoWhileRanksRun) {
  const auto head = std::make_shared<FakeHead>();
  head->refuse_once();
  const auto accept = [head](const PeerName&,
                             const Ref<Channel>&) -> result<std::shared_ptr<ChannelService>> {
    return head;
  };
  auto head_hub = *LinkHub::open(system_, testing::link_of(PeerRole::kHead, "head"));
  const auto bound = head_hub->listen("127.0.0.1", 0, accept);
  ASSERT_TRUE(bound);
  NodeAgentOptions options;
  options.head = bound->to_string();
  options.report_every = 50ms;
  options.inventory.cpus = 3;
  std::atomic<int> ups = 0;
  std::atomic<int> downs = 0;
  options.head_up = [&](const Ref<Channel>&, const NodeRegistered& head_is) {
    EXPECT_EQ(head_is.cluster, "test");
    ++ups;
  };
  options.head_down = [&](const Error&) { ++downs; };
  open(std::move(options));
  ASSERT_TRUE(becomes_true([&] { return ups == 1; }, 10s)) << "tries again after a refusal";
  EXPECT_EQ(head->registered().back().name, "gpu-1");
  EXPECT_EQ(head->registered().back().address, agent_->address());
  EXPECT_DOUBLE_EQ(head->registered().back().inventory.cpus, 3);

  Controller controller(system_, agent_->address());
  ASSERT_TRUE(controller.launch(0, rank({"say", "up", "sleep"})));
  EXPECT_TRUE(becomes_true([&] {
    const auto states = head->states();
    return !states.empty() && states.back().ranks.size() == 1 &&
           states.back().ranks[0].phase == RankPhase::kRunning;
  }));
  head_hub = nullptr;
  ASSERT_TRUE(becomes_true([&] { return downs == 1; }, 10s));
  const int pid = pid_of(0);
  std::this_thread::sleep_for(700ms);
  EXPECT_TRUE(alive(pid)) << "a job does not notice";

  head_hub = *LinkHub::open(system_, testing::link_of(PeerRole::kHead, "head"));
  ASSERT_TRUE(head_hub->listen("127.0.0.1", bound->port, accept));
  ASSERT_TRUE(becomes_true([&] { return ups == 2; }, 10s));
  EXPECT_THAT(head->registered().back().state.ranks, SizeIs(1)) << "it brings what runs";

  const auto ordered = head->channel()->request(
      kAgentDrain, *encode_value(AgentDrain{.grace = 1s, .reason = "maintenance"}),
      Deadline::in(5s));
  EXPECT_EQ(agent_->wait_stop({}), "maintenance");
  EXPECT_TRUE(agent_->wait_drained(Deadline::in(5s)));
  EXPECT_THAT(controller.first_exit(), HasSubstr("node gpu-1 is draining: maintenance"));
  EXPECT_TRUE(becomes_true([&] { return head->states().back().draining; }));
  const auto refused = controller.launch(1, rank({"sleep"}));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("draining"));
  agent_ = nullptr;
  EXPECT_TRUE(head->left());
}

/// Agents and controllers that die need processes of their own.
class AgentProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto table = ProcessTable::open();
    ASSERT_TRUE(table);
    table_ = std::move(*table);
  }
  ProcessTable::Key start(std::vector<std::string> words, ProcessWatch& watch) {
    words.insert(words.begin(), TROUPE_CLUSTER_AGENT);
    ProcessSpec spec;
    spec.name = words[1];
    spec.command = std::move(words);
    return table_->spawn(std::move(spec), watch.events()).value_or(0);
  }
  std::string address_of(ProcessWatch& agent) {
    const std::string said = agent.wait_output("agent 127.0.0.1:");
    const auto begin = said.find("127.0.0.1:");
    return said.substr(begin, said.find('\n', begin) - begin);
  }
  std::unique_ptr<ProcessTable> table_;
};

TEST_F(AgentProcessTest, RanksDieWithAKilledAgentAndTheControllerLearnsWhy) {
  ActorSystem system;
  ProcessWatch agent;
  start({"agent", "gpu-1"}, agent);
  Controller controller(system, address_of(agent));
  ASSERT_TRUE(controller.launch(0, rank({"pid", "sleep"})));
  ASSERT_TRUE(controller.launch(1, rank({"sleep"})));
  ASSERT_TRUE(controller.prints("pid "));
  const std::string printed = controller.printed();
  const int pid = std::stoi(printed.substr(printed.find("pid ") + 4));
  ASSERT_TRUE(alive(pid));
  ::kill(agent.pid(), SIGKILL);
  EXPECT_TRUE(becomes_true([&] { return !alive(pid); }, 1s));
  const auto exits = controller.exits(2, 5s);
  ASSERT_THAT(exits, SizeIs(2));
  EXPECT_THAT(exits[0].message, HasSubstr("is lost: the agent of node gpu-1 at 127.0.0.1:"));
  EXPECT_EQ(exits[0].code, ErrorCode::kRankDead);
}

TEST_F(AgentProcessTest, AStoppedAgentIsFoundWithinItsLease) {
  ActorSystem system;
  ProcessWatch agent;
  start({"agent", "gpu-1"}, agent);
  Controller controller(system, address_of(agent));
  ASSERT_TRUE(controller.launch(0, rank({"pid", "sleep"})));
  ASSERT_TRUE(controller.prints("pid "));
  const std::string printed = controller.printed();
  const int pid = std::stoi(printed.substr(printed.find("pid ") + 4));
  const auto before = SteadyClock().now();
  ::kill(agent.pid(), SIGSTOP);
  EXPECT_THAT(controller.first_exit(), HasSubstr("the agent of node gpu-1"));
  EXPECT_LT(SteadyClock().now() - before, testing::kDeadAfter + 1500ms);
  // Awake again, it ends the rank that was given up.
  ::kill(agent.pid(), SIGCONT);
  EXPECT_TRUE(becomes_true([&] { return !alive(pid); }, 5s));
}

TEST_F(AgentProcessTest, RanksDieWithAKilledController) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    ProcessWatch agent;
    start({"agent", "gpu-1"}, agent);
    ProcessWatch controller;
    const auto key = start({"controller", address_of(agent), "2"}, controller);
    controller.wait_output("controller is up");
    const int pid = controller.number_after("pid");
    ASSERT_TRUE(alive(pid));
    ::kill(controller.pid(), signal);
    EXPECT_TRUE(becomes_true([&] { return !alive(pid); }, testing::kDeadAfter + 2s)) << signal;
    table_->kill(key, "test is over");
  }
}

TEST_F(AgentProcessTest, SigtermDrainsAnAgent) {
  ActorSystem system;
  ProcessWatch agent;
  const auto key = start({"agent", "gpu-1"}, agent);
  Controller controller(system, address_of(agent));
  ASSERT_TRUE(controller.launch(0, rank({"say", "up", "sleep"})));
  ASSERT_TRUE(controller.prints("up"));
  table_->signal(key, SIGTERM);
  EXPECT_EQ(agent.exit().code, 0) << agent.output();
  EXPECT_THAT(agent.output(), HasSubstr("drained"));
  EXPECT_THAT(controller.first_exit(), HasSubstr("node gpu-1 is draining"));
}

TEST_F(AgentProcessTest, ALaunchAtADeadAddressEndsAtItsDeadline) {
  ActorSystem system;
  const auto hub = *LinkHub::open(system, testing::link_of(PeerRole::kController, "job"));
  AgentLauncherOptions options;
  options.job = "job";
  options.start_within = 500ms;
  options.locate = [](const std::string&, int bundle) -> result<AgentPlace> {
    if (bundle == 9) return fail(ErrorCode::kNotFound, "no bundle 9");
    return AgentPlace{.node = "gpu-1", .address = "127.0.0.1:1"};
  };
  const auto launcher = *AgentLauncher::open(system, *hub, std::move(options));
  RankLaunch launch{
      .job = "job", .group = "g", .rank = RankId{0}, .controller = "", .command = {"x"}};
  const auto late = launcher->launch(launch, {}).wait(Deadline::in(5s));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(late.error().message,
              HasSubstr("node gpu-1 at 127.0.0.1:1 has not started it within 0.5 s"));
  EXPECT_FALSE(late.error().causes.empty()) << "why nobody answers";
  launch.bundle = 9;
  EXPECT_EQ(launcher->launch(launch, {}).wait().error().code, ErrorCode::kNotFound);
  launch.bundle = 0;
  auto stopped = launcher->launch(launch, {});
  launcher->stop("g", RankId{0});
  EXPECT_EQ(stopped.wait(Deadline::in(5s)).error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace troupe::runtime
