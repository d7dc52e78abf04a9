// What it proves: TROUPE_LANES chooses lanes, and a word that it does not know is an error.
// How: sets the variable of this process.

#include "runtime/comm/lane_interfaces.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace troupe::runtime {
namespace {

using ::testing::HasSubstr;

class LaneChoice : public ::testing::Test {
 protected:
  static result<TransportLanes> with(const char* value) {
    ::setenv(kLanesVariable, value, 1);
    return lanes_of_environment();
  }
  void TearDown() override { ::unsetenv(kLanesVariable); }
};

TEST_F(LaneChoice, IsAutomaticUnlessTcpIsAskedFor) {
  EXPECT_EQ(lanes_of_environment().value(), TransportLanes::kAuto);
  EXPECT_EQ(with("").value(), TransportLanes::kAuto);
  EXPECT_EQ(with("auto").value(), TransportLanes::kAuto);
  EXPECT_EQ(with("tcp").value(), TransportLanes::kTcp);
}

TEST_F(LaneChoice, RefusesOtherWords) {
  const auto refused = with("shm");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConfig);
  EXPECT_THAT(refused.error().message, HasSubstr("TROUPE_LANES is 'shm'"));
}

}  // namespace
}  // namespace troupe::runtime
