#pragma once

// Moves column rows between processes: a reader pulls, the owner serves.
//
// A pull names rows of columns at one owner and where each stretch goes; the bytes land there
// without another copy where the lane allows it. The reader asks in bounded chunks and keeps a
// bounded number of them in flight, so that neither end can be flooded: what was not asked for is
// never sent. `open_ucx_transport` (shared memory, TCP, RDMA: whatever UCX finds) is for
// processes, `LocalNetwork` (transport_local.hpp) for tests in one process.
// Ownership: the transport holds `PullRequest::keep` until nothing can write to the targets, also
// after the pull ended in an error; the owner holds `Pinned::keep` until nothing reads from it.
// **Threads:** every method from any thread. The source is called on the transport's thread and
// must not block.
// **Invariants:** every pull ends once: done, kDeadline, kRankDead (the owner is gone), or the
// owner's own error. Every message carries a MAC under the session key, the epochs of both ends and
// bounded lengths, all checked before use; what fails is refused, counted, and harms nothing.
// Addresses are handed on over authenticated channels only.

#include "runtime/base/clock.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"
#include "runtime/task/pending.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe::runtime {

/// Shared by the processes of one job, given to each over its authenticated channel; never logged.
using SessionKey = std::array<std::byte, 16>;

/// A fresh key from the operating system's generator.
result<SessionKey> make_session_key();

/// Rows [first_row, first_row + rows) of a column at the owner, and where their bytes go.
struct PullPart {
  ColumnId column;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::span<std::byte> into;  ///< exactly the payload bytes of these rows
};

/// Told of bytes as they land, on threads of the transport, while they are in a cache.
/// **Threads:** any, several at once; must be quick and must not block.
/// **Invariants:** parts of the targets, in no order, each by one of the calls; a pull that starts
/// over tells them again.
class LandingWatch {
 public:
  virtual ~LandingWatch() = default;
  virtual void landed(std::span<const std::byte> bytes) = 0;
  /// Copies bytes that lie in a buffer of the transport to `target`, as long as they are; what
  /// walks over them anyway can do both at once.
  virtual void bring(std::byte* target, std::span<const std::byte> bytes) {
    std::memcpy(target, bytes.data(), bytes.size());
    landed({target, bytes.size()});
  }
};

struct PullRequest {
  std::vector<std::byte> owner;  ///< the owner's `Transport::address()`
  std::vector<PullPart> parts;
  std::shared_ptr<const void> keep;          ///< keeps every target alive
  std::shared_ptr<LandingWatch> watch = {};  ///< may be null, and need not be told of everything
};

/// Bytes of some rows at the owner, in row order, alive while `keep` is held.
struct Pinned {
  std::vector<std::span<const std::byte>> spans;
  std::shared_ptr<const void> keep;
};

/// Answers pulls: rows [first, first + rows) of a column. Arguments come from outside: kNotFound
/// for a column that is not held, kInvalidArgument for rows that it does not have.
using PullSource =
    std::function<result<Pinned>(ColumnId column, std::int64_t first, std::int64_t rows)>;

enum class TransportLanes : std::uint8_t {
  kAuto,  ///< direct copies on one host, else RDMA where there is any, else TCP
  kTcp,   ///< TCP only; nobody is permitted to read this process's memory
  /// Shared memory of UCX; same host only. A process that is killed while it sends leaves its half
  /// written message in the receiver's queue, and nobody's messages pass it (UCX 1.13): for
  /// processes that live and die together.
  kSharedMemory,
};

struct TransportOptions {
  std::string name;   ///< of this process in messages, e.g. `policy rank 3`
  SessionKey key{};   ///< the same in all processes of the job
  PullSource source;  ///< may be empty: this process serves nothing
  TransportLanes lanes = TransportLanes::kAuto;
  std::string interfaces;  ///< network interfaces, e.g. `eth0,lo`; empty: all
  /// Copy straight from the memory of owners on this host (process_vm_readv) when a probe shows
  /// that the kernel permits it; also with the lanes above, but for kTcp.
  bool direct_copy = true;
  int copy_threads = 2;                              ///< that make those copies, 1..64
  std::int64_t chunk_bytes = std::int64_t{4} << 20;  ///< most bytes of one answer
  std::int32_t chunks_in_flight = 8;                 ///< asked for and not yet here, per pull
  /// Most bytes that this owner copies together at a time for readers of scattered rows; further
  /// requests wait.
  std::int64_t pack_bytes_max = std::int64_t{64} << 20;
  Duration keepalive = std::chrono::milliseconds(500);  ///< at most 1 s
  /// Longest that the progress thread spins before it sleeps; far less when that does not pay.
  Duration spin = std::chrono::microseconds(50);
  Duration drain = std::chrono::seconds(2);  ///< for transfers under way when a pull has failed
};

/// Since the transport opened.
struct TransportStatistics {
  std::int64_t pulls = 0;  ///< finished well, as reader
  std::int64_t pulls_failed = 0;
  std::int64_t bytes_pulled = 0;  ///< as reader
  std::int64_t bytes_direct = 0;  ///< of these, copied without a lane
  std::int64_t bytes_served = 0;  ///< as owner
  std::int64_t requests = 0;      ///< chunk requests sent
  std::int64_t refused = 0;       ///< forged, torn, replayed or oversized messages
  std::int64_t late = 0;          ///< answers to pulls that were over
  std::int64_t pulls_open = 0;
  std::int64_t pins_held = 0;  ///< as owner
  std::int64_t peers = 0;
  std::int64_t buffers_orphaned = 0;  ///< kept since the lane may still write to them
};

class Transport {
 public:
  virtual ~Transport() = default;
  /// Version, host, epoch and lanes of this process, opaque to others.
  virtual const std::vector<std::byte>& address() const = 0;
  /// Starts at once. Errors name the owner by the name in its address.
  virtual pending<void> pull(PullRequest request, Deadline deadline) = 0;
  /// The process behind `address` is gone: its pulls end with kRankDead caused by `cause`, and
  /// nothing is ever exchanged with that epoch again.
  virtual void peer_lost(const std::vector<std::byte>& address, Error cause) = 0;
  virtual TransportStatistics statistics() const = 0;
};

/// kConfig names the option that is wrong, kUnsupported the lanes that this machine lacks.
result<std::unique_ptr<Transport>> open_ucx_transport(TransportOptions options);

/// Blocks this (engine) thread until the pull is over.
result<void> pull_and_wait(Transport& transport, PullRequest request, Deadline deadline);

}  // namespace troupe::runtime
