#pragma once

// Nodes, jobs, ranks, lanes and placement groups as the JSON that `--json` prints. The field names
// are a promise: docs/cluster.md lists them.
//
// **Threads:** pure functions, but for the two that ask the head.

#include "apps/troupe/cluster_command.hpp"
#include "placement/placement_protocol.hpp"
#include "runtime/cluster/head_messages.hpp"

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <vector>

namespace troupe::apps {

nlohmann::json to_json(const runtime::NodeEntry& node, double devices_free);
nlohmann::json to_json(const runtime::JobEntry& job);
nlohmann::json to_json(const runtime::RankEntry& rank);
nlohmann::json to_json(const runtime::LaneReport& lane);
nlohmann::json to_json(const placement::GroupView& group);
nlohmann::json to_json(const runtime::HeadStatus& status);

/// `up`, `stuck` …: what a table shows of a rank.
std::string rank_state(const runtime::RankState& rank);

/// All placement groups, or the first `limit`. `total` of the page is not known to the protocol.
result<std::vector<placement::GroupView>> fetch_groups(HeadClient& head, std::size_t limit);

/// Devices that groups hold, by node name; fractions of devices count as such.
std::map<std::string, double> devices_held(const std::vector<placement::GroupView>& groups);

}  // namespace troupe::apps
