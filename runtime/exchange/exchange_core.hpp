#pragma once

// The shared middle of a `ColumnExchange`: what outlives it in the leases of imported columns.
//
// Ownership: the exchange and every imported lease hold the core; `close` cuts it off from the
// transport, after which pulls fail with kAborted.
// **Threads:** any; one mutex guards all tables, and no hook or payload is touched under it.
// **Invariants:** at most one live `RemoteLease` per (owner, epoch, column).

#include "runtime/batch/column_lease.hpp"
#include "runtime/batch/column_storage.hpp"
#include "runtime/exchange/column_exchange.hpp"
#include "runtime/exchange/exchange_codec.hpp"
#include "runtime/exchange/lease_table.hpp"
#include "runtime/exchange/receive_pool.hpp"

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe::runtime {

class RemoteLease;

class ColumnExchange::Core final : public ColumnSource, public std::enable_shared_from_this<Core> {
 public:
  explicit Core(ExchangeOptions options);
  ~Core() override;

  result<void> start(
      const std::function<result<std::unique_ptr<Transport>>(PullSource)>& open_transport);
  void close();

  // exchange_export.cpp
  struct Exported {
    std::vector<std::byte> bytes;
    /// Columns of this process that the frame refers to; each entry is one grant, or is lent.
    std::vector<std::shared_ptr<const ColumnLease>> own;
  };
  result<Exported> encode(const Batch& batch, bool granted);
  result<std::vector<std::byte>> grant(Exported exported);

  // exchange_import.cpp
  result<Batch> decode(std::span<const std::byte> bytes);

  // exchange_pull.cpp
  std::vector<result<Column>> pull(std::span<const RowsWanted> wanted,
                                   std::optional<Deadline> deadline) override;
  void set_lookup(PeerLookup lookup);
  void set_peer(const ColumnOwner& owner, std::vector<std::byte> address);
  void lose(const ColumnOwner& owner, Error cause);

  // exchange_core.cpp: leases of our columns that others hold, and of theirs that we hold.
  void set_sender(LeaseSender sender);
  void open_holder(const std::string& holder);
  void close_holder(const std::string& holder);
  result<void> on_notice(std::string_view holder, std::string_view method,
                         std::span<const std::byte> payload);
  result<std::shared_ptr<const ColumnLease>> lease_for(const ExchangeOwner& owner, ColumnId column,
                                                       bool granted);
  void lease_ended(const RemoteLease& lease);
  void flush_releases();
  ExchangeStatistics statistics() const;

  ColumnStore& store() { return store_; }
  const ExchangeOptions& options() const { return options_; }
  const std::vector<std::byte>& address() const { return address_; }
  std::uint64_t epoch() const { return epoch_; }

 private:
  struct LeaseKey {
    std::string group;
    std::int32_t rank = 0;
    std::uint64_t epoch = 0;
    std::uint64_t column = 0;
    auto operator<=>(const LeaseKey&) const = default;
  };
  struct LeaseEntry {
    std::weak_ptr<const RemoteLease> lease;
    const RemoteLease* which = nullptr;
  };
  using OwnerKey = std::pair<std::string, std::int32_t>;
  struct PeerEntry {
    std::vector<std::byte> address;
    std::uint64_t epoch = 0;
  };
  struct PullGroup;
  using Leases = std::vector<std::shared_ptr<const ColumnLease>>;

  static LeaseKey key_of(const ExchangeOwner& owner, ColumnId column);
  void run();
  void send_releases();
  void send_renewals();
  void expire_holders();
  /// Takes the leases of columns that nobody holds any more out of the table.
  Leases take_freed_locked(const std::vector<ColumnId>& columns);
  result<std::vector<std::byte>> address_of(const ExchangeOwner& owner, Deadline deadline);
  std::vector<PullGroup> start_pulls(std::span<const RowsWanted> wanted, Deadline deadline);
  std::shared_ptr<Transport> transport() const;

  const ExchangeOptions options_;
  ColumnStore store_;
  const std::shared_ptr<ReceivePool> pool_;
  std::vector<std::byte> address_;
  std::uint64_t epoch_ = 0;

  mutable std::mutex mutex_;  ///< guards the following
  std::condition_variable wake_;
  std::shared_ptr<Transport> transport_;
  bool closed_ = false;
  PeerLookup lookup_;
  std::map<OwnerKey, PeerEntry> peers_;
  std::map<std::uint64_t, Error> lost_;  ///< by epoch
  LeaseSender sender_;
  LeaseTable table_;
  std::string holder_;  ///< whom `export_*` grants to; empty: nobody
  std::unordered_map<ColumnId, std::shared_ptr<const ColumnLease>> granted_;
  std::map<LeaseKey, LeaseEntry> leases_;
  std::map<std::pair<OwnerKey, std::uint64_t>, std::int64_t> held_from_;  ///< leases with grants
  std::map<std::pair<OwnerKey, std::uint64_t>, std::vector<LeaseRelease>> releases_;
  std::int64_t releases_sent_ = 0;
  std::int64_t holders_expired_ = 0;
  std::thread thread_;
};

/// The lease of a column at another process.
class RemoteLease final : public ColumnLease {
 public:
  RemoteLease(std::shared_ptr<ColumnExchange::Core> core, ExchangeOwner where, ColumnId id)
      : core_(std::move(core)), where_(std::move(where)), id_(id) {}
  ~RemoteLease() override { core_->lease_ended(*this); }
  RemoteLease(const RemoteLease&) = delete;
  RemoteLease& operator=(const RemoteLease&) = delete;

  const ColumnOwner& owner() const override { return where_.owner; }
  ColumnId id() const override { return id_; }
  ColumnSource& source() const override { return *core_; }
  const ExchangeOwner& where() const { return where_; }

  mutable std::int64_t grants = 0;  ///< under the core's mutex

 private:
  std::shared_ptr<ColumnExchange::Core> core_;
  ExchangeOwner where_;
  ColumnId id_;
};

/// `policy rank 3`
std::string owner_name(const ColumnOwner& owner);

}  // namespace troupe::runtime
