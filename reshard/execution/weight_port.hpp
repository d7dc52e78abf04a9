#pragma once

// The door of one process to the weights in others: answers pulls of pieces, and pulls them.
//
// One per process, with a `runtime::Transport` of its own; without one the ranks of this process
// still see each other. Ranks register what they give out for one epoch: a source its frozen
// weights, a target what it has received and hands on. A piece is a run of elements of an
// operation's box in row-major order, so that every split is exact.
// Ownership: the port owns the transport; it outlives the ranks that use it. Registered data stays
// alive until nobody reads it.
// **Threads:** any.
// **Invariants:** nothing is served under an epoch that is not registered; a piece is served with
// exactly the bytes asked for; spans point at live memory while they are pinned.

#include "reshard/execution/messages.hpp"
#include "reshard/execution/publication_plan.hpp"
#include "runtime/comm/transport.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace troupe::reshard {

/// Elements [first, first + count) of the box of operation `op`, row-major.
struct OpPiece {
  std::int32_t op = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const OpPiece&) const = default;
};

/// A box in memory; rows lie `row_stride` elements apart.
struct MemoryView {
  const std::byte* data = nullptr;
  std::int64_t row_stride = 0;
  std::shared_ptr<const void> keep;  ///< nothing changes while it is held
};

class PieceSummer;

/// Gives out pieces of one rank's memory under one epoch.
class PieceGiver {
 public:
  PieceGiver();
  virtual ~PieceGiver() = default;
  virtual const PublicationPlan& plan() const = 0;
  /// The memory of a piece. kNotFound when it is not here yet.
  virtual result<runtime::Pinned> read(const OpPiece& piece) = 0;
  /// For those who are handed on: what `taker` no longer needs lies before `taken`; the answer is
  /// how far this rank is, both in elements of its receive order. A source has everything.
  virtual std::int64_t progress(std::int32_t taker, std::int64_t taken) = 0;
  /// All of an operation's box at once, for ranks of this process; empty when it is not whole here.
  virtual std::optional<MemoryView> view(std::int32_t op) {
    (void)op;
    return std::nullopt;
  }
  /// Delta only: what the piece was in the base version, or empty.
  virtual result<runtime::Pinned> read_base(const OpPiece& piece);

  /// Of this giver alone in this process.
  std::uint64_t number() const { return number_; }
  /// It is given out no longer.
  bool closed() const { return closed_; }
  void close() { closed_ = true; }

 private:
  std::uint64_t number_;
  std::atomic<bool> closed_{false};
};

struct WeightPortOptions {
  runtime::TransportOptions transport;  ///< its `source` must be empty: the port is the source
};

class WeightPort {
 public:
  using OpenTransport =
      std::function<result<std::unique_ptr<runtime::Transport>>(runtime::PullSource)>;

  /// For ranks of this process only.
  static std::unique_ptr<WeightPort> local();
  /// Over UCX. Errors as `open_ucx_transport`.
  static result<std::unique_ptr<WeightPort>> open(WeightPortOptions options);
  /// Over whatever `open` makes around the port's source; for tests and other transports.
  static result<std::unique_ptr<WeightPort>> open(const OpenTransport& open);
  ~WeightPort();
  WeightPort(const WeightPort&) = delete;
  WeightPort& operator=(const WeightPort&) = delete;

  /// Empty for a local port.
  std::vector<std::byte> address() const;
  /// Null for a local port.
  runtime::Transport* transport() { return transport_.get(); }

  /// kAlreadyExists when that member gives something out under this epoch already.
  result<void> give(std::uint64_t epoch, Member member, std::shared_ptr<PieceGiver> giver);
  /// A target's memory is not summed any more when it returns; a source counts its readers.
  void stop_giving(std::uint64_t epoch, Member member);
  /// Of a rank in this process, or null.
  std::shared_ptr<PieceGiver> giver(std::uint64_t epoch, Member member) const;
  /// The process behind `address` is dead: what is pulled from it ends at once.
  void peer_lost(const std::vector<std::byte>& address, Error cause);
  /// What sums the memory that is given out here.
  PieceSummer& summer() { return *summer_; }

 private:
  WeightPort();
  result<runtime::Pinned> answer(ColumnId column, std::int64_t first, std::int64_t rows) const;
  result<std::shared_ptr<PieceGiver>> giver_of(std::uint64_t epoch, std::int32_t op) const;

  struct Key {
    std::uint64_t epoch = 0;
    Member member;
    auto operator<=>(const Key&) const = default;
  };
  mutable std::mutex mutex_;  ///< guards the map
  std::map<Key, std::shared_ptr<PieceGiver>> givers_;
  std::unique_ptr<PieceSummer> summer_;
  std::unique_ptr<runtime::Transport> transport_;
};

}  // namespace troupe::reshard
