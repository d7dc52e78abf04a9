#include "reshard/nccl/membership.hpp"

#include <cstring>
#include <map>
#include <set>
#include <utility>

namespace troupe::reshard::nccl {

std::vector<std::byte> id_bytes(const UniqueId& id) {
  const auto bytes = std::as_bytes(std::span(id.internal));
  return {bytes.begin(), bytes.end()};
}

result<void> check_membership(const Membership& membership) {
  const auto wrong = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    return fail(ErrorCode::kInvalidArgument, "membership {}: {}", membership.epoch,
                fmt::format(format, std::forward<Args>(args)...));
  };
  if (membership.epoch == 0) return wrong("its epoch is 0");
  if (membership.unique_id.size() != sizeof(UniqueId))
    return wrong("a unique id of {} bytes, wanted {}", membership.unique_id.size(),
                 sizeof(UniqueId));
  if (membership.members.empty() || membership.members.size() > kMembersMax)
    return wrong("{} members, wanted 1 to {}", membership.members.size(), kMembersMax);
  if (membership.bucket_bytes < kBucketBytesMin || membership.bucket_bytes > kBucketBytesMax)
    return wrong("buckets of {} bytes, wanted {} to {}", membership.bucket_bytes, kBucketBytesMin,
                 kBucketBytesMax);
  std::set<std::int32_t> ranks;
  std::map<std::pair<std::string, std::string>, std::int32_t> devices;
  for (const DeviceMember& member : membership.members) {
    if (!ranks.insert(member.rank).second) return wrong("rank {} twice", member.rank);
    const auto [place, fresh] = devices.emplace(std::pair(member.host, member.bus_id), member.rank);
    if (!fresh)
      return wrong("ranks {} and {} are both on gpu {} of host {}", place->second, member.rank,
                   member.bus_id, member.host);
  }
  return {};
}

result<std::int32_t> nccl_rank(const Membership& membership, std::int32_t rank) {
  for (std::size_t i = 0; i < membership.members.size(); ++i)
    if (membership.members[i].rank == rank) return static_cast<std::int32_t>(i);
  return fail(ErrorCode::kNotFound, "membership {}: rank {} is not in it", membership.epoch, rank);
}

}  // namespace troupe::reshard::nccl
