// Pulling: one request to each owner of what is wanted, all owners at the same time.

#include "runtime/base/check.hpp"
#include "runtime/batch/column_check.hpp"
#include "runtime/comm/transport_wire.hpp"
#include "runtime/exchange/exchange_core.hpp"

#include <algorithm>

namespace troupe::runtime {
namespace {

std::int64_t bytes_of(const RowsWanted& wanted) {
  const std::int64_t element = dtype_bytes(wanted.type->dtype);
  if (wanted.type->kind == ColumnKind::kDense)
    return wanted.rows * row_elements(wanted.type->row_shape) * element;
  return (wanted.offsets.back() - wanted.offsets.front()) * element;
}

Error named(Error error, const ColumnOwner& owner, std::string_view what) {
  error.message = fmt::format("{}: {}: {}", owner_name(owner), what, error.message);
  return std::move(error).at({.group = owner.group, .rank = owner.rank, .node = {}});
}

/// Tables of row lengths that start at 0, one for all columns whose lengths come from one table.
class OffsetTables {
 public:
  OffsetTable get(std::span<const std::int64_t> offsets) {
    if (offsets.empty()) return nullptr;
    const std::pair<const std::int64_t*, std::size_t> key{offsets.data(), offsets.size()};
    OffsetTable& table = tables_[key];
    if (table == nullptr) {
      auto rebased = std::make_shared<std::vector<std::int64_t>>(offsets.begin(), offsets.end());
      for (std::int64_t& one : *rebased) one -= offsets.front();
      table = std::move(rebased);
    }
    return table;
  }

 private:
  std::map<std::pair<const std::int64_t*, std::size_t>, OffsetTable> tables_;
};

}  // namespace

/// What one owner is asked for.
struct ColumnExchange::Core::PullGroup {
  ExchangeOwner owner;
  std::vector<std::size_t> wanted;                  ///< indexes
  std::vector<std::shared_ptr<std::byte>> buffers;  ///< one for each of `wanted`
  std::vector<std::byte*> places;
  pending<void> done;
  std::optional<Error> error;
};

void ColumnExchange::Core::set_lookup(PeerLookup lookup) {
  const std::lock_guard lock(mutex_);
  lookup_ = std::move(lookup);
}

void ColumnExchange::Core::set_peer(const ColumnOwner& owner, std::vector<std::byte> address) {
  const result<TransportAddress> decoded = decode_address(address);
  const std::lock_guard lock(mutex_);
  peers_[{owner.group, owner.rank.value}] = {std::move(address), decoded ? decoded->epoch : 0};
}

void ColumnExchange::Core::lose(const ColumnOwner& owner, Error cause) {
  std::shared_ptr<Transport> plane;
  std::vector<std::byte> address;
  {
    const std::lock_guard lock(mutex_);
    const OwnerKey key{owner.group, owner.rank.value};
    // Also epochs that only leases know: their process had this name, and it is gone.
    for (auto place = leases_.lower_bound({key.first, key.second, 0, 0});
         place != leases_.end() && place->first.group == key.first &&
         place->first.rank == key.second;
         ++place)
      lost_.emplace(place->first.epoch, cause);
    const auto peer = peers_.find(key);
    if (peer != peers_.end()) {
      lost_.emplace(peer->second.epoch, cause);
      address = std::move(peer->second.address);
      peers_.erase(peer);
    }
    std::erase_if(releases_, [&](const auto& one) { return lost_.contains(one.first.second); });
    std::erase_if(held_from_, [&](const auto& one) { return lost_.contains(one.first.second); });
    plane = transport_;
  }
  if (plane && !address.empty()) plane->peer_lost(address, std::move(cause));
}

result<std::vector<std::byte>> ColumnExchange::Core::address_of(const ExchangeOwner& owner,
                                                                Deadline deadline) {
  const OwnerKey key{owner.owner.group, owner.owner.rank.value};
  PeerLookup lookup;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return fail(ErrorCode::kAborted, "the column exchange is closed");
    if (const auto lost = lost_.find(owner.epoch); lost != lost_.end())
      return fail(Error(lost->second).wrap(ErrorCode::kRankDead, "its process is gone"));
    const auto known = peers_.find(key);
    if (known != peers_.end() && known->second.epoch == owner.epoch) return known->second.address;
    lookup = lookup_;
  }
  if (!lookup) return fail(ErrorCode::kNotFound, "nobody knows its address");
  TROUPE_TRY(std::vector<std::byte> address, lookup(owner.owner, deadline));
  TROUPE_TRY(const TransportAddress decoded, decode_address(address));
  if (decoded.epoch != owner.epoch)
    return fail(ErrorCode::kRankDead, "its process is gone; another of this name runs");
  const std::lock_guard lock(mutex_);
  peers_[key] = {address, decoded.epoch};
  return address;
}

std::vector<ColumnExchange::Core::PullGroup> ColumnExchange::Core::start_pulls(
    std::span<const RowsWanted> wanted, Deadline deadline) {
  std::vector<PullGroup> groups;
  std::map<std::uint64_t, std::size_t> of_epoch;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const ExchangeOwner& owner = static_cast<const RemoteLease&>(*wanted[i].lease).where();
    const auto [place, added] = of_epoch.emplace(owner.epoch, groups.size());
    if (added) {
      groups.emplace_back();
      groups.back().owner = owner;
    }
    groups[place->second].wanted.push_back(i);
  }
  const std::shared_ptr<Transport> plane = transport();
  for (PullGroup& group : groups) {
    result<std::vector<std::byte>> address = address_of(group.owner, deadline);
    if (!address || !plane) {
      group.error = address ? Error{.code = ErrorCode::kAborted,
                                    .message = "the column exchange is closed",
                                    .origin = {},
                                    .causes = {}}
                            : std::move(address).error();
      continue;
    }
    PullRequest request{.owner = *std::move(address), .parts = {}, .keep = nullptr};
    // Rows of one column lie side by side in one buffer, which lives as long as any of them.
    for (std::size_t k = 0; k < group.wanted.size();) {
      const ColumnLease* lease = wanted[group.wanted[k]].lease;
      std::size_t end = k;
      std::int64_t bytes = 0;
      for (; end < group.wanted.size() && wanted[group.wanted[end]].lease == lease; ++end)
        bytes += bytes_of(wanted[group.wanted[end]]);
      std::shared_ptr<std::byte> buffer = pool_->take(static_cast<std::size_t>(bytes));
      std::byte* place = buffer.get();
      for (; k < end; ++k) {
        const RowsWanted& rows = wanted[group.wanted[k]];
        const auto size = static_cast<std::size_t>(bytes_of(rows));
        request.parts.push_back({.column = lease->id(),
                                 .first_row = rows.first,
                                 .rows = rows.rows,
                                 .into = {place, size}});
        group.buffers.push_back(buffer);
        group.places.push_back(place);
        place += size;
      }
    }
    request.keep = std::make_shared<const std::vector<std::shared_ptr<std::byte>>>(group.buffers);
    group.done = plane->pull(std::move(request), deadline);
  }
  return groups;
}

std::vector<result<Column>> ColumnExchange::Core::pull(std::span<const RowsWanted> wanted,
                                                       std::optional<Deadline> deadline) {
  const Deadline until = deadline.value_or(Deadline::in(options_.pull_deadline));
  std::vector<PullGroup> groups = start_pulls(wanted, until);
  std::vector<result<Column>> pulled(wanted.size(), fail(ErrorCode::kInternal, "not pulled"));
  OffsetTables tables;
  for (PullGroup& group : groups) {
    if (!group.error) {
      // The transport ends pulls at their deadline; the slack keeps it the one that says so.
      constexpr Duration kSlack = std::chrono::seconds(5);
      result<void> done = group.done.wait(Deadline{until.at + kSlack});
      if (!done) group.error = std::move(done).error();
    }
    for (std::size_t k = 0; k < group.wanted.size(); ++k) {
      const RowsWanted& rows = wanted[group.wanted[k]];
      result<Column>& out = pulled[group.wanted[k]];
      const std::string what = fmt::format("column {}", rows.lease->id().value);
      if (group.error) {
        out = fail(named(*group.error, group.owner.owner, what));
        continue;
      }
      Column column = ColumnAccess::view(*rows.type, rows.rows, group.buffers[k], group.places[k],
                                         tables.get(rows.offsets));
      const std::span<const std::byte> values(group.places[k],
                                              static_cast<std::size_t>(bytes_of(rows)));
      result<void> sound = check_values(column, values, what);
      if (sound)
        out = std::move(column);
      else
        out = fail(named(std::move(sound).error(), group.owner.owner, what));
    }
  }
  return pulled;
}

}  // namespace troupe::runtime
