#pragma once

// A world of member processes that are struck in a chosen state of a publication, and what must be
// true of it afterwards.
// **Threads:** one; strikes come from the threads of links.

#include "tests/reshard/process/coordinator_process.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>

namespace troupe::reshard::testing {

using namespace std::chrono_literals;

/// 24 MiB, two sources of tp 2, two targets of tp 2 on another node.
inline const std::string kModel = "model:24:2:1:2:1:8:8";

enum class State : std::uint8_t { kBegin, kReceive, kVerified, kCommit };
inline constexpr std::array<State, 4> kStates{State::kBegin, State::kReceive, State::kVerified,
                                              State::kCommit};
inline constexpr std::array<const char*, 4> kStateNames{"begin", "mid receive", "verified",
                                                        "commit"};

class FaultSweep : public ::testing::Test {
 protected:
  FaultSweep() : world_(TROUPE_PUBLICATION_PEER, kModel, "tcp", 2 << 20) {
    ::signal(SIGPIPE, SIG_IGN);  // members die while they are spoken to
    heal();
  }

  PublishOptions next(std::int64_t version) {
    PublishOptions options = world_.next(version);
    options.begin_within = 800ms;
    options.receive_within = 2s;
    options.commit_within = 800ms;
    return options;
  }
  /// Everybody gets a fresh version; some attempts, as members that went on find their way back.
  void heal() {
    ++version_;
    std::string error = "not tried";
    for (int attempt = 0; attempt < 20 && !error.empty(); ++attempt) {
      if (attempt > 0) std::this_thread::sleep_for(500ms);
      try {
        world_.fill_sources(static_cast<std::uint64_t>(version_));
      } catch (const std::exception& refused) {  // a lease has not run out yet
        error = refused.what();
        continue;
      }
      const auto outcome = world_.publish(world_.next(version_));
      error = outcome ? "" : outcome.error().to_string();
    }
    ASSERT_EQ(error, "");
    old_ = look();
    for (const auto& [rank, seen] : old_) ASSERT_EQ(seen.first, version_);
    world_.fill_sources(static_cast<std::uint64_t>(version_ + 1));
  }
  using Seen = std::map<std::int32_t, std::pair<std::int64_t, std::uint32_t>>;
  Seen look(std::optional<Member> but = {}) {
    Seen seen;
    for (const RankLayout& rank : world_.plan->target().ranks) {
      if (but != Member{Side::kTarget, rank.rank}) seen[rank.rank] = world_.look(rank.rank);
    }
    return seen;
  }
  void strike(const Member& victim, int signal) {
    if (!struck_.exchange(true)) world_.links.at(victim)->child().signal(signal);
  }
  /// Arms the strike; what it waits for happens on the way of the next publication.
  void arm(State state, const Member& victim, int signal) {
    struck_ = false;
    for (const auto& [member, link] : world_.links) {
      link->on_call = [this, state, victim, signal, to = member](const Command& command) {
        const bool begin = state == State::kBegin && command.kind == CommandKind::kBegin;
        const bool commit = state == State::kCommit && command.kind == CommandKind::kCommit;
        if ((begin || commit) && to == victim) strike(victim, signal);
        if (state == State::kReceive && command.kind == CommandKind::kReceive && !late_.joinable())
          late_ = std::thread([this, victim, signal] {
            std::this_thread::sleep_for(4ms);
            strike(victim, signal);
          });
      };
      link->on_reply = [this, state, victim, signal](const Reply& reply) {
        const bool verified = state == State::kVerified && reply.kind == ReplyKind::kVerified &&
                              (victim.side == Side::kSource || reply.from == victim);
        if (verified) strike(victim, signal);
      };
    }
  }
  void disarm() {
    if (late_.joinable()) late_.join();
    for (const auto& [member, link] : world_.links) {
      link->on_call = nullptr;
      link->on_reply = nullptr;
    }
  }
  void sweep(const Member& victim, int signal) {
    for (const State state : kStates) {
      SCOPED_TRACE(kStateNames[static_cast<std::size_t>(state)]);
      arm(state, victim, signal);
      const auto start = std::chrono::steady_clock::now();
      const auto outcome = world_.publish(next(version_ + 1));
      const auto took = std::chrono::steady_clock::now() - start;
      disarm();
      EXPECT_TRUE(struck_);
      EXPECT_LE(took, 10s);
      expect_one_version(victim, state, outcome);
      if (signal == SIGKILL)
        world_.restart(victim);
      else
        world_.links.at(victim)->child().signal(SIGCONT);
      if (HasFatalFailure()) return;
      ++version_;  // whoever has it must not be told of other bits under that name
      heal();
      if (HasFatalFailure()) return;
    }
  }
  void expect_one_version(const Member& victim, State state,
                          const result<PublicationOutcome>& outcome) {
    const std::string error = outcome ? "" : outcome.error().to_string();
    const bool decided = error.empty() || error.find("serve it") != std::string::npos;
    if (state == State::kBegin) {
      EXPECT_FALSE(decided) << error;
    }
    if (state == State::kCommit) {
      EXPECT_TRUE(decided) << error;
    }
    for (const auto& [rank, seen] : look(victim)) {
      SCOPED_TRACE(fmt::format("target rank {}: {}", rank, error));
      EXPECT_EQ(seen.first, decided ? version_ + 1 : version_);
      if (!decided) {
        EXPECT_EQ(seen, old_.at(rank));
      }
      if (decided) {
        EXPECT_NE(seen.second, old_.at(rank).second);
      }
    }
    if (!error.empty()) {
      EXPECT_NE(error.find(member_text(victim)), std::string::npos) << error;
    }
    if (error.empty() || !decided || victim.side != Side::kTarget) return;
    // The error says who serves the new version, and of whom that is not known.
    for (const auto& [rank, seen] : look(victim))
      EXPECT_NE(error.find(fmt::format("target rank {}", rank)), std::string::npos) << error;
  }

  ProcessWorld world_;
  std::int64_t version_ = 0;
  Seen old_;
  std::atomic<bool> struck_{false};
  std::thread late_;
};

}  // namespace troupe::reshard::testing
