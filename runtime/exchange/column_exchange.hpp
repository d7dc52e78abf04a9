#pragma once

// Columns across processes: batches as small wire frames, big columns by reference, payload pulled
// over the data plane when somebody reads it.
//
// One per process. Exporting puts big columns into this process's store and writes references;
// importing makes references whose `Batch::resolve` pulls just the rows that the view covers, in
// one request to each owner, from all owners at the same time. Columns of this process come back
// as themselves, without the data plane.
//
// Leases. Only the controller holds leases of columns at ranks; ranks borrow what they are sent
// for the duration of a call.
//   rank:        `export_*` for results: grants the lease to the open holder (its controller).
//   controller:  `import_*` of a result takes the lease; when its last view goes, a batched
//                `columns.release` goes to the owner. `columns.renew` goes out every second.
//   either way:  `lend_*` for arguments: keeps the columns for as long as `Lent::keep` lives.
//   rank:        `import_*` of arguments borrows.
// **Threads:** every method from any thread. `import_*` blocks only when the frame itself was too
// big to travel and has to be pulled; resolve blocks. Hooks are called without locks held, on the
// caller's thread or the exchange's own.
// **Invariants:** a frame is at most kFrameBytesMax; decoding is bounded and checked; a column at
// an owner has one lease here however often it was imported. Errors name owner, column and cause:
// kRankDead, kDeadline, kNotFound when the lease is over.
// An exchange outlives the batches that it imported, or their resolve fails with kAborted.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/batch/column_ref.hpp"
#include "runtime/comm/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

/// Largest exported frame; a bigger one is held here and pulled by its reader.
inline constexpr std::size_t kExchangeFrameBytesMax = std::size_t{256} << 10;
/// Method names of the notices between exchanges.
inline constexpr std::string_view kColumnsRelease = "columns.release";
inline constexpr std::string_view kColumnsRenew = "columns.renew";

struct ExchangeOptions {
  ColumnOwner self;                          ///< e.g. {"policy", 3}; {"controller", 0}
  std::int64_t inline_bytes_max = 16 << 10;  ///< a column up to this travels in the frame
  std::int64_t inline_total_max = 96 << 10;  ///< of one frame; further columns are referred to
  Duration pull_deadline = std::chrono::seconds(60);  ///< of a resolve that was given none
  Duration release_every = std::chrono::milliseconds(20);
  Duration renew_every = std::chrono::seconds(1);
  /// Second line behind `close_holder`: a holder that is silent this long is gone.
  Duration lease_expires_after = std::chrono::seconds(10);
  std::int64_t receive_cache_bytes = std::int64_t{512} << 20;  ///< buffers kept for the next pulls
  DecodeLimits limits;
};

/// An exported argument; its columns stay here while `keep` lives.
struct Lent {
  std::vector<std::byte> bytes;
  std::shared_ptr<const void> keep;
};

/// Sends a notice to the process of `owner`; an error means that it was not sent.
using LeaseSender = std::function<result<void>(const ColumnOwner& owner, std::string_view method,
                                               std::vector<std::byte> payload)>;
/// The data-plane address of `owner`; asked once per owner, then remembered.
using PeerLookup =
    std::function<result<std::vector<std::byte>>(const ColumnOwner& owner, Deadline deadline)>;

struct ExchangeStatistics {
  TransportStatistics transport;
  std::int64_t columns_held = 0;  ///< in the store of this process
  std::int64_t bytes_held = 0;
  std::int64_t columns_granted = 0;  ///< of these, held by other processes
  std::int64_t leases = 0;           ///< of columns elsewhere that this process holds or borrows
  std::int64_t releases_sent = 0;    ///< columns
  std::int64_t holders_expired = 0;
};

class ColumnExchange {
 public:
  /// Opens the data plane with `transport.source` set to this process's store.
  static result<std::unique_ptr<ColumnExchange>> open(ExchangeOptions options,
                                                      TransportOptions transport);
  /// On a transport of the caller's making, e.g. `LocalNetwork`; `open_transport` gets the source.
  static result<std::unique_ptr<ColumnExchange>> open(
      ExchangeOptions options,
      const std::function<result<std::unique_ptr<Transport>>(PullSource)>& open_transport);
  ~ColumnExchange();
  ColumnExchange(const ColumnExchange&) = delete;
  ColumnExchange& operator=(const ColumnExchange&) = delete;

  /// For results: what stays here is granted to the open holder. kAborted when none is open.
  result<std::vector<std::byte>> export_batch(const Batch& batch);
  result<std::vector<std::byte>> export_column(const Column& column);
  /// For arguments: what stays here is kept by `Lent::keep`.
  result<Lent> lend_batch(const Batch& batch);
  result<Lent> lend_column(const Column& column);
  result<Batch> import_batch(std::span<const std::byte> bytes);
  result<Column> import_column(std::span<const std::byte> bytes);

  /// Columns that this process keeps. References from it may be exported and lent.
  ColumnStore& store();
  const ColumnOwner& self() const;
  /// Travels over authenticated channels only.
  const std::vector<std::byte>& address() const;

  void set_peer_lookup(PeerLookup lookup);
  void set_peer(const ColumnOwner& owner, std::vector<std::byte> address);
  /// The owner's process is gone; its references fail with kRankDead caused by `cause`. A new
  /// process of the same name needs `set_peer` or a lookup that gives its new address.
  void peer_lost(const ColumnOwner& owner, Error cause);

  /// As holder: how notices reach owners.
  void set_lease_sender(LeaseSender sender);
  /// As owner: the controller's channel is up, under a name of this session; the latest one opened
  /// is who `export_*` grants to.
  void open_holder(const std::string& holder);
  /// As owner: a notice `columns.…` came in from `holder`.
  result<void> on_lease_notice(std::string_view holder, std::string_view method,
                               std::span<const std::byte> payload);
  /// As owner: the channel is down; everything that only `holder` held is freed.
  void close_holder(const std::string& holder);

  /// Sends due releases now instead of within `release_every`.
  void flush_releases();
  ExchangeStatistics statistics() const;

  class Core;

 private:
  explicit ColumnExchange(std::shared_ptr<Core> core);
  std::shared_ptr<Core> core_;
};

}  // namespace troupe::runtime
