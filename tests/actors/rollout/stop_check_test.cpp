// When a sequence ends: stop strings across token borders (against a naive search after every
// token), stop ids, length, and their order.

#include "actors/rollout/stop_check.hpp"

#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace troupe::actors {
namespace {

/// Tokens of several bytes, one of none, and one that is half of a UTF-8 character.
std::string bytes_of(std::int32_t token) {
  static const std::array<std::string, 8> kTexts = {"a",  "b",   "ab",   "",
                                                    "ba", "aab", "\xc3", "\xa9"};
  return kTexts[static_cast<std::size_t>(token)];
}

TEST(StopCheck, FindsStopStringsLikeANaiveSearch) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    SamplingOptions options;
    options.max_new_tokens = 40;
    for (std::uint64_t i = rng.below(3) + 1; i > 0; --i) {
      std::string stop;
      for (std::uint64_t c = rng.below(5) + 1; c > 0; --c)
        stop += bytes_of(static_cast<std::int32_t>(rng.below(8)));
      if (!stop.empty()) options.stop_strings.push_back(stop);
    }
    if (options.stop_strings.empty()) options.stop_strings.push_back("aa");
    std::string text;
    std::string naive;
    for (std::int64_t count = 1;; ++count) {
      const auto token = static_cast<std::int32_t>(rng.below(8));
      naive += bytes_of(token);
      std::size_t first = std::string::npos;
      for (const std::string& stop : options.stop_strings)
        first = std::min(first, naive.find(stop));
      const auto reason = stop_after(options, bytes_of, token, count, text);
      if (first != std::string::npos) {
        ASSERT_EQ(reason, StopReason::kStopString);
        ASSERT_EQ(text, naive.substr(0, first));
        break;
      }
      ASSERT_EQ(text, naive);
      if (count == options.max_new_tokens) {
        ASSERT_EQ(reason, StopReason::kLength);
        break;
      }
      ASSERT_FALSE(reason.has_value());
    }
  }
}

TEST(StopCheck, OrdersStringBeforeIdBeforeLength) {
  SamplingOptions options;
  options.max_new_tokens = 1;
  options.stop_ids = {2};
  std::string text;
  EXPECT_EQ(stop_after(options, {}, 1, 1, text), StopReason::kLength);
  EXPECT_EQ(stop_after(options, {}, 2, 1, text), StopReason::kStopId);
  EXPECT_EQ(text, "") << "no stop strings, no text";
  options.stop_strings = {"ab"};
  EXPECT_EQ(stop_after(options, bytes_of, 2, 1, text), StopReason::kStopString);
}

TEST(StopCheck, IgnoresStopIdsWhenToldTo) {
  SamplingOptions options;
  options.stop_ids = {2};
  options.ignore_eos = true;
  std::string text;
  EXPECT_FALSE(stop_after(options, {}, 2, 1, text).has_value());
}

TEST(SamplingOptions, NamesTheFieldThatIsOutOfRange) {
  const auto refuses = [](SamplingOptions options, const std::string& name) {
    const auto checked = options.check();
    ASSERT_FALSE(checked) << name;
    EXPECT_EQ(checked.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(checked.error().message.find(name), std::string::npos) << checked.error().message;
  };
  EXPECT_TRUE(SamplingOptions{}.check());
  refuses({.temperature = -0.1}, "temperature");
  refuses({.temperature = std::numeric_limits<double>::quiet_NaN()}, "temperature");
  refuses({.temperature = std::numeric_limits<double>::infinity()}, "temperature");
  refuses({.top_p = 0.0}, "top_p");
  refuses({.top_p = 1.01}, "top_p");
  refuses({.top_p = std::numeric_limits<double>::quiet_NaN()}, "top_p");
  refuses({.min_p = -0.5}, "min_p");
  refuses({.min_p = 1.5}, "min_p");
  refuses({.repetition_penalty = 0.0}, "repetition_penalty");
  refuses({.repetition_penalty = -1.0}, "repetition_penalty");
  refuses({.frequency_penalty = 3.0}, "frequency_penalty");
  refuses({.presence_penalty = -2.5}, "presence_penalty");
  refuses({.max_new_tokens = 0}, "max_new_tokens");
  refuses({.stop_strings = {"a", ""}}, "stop_strings");
}

}  // namespace
}  // namespace troupe::actors
