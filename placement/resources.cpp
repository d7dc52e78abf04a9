#include "placement/resources.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace troupe::placement {
namespace {

constexpr std::array<std::pair<SelectorOp, std::string_view>, 6> kOps{
    {{SelectorOp::kEqual, "="},
     {SelectorOp::kNotEqual, "!="},
     {SelectorOp::kIn, "in"},
     {SelectorOp::kNotIn, "not in"},
     {SelectorOp::kExists, "exists"},
     {SelectorOp::kAbsent, "absent"}}};

}  // namespace

result<Amount> parse_amount(double value, std::string_view what) {
  if (std::isnan(value)) return fail(ErrorCode::kInvalidArgument, "{} is not a number", what);
  if (value < 0) return fail(ErrorCode::kInvalidArgument, "{} is negative: {}", what, value);
  if (value > kAmountMax.value())
    return fail(ErrorCode::kInvalidArgument, "{} is {}, at most {}", what, value,
                to_string(kAmountMax));
  const Amount amount{std::llround(value * static_cast<double>(Amount::kUnitsPerOne))};
  if (amount.units == 0 && value > 0)
    return fail(ErrorCode::kInvalidArgument, "{} is {}, finer than 0.0001", what, value);
  return amount;
}

std::string to_string(Amount amount) {
  if (amount.is_whole()) return fmt::format("{}", amount.units / Amount::kUnitsPerOne);
  const char* sign = amount.units < 0 ? "-" : "";
  const std::int64_t units = amount.units < 0 ? -amount.units : amount.units;
  std::string text =
      fmt::format("{}{}.{:04}", sign, units / Amount::kUnitsPerOne, units % Amount::kUnitsPerOne);
  text.erase(text.find_last_not_of('0') + 1);
  return text;
}

Resources& Resources::operator+=(const Resources& other) {
  gpu += other.gpu;
  cpu += other.cpu;
  memory += other.memory;
  for (const auto& [name, amount] : other.named) named[name] += amount;
  return *this;
}

bool Resources::is_zero() const {
  return gpu.units == 0 && cpu.units == 0 && memory.value == 0 &&
         std::all_of(named.begin(), named.end(),
                     [](const auto& entry) { return entry.second.units == 0; });
}

std::string to_string(const Resources& resources) {
  std::string text;
  const auto add = [&text](std::string_view name, const std::string& amount) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, amount);
  };
  if (resources.gpu.units != 0) add("gpu", to_string(resources.gpu));
  if (resources.cpu.units != 0) add("cpu", to_string(resources.cpu));
  if (resources.memory.value != 0) add("memory", to_string(resources.memory));
  for (const auto& [name, amount] : resources.named) {
    if (amount.units != 0) add(name, to_string(amount));
  }
  return text.empty() ? "nothing" : text;
}

std::string_view selector_op_name(SelectorOp op) {
  for (const auto& [known, name] : kOps) {
    if (known == op) return name;
  }
  return "unknown";
}

result<SelectorOp> parse_selector_op(std::string_view text) {
  for (const auto& [op, name] : kOps) {
    if (name == text) return op;
  }
  return fail(ErrorCode::kInvalidArgument,
              "unknown selector operator '{}': want =, !=, in, not in, exists or absent", text);
}

bool matches(const LabelSelector& selector, const Labels& labels) {
  const auto found = labels.find(selector.label);
  const bool exists = found != labels.end();
  const bool listed = exists && std::find(selector.values.begin(), selector.values.end(),
                                          found->second) != selector.values.end();
  switch (selector.op) {
    case SelectorOp::kEqual:
    case SelectorOp::kIn:
      return listed;
    case SelectorOp::kNotEqual:
    case SelectorOp::kNotIn:
      return !listed;
    case SelectorOp::kExists:
      return exists;
    case SelectorOp::kAbsent:
      return !exists;
  }
  return false;
}

std::string to_string(const LabelSelector& selector) {
  const std::string_view op = selector_op_name(selector.op);
  switch (selector.op) {
    case SelectorOp::kIn:
    case SelectorOp::kNotIn:
      return fmt::format("{} {} [{}]", selector.label, op, fmt::join(selector.values, ", "));
    case SelectorOp::kExists:
    case SelectorOp::kAbsent:
      return fmt::format("{} {}", selector.label, op);
    default:
      return fmt::format("{} {} {}", selector.label, op,
                         selector.values.empty() ? "" : selector.values[0]);
  }
}

}  // namespace troupe::placement
