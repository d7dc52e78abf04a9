// What it proves: the spin budget follows what spinning has brought, within its bounds.
// How: by hand.

#include "runtime/comm/spin_budget.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace troupe::runtime {
namespace {

using namespace std::chrono_literals;

TEST(SpinBudget, ShrinksToASixteenthWhereSpinningNeverPays) {
  SpinBudget budget(80us);
  EXPECT_EQ(budget.get(), 80us);
  budget.failed();
  EXPECT_EQ(budget.get(), 40us);
  for (int i = 0; i < 10; ++i) budget.failed();
  EXPECT_EQ(budget.get(), 5us);
}

TEST(SpinBudget, GrowsBackToTheMostWhenItPays) {
  SpinBudget budget(80us);
  for (int i = 0; i < 10; ++i) budget.failed();
  budget.paid();
  EXPECT_EQ(budget.get(), 10us);
  for (int i = 0; i < 10; ++i) budget.paid();
  EXPECT_EQ(budget.get(), 80us);
}

TEST(SpinBudget, OfNothingStaysNothing) {
  SpinBudget budget(0us);
  budget.paid();
  budget.failed();
  EXPECT_EQ(budget.get(), 0us);
}

}  // namespace
}  // namespace troupe::runtime
