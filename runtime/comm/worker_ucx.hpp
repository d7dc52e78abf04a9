#pragma once

// UCX behind one door: context, worker, every knob that we set, and how a thread waits for it.
//
// What is chosen, and why (measured on 1.13.1, see docs/transport.md): error mode PEER on every
// endpoint, which shared memory only has with MM_ERROR_HANDLING; keepalive of at most 1 s; the
// rendezvous threshold stays automatic; no remote memory access is ever used. Knobs are set with
// `ucp_config_modify`, so that neither the environment nor other users of UCX are touched.
// **Threads:** made, used and destroyed by one thread, which owns all UCP calls; `wake` from any.
// **Invariants:** UCX's own signal handlers are taken out.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/comm/transport.hpp"

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace troupe::runtime {

/// `1.13.1`; both ends of a connection must have the same.
std::string ucx_version();
std::string ucx_reason(ucs_status_t status);

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
  /// Lets UCX work, a bounded number of times; true when there may be more to do.
  bool progress();
  /// Sleeps until UCX has an event, `wake` is called, or `until`. May return early.
  void wait(TimePoint until);
  void wake();

 private:
  UcxWorker() = default;
  result<void> make_context(TransportLanes lanes, const std::string& interfaces,
                            Duration keepalive);
  result<void> make_worker();

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;  ///< UCX's; belongs to the worker
};

}  // namespace troupe::runtime
