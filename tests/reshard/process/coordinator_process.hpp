#pragma once

// The coordinator of a publication in a process of its own: it calls members through its parent,
// which relays lines, so that it can die or stop alone.
//
//   PROGRAM --coordinator EPOCH VERSION DIGEST BEGIN_MS RECEIVE_MS COMMIT_MS MEMBER...
//   → call NUMBER SIDE RANK COMMAND      ← reply NUMBER REPLY      → over ok | over ERROR
//
// **Threads:** a relay has one per call under way and one that reads.
// **Invariants:** the coordinator dies with its relay; members do not.

#include "tests/reshard/process/member_process.hpp"

#include <functional>

namespace troupe::reshard::testing {

/// Members in their parent's hands.
class RelayedLink final : public MemberLink {
 public:
  struct Calls {
    std::mutex mutex;  ///< guards the following, and standard output
    std::uint64_t last = 0;
    std::map<std::uint64_t, runtime::completer<Reply>> open;
  };
  RelayedLink(Member member, Calls& calls) : member_(member), calls_(calls) {}
  Member member() const override { return member_; }
  runtime::pending<Reply> call(const Command& command, Deadline /*deadline*/) override {
    auto [answer, out] = runtime::make_pending<Reply>();
    const std::lock_guard lock(calls_.mutex);
    calls_.open[++calls_.last] = out;
    std::cout << "call " << calls_.last << ' ' << (member_.side == Side::kSource ? 0 : 1) << ' '
              << member_.rank << ' ' << test::to_hex(*runtime::encode_value(command)) << std::endl;
    return std::move(answer);
  }

 private:
  Member member_;
  Calls& calls_;
};

inline int run_coordinator(int argc, char** argv) {
  log::set_up(log::Level::kError);
  RelayedLink::Calls calls;
  PublishOptions options;
  options.id = {.epoch = std::stoull(argv[2]),
                .version = WeightVersion{std::stoll(argv[3])},
                .digest = std::stoull(argv[4]),
                .base = {}};
  options.begin_within = std::chrono::milliseconds(std::stoll(argv[5]));
  options.receive_within = std::chrono::milliseconds(std::stoll(argv[6]));
  options.commit_within = std::chrono::milliseconds(std::stoll(argv[7]));
  std::vector<std::unique_ptr<RelayedLink>> links;
  std::vector<MemberLink*> members;
  for (int i = 8; i < argc; ++i) {
    const std::string word = argv[i];
    const Side side = word[0] == 's' ? Side::kSource : Side::kTarget;
    links.push_back(std::make_unique<RelayedLink>(Member{side, std::stoi(word.substr(1))}, calls));
    members.push_back(links.back().get());
  }
  std::thread([&] {
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words(line);
      std::string verb, hex;
      std::uint64_t number = 0;
      words >> verb >> number >> hex;
      const std::lock_guard lock(calls.mutex);
      calls.open.at(number).complete(runtime::decode_value<Reply>(test::from_hex(hex)));
      calls.open.erase(number);
    }
    std::_Exit(1);  // the relay is gone
  }).detach();
  const auto outcome = publish(options, members);
  const std::lock_guard lock(calls.mutex);
  std::cout << "over " << (outcome ? std::string("ok") : outcome.error().message) << std::endl;
  std::_Exit(0);
}

/// Starts such a process and relays between it and the members of a world.
class CoordinatorRelay {
 public:
  /// `relayed` sees each command before its member does, and each reply before the coordinator.
  CoordinatorRelay(const std::string& program, ProcessWorld& world, const PublishOptions& options)
      : world_(world), child_(command(program, world, options)) {}
  ~CoordinatorRelay() {
    for (std::thread& thread : threads_) thread.join();
  }
  test::LineChild& child() { return child_; }
  std::function<void(const Command&)> on_command;
  std::function<void(const Reply&)> on_reply;

  /// Until it says that it is over, or has ended, or is silent for `within`; what it said.
  std::string run(std::chrono::milliseconds within) {
    try {
      for (;;) {
        std::istringstream words(child_.hear(within));
        std::string verb;
        words >> verb;
        if (verb == "over") {
          std::string rest;
          std::getline(words, rest);
          return rest;
        }
        std::string number, hex;
        int side = 0;
        std::int32_t rank = 0;
        words >> number >> side >> rank >> hex;
        relay({side == 0 ? Side::kSource : Side::kTarget, rank}, number,
              *runtime::decode_value<Command>(test::from_hex(hex)));
      }
    } catch (const std::runtime_error&) {  // it has ended, or is silent
    }
    return "";
  }

 private:
  static std::vector<std::string> command(const std::string& program, const ProcessWorld& world,
                                          const PublishOptions& options) {
    const auto ms = [](Duration span) {
      return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(span).count());
    };
    std::vector<std::string> words{program,
                                   "--coordinator",
                                   std::to_string(options.id.epoch),
                                   std::to_string(options.id.version.value),
                                   std::to_string(options.id.digest),
                                   ms(options.begin_within),
                                   ms(options.receive_within),
                                   ms(options.commit_within)};
    for (const auto& [member, link] : world.links)
      words.push_back((member.side == Side::kSource ? "s" : "t") + std::to_string(member.rank));
    return words;
  }
  void relay(const Member& to, const std::string& number, const Command& command) {
    if (on_command) on_command(command);
    threads_.emplace_back([this, to, number, command] {
      auto answer = world_.links.at(to)->call(command, Deadline::in(std::chrono::seconds(10)));
      const result<Reply> reply = answer.wait(Deadline::in(std::chrono::seconds(10)));
      if (!reply) return;
      const std::lock_guard lock(mutex_);
      if (on_reply) on_reply(*reply);
      try {
        child_.say("reply " + number + " " + test::to_hex(*runtime::encode_value(*reply)));
      } catch (const std::runtime_error&) {  // it is dead
      }
    });
  }

  ProcessWorld& world_;
  test::LineChild child_;
  std::mutex mutex_;  ///< guards the child's input
  std::vector<std::thread> threads_;
};

}  // namespace troupe::reshard::testing
