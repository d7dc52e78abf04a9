#include "apps/training/run_state.hpp"

#include <nlohmann/json.hpp>

namespace troupe::apps {

using nlohmann::json;

std::string RunState::to_json() const {
  return json{{"command", command},
              {"data_rows", data_rows},
              {"step", step},
              {"cursor", json::parse(cursor.to_json())},
              {"kl_coefficient", kl_coefficient},
              {"weight_version", weight_version.value},
              {"actor_updates", actor_updates},
              {"critic_updates", critic_updates}}
      .dump();
}

result<RunState> RunState::from_json(std::string_view text) {
  const json fields = json::parse(text, nullptr, false);
  if (!fields.is_object()) return fail(ErrorCode::kCorrupt, "run state: not a JSON object");
  RunState state;
  const auto integer = [&](const char* name, std::int64_t& target) -> result<void> {
    const auto found = fields.find(name);
    if (found == fields.end() || !found->is_number_integer() || found->get<std::int64_t>() < 0)
      return fail(ErrorCode::kCorrupt, "run state: {}: wanted an integer of at least 0, found {}",
                  name, found == fields.end() ? "nothing" : found->dump());
    target = found->get<std::int64_t>();
    return {};
  };
  const auto command = fields.find("command");
  if (command == fields.end() || !command->is_string())
    return fail(ErrorCode::kCorrupt, "run state: command: wanted a text, found {}",
                command == fields.end() ? "nothing" : command->dump());
  state.command = command->get<std::string>();
  TROUPE_TRY_VOID(integer("data_rows", state.data_rows));
  TROUPE_TRY_VOID(integer("step", state.step));
  TROUPE_TRY_VOID(integer("weight_version", state.weight_version.value));
  TROUPE_TRY_VOID(integer("actor_updates", state.actor_updates));
  TROUPE_TRY_VOID(integer("critic_updates", state.critic_updates));
  const auto coefficient = fields.find("kl_coefficient");
  if (coefficient == fields.end() || !coefficient->is_number())
    return fail(ErrorCode::kCorrupt, "run state: kl_coefficient: wanted a number, found {}",
                coefficient == fields.end() ? "nothing" : coefficient->dump());
  state.kl_coefficient = coefficient->get<double>();
  const auto cursor = fields.find("cursor");
  if (cursor == fields.end()) return fail(ErrorCode::kCorrupt, "run state: cursor: found nothing");
  TROUPE_TRY(state.cursor, actors::DataCursor::from_json(cursor->dump()));
  return state;
}

}  // namespace troupe::apps
