#pragma once

// One device's part in publications over NCCL: as source, as target, or as both.
//
//   NcclPeer peer(plan, rank, libraries, {.sources = …, .sink = …});
//   peer.join(membership, deadline);                       // every member, side by side
//   Reply reply = peer.handle(Side::kSource, command);     // from `publish`, with `sources_send`
//
// Speaks the protocol of execution/messages.hpp, so that the coordinator and its rules are the same
// as for pulls; only kReceive goes to sources too, since NCCL's senders must act. Until the commit
// the old version serves, whatever happens. A publication that fails on the wire leaves the
// communicator broken: begins are refused until all have joined a newer membership.
// Ownership: buffers, sink and device are the caller's and outlive this; spans of the sink are
// device memory and never read by the host.
// **Threads:** any; kReceive blocks its thread for as long as the transfer takes, kAbort and
// `abort` end it from another.
// **Invariants:** every call ends by its time plus the communicator's `abort_within`; nobody reads
// the sources while an update is held. Deltas are refused.

#include "reshard/execution/publication_source.hpp"
#include "reshard/execution/weight_sink.hpp"
#include "reshard/nccl/communicator.hpp"
#include "reshard/nccl/exchange.hpp"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe::reshard::nccl {

struct NcclPeerOptions {
  std::vector<std::span<const std::byte>> sources;  ///< device memory, by buffer of the layout
  WeightSink* sink = nullptr;                       ///< null for a rank that is no target
  Duration round_within = std::chrono::seconds(30);
  Duration abort_within = std::chrono::seconds(5);
};

class NcclPeer {
 public:
  static result<std::unique_ptr<NcclPeer>> create(std::shared_ptr<const PublicationPlan> plan,
                                                  std::int32_t rank,
                                                  std::shared_ptr<const NcclLibrary> library,
                                                  const CudaDevice& device,
                                                  const NcclPeerOptions& options);
  ~NcclPeer();
  NcclPeer(const NcclPeer&) = delete;
  NcclPeer& operator=(const NcclPeer&) = delete;

  /// A new id for a membership, made on one member and sent to all.
  result<std::vector<std::byte>> new_unique_id() const;
  /// For the membership's table.
  DeviceMember device_member(std::string host) const;
  /// Blocks until every member has joined. Staging is allocated with the first one.
  result<void> join(const Membership& membership, Deadline deadline);
  /// Ends whatever is under way and breaks the membership: a member died, or left.
  void abort(Error cause);

  Reply handle(Side side, const Command& command);
  /// For the trainer, as `PublicationSource::start_update`.
  result<std::unique_ptr<UpdateLease>> start_update(Deadline deadline);
  bool ready() const;
  /// An abort of NCCL's has not come back: this process must end.
  bool stuck() const;

 private:
  class Impl;
  explicit NcclPeer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::reshard::nccl
