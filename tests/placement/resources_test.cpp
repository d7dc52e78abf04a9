// Proves that amounts are exact and bad ones are named, and what each label operator means.

#include "placement/resources.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace troupe::placement {
namespace {

using ::testing::HasSubstr;

std::string message_of(double value) {
  const auto amount = parse_amount(value, "gpu");
  return amount ? "fine" : amount.error().message;
}

TEST(Resources, TenTenthsAreExactlyOne) {
  Amount sum;
  for (int i = 0; i < 10; ++i) sum += parse_amount(0.1, "gpu").value();
  EXPECT_EQ(sum, Amount::whole(1));
  EXPECT_TRUE(sum.is_whole());
  EXPECT_EQ(to_string(parse_amount(0.25, "gpu").value()), "0.25");
  EXPECT_EQ(to_string(Amount::whole(3)), "3");
}

TEST(Resources, BadAmountsEachSayWhatIsWrong) {
  EXPECT_EQ(message_of(std::numeric_limits<double>::quiet_NaN()), "gpu is not a number");
  EXPECT_THAT(message_of(-1), HasSubstr("gpu is negative: -1"));
  EXPECT_THAT(message_of(std::numeric_limits<double>::infinity()), HasSubstr("at most 1000000000"));
  EXPECT_THAT(message_of(0.00001), HasSubstr("finer than 0.0001"));
  EXPECT_EQ(parse_amount(0, "gpu").value(), Amount{});
}

TEST(Resources, AreNamedShortly) {
  Resources resources{.gpu = Amount::whole(1), .cpu = Amount::whole(8), .memory = gibibytes(64)};
  resources.named["license"] = Amount::whole(2);
  EXPECT_EQ(to_string(resources), "gpu 1, cpu 8, memory 64.0 GiB, license 2");
  EXPECT_EQ(to_string(Resources{}), "nothing");
}

TEST(Selectors, MatchAsTheirOperatorSays) {
  const Labels labels{{"zone", "a"}};
  const auto holds = [&labels](const char* label, SelectorOp op, std::vector<std::string> values) {
    return matches({.label = label, .op = op, .values = std::move(values)}, labels);
  };
  EXPECT_TRUE(holds("zone", SelectorOp::kEqual, {"a"}));
  EXPECT_FALSE(holds("zone", SelectorOp::kEqual, {"b"}));
  EXPECT_TRUE(holds("zone", SelectorOp::kIn, {"b", "a"}));
  EXPECT_FALSE(holds("zone", SelectorOp::kNotIn, {"b", "a"}));
  EXPECT_TRUE(holds("rack", SelectorOp::kNotEqual, {"a"}))
      << "a missing label differs from every value";
  EXPECT_FALSE(holds("rack", SelectorOp::kEqual, {""}));
  EXPECT_TRUE(holds("zone", SelectorOp::kExists, {}));
  EXPECT_TRUE(holds("rack", SelectorOp::kAbsent, {}));
}

TEST(Selectors, UnknownOperatorsAreNamed) {
  for (const SelectorOp op : {SelectorOp::kEqual, SelectorOp::kNotEqual, SelectorOp::kIn,
                              SelectorOp::kNotIn, SelectorOp::kExists, SelectorOp::kAbsent})
    EXPECT_EQ(parse_selector_op(selector_op_name(op)).value(), op);
  const auto unknown = parse_selector_op("~=");
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("unknown selector operator '~='"));
}

}  // namespace
}  // namespace troupe::placement
