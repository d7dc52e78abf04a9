#include "runtime/group/rank_launcher.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace troupe::runtime {
namespace {

template <class T>
result<T> read_key(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end())
    return fail(ErrorCode::kConfig, "{}: {} is missing", kRankRecordVariable, key);
  const bool fits =
      std::is_same_v<T, std::string> ? found->is_string() : found->is_number_integer();
  if (!fits)
    return fail(ErrorCode::kConfig, "{}: {} is {}", kRankRecordVariable, key, found->dump());
  return found->template get<T>();
}

bool name_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

}  // namespace

std::string RankRecord::peer_name() const {
  return fmt::format("{}/{}/{}", job, group, rank.value);
}

RankRecord RankRecord::of(const RankLaunch& launch) {
  return RankRecord{.job = launch.job,
                    .group = launch.group,
                    .rank = launch.rank,
                    .bundle = launch.bundle,
                    .controller = launch.controller};
}

std::string RankRecord::to_json() const {
  return nlohmann::json{{"job", job},
                        {"group", group},
                        {"rank", rank.value},
                        {"bundle", bundle},
                        {"controller", controller},
                        {"agent", agent},
                        {"devices", devices},
                        {"node", node}}
      .dump();
}

result<RankRecord> RankRecord::from_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object())
    return fail(ErrorCode::kConfig, "{}: not a JSON object", kRankRecordVariable);
  RankRecord record;
  TROUPE_TRY(record.job, read_key<std::string>(json, "job"));
  TROUPE_TRY(record.group, read_key<std::string>(json, "group"));
  TROUPE_TRY(record.rank.value, read_key<std::int32_t>(json, "rank"));
  TROUPE_TRY(record.bundle, read_key<int>(json, "bundle"));
  TROUPE_TRY(record.controller, read_key<std::string>(json, "controller"));
  TROUPE_TRY(record.agent, read_key<std::string>(json, "agent"));
  TROUPE_TRY(record.node, read_key<std::string>(json, "node"));
  const auto devices = json.find("devices");
  if (devices != json.end()) {
    for (const auto& one : *devices) {
      if (!one.is_number_integer())
        return fail(ErrorCode::kConfig, "{}: devices are {}", kRankRecordVariable, devices->dump());
      record.devices.push_back(one.get<int>());
    }
  }
  TROUPE_TRY_VOID(check_job_name("job", record.job));
  TROUPE_TRY_VOID(check_job_name("group", record.group));
  if (record.rank.value < 0)
    return fail(ErrorCode::kConfig, "{}: rank {}", kRankRecordVariable, record.rank.value);
  return record;
}

result<void> check_job_name(std::string_view what, std::string_view name) {
  if (!name.empty() && name.size() <= kJobNameMax &&
      std::all_of(name.begin(), name.end(), name_letter))
    return {};
  return fail(ErrorCode::kInvalidArgument,
              "{} name '{}': wanted 1 to {} of letters, digits, '.', '_' and '-'", what,
              name.substr(0, 2 * kJobNameMax), kJobNameMax);
}

}  // namespace troupe::runtime
