// Proves what a publication between real processes leaves behind when a member is killed or stopped
// in each state of the protocol: as a begin reaches it, while bytes come in, when a target has
// verified, and as the commit goes out. Surviving targets are looked at byte for byte: all at the
// old version, or, once the commit was decided, all at the new one, with an error that says so and
// names the victim. After each strike the victim goes on or is started anew, and the next
// publication, in full, brings everybody to the same version.

#include "tests/reshard/faults/fault_sweep.hpp"

namespace troupe::reshard::testing {
namespace {

TEST_F(FaultSweep, AKilledSourceLeavesOneVersionEverywhere) { sweep({Side::kSource, 1}, SIGKILL); }
TEST_F(FaultSweep, AStoppedSourceLeavesOneVersionEverywhere) { sweep({Side::kSource, 0}, SIGSTOP); }
TEST_F(FaultSweep, AKilledTargetIsReportedAndTheOthersAgree) { sweep({Side::kTarget, 8}, SIGKILL); }
TEST_F(FaultSweep, AStoppedTargetIsReportedAndTheOthersAgree) {
  sweep({Side::kTarget, 9}, SIGSTOP);
}

}  // namespace
}  // namespace troupe::reshard::testing
