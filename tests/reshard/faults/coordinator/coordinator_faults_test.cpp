// Proves what a publication leaves behind when its coordinator, a process of its own, is killed or
// stopped in each state of the protocol: targets serve the old version or, those that a commit
// reached, the new one, byte for byte and nothing in between; sources thaw when their lease is
// over; another coordinator's publication brings everybody to one version; and what the old one
// says when it goes on comes too late.

#include "tests/reshard/faults/fault_sweep.hpp"

namespace troupe::reshard::testing {
namespace {

class CoordinatorSweep : public FaultSweep {
 protected:
  void sweep_all(int signal);
};

void CoordinatorSweep::sweep_all(int signal) {
  for (const State state : kStates) {
    SCOPED_TRACE(kStateNames[static_cast<std::size_t>(state)]);
    CoordinatorRelay relay(TROUPE_PUBLICATION_PEER, world_, next(version_ + 1));
    std::atomic<bool> commits{false};
    struck_ = false;
    const auto strike = [&] {
      if (!struck_.exchange(true)) relay.child().signal(signal);
    };
    relay.on_command = [&](const Command& command) {
      if (command.kind == CommandKind::kCommit) commits = true;
      if (state == State::kCommit && command.kind == CommandKind::kCommit) strike();
      if (state == State::kReceive && command.kind == CommandKind::kReceive) strike();
    };
    relay.on_reply = [&](const Reply& reply) {
      if (state == State::kBegin && reply.kind == ReplyKind::kReady) strike();
      if (state == State::kVerified && reply.kind == ReplyKind::kVerified) strike();
    };
    for (int i = 0; i < 50 && !struck_; ++i) relay.run(200ms);  // it may be silent for a while
    relay.run(400ms);
    EXPECT_TRUE(struck_);
    // Members finish what they were told; nobody ever serves anything in between.
    std::this_thread::sleep_for(300ms);
    for (const auto& [rank, seen] : look()) {
      SCOPED_TRACE(fmt::format("target rank {}", rank));
      if (!commits || seen.first == version_) {
        EXPECT_EQ(seen, old_.at(rank));
      } else {
        EXPECT_EQ(seen.first, version_ + 1);
        EXPECT_NE(seen.second, old_.at(rank).second);
      }
    }
    ++version_;
    heal();  // another coordinator; sources wait for the end of their lease
    if (HasFatalFailure()) return;
    relay.child().signal(SIGCONT);
    relay.run(400ms);  // what it says now comes too late
    EXPECT_EQ(look(), old_);
  }
}

TEST_F(CoordinatorSweep, AKilledCoordinatorLeavesWholeVersionsAndNobodyFrozen) {
  sweep_all(SIGKILL);
}
TEST_F(CoordinatorSweep, AStoppedCoordinatorIsFencedOffWhenItGoesOn) { sweep_all(SIGSTOP); }

}  // namespace
}  // namespace troupe::reshard::testing
