#pragma once

// `RemoteRank`: one rank that is a process, as its controller sees it: a launch, a channel, and the
// calls that are on their way.
//
// Ownership: counted; its group, the job's list of expected dial-ins, the channel and the
// launcher's callback hold it.
// **Threads:** any; what the rank says arrives on the link's I/O thread.
// **Invariants:** calls leave in the order of `push`, control messages after the calls that were
// pushed before them. Results come in the same order, or the rank is dead. Its death is reported
// once, with the best cause: what it said itself, then the report of its exit, then the channel's;
// the report may come `exit_report_within` late.
// **Cost:** with few calls on their way each is a frame of its own, sent by the caller; with many,
// calls wait for results and then travel together.

#include "runtime/group/call.hpp"
#include "runtime/group/cluster_job.hpp"
#include "runtime/group/group_codec.hpp"
#include "runtime/group/group_messages.hpp"
#include "runtime/link/channel.hpp"

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

class RemoteRank;

/// What a remote rank reports to: its group.
class RemoteRankOwner : public RefCounted {
 public:
  virtual RankWelcome welcome(RankId rank) = 0;
  virtual void on_constructed(RankId rank, std::optional<Error> error) = 0;
  virtual void on_result(RankId rank, const Ref<Call>& call, const ResultFrame& frame) = 0;
  virtual void on_held(RankId rank, const GroupHeld& held) = 0;
  /// `during` is the first call on its way, or null.
  virtual void on_death(RankId rank, Error cause, Ref<Call> during) = 0;
};

class RemoteRank final : public RefCounted {
 public:
  RemoteRank(ClusterJob& job, Ref<RemoteRankOwner> owner, std::string group, RankId rank);

  pending<void> launch(const RankLaunch& launch);
  /// The launch failed: no report of an end will come.
  void not_launched();
  /// The service of its channel; kAlreadyExists when it has dialled in before.
  result<std::shared_ptr<ChannelService>> attach(Ref<Channel> channel);

  void push(Ref<Call> call);
  void wake();
  /// Sends what was pushed, then the notice. Does nothing when the rank is not connected.
  template <class Message>
  void send(std::string_view method, const Message& message) {
    send_bytes(method, encode_value(message));
  }
  pending<RankReport> report(Deadline deadline);

  /// Ends the process; its death is reported with this cause.
  void kill(Error cause);
  /// The status says that it is dead; the first cause stays.
  void bury(const Error& cause);
  /// No death is reported any more, and the process should end.
  void begin_close();
  /// False when the process has not ended by `deadline`.
  bool wait_ended(Deadline deadline);
  void force_end();
  /// Lets go of the owner and the channel.
  void finish_close();

  bool dead() const;
  bool connected() const;
  /// True when `call` is the oldest one that has not been answered.
  bool runs(const Call& call) const;
  /// From the calls on their way and the last report.
  RankStatus status() const;
  const std::string& group() const { return group_; }
  RankId rank() const { return rank_; }
  std::string peer_name() const;
  /// The rank's steady clock minus ours.
  Duration clock_offset() const;

 private:
  friend class RemoteRankService;
  ~RemoteRank() override = default;

  void on_request(std::string_view method, std::span<const std::byte> payload, Deadline deadline,
                  Responder responder);
  void on_notify(std::string_view method, std::span<const std::byte> payload);
  void on_down(const Error& cause);
  void on_exit(Error cause);

  result<std::vector<std::byte>> hello(std::span<const std::byte> payload);
  result<std::vector<std::byte>> ready(std::span<const std::byte> payload);
  result<void> take_notice(std::string_view method, std::span<const std::byte> payload);
  result<void> take_results(std::span<const std::byte> payload);
  void send_bytes(std::string_view method, result<std::vector<std::byte>> payload);
  /// Sends up to everything; needs send_mutex_.
  void flush_locked();
  std::vector<Ref<Call>> take_outbox();
  void put_back(const std::vector<Ref<Call>>& calls);
  Ref<Call> take_answered(CallId id);
  result<void> send_calls(const std::vector<Ref<Call>>& calls);
  void end_when_reported();
  void die(Error cause, std::optional<CallId> during);

  ClusterJob& job_;  // used under callback_mutex_ while open_, or by who keeps the job
  ActorSystem& system_;
  RankLauncher& launcher_;
  const Duration report_within_;
  const std::string job_name_;
  const std::string group_;
  const RankId rank_;

  /// Held while callbacks run, so that `finish_close` can wait for them; taken first. Recursive,
  /// since what a callback completes may lead back here.
  std::recursive_mutex callback_mutex_;
  bool open_ = true;  // guarded by callback_mutex_

  std::mutex send_mutex_;     // held while frames are made, so that they leave in order
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Ref<RemoteRankOwner> owner_;
  Ref<Channel> channel_;
  bool attached_ = false;
  bool same_clock_ = false;
  std::optional<Duration> best_round_trip_;
  Duration clock_offset_{0};
  std::deque<Ref<Call>> in_flight_;  // pushed and not answered, in order
  std::deque<Ref<Call>> outbox_;     // of these, not yet sent
  TimePoint first_since_;            // when the oldest became that
  RankReport report_;                // the last one
  std::int64_t answered_ = 0;
  std::optional<Error> death_;
  bool launched_ = false;
  bool closing_ = false;
  bool down_timer_ = false;
  std::optional<Error> exit_;
  std::optional<Error> down_;
};

}  // namespace troupe::runtime
