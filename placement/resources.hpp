#pragma once

// Amounts of resources in fixed point, labels, and selectors over labels.
//
// GPUs, CPU cores and named resources count in steps of 10⁻⁴, so that sums are exact and a device
// shared by ten tenths is full, not nearly full. Memory counts in bytes.
// **Threads:** value types and pure functions.
// **Invariants:** an `Amount` made by `parse_amount` is in [0, kAmountMax]; containers are ordered,
// so that nothing depends on hashes.

#include "runtime/base/result.hpp"
#include "runtime/base/units.hpp"

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::placement {

/// A number of devices, cores or named things, in units of 1/10,000.
struct Amount {
  static constexpr std::int64_t kUnitsPerOne = 10'000;
  std::int64_t units = 0;

  static constexpr Amount whole(std::int64_t count) { return Amount{count * kUnitsPerOne}; }
  constexpr bool is_whole() const { return units % kUnitsPerOne == 0; }
  constexpr double value() const { return static_cast<double>(units) / kUnitsPerOne; }
  constexpr auto operator<=>(const Amount&) const = default;
  constexpr Amount& operator+=(Amount other) {
    units += other.units;
    return *this;
  }
  constexpr Amount& operator-=(Amount other) {
    units -= other.units;
    return *this;
  }
  friend constexpr Amount operator+(Amount a, Amount b) { return Amount{a.units + b.units}; }
  friend constexpr Amount operator-(Amount a, Amount b) { return Amount{a.units - b.units}; }
};

/// Largest amount and largest memory that a spec or request may name.
inline constexpr Amount kAmountMax = Amount::whole(1'000'000'000);
inline constexpr Bytes kMemoryMax = Bytes{std::int64_t{1} << 56};

/// Nearest amount. kInvalidArgument, naming `what` and the value: not a number, infinite, negative,
/// above kAmountMax, or not zero but finer than 1/10,000.
result<Amount> parse_amount(double value, std::string_view what);

/// Shortest decimal text: `3`, `0.25`.
std::string to_string(Amount amount);

/// What a bundle asks for, or what a node has.
struct Resources {
  Amount gpu = {};
  Amount cpu = {};  ///< cores
  Bytes memory = {};
  std::map<std::string, Amount> named = {};

  bool operator==(const Resources&) const = default;
  Resources& operator+=(const Resources& other);
  bool is_zero() const;
};

/// `gpu 1, cpu 8, memory 64.0 GiB, license 2`; `nothing` when all are zero.
std::string to_string(const Resources& resources);

using Labels = std::map<std::string, std::string>;

enum class SelectorOp : std::uint8_t { kEqual, kNotEqual, kIn, kNotIn, kExists, kAbsent };

/// `=`, `!=`, `in`, `not in`, `exists`, `absent`.
std::string_view selector_op_name(SelectorOp op);
/// kInvalidArgument names the text and lists the operators.
result<SelectorOp> parse_selector_op(std::string_view text);

/// A condition on a node's labels. A missing label differs from every value.
struct LabelSelector {
  std::string label;
  SelectorOp op = SelectorOp::kEqual;
  std::vector<std::string> values = {};  ///< one for = and !=, one or more for in, none otherwise

  auto operator<=>(const LabelSelector&) const = default;
};

bool matches(const LabelSelector& selector, const Labels& labels);
/// `zone in [a, b]`.
std::string to_string(const LabelSelector& selector);

}  // namespace troupe::placement
