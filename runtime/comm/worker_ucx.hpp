#pragma once

// UCX behind one door: context, worker, every knob that we set, and how a thread waits for it.
//
// What is chosen, and why (measured on 1.13.1, see docs/transport.md): error mode PEER on every
// endpoint, which shared memory only has with MM_ERROR_HANDLING; keepalive of at most 1 s; TCP
// segments that hold a small message whole, and big answers by rendezvous in messages of
// kTcpMessageBytes, of which several are under way, or at once where the reader does the last copy,
// which both need where errors are handled; no remote memory access is ever used. Knobs are set
// with `ucp_config_modify`, so that neither the environment nor other users of UCX are touched.
// **Threads:** made, used and destroyed by one thread, which owns all UCP calls; `wake` from any.
// **Invariants:** UCX's own signal handlers are taken out.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/comm/transport.hpp"

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe::runtime {

/// `1.13.1`; both ends of a connection must have the same.
std::string ucx_version();
std::string ucx_reason(ucs_status_t status);

/// Bytes of columns in one message where TCP is the only lane.
inline constexpr std::int64_t kTcpMessageBytes = std::int64_t{512} << 10;
/// The same when the reader walks over them on the way: what UCX reads of a socket at a time.
inline constexpr std::int64_t kTcpWatchedBytes = std::int64_t{256} << 10;

class UcxWorker {
 public:
  static result<std::unique_ptr<UcxWorker>> open(TransportLanes lanes,
                                                 const std::string& interfaces, Duration keepalive);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h handle() const { return worker_; }
  result<std::vector<std::byte>> address() const;
  /// The same without lanes of shared memory, which work within one host's namespaces only.
  result<std::vector<std::byte>> network_address() const;
  /// Lets UCX work, a bounded number of times; false when there was nothing to do.
  bool progress();
  /// Largest answer that is best sent at once, without asking the reader to be ready for it.
  std::int64_t at_once_bytes(bool watched) const;
  /// Largest answer that is worth one message; more are better cut.
  std::int64_t message_bytes_max(bool watched) const;

  /// How often `wake` was called; taken before looking for work, handed to `wait` after it.
  std::uint64_t wakes() const { return wakes_.load(); }
  /// Sleeps until UCX has an event, `wake` is called, or `until`; not at all when `wake` was called
  /// since `wakes` said `seen`. May return early.
  void wait(TimePoint until, std::uint64_t seen);
  /// Costs a system call only when the worker sleeps.
  void wake();

 private:
  UcxWorker() = default;
  result<void> make_context(TransportLanes lanes, const std::string& interfaces,
                            Duration keepalive);
  result<void> make_worker();
  void sleep(TimePoint until);

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;   ///< UCX's; belongs to the worker
  bool tcp_only_ = true;  ///< no other lane can be chosen
  std::atomic<std::uint64_t> wakes_{0};
  std::atomic<bool> asleep_{false};
};

}  // namespace troupe::runtime
