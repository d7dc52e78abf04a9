#include "runtime/exchange/lease_table.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>

namespace troupe::runtime {

LeaseTable::LeaseTable(Duration expires_after) : expires_after_(expires_after) {
  TROUPE_CHECK(expires_after > Duration(0), "lease table: leases of {} ns", expires_after.count());
}

void LeaseTable::open(const std::string& holder, TimePoint now) {
  holders_[holder].renewed_at = now;
}

bool LeaseTable::is_open(std::string_view holder) const {
  return holders_.find(holder) != holders_.end();
}

result<void> LeaseTable::grant(std::string_view holder, ColumnId column, TimePoint now) {
  const auto place = holders_.find(holder);
  if (place == holders_.end())
    return fail(ErrorCode::kAborted, "column {}: its holder '{}' is gone", column.value, holder);
  Holder& one = place->second;
  // With nothing held there was nothing to renew.
  if (one.grants.empty()) one.renewed_at = now;
  if (++one.grants[column] == 1) ++holders_of_[column];
  return {};
}

bool LeaseTable::let_go(ColumnId column) {
  const auto place = holders_of_.find(column);
  TROUPE_CHECK(place != holders_of_.end(), "lease table: column {} has no holder", column.value);
  if (--place->second > 0) return false;
  holders_of_.erase(place);
  return true;
}

std::vector<ColumnId> LeaseTable::release(std::string_view holder,
                                          std::span<const LeaseRelease> releases, TimePoint now) {
  std::vector<ColumnId> freed;
  const auto place = holders_.find(holder);
  if (place == holders_.end()) return freed;
  place->second.renewed_at = now;
  for (const LeaseRelease& one : releases) {
    const auto held = place->second.grants.find(one.column);
    if (held == place->second.grants.end() || one.grants <= 0) continue;
    held->second -= std::min(held->second, one.grants);
    if (held->second > 0) continue;
    place->second.grants.erase(held);
    if (let_go(one.column)) freed.push_back(one.column);
  }
  return freed;
}

void LeaseTable::renew(std::string_view holder, TimePoint now) {
  const auto place = holders_.find(holder);
  if (place != holders_.end()) place->second.renewed_at = std::max(place->second.renewed_at, now);
}

std::vector<ColumnId> LeaseTable::close(std::string_view holder) {
  std::vector<ColumnId> freed;
  const auto place = holders_.find(holder);
  if (place == holders_.end()) return freed;
  for (const auto& [column, grants] : place->second.grants) {
    if (let_go(column)) freed.push_back(column);
  }
  holders_.erase(place);
  return freed;
}

LeaseTable::Expired LeaseTable::expire(TimePoint now) {
  Expired expired;
  for (const auto& [name, holder] : holders_) {
    if (!holder.grants.empty() && now - holder.renewed_at >= expires_after_)
      expired.holders.push_back(name);
  }
  for (const std::string& name : expired.holders) {
    const std::vector<ColumnId> freed = close(name);
    expired.columns.insert(expired.columns.end(), freed.begin(), freed.end());
  }
  return expired;
}

std::optional<TimePoint> LeaseTable::next_expiry() const {
  std::optional<TimePoint> next;
  for (const auto& [name, holder] : holders_) {
    if (holder.grants.empty()) continue;
    const TimePoint at = holder.renewed_at + expires_after_;
    if (!next || at < *next) next = at;
  }
  return next;
}

std::int64_t LeaseTable::grants(std::string_view holder, ColumnId column) const {
  const auto place = holders_.find(holder);
  if (place == holders_.end()) return 0;
  const auto held = place->second.grants.find(column);
  return held == place->second.grants.end() ? 0 : held->second;
}

}  // namespace troupe::runtime
