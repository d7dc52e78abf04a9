#pragma once

// One rank's walk through the rounds of a plan: pack, send and receive, unpack, between buffers of
// its device.
//
// While round i is on the wire, round i + 1 is packed and round i − 1 is checked and unpacked;
// there are two buckets each way. A message of one contiguous piece goes straight from or into the
// weights. Sums are made on the host from a copy in pinned memory, and only when they are asked
// for; copies inside the device are not checked. Ownership: staging is allocated once, with the
// exchange; the communicator and the device outlive it. Buffers of a job are the caller's and must
// stay alive until `run` returns.
// **Threads:** `run` on one at a time; `stop` of a job may be set by any.
// **Invariants:** `run` returns by the deadline plus the communicator's `abort_within`. It returns
// well only when every element of this rank's slice was written once and all sums agreed. After an
// error other than a wrong sum the communicator is aborted: peers wait for us in later rounds.
// **Cost:** device memory 4 buckets at most and the seals; pinned memory as much again with checks.

#include "reshard/nccl/communicator.hpp"
#include "reshard/nccl/rounds.hpp"
#include "reshard/nccl/seal.hpp"

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace troupe::reshard::nccl {

struct ExchangeJob {
  PublicationId id;
  Checks checks;
  std::vector<std::span<const std::byte>> sources;  ///< by buffer of the source layout
  std::vector<std::span<std::byte>> targets;        ///< of the set that is filled
  Deadline deadline;
  Duration round_within = std::chrono::seconds(30);  ///< for one round on the wire
  const std::atomic<bool>* stop = nullptr;
  std::function<void(std::int32_t layer)> layer_ready;  ///< ascending, each once; may be empty
};

class Exchange {
 public:
  /// kNotFound names a rank of the plan that the membership lacks.
  static result<std::unique_ptr<Exchange>> create(std::shared_ptr<const PublicationPlan> plan,
                                                  std::int32_t rank, const Membership& membership,
                                                  const CudaDevice& device,
                                                  Communicator& communicator);

  /// What this rank received; all zeros for one that only sends.
  result<ReceiveStatistics> run(const ExchangeJob& job);
  std::int64_t staging_bytes() const;
  std::size_t rounds() const { return rounds_.size(); }

 private:
  /// One direction of one of the two slots.
  struct Bucket {
    std::unique_ptr<CudaBuffer> data, seals;               ///< on the device
    std::unique_ptr<CudaBuffer> host_data, host_seals;     ///< pinned; data only with checks
    std::vector<std::span<std::byte>> messages;            ///< on the device, packed or in place
    std::vector<std::int64_t> data_offsets, seal_offsets;  ///< of each message
    std::vector<bool> staged;
  };
  struct Slot {
    Bucket send, receive;
  };
  struct TensorCount {
    std::int64_t elements = 0;
    std::uint64_t claimed = 0, found = 0;
  };

  Exchange(std::shared_ptr<const PublicationPlan> plan, std::int32_t rank,
           const Membership& membership, const CudaDevice& device, Communicator& communicator)
      : plan_(std::move(plan)),
        rank_(rank),
        membership_(membership),
        device_(device),
        communicator_(communicator) {}
  result<void> allocate();
  result<void> mirror(bool wanted);
  void find_layers();

  result<ReceiveStatistics> walk();
  result<void> copy_local();
  result<void> pack(std::size_t index);
  runtime::pending<void> send(std::size_t index);
  result<void> finish(runtime::pending<void>& wire);
  result<void> unpack(std::size_t index);
  result<void> settle();
  result<void> stopped() const;
  void lay_out(Bucket& bucket, const std::vector<Message>& messages, bool sends);
  result<void> move_cuts(const Message& message, std::span<std::byte> dense, bool pack) const;
  Strided place_of(const Cut& cut, bool sends) const;
  bool in_one_piece(const Message& message, bool sends) const;
  SealHead head_of(const Round& round) const;
  void take(const Message& message, const Seal& came, const Seal& found, bool staged);
  result<void> check_tensors() const;
  void announce(std::int64_t round_done);
  std::string round_text(const Round& round) const;
  bool checked() const { return job_->checks.chunk_crc || job_->checks.tensor_sums; }

  std::shared_ptr<const PublicationPlan> plan_;
  std::int32_t rank_;
  Membership membership_;
  const CudaDevice& device_;
  Communicator& communicator_;
  std::vector<Round> rounds_;
  std::map<std::int32_t, std::int32_t> peers_;                 ///< rank of the plan → of NCCL
  std::vector<std::pair<std::int32_t, std::int64_t>> layers_;  ///< and the position that ends each
  std::array<Slot, 2> slots_;
  std::unique_ptr<CudaHandle> stream_, event_;

  // Of the run.
  const ExchangeJob* job_ = nullptr;
  ReceiveStatistics statistics_;
  std::map<std::int32_t, TensorCount> counts_;
  std::optional<Error> wrong_;  ///< the first sum that did not agree
  std::size_t next_layer_ = 0;
};

}  // namespace troupe::reshard::nccl
