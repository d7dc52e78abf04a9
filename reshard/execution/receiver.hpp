#pragma once

// Receives one target's slice of a plan, once: buckets asked for, checked, unpacked, handed on.
//
// Two buckets are under way: the requests of the next are out while one is unpacked, which sums it
// in the same walk. Sums are compared as the senders know theirs (proofs.hpp), before `run`
// returns; what was handed on to us, before its sender may forget it. The first error ends
// everything. Ownership: everything that `ReceiveJob` points at outlives the receiver.
// **Threads:** `run` on one; `stop` of the job may be set by any, and is looked at every 20 ms.
// **Invariants:** `run` returns by the deadline. When it returns well, every element of the plan's
// slice was written once and the checksums of every piece agreed, when any were asked for.

#include "reshard/execution/bucket.hpp"
#include "reshard/execution/hand_on.hpp"
#include "reshard/execution/landing_sums.hpp"
#include "reshard/execution/messages.hpp"
#include "reshard/execution/piece_lane.hpp"
#include "reshard/execution/piece_sums.hpp"
#include "reshard/execution/proofs.hpp"
#include "reshard/execution/weight_sink.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::reshard {

struct ReceiveJob {
  std::shared_ptr<const PublicationPlan> plan;
  std::int32_t rank = 0;
  WeightSink* sink = nullptr;
  WeightPort* port = nullptr;
  PieceLane* lane = nullptr;  ///< may be null when everything is in this process
  PublicationId id;
  Checks checks;
  std::map<Member, MemberAddress> members;
  const std::vector<Bucket>* buckets = nullptr;
  std::array<BucketMemory, 2> memory;
  bool permit_views = false;
  Deadline deadline;
  std::atomic<bool>* stop = nullptr;
  /// Held by whatever may still write to the sink's memory.
  std::shared_ptr<const void> landing;
  std::shared_ptr<HandOn> hand_on;
};

class Receiver {
 public:
  explicit Receiver(ReceiveJob job);
  result<ReceiveStatistics> run();
  /// After `run` failed: who did not send, or answer, in time, when that was the reason.
  const std::optional<Member>& waited_for() const { return waited_for_; }

 private:
  /// Pieces of a bucket that come from one member.
  struct Group {
    Member from;
    bool handed_on = false;
    std::vector<std::size_t> pieces;  ///< indices into the bucket
    std::size_t asked = 0;            ///< of those
    std::size_t here = 0;             ///< of those
    bool has_sizes = false;           ///< delta: what changed may be asked for
    runtime::pending<void> answer;
    bool is_out() const { return answer.valid(); }
  };
  /// What the senders say about the pieces of a bucket; written by the lane.
  struct Claims {
    std::vector<std::int64_t> delta_bytes;
    BucketMemory memory;
    std::shared_ptr<const void> landing;
  };
  struct Flight {
    const Bucket* bucket = nullptr;
    std::shared_ptr<Claims> claims;
    std::vector<Group> groups;
    std::vector<bool> here;                             ///< by piece
    std::vector<Proofs::Id> proofs;                     ///< by piece, when anything is checked
    std::vector<std::shared_ptr<LandingSums>> landing;  ///< by piece, where they are summed
    std::size_t unpacked = 0;                           ///< a prefix of the pieces
    std::int64_t end = 0;                               ///< of that prefix, in the receive order
  };
  /// Where we stand with one who hands on to us.
  struct Sender {
    std::vector<std::int32_t> ops;  ///< from it, in our order
    std::size_t next = 0;           ///< first that is not done
    std::int64_t done = 0;          ///< elements of that one
    std::int64_t known = 0;         ///< how far it is
    std::int64_t told = -1;         ///< what it knows of us
  };

  result<ReceiveStatistics> receive();
  /// Names a source that is late rather than a target, which may wait for the same source.
  Error blame(Error error);
  result<void> depart(std::size_t index);
  /// Whether the memory of that bucket is free; waits for at most `span`.
  bool can_depart(std::size_t index, Duration span);
  result<void> arrive(Flight& flight);
  /// Takes what has come and asks for what is ready; true when something moved.
  result<bool> look(Flight& flight, Group& group);
  std::size_t ready(const Flight& flight, const Group& group) const;
  /// Unpacks the pieces that are here, in order; true when there were some.
  result<bool> unpack_prefix(Flight& flight);
  result<void> linger(Flight& flight, Duration& nap);
  /// Tells senders what we have taken of them.
  result<void> acknowledge(const Flight& flight);
  result<void> ask(Flight& flight, Group& group, std::size_t count);
  result<void> ask_deltas(Flight& flight, Group& group);
  result<void> copy_from_here(Flight& flight, Group& group, PieceGiver& giver, std::size_t count);
  result<void> poll(const Member& from);
  result<void> wait(runtime::pending<void>& answer, const Group& group, const Bucket& bucket);
  result<void> outcome_of(runtime::pending<void>& answer, const Group& group, const Bucket& bucket);
  std::int64_t taken_of(const Sender& sender, std::int32_t rank) const;
  result<void> stopped() const;
  result<void> unpack(Flight& flight, std::size_t index);
  result<void> apply_delta(Flight& flight, std::size_t index);
  /// Keeps what was found in a piece for its proof.
  result<void> found(const Flight& flight, std::size_t index, const PieceSums& sums);
  bool is_checked() const { return job_.checks.chunk_crc || job_.checks.tensor_sums; }
  /// Takes what is here of the group, as far as it may be handed on.
  void take_here(Flight& flight, Group& group) const;
  bool sums_locally(const BucketPiece& one) const;
  std::int32_t root_index(std::int32_t op) const;
  result<void> prove_all();
  PieceSums sums_in_place(const Flight& flight, std::size_t index,
                          std::span<const std::byte> place) const;
  result<void> take_local(const BucketPiece& one);
  result<void> check_tensors() const;
  void find_senders();
  void count(const Flight& flight, std::size_t index);
  void announce(std::size_t next_bucket);
  std::span<std::byte> place_of(const Flight& flight, std::size_t index) const;
  Region region_here(const Op& op) const;
  std::int64_t element_of(const Op& op) const;
  std::string piece_text(const OpPiece& piece) const;
  bool is_delta(const Group& group) const { return job_.id.base && !group.handed_on; }
  const MemberAddress& address_of(const Member& member) const;

  ReceiveJob job_;
  const PublicationPlan& plan_;
  std::vector<Flight> flights_;  ///< at most two, by bucket index modulo two
  std::map<std::int32_t, Sender> senders_;
  std::map<std::int32_t, std::int64_t> elements_;  ///< that came, by tensor
  Proofs proofs_;
  std::optional<std::int32_t> announced_;
  std::optional<Member> waited_for_;
  ReceiveStatistics statistics_;
};

}  // namespace troupe::reshard
