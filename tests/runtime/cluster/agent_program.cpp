// Node agents, controllers and ranks in processes of their own, for tests that kill them.
//   cluster_agent agent NAME [HEAD]          prints `agent ADDRESS`; SIGTERM drains it
//   cluster_agent controller ADDRESS COUNT   starts COUNT ranks at the agent and sleeps
//   cluster_agent rank WORD…                 dials its agent, then obeys the words
// Words: stop (SIGSTOP, before it dials; first word only), say TEXT, sleep, exit N, raise N,
// progress STEPS DOING, ignore N, leave (closes the link)

#include "runtime/base/log.hpp"
#include "runtime/cluster/agent_launcher.hpp"
#include "runtime/cluster/node_agent.hpp"
#include "runtime/cluster/node_protocol.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/link/link_hub.hpp"
#include "tests/runtime/cluster/agent_parts.hpp"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace troupe::runtime {
namespace {

std::atomic<bool> told_to_stop = false;

void say(const std::string& text) {
  const std::string line = text + "\n";
  if (::write(1, line.data(), line.size()) < 0) std::_Exit(1);
}

void fail_with(const Error& error) {
  say("failed: " + error.to_string());
  std::_Exit(3);
}

[[noreturn]] void sleep_for_ever() {
  for (;;) ::pause();
}

int be_agent(const std::vector<std::string>& words) {
  ::signal(SIGTERM, [](int) { told_to_stop = true; });
  ActorSystem system;
  auto hub = LinkHub::open(system, testing::link_of(PeerRole::kNode, words.at(2)));
  if (!hub) fail_with(hub.error());
  NodeAgentOptions options;
  options.name = words.at(2);
  if (words.size() > 3) options.head = words[3];
  options.policy.controller_grace = std::chrono::seconds(1);
  options.policy.rank_connects_within = std::chrono::seconds(10);
  auto agent = NodeAgent::open(system, hub->get(), std::move(options));
  if (!agent) fail_with(agent.error());
  say("agent " + (*agent)->address());
  const std::string why = (*agent)->wait_stop([] { return told_to_stop.load(); });
  (*agent)->drain(std::chrono::seconds(2), why);
  const auto drained = (*agent)->wait_drained(Deadline::in(std::chrono::seconds(5)));
  say(drained ? "drained: " + why : drained.error().to_string());
  return drained ? 0 : 1;
}

int be_controller(const std::vector<std::string>& words, const std::string& self) {
  ActorSystem system;
  auto hub = LinkHub::open(system, testing::link_of(PeerRole::kController, "job"));
  if (!hub) fail_with(hub.error());
  AgentLauncherOptions options;
  options.job = "job";
  options.locate = [address = words.at(2)](const std::string&, int) -> result<AgentPlace> {
    return AgentPlace{.node = "", .address = address};
  };
  options.print = [](std::string_view text) {
    if (::write(1, text.data(), text.size()) < 0) std::_Exit(1);
  };
  auto launcher = AgentLauncher::open(system, **hub, std::move(options));
  if (!launcher) fail_with(launcher.error());
  for (int rank = 0; rank < std::stoi(words.at(3)); ++rank) {
    RankLaunch launch{.job = "job",
                      .group = "policy",
                      .rank = RankId{rank},
                      .controller = "127.0.0.1:1",
                      .command = {self, "rank", "pid", "sleep"}};
    const auto started =
        (*launcher)
            ->launch(launch, [](const Error& error) { say("exit " + error.message); })
            .wait(Deadline::in(std::chrono::seconds(20)));
    if (!started) fail_with(started.error());
  }
  say("controller is up");
  sleep_for_ever();
}

int be_rank(const std::vector<std::string>& words) {
  if (words.size() > 2 && words[2] == "stop") ::raise(SIGSTOP);
  const char* text = std::getenv("TROUPE_RANK");
  const auto record = RankRecord::from_json(text != nullptr ? text : "");
  if (!record) fail_with(record.error());
  ActorSystem system;
  auto hub = LinkHub::open(system, testing::link_of(PeerRole::kRank, record->peer_name()));
  if (!hub) fail_with(hub.error());
  auto agent = (*hub)
                   ->connect(record->agent, nullptr, Deadline::in(std::chrono::seconds(10)))
                   .wait(Deadline::in(std::chrono::seconds(10)));
  if (!agent) fail_with(agent.error());
  for (std::size_t at = 2; at < words.size(); ++at) {
    const std::string& word = words[at];
    const auto next = [&]() -> std::string { return at + 1 < words.size() ? words[++at] : ""; };
    if (word == "say") say(next());
    if (word == "pid") say("pid " + std::to_string(::getpid()));
    if (word == "sleep") sleep_for_ever();
    if (word == "exit") std::_Exit(std::stoi(next()));
    if (word == "raise") ::raise(std::stoi(next()));
    if (word == "ignore") ::signal(std::stoi(next()), SIG_IGN);
    if (word == "wait") std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(next())));
    if (word == "leave")
      (*agent)->close(
          Error{.code = ErrorCode::kAborted, .message = "leaves", .origin = {}, .causes = {}});
    if (word == "progress") {
      RankProgress progress;
      progress.steps = std::stoull(next());
      progress.doing = next();
      const auto sent = (*agent)->notify(kRankProgress, *encode_value(progress));
      if (!sent) fail_with(sent.error());
    }
  }
  return 0;
}

}  // namespace
}  // namespace troupe::runtime

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv, argv + argc);
  troupe::log::set_up(troupe::log::Level::kWarn);
  if (words.size() > 2 && words[1] == "agent") return troupe::runtime::be_agent(words);
  if (words.size() > 3 && words[1] == "controller")
    return troupe::runtime::be_controller(words, words[0]);
  if (words.size() > 1 && words[1] == "rank") return troupe::runtime::be_rank(words);
  std::fputs("usage: cluster_agent agent|controller|rank …\n", stderr);
  return 2;
}
