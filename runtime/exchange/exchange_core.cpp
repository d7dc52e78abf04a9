#include "runtime/exchange/exchange_core.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/comm/transport_wire.hpp"

#include <algorithm>

namespace troupe::runtime {
namespace {

/// What a reader elsewhere gets: the bytes of rows of a column that is held, and what keeps them.
result<Pinned> pin(ColumnStore& store, ColumnId column, std::int64_t first, std::int64_t rows) {
  TROUPE_TRY(Column found, store.read(column, first, rows));
  auto keep = std::make_shared<const Column>(std::move(found));
  Pinned pinned;
  for (const Run& run : ColumnAccess::runs(*keep))
    pinned.spans.push_back((*run.storage)->bytes(run.first, run.count));
  pinned.keep = std::move(keep);
  return pinned;
}

}  // namespace

std::string owner_name(const ColumnOwner& owner) {
  return fmt::format("{} rank {}", owner.group, owner.rank.value);
}

ColumnExchange::Core::Core(ExchangeOptions options)
    : options_(std::move(options)),
      store_(options_.self),
      pool_(std::make_shared<ReceivePool>(options_.receive_cache_bytes)),
      table_(options_.lease_expires_after) {}

ColumnExchange::Core::~Core() { close(); }

result<void> ColumnExchange::Core::start(
    const std::function<result<std::unique_ptr<Transport>>(PullSource)>& open_transport) {
  // The transport is closed before the store goes, and closing joins its thread.
  TROUPE_TRY(std::unique_ptr<Transport> opened,
             open_transport([this](ColumnId column, std::int64_t first, std::int64_t rows) {
               return pin(store_, column, first, rows);
             }));
  TROUPE_TRY(const TransportAddress address, decode_address(opened->address()));
  address_ = opened->address();
  epoch_ = address.epoch;
  transport_ = std::move(opened);
  thread_ = std::thread([this] { run(); });
  return {};
}

void ColumnExchange::Core::close() {
  std::shared_ptr<Transport> transport;
  std::unordered_map<ColumnId, std::shared_ptr<const ColumnLease>> granted;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    transport = std::move(transport_);
    granted.swap(granted_);
    sender_ = nullptr;
    lookup_ = nullptr;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Transport> ColumnExchange::Core::transport() const {
  const std::lock_guard lock(mutex_);
  return transport_;
}

void ColumnExchange::Core::set_sender(LeaseSender sender) {
  {
    const std::lock_guard lock(mutex_);
    sender_ = std::move(sender);
  }
  wake_.notify_all();  // releases may wait for it
}

void ColumnExchange::Core::open_holder(const std::string& holder) {
  const std::lock_guard lock(mutex_);
  table_.open(holder, steady_now());
  holder_ = holder;
}

ColumnExchange::Core::Leases ColumnExchange::Core::take_freed_locked(
    const std::vector<ColumnId>& columns) {
  Leases freed;
  for (const ColumnId column : columns) {
    const auto place = granted_.find(column);
    if (place == granted_.end()) continue;
    freed.push_back(std::move(place->second));
    granted_.erase(place);
  }
  return freed;
}

void ColumnExchange::Core::close_holder(const std::string& holder) {
  Leases freed;  // let go of outside the lock
  const std::lock_guard lock(mutex_);
  freed = take_freed_locked(table_.close(holder));
  if (holder_ == holder) holder_.clear();
}

result<void> ColumnExchange::Core::on_notice(std::string_view holder, std::string_view method,
                                             std::span<const std::byte> payload) {
  if (method != kColumnsRelease && method != kColumnsRenew)
    return fail(ErrorCode::kNotFound, "column exchange of {}: no notice '{}'",
                owner_name(options_.self), method);
  TROUPE_TRY(const LeaseNotice notice, decode_lease_notice(payload));
  if (notice.epoch != epoch_)
    return fail(ErrorCode::kConflict, "column exchange of {}: notice to epoch {:x}, this is {:x}",
                owner_name(options_.self), notice.epoch, epoch_);
  Leases freed;
  const std::lock_guard lock(mutex_);
  freed = take_freed_locked(table_.release(holder, notice.releases, steady_now()));
  return {};
}

ColumnExchange::Core::LeaseKey ColumnExchange::Core::key_of(const ExchangeOwner& owner,
                                                            ColumnId column) {
  return {owner.owner.group, owner.owner.rank.value, owner.epoch, column.value};
}

result<std::shared_ptr<const ColumnLease>> ColumnExchange::Core::lease_for(
    const ExchangeOwner& owner, ColumnId column, bool granted) {
  if (owner.owner == options_.self && owner.epoch == epoch_) {
    std::shared_ptr<const ColumnLease> own = store_.lease(column);
    if (own == nullptr)
      return fail(
          Error{.code = ErrorCode::kNotFound,
                .message = fmt::format("{}: column {}: its lease is over", owner_name(owner.owner),
                                       column.value),
                .origin = {.group = owner.owner.group, .rank = owner.owner.rank, .node = {}},
                .causes = {}});
    return own;
  }
  const std::lock_guard lock(mutex_);
  LeaseEntry& entry = leases_[key_of(owner, column)];
  std::shared_ptr<const RemoteLease> lease = entry.lease.lock();
  if (lease == nullptr) {
    lease = std::make_shared<const RemoteLease>(shared_from_this(), owner, column);
    entry = {lease, lease.get()};
  }
  if (granted && ++lease->grants == 1)
    ++held_from_[{{owner.owner.group, owner.owner.rank.value}, owner.epoch}];
  return std::shared_ptr<const ColumnLease>(lease);
}

void ColumnExchange::Core::lease_ended(const RemoteLease& lease) {
  const OwnerKey owner{lease.owner().group, lease.owner().rank.value};
  const std::pair<OwnerKey, std::uint64_t> from{owner, lease.where().epoch};
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    const auto place = leases_.find(key_of(lease.where(), lease.id()));
    // A new lease of the same column may have come up meanwhile.
    if (place != leases_.end() && place->second.which == &lease) leases_.erase(place);
    if (lease.grants == 0 || closed_) return;
    const auto held = held_from_.find(from);
    if (held != held_from_.end() && --held->second == 0) held_from_.erase(held);
    if (lost_.contains(from.second)) return;  // nobody is left to be told
    first = releases_.empty();
    releases_[from].push_back({lease.id(), lease.grants});
  }
  if (first) wake_.notify_all();
}

void ColumnExchange::Core::send_releases() {
  decltype(releases_) due;
  LeaseSender sender;
  {
    const std::lock_guard lock(mutex_);
    if (!sender_) return;
    sender = sender_;
    due.swap(releases_);
  }
  std::int64_t sent = 0;
  for (auto& [from, releases] : due) {
    const ColumnOwner owner{from.first.first, RankId{from.first.second}};
    for (std::size_t first = 0; first < releases.size(); first += kNoticeReleasesMax) {
      const std::size_t end = std::min(releases.size(), first + kNoticeReleasesMax);
      const auto begin = releases.begin() + static_cast<std::ptrdiff_t>(first);
      LeaseNotice notice{.epoch = from.second, .releases = {}};
      notice.releases.assign(begin, releases.begin() + static_cast<std::ptrdiff_t>(end));
      const result<void> told = sender(owner, kColumnsRelease, encode_lease_notice(notice));
      if (told) {
        sent += static_cast<std::int64_t>(notice.releases.size());
        continue;
      }
      if (told.error().code == ErrorCode::kResourceExhausted) {
        // The line is full, not down: the next round takes them.
        const std::lock_guard lock(mutex_);
        auto& again = releases_[from];
        again.insert(again.end(), begin, releases.end());
        break;
      }
      // A line that is down ends the holder at its other end, and with it these leases.
      log::debug("column exchange: releases to {}: {}", owner_name(owner), told.error().message);
    }
  }
  const std::lock_guard lock(mutex_);
  releases_sent_ += sent;
}

void ColumnExchange::Core::send_renewals() {
  std::vector<std::pair<OwnerKey, std::uint64_t>> owners;
  LeaseSender sender;
  {
    const std::lock_guard lock(mutex_);
    sender = sender_;
    for (const auto& [from, leases] : held_from_) {
      if (!lost_.contains(from.second)) owners.push_back(from);
    }
  }
  if (!sender) return;
  for (const auto& [owner, epoch] : owners)
    (void)sender({owner.first, RankId{owner.second}}, kColumnsRenew,
                 encode_lease_notice({.epoch = epoch, .releases = {}}));
}

void ColumnExchange::Core::expire_holders() {
  Leases freed;
  LeaseTable::Expired expired;
  {
    const std::lock_guard lock(mutex_);
    expired = table_.expire(steady_now());
    freed = take_freed_locked(expired.columns);
    holders_expired_ += static_cast<std::int64_t>(expired.holders.size());
    for (const std::string& holder : expired.holders) {
      if (holder == holder_) holder_.clear();
    }
  }
  for (const std::string& holder : expired.holders)
    log::warn("column exchange of {}: holder '{}' was silent for {:.1f} s; {} columns freed",
              owner_name(options_.self), holder, seconds(options_.lease_expires_after),
              freed.size());
}

void ColumnExchange::Core::flush_releases() { send_releases(); }

void ColumnExchange::Core::run() {
  TimePoint renew_at = steady_now() + options_.renew_every;
  std::unique_lock lock(mutex_);
  while (!closed_) {
    TimePoint until = renew_at;
    if (const auto expiry = table_.next_expiry()) until = std::min(until, *expiry);
    if (!releases_.empty() && sender_)
      until = std::min(until, steady_now() + options_.release_every);
    wake_.wait_until(lock, until, [&] { return closed_ || (!releases_.empty() && sender_); });
    if (closed_) return;
    if (!releases_.empty() && sender_) {
      // Lets those of the same moment join; closing need not wait for it.
      wake_.wait_for(lock, options_.release_every, [this] { return closed_; });
      if (closed_) return;
    }
    lock.unlock();
    send_releases();
    if (steady_now() >= renew_at) {
      send_renewals();
      renew_at = steady_now() + options_.renew_every;
    }
    expire_holders();
    lock.lock();
  }
}

ExchangeStatistics ColumnExchange::Core::statistics() const {
  ExchangeStatistics all;
  if (const auto plane = transport()) all.transport = plane->statistics();
  all.columns_held = store_.columns_held();
  all.bytes_held = store_.bytes_held();
  const std::lock_guard lock(mutex_);
  all.columns_granted = table_.columns();
  all.leases = static_cast<std::int64_t>(leases_.size());
  all.releases_sent = releases_sent_;
  all.holders_expired = holders_expired_;
  return all;
}

ColumnExchange::ColumnExchange(std::shared_ptr<Core> core) : core_(std::move(core)) {}
ColumnExchange::~ColumnExchange() { core_->close(); }

result<std::unique_ptr<ColumnExchange>> ColumnExchange::open(ExchangeOptions options,
                                                             TransportOptions transport) {
  if (transport.name.empty()) transport.name = owner_name(options.self);
  return open(std::move(options), [&](PullSource source) -> result<std::unique_ptr<Transport>> {
    transport.source = std::move(source);
    return open_ucx_transport(std::move(transport));
  });
}

result<std::unique_ptr<ColumnExchange>> ColumnExchange::open(
    ExchangeOptions options,
    const std::function<result<std::unique_ptr<Transport>>(PullSource)>& open_transport) {
  auto core = std::make_shared<Core>(std::move(options));
  TROUPE_TRY_VOID(core->start(open_transport));
  return std::unique_ptr<ColumnExchange>(new ColumnExchange(std::move(core)));
}

result<std::vector<std::byte>> ColumnExchange::export_batch(const Batch& batch) {
  TROUPE_TRY(Core::Exported exported, core_->encode(batch, true));
  return core_->grant(std::move(exported));
}

result<Lent> ColumnExchange::lend_batch(const Batch& batch) {
  TROUPE_TRY(Core::Exported exported, core_->encode(batch, false));
  struct Keep {
    Batch batch;  ///< and with it the leases of columns elsewhere
    std::vector<std::shared_ptr<const ColumnLease>> own;
  };
  auto keep = std::make_shared<const Keep>(Keep{batch, std::move(exported.own)});
  return Lent{.bytes = std::move(exported.bytes), .keep = std::move(keep)};
}

namespace {

constexpr const char* kOneColumn = "column";

result<Batch> as_batch(const Column& column) {
  Batch batch;
  TROUPE_TRY_VOID(batch.set(kOneColumn, column));
  return batch;
}

}  // namespace

result<std::vector<std::byte>> ColumnExchange::export_column(const Column& column) {
  TROUPE_TRY(const Batch batch, as_batch(column));
  return export_batch(batch);
}

result<Lent> ColumnExchange::lend_column(const Column& column) {
  TROUPE_TRY(const Batch batch, as_batch(column));
  return lend_batch(batch);
}

result<Batch> ColumnExchange::import_batch(std::span<const std::byte> bytes) {
  return core_->decode(bytes);
}

result<Column> ColumnExchange::import_column(std::span<const std::byte> bytes) {
  TROUPE_TRY(const Batch batch, core_->decode(bytes));
  const Column* column = batch.find(kOneColumn);
  if (column == nullptr || batch.columns().size() != 1)
    return fail(ErrorCode::kCorrupt, "exchange frame: {} columns, wanted one",
                batch.columns().size());
  return *column;
}

ColumnStore& ColumnExchange::store() { return core_->store(); }
const ColumnOwner& ColumnExchange::self() const { return core_->options().self; }
const std::vector<std::byte>& ColumnExchange::address() const { return core_->address(); }
void ColumnExchange::set_peer_lookup(PeerLookup lookup) { core_->set_lookup(std::move(lookup)); }
void ColumnExchange::set_peer(const ColumnOwner& owner, std::vector<std::byte> address) {
  core_->set_peer(owner, std::move(address));
}
void ColumnExchange::peer_lost(const ColumnOwner& owner, Error cause) {
  core_->lose(owner, std::move(cause));
}
void ColumnExchange::set_lease_sender(LeaseSender sender) { core_->set_sender(std::move(sender)); }
void ColumnExchange::open_holder(const std::string& holder) { core_->open_holder(holder); }
result<void> ColumnExchange::on_lease_notice(std::string_view holder, std::string_view method,
                                             std::span<const std::byte> payload) {
  return core_->on_notice(holder, method, payload);
}
void ColumnExchange::close_holder(const std::string& holder) { core_->close_holder(holder); }
void ColumnExchange::flush_releases() { core_->flush_releases(); }
ExchangeStatistics ColumnExchange::statistics() const { return core_->statistics(); }

}  // namespace troupe::runtime
