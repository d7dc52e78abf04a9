#pragma once

// Sums of pieces that others will compare with, computed on a thread of its own: answers to pulls
// come from the transport's thread, which must not walk over megabytes.
//
// Who asks for a sum that is not known yet starts it and asks again later. A piece is summed once
// an epoch, whoever and how many ask: replicas share it.
// Ownership: holds givers while their pieces are queued; one per `WeightPort`.
// **Threads:** any; the thread starts with the first piece that is worth it.
// **Invariants:** memory is pinned while it is read and not before; at most kQueuedMax pieces wait,
// others are refused as not known; after `forget` nothing of a closed giver is begun, and after
// `drain` nothing of it is read.

#include "reshard/execution/messages.hpp"
#include "reshard/execution/piece_sums.hpp"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

namespace troupe::reshard {

class PieceGiver;

class PieceSummer {
 public:
  PieceSummer() = default;
  ~PieceSummer();
  PieceSummer(const PieceSummer&) = delete;
  PieceSummer& operator=(const PieceSummer&) = delete;

  /// Empty when it is not known yet. An error is told once; the next who asks tries again.
  std::optional<result<PieceSums>> look(const std::shared_ptr<PieceGiver>& giver,
                                        const OpPiece& piece, const Checks& checks);
  /// What a reader in this process summed on its way: known from now on, if nothing was. The answer
  /// is what is known, or empty while somebody else is summing the piece.
  std::optional<PieceSums> offer(const PieceGiver& giver, const OpPiece& piece,
                                 const PieceSums& sums);
  /// Drops what is queued and known of that giver, which must be closed.
  void forget(const PieceGiver& giver);
  /// Waits for the piece of that giver which is being summed, if any: milliseconds. The caller
  /// holds nothing that `PieceGiver::read` waits for.
  void drain(const PieceGiver& giver);

  static constexpr std::size_t kQueuedMax = 8192;

 private:
  /// Giver; tensor, box, piece of the box; checks. Operations to replicas have the same box.
  using Key = std::tuple<std::uint64_t, std::int32_t, std::int64_t, std::int64_t, std::int64_t,
                         std::int64_t, std::int64_t, std::int64_t, int>;
  struct Job {
    Key key;
    std::shared_ptr<PieceGiver> giver;
    OpPiece piece;
    Checks checks;
  };
  static Key key_of(const PieceGiver& giver, const OpPiece& piece, const Checks& checks);
  void run();

  std::mutex mutex_;  ///< guards the following
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::deque<Job> queue_;
  std::map<Key, std::optional<result<PieceSums>>> known_;  ///< empty: queued or being summed
  std::uint64_t running_ = 0;                              ///< number of the giver that is read
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace troupe::reshard
