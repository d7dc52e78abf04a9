#include "actors/roles/judge_specs.hpp"

#include <utility>

namespace troupe::actors {
namespace {

tl::unexpected<Error> refused(Error error, const char* role, const std::string& data_source) {
  const ErrorCode code = error.code;
  return fail(
      std::move(error).wrap(code, fmt::format("{}: the command of '{}'", role, data_source)));
}

}  // namespace

result<void> add_command_rewards(RewardRegistry& registry,
                                 std::span<const CommandRewardSpec> commands) {
  for (const CommandRewardSpec& one : commands) {
    auto rule = make_command_reward(one.options);
    if (!rule) return refused(std::move(rule).error(), "reward", one.data_source);
    TROUPE_TRY_VOID(registry.add_batch(one.data_source, *std::move(rule)));
  }
  return {};
}

result<void> add_command_environments(EnvironmentRegistry& registry,
                                      std::span<const CommandEnvironmentSpec> commands) {
  for (const CommandEnvironmentSpec& one : commands) {
    auto turns = make_command_environment(one.sandbox);
    if (!turns) return refused(std::move(turns).error(), "environment", one.data_source);
    TROUPE_TRY_VOID(registry.add_batch(one.data_source, *std::move(turns)));
  }
  return {};
}

}  // namespace troupe::actors
