#include "apps/troupe/cluster_json.hpp"

#include "placement/protocol_codec.hpp"

#include <algorithm>
#include <utility>

namespace troupe::apps {

using nlohmann::json;
using placement::GroupView;

namespace {

json place_of(const runtime::LanePlaceReport& place) {
  return {{"ticket", place.number},
          {"rank", place.rank},
          {"phase", place.phase},
          {"since_s", place.since_s}};
}

double seconds_of(Duration span) { return seconds(span); }

}  // namespace

json to_json(const runtime::NodeEntry& node, double devices_free) {
  return {{"name", node.name},
          {"state", node.state},
          {"since_s", node.since_s},
          {"heard_s", node.heard_s},
          {"cause", node.cause},
          {"address", node.address},
          {"host", node.host},
          {"pid", node.pid},
          {"instance", node.instance},
          {"version", node.version},
          {"cpus", node.cpus},
          {"memory_bytes", node.memory_bytes},
          {"devices", node.devices},
          {"devices_free", devices_free},
          {"device_model", node.device_model},
          {"rack", node.rack},
          {"ranks", node.ranks}};
}

json to_json(const runtime::JobEntry& job) {
  return {{"name", job.job.name},   {"state", job.state},         {"since_s", job.since_s},
          {"cause", job.cause},     {"host", job.job.host},       {"pid", job.job.pid},
          {"epoch", job.job.epoch}, {"command", job.job.command}, {"ranks", job.ranks}};
}

std::string rank_state(const runtime::RankState& rank) {
  return rank.stuck ? "stuck" : std::string(runtime::rank_phase_name(rank.phase));
}

json to_json(const runtime::RankEntry& entry) {
  const runtime::RankState& rank = entry.rank;
  return {{"job", rank.job},
          {"group", rank.group},
          {"rank", rank.rank.value},
          {"node", entry.node},
          {"state", rank_state(rank)},
          {"pid", rank.pid},
          {"age_s", seconds_of(rank.age)},
          {"doing", rank.doing},
          {"quiet_s", seconds_of(rank.quiet)},
          {"devices", rank.devices},
          {"cores", rank.cores},
          {"reservation", rank.reservation},
          {"ending", rank.ending}};
}

json to_json(const runtime::LaneReport& lane) {
  json waiting = json::array();
  for (const auto& place : lane.waiting) waiting.push_back(place_of(place));
  json entries = json::array();
  for (const auto& entry : lane.entries) {
    entries.push_back({{"owner", entry.owner},
                       {"what", entry.what},
                       {"bytes", entry.bytes},
                       {"residency", entry.residency}});
  }
  return {{"lane", lane.lane},
          {"holder", lane.holder ? place_of(*lane.holder) : json()},
          {"waiting", waiting},
          {"next_ticket", lane.next},
          {"next_since_s", lane.next_since_s},
          {"turns_taken", lane.turns_taken},
          {"capacity_bytes", lane.capacity_bytes},
          {"used_bytes", lane.used_bytes},
          {"memory", entries}};
}

json to_json(const GroupView& group) {
  json placements = json::array();
  for (const auto& place : group.placements) {
    json devices = json::array();
    for (const auto& share : place.devices) devices.push_back(share.device);
    json cores = json::array();
    for (const auto& share : place.cores) cores.push_back(share.core);
    placements.push_back({{"bundle", place.bundle},
                          {"node", place.node_name},
                          {"socket", place.socket},
                          {"devices", devices},
                          {"cores", cores},
                          {"nic", place.nic},
                          {"memory_bytes", place.memory.value}});
  }
  return {{"id", group.id.value},
          {"name", group.name},
          {"owner", group.owner.name},
          {"status", std::string(placement::group_status_name(group.status))},
          {"repair", std::string(placement::repair_policy_name(group.terms.repair))},
          {"detached", group.terms.detached},
          {"bundles", group.bundles},
          {"age_s", seconds_of(group.age)},
          {"why", group.why},
          {"placements", placements}};
}

json to_json(const runtime::HeadStatus& status) {
  return {{"address", status.address},
          {"pid", status.pid},
          {"epoch", status.head_epoch},
          {"up_s", status.up_s}};
}

result<std::vector<GroupView>> fetch_groups(HeadClient& head, std::size_t limit) {
  std::vector<GroupView> groups;
  placement::ListGroups wanted;
  for (;;) {
    wanted.limit = static_cast<std::uint32_t>(
        std::min<std::size_t>(limit - groups.size(), placement::kListLimitMax));
    TROUPE_TRY(const auto reply,
               head.channel()
                   ->request("placement.list", placement::encode_list(wanted), head.deadline())
                   .wait(head.deadline()));
    TROUPE_TRY(auto page, placement::decode_page(reply));
    const bool more = page.more && !page.groups.empty();
    if (more) wanted.after = page.groups.back().id;
    for (GroupView& group : page.groups) groups.push_back(std::move(group));
    if (!more || groups.size() >= limit) return groups;
  }
}

std::map<std::string, double> devices_held(const std::vector<GroupView>& groups) {
  std::map<std::string, double> held;
  for (const GroupView& group : groups) {
    for (const auto& place : group.placements) {
      for (const auto& share : place.devices) held[place.node_name] += share.amount.value();
    }
  }
  return held;
}

}  // namespace troupe::apps
