// Elastic groups: fewer or more bundles while the others stay where they are.

#include "placement/scheduler.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace troupe::placement {

result<std::vector<std::int32_t>> shrink(Cluster& cluster, std::string_view name,
                                         std::span<const std::int32_t> drop) {
  const ActiveGroup* found = cluster.group(name);
  if (found == nullptr) return fail(ErrorCode::kNotFound, "no active group {}", name);
  const ActiveGroup before = *found;
  const std::set<std::int32_t> gone(drop.begin(), drop.end());
  const auto count = static_cast<std::int32_t>(before.request.bundles.size());
  for (const std::int32_t bundle : gone) {
    if (bundle < 0 || bundle >= count)
      return fail(ErrorCode::kNotFound, "group {}: no bundle {} of {}", name, bundle, count);
  }
  GroupRequest request = before.request;
  request.bundles.clear();
  std::vector<std::int32_t> old_numbers;
  std::vector<BundlePlacement> placed;
  for (std::int32_t i = 0; i < count; ++i) {
    if (gone.contains(i)) continue;
    request.bundles.push_back(before.request.bundles[static_cast<std::size_t>(i)]);
    if (const auto at = before.bundles.find(i); at != before.bundles.end()) {
      placed.push_back(at->second);
      placed.back().bundle = static_cast<std::int32_t>(old_numbers.size());
    }
    old_numbers.push_back(i);
  }
  TROUPE_TRY_VOID(validate(request));
  TROUPE_TRY_VOID(check_placement(cluster, request, placed));
  TROUPE_TRY_VOID(cluster.release(name));
  const auto taken = cluster.allocate(request, placed);
  TROUPE_CHECK(taken, "shrink: {}", taken.error().message);
  return old_numbers;
}

result<GroupRequest> grow(const ActiveGroup& group, std::span<const Bundle> more) {
  GroupRequest request = group.request;
  request.bundles.insert(request.bundles.end(), more.begin(), more.end());
  TROUPE_TRY_VOID(validate(request));
  return request;
}

}  // namespace troupe::placement
