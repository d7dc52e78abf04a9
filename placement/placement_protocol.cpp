#include "placement/placement_protocol.hpp"

#include <array>

namespace troupe::placement {
namespace {

template <class Enum, std::size_t N>
std::string_view name_in(const std::array<std::string_view, N>& names, Enum value) {
  const auto index = static_cast<std::size_t>(value);
  return index < N ? names[index] : "unknown";
}

constexpr std::array<std::string_view, 7> kStatusNames{
    "PENDING", "PREPARED", "ACTIVE", "RESCHEDULING", "REMOVING", "REMOVED", "INFEASIBLE"};
constexpr std::array<std::string_view, 3> kPolicyNames{"restart_bundle", "restart_group",
                                                       "fail_group"};
constexpr std::array<std::string_view, 6> kChangeNames{"active",  "moved",      "lost",
                                                       "resized", "infeasible", "removed"};
constexpr std::array<std::string_view, 5> kOpNames{"prepare", "commit", "reserve", "cancel",
                                                   "renumber"};

}  // namespace

std::string_view group_status_name(GroupStatus status) { return name_in(kStatusNames, status); }
std::string_view repair_policy_name(RepairPolicy policy) { return name_in(kPolicyNames, policy); }
std::string_view change_kind_name(ChangeKind kind) { return name_in(kChangeNames, kind); }
std::string_view node_op_name(NodeOpKind kind) { return name_in(kOpNames, kind); }

result<RepairPolicy> parse_repair_policy(std::string_view text) {
  for (std::size_t i = 0; i < kPolicyNames.size(); ++i) {
    if (kPolicyNames[i] == text) return static_cast<RepairPolicy>(i);
  }
  return fail(ErrorCode::kInvalidArgument, "repair policy '{}', wanted {}", text,
              fmt::join(kPolicyNames, ", "));
}

std::string to_string(const GroupKey& key) {
  return key.id.value != 0 ? fmt::format("group {}", key.id.value)
                           : fmt::format("group '{}'", key.name);
}

}  // namespace troupe::placement
