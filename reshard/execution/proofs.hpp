#pragma once

// Compares what a target found in the pieces it received with what their senders say of them.
//
// Bytes do not wait for sums: a sender sums on a thread of its own and says "not yet" until it is
// there, so questions are repeated, many pieces to a message. Nothing is verified before every
// piece that was expected has been found and claimed, and both agree.
// Ownership: what `ProofContext` points at outlives this; answers outlive it by themselves.
// **Threads:** one.
// **Invariants:** never blocks; at most one repeated question to a member is under way.

#include "reshard/execution/messages.hpp"
#include "reshard/execution/piece_lane.hpp"
#include "reshard/execution/piece_sums.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace troupe::reshard {

struct ProofContext {
  const PublicationPlan* plan = nullptr;
  std::int32_t rank = 0;  ///< of the target
  WeightPort* port = nullptr;
  PieceLane* lane = nullptr;
  std::uint64_t epoch = 0;
  Checks checks;
  Deadline deadline;
};

class Proofs {
 public:
  using Id = std::uint64_t;

  explicit Proofs(ProofContext context) : context_(std::move(context)) {}

  /// A piece from another process; its sender is asked by `ask`.
  Id expect(const MemberAddress& from, const OpPiece& piece);
  /// One of a rank in this process.
  Id expect_here(std::shared_ptr<PieceGiver> giver, Member from, const OpPiece& piece);
  /// Asks a member for what was expected of it since the last question.
  void ask(const Member& from);
  /// What the target computed, or what the sender claims when that is known here.
  result<void> found(Id id, const PieceSums& sums);
  result<void> claim(Id id, const PieceSums& sums);
  bool is_claimed(Id id) const;
  /// Takes answers and repeats questions; true when something moved.
  result<bool> advance();
  bool empty() const { return entries_.empty(); }
  /// The first piece that is not proven, for messages.
  std::string first_open() const;
  /// Who sent it; empty when all are proven.
  std::optional<Member> first_member() const;
  /// Whose answer was an error.
  const std::optional<Member>& failed_member() const { return failed_; }
  /// A source that owes an answer.
  std::optional<Member> late_source() const;
  /// An answer that is waited for, or null.
  const runtime::pending<void>* answer() const;

 private:
  struct Entry {
    MemberAddress from;
    std::shared_ptr<PieceGiver> giver;  ///< of this process
    OpPiece piece;
    std::optional<PieceSums> claimed, found;
    bool asked = false;  ///< in a question that is under way
  };
  struct Question {
    Member to;
    std::vector<Id> ids;
    std::shared_ptr<std::vector<PieceSums>> answers;
    runtime::pending<void> outcome;
  };

  Entry* entry(Id id);
  void send(const Member& to, const std::vector<Id>& ids);
  result<void> compare(const Entry& entry) const;
  result<bool> take_answers();
  result<bool> look_here();
  void repeat();
  void drop_proven();
  std::string piece_text(const OpPiece& piece) const;

  ProofContext context_;
  std::deque<Entry> entries_;
  Id first_ = 0;    ///< of the entries
  Id unasked_ = 0;  ///< before it everything was asked for once
  std::vector<Question> questions_;
  std::optional<Member> failed_;
  TimePoint repeat_at_{};
  Duration pause_ = std::chrono::microseconds(200);
};

}  // namespace troupe::reshard
