#include "placement/strategy.hpp"

#include <array>
#include <utility>

namespace troupe::placement {
namespace {

constexpr std::array<std::pair<Strategy, std::string_view>, 4> kStrategies{
    {{Strategy::kPack, "PACK"},
     {Strategy::kSpread, "SPREAD"},
     {Strategy::kStrictPack, "STRICT_PACK"},
     {Strategy::kStrictSpread, "STRICT_SPREAD"}}};

}  // namespace

std::string_view strategy_name(Strategy strategy) {
  for (const auto& [known, name] : kStrategies) {
    if (known == strategy) return name;
  }
  return "unknown";
}

result<Strategy> parse_strategy(std::string_view text) {
  for (const auto& [strategy, name] : kStrategies) {
    if (name == text) return strategy;
  }
  return fail(ErrorCode::kInvalidArgument,
              "unknown strategy '{}': want PACK, SPREAD, STRICT_PACK or STRICT_SPREAD", text);
}

}  // namespace troupe::placement
