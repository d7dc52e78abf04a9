// Proves that the publication protocol keeps its promises whatever happens to messages and members:
// thousands of seeded runs of the three pure cores over a network that delays, reorders, doubles,
// loses and replays, with members that are killed, stopped or fail in each of their steps, several
// publications in a row. After every step: nothing becomes active that its coordinator has not
// decided, and nothing is decided that some target has not verified. At the end of each
// publication: success means that all targets serve the new version, an error before the decision
// that all serve the old one and that there is one cause that names a member.

#include "reshard/execution/coordinator_core.hpp"
#include "reshard/execution/member_core.hpp"
#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace troupe::reshard {
namespace {

using std::chrono::milliseconds;
constexpr std::uint64_t kDigest = 42;

TimePoint time_at(std::int64_t ms) { return TimePoint() + milliseconds(ms); }

struct Faults {
  double lose = 0;
  double twice = 0;
  double replay = 0;      ///< of any command that was ever sent
  std::int64_t slow = 5;  ///< longest delay, ms
  double fail_step = 0;   ///< freeze, prepare, fetch or commit says no
  double kill = 0;        ///< a member, once in a publication
  double stop = 0;        ///< a member, for good or for a while
};

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed) : rng_(seed) {
    const auto chance = [this](double most) {
      return rng_.below(2) == 0 ? 0 : rng_.uniform() * most;
    };
    faults_ = {.lose = chance(0.1),
               .twice = chance(0.3),
               .replay = chance(0.1),
               .slow = static_cast<std::int64_t>(1 + rng_.below(rng_.below(2) == 0 ? 5 : 200)),
               .fail_step = chance(0.1),
               .kill = chance(0.5),
               .stop = chance(0.5)};
    const auto count = [this] { return static_cast<std::int32_t>(1 + rng_.below(3)); };
    const std::int32_t source_count = count();
    for (std::int32_t i = 0; i < source_count; ++i) {
      members_.push_back({Side::kSource, i});
      sources_.emplace(i, Source{SourceCore(i, kDigest), false, 0});
    }
    const std::int32_t target_count = count();
    for (std::int32_t i = 0; i < target_count; ++i) {
      members_.push_back({Side::kTarget, i});
      targets_.emplace(i, Target{TargetCore(i, kDigest, WeightVersion{0}), 0, {}, {}, {}});
    }
  }

  void run() {
    const std::int64_t publications = 1 + static_cast<std::int64_t>(rng_.below(5));
    for (std::int64_t p = 0; p < publications && !testing::Test::HasFailure(); ++p) publish();
    faults_ = Faults();
  }
  std::int64_t succeeded() const { return succeeded_; }
  std::int64_t failed() const { return failed_; }

 private:
  struct Source {
    SourceCore core;
    bool frozen = false;
    std::int64_t freezes = 0;  ///< tells one freeze from another
  };
  struct Fetch {
    std::map<std::int32_t, std::int64_t> freezes;  ///< of the sources, when it began
    bool stopped = false;
  };
  struct Target {
    TargetCore core;
    std::int64_t serves = 0;
    std::optional<std::uint64_t> updating;
    std::optional<Fetch> fetch;
    std::set<std::uint64_t> verified;
  };
  struct Event {
    TimePoint at;
    std::uint64_t order = 0;
    std::optional<Member> to;  ///< the coordinator when empty
    std::function<void()> deliver;
  };

  void schedule(std::int64_t delay_ms, std::optional<Member> to, std::function<void()> deliver) {
    events_.push_back({now_ + milliseconds(delay_ms), ++order_, to, std::move(deliver)});
  }
  std::int64_t delay() {
    return static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(faults_.slow)));
  }
  bool happens(double chance) { return chance > 0 && rng_.uniform() < chance; }
  /// Messages have fates; what is inside a member has not.
  void send(std::optional<Member> to, const std::function<void()>& deliver) {
    if (happens(faults_.lose)) return;
    schedule(delay(), to, deliver);
    if (happens(faults_.twice)) schedule(delay(), to, deliver);
  }
  void send_command(const SendCommand& one) {
    sent_.push_back(one);
    const auto deliver = [this](const SendCommand& command) {
      send(command.to, [this, command] { take(command); });
    };
    deliver(one);
    if (happens(faults_.replay)) deliver(sent_[rng_.below(sent_.size())]);
  }

  void take(const SendCommand& one) {
    if (one.to.side == Side::kSource)
      carry_out(one.to.rank, sources_.at(one.to.rank).core.step(one.command, now_));
    else
      carry_out(one.to.rank, targets_.at(one.to.rank).core.step(one.command));
  }
  std::optional<Error> no(const Member& member) {
    if (!happens(faults_.fail_step)) return std::nullopt;
    return Error{.code = ErrorCode::kCorrupt,
                 .message = member_text(member) + ": tensor t: said no",
                 .origin = {},
                 .causes = {}};
  }
  void reply(const Reply& reply) {
    send(std::nullopt, [this, reply] { coordinate(core_->step(reply, now_)); });
  }

  void carry_out(std::int32_t rank, const std::vector<SourceEffect>& effects) {
    Source& source = sources_.at(rank);
    for (const SourceEffect& effect : effects) {
      if (const auto* send_one = std::get_if<SendReply>(&effect)) {
        reply(send_one->reply);
      } else if (const auto* freeze = std::get_if<Freeze>(&effect)) {
        FreezeDone done{
            .epoch = freeze->id.epoch, .error = no({Side::kSource, rank}), .address = {}};
        if (!done.error) source.frozen = true, ++source.freezes;
        carry_out(rank, source.core.step(done, now_));
      } else if (std::get_if<Thaw>(&effect) != nullptr) {
        EXPECT_TRUE(source.frozen);
        source.frozen = false;
      }
    }
  }

  void carry_out(std::int32_t rank, const std::vector<TargetEffect>& effects) {
    Target& target = targets_.at(rank);
    const Member self{Side::kTarget, rank};
    for (const TargetEffect& effect : effects) {
      if (const auto* send_one = std::get_if<SendReply>(&effect)) {
        if (send_one->reply.kind == ReplyKind::kVerified)
          target.verified.insert(send_one->reply.epoch);
        reply(send_one->reply);
      } else if (const auto* prepare = std::get_if<PrepareUpdate>(&effect)) {
        EXPECT_FALSE(target.updating) << "two updates at once";
        PrepareDone done{.epoch = prepare->id.epoch, .error = no(self), .address = {}};
        if (!done.error) target.updating = prepare->id.epoch;
        schedule(delay(), self,
                 [this, rank, done] { carry_out(rank, targets_.at(rank).core.step(done)); });
      } else if (const auto* start = std::get_if<StartFetch>(&effect)) {
        begin_fetch(rank, start->command.id.epoch);
      } else if (std::get_if<StopFetch>(&effect) != nullptr) {
        if (target.fetch) target.fetch->stopped = true;
      } else if (const auto* commit = std::get_if<CommitUpdate>(&effect)) {
        EXPECT_EQ(target.updating, commit->id.epoch);
        EXPECT_TRUE(decided_.count(commit->id.epoch)) << "active before it was decided";
        CommitDone done{.epoch = commit->id.epoch, .error = no(self)};
        if (!done.error) {
          target.serves = commit->id.version.value;
          target.updating.reset();
        }
        carry_out(rank, target.core.step(done));
      } else if (const auto* abort = std::get_if<AbortUpdate>(&effect)) {
        EXPECT_EQ(target.updating, abort->epoch);
        target.updating.reset();
      }
    }
    EXPECT_EQ(target.core.active().value, target.serves);
  }

  void begin_fetch(std::int32_t rank, std::uint64_t epoch) {
    Target& target = targets_.at(rank);
    EXPECT_FALSE(target.fetch);
    target.fetch.emplace();
    for (const auto& [one, source] : sources_) target.fetch->freezes[one] = source.freezes;
    schedule(1 + delay() * 3, Member{Side::kTarget, rank}, [this, rank, epoch] {
      Target& self = targets_.at(rank);
      FetchDone done{.epoch = epoch, .error = no({Side::kTarget, rank}), .received = {}};
      for (const auto& [one, freezes] : self.fetch->freezes) {
        const Member member{Side::kSource, one};
        const Source& source = sources_.at(one);
        // What the weight port does: nothing is given out under an epoch that is over.
        const bool gone = dead_.count(member) != 0 || stopped_.count(member) != 0 ||
                          !source.frozen || source.freezes != freezes ||
                          source.core.frozen()->epoch != epoch;
        if (gone && !done.error)
          done.error = Error{.code = ErrorCode::kRankDead,
                             .message = member_text(member) + ": tensor t: did not come",
                             .origin = {},
                             .causes = {}};
      }
      if (self.fetch->stopped && !done.error)
        done.error =
            Error{.code = ErrorCode::kAborted, .message = "stopped", .origin = {}, .causes = {}};
      // Whatever it says about whom it waited for.
      if (done.error && rng_.below(2) == 0) done.waited_for = members_[rng_.below(members_.size())];
      self.fetch.reset();
      carry_out(rank, self.core.step(done));
    });
  }

  void coordinate(const std::vector<CoordinatorEffect>& effects) {
    if (core_->state() == CoordinatorCore::State::kCommitting) decide();
    for (const CoordinatorEffect& effect : effects) {
      if (const auto* one = std::get_if<SendCommand>(&effect)) {
        if (one->command.kind == CommandKind::kCommit) decide();
        EXPECT_FALSE(one->command.kind == CommandKind::kAbort &&
                     decided_.count(one->command.id.epoch) != 0)
            << "aborted after it was decided";
        send_command(*one);
      } else if (const auto* finish = std::get_if<FinishPublication>(&effect)) {
        EXPECT_FALSE(finished_) << "finished twice";
        finished_ = true;
        error_ = finish->error;
      }
    }
  }
  void decide() {
    if (!decided_.insert(epoch_).second) return;
    for (const auto& [rank, target] : targets_)
      EXPECT_TRUE(target.verified.count(epoch_)) << "target rank " << rank << " had not verified";
  }

  void strike() {
    const Member victim = members_[rng_.below(members_.size())];
    const auto when =
        static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(faults_.slow) * 8));
    if (happens(faults_.kill)) {
      schedule(when, std::nullopt, [this, victim] { dead_.insert(victim); });
      const auto noticed = when + static_cast<std::int64_t>(rng_.below(1500));
      schedule(noticed, std::nullopt, [this, victim] {
        coordinate(core_->step(MemberLost{victim, Error{.code = ErrorCode::kRankDead,
                                                        .message = "killed",
                                                        .origin = {},
                                                        .causes = {}}},
                               now_));
      });
    }
    if (happens(faults_.stop)) {
      schedule(when, std::nullopt, [this, victim] { stopped_.insert(victim); });
      if (rng_.below(2) == 0)
        schedule(when + static_cast<std::int64_t>(rng_.below(4000)), std::nullopt,
                 [this, victim] { stopped_.erase(victim); });
    }
  }

  void publish() {
    ++epoch_;
    finished_ = false;
    error_.reset();
    std::map<std::int32_t, std::int64_t> before;
    for (const auto& [rank, target] : targets_) before[rank] = target.serves;
    for (const Member& member : dead_) revive(member);
    dead_.clear();
    stopped_.clear();
    CoordinatorOptions options;
    options.id = {.epoch = epoch_,
                  .version = WeightVersion{static_cast<std::int64_t>(epoch_)},
                  .digest = kDigest,
                  .base = {}};
    options.members = members_;
    options.begin_within = milliseconds(2000);
    options.receive_within = milliseconds(3000);
    options.commit_within = milliseconds(2000);
    options.repeat_every = milliseconds(300);
    core_ = std::make_unique<CoordinatorCore>(options);
    strike();
    coordinate(core_->start(now_));
    while (!finished_ && !testing::Test::HasFailure()) step();
    EXPECT_LE(now_, started_ + milliseconds(7500)) << "took too long";
    started_ = now_;
    check(before);
  }
  /// A new process under the old name: it knows nothing.
  void revive(const Member& member) {
    std::erase_if(events_, [&](const Event& event) { return event.to == member; });
    if (member.side == Side::kSource) {
      sources_.at(member.rank) = {SourceCore(member.rank, kDigest), false, 1000};
      return;
    }
    Target& target = targets_.at(member.rank);
    target = {
        TargetCore(member.rank, kDigest, WeightVersion{target.serves}), target.serves, {}, {}, {}};
  }

  void step() {
    const auto due = core_->due();
    const auto next =
        std::min_element(events_.begin(), events_.end(), [](const auto& a, const auto& b) {
          return std::pair(a.at, a.order) < std::pair(b.at, b.order);
        });
    if (next == events_.end() || next->at > due) {
      now_ = std::max(now_, due);
      coordinate(core_->step(ClockTick{}, now_));
      return;
    }
    Event event = std::move(*next);
    events_.erase(next);
    now_ = std::max(now_, event.at);
    if (event.to && dead_.count(*event.to) != 0) return;
    if (event.to && stopped_.count(*event.to) != 0) {
      schedule(50, event.to, std::move(event.deliver));
      return;
    }
    event.deliver();
  }

  bool late_commit(std::int64_t version) const {
    return version + 1 == static_cast<std::int64_t>(epoch_) &&
           decided_.count(static_cast<std::uint64_t>(version)) != 0;
  }
  void check(const std::map<std::int32_t, std::int64_t>& before) {
    const bool decided = decided_.count(epoch_) != 0;
    for (const auto& [rank, target] : targets_) {
      const auto version = static_cast<std::int64_t>(epoch_);
      if (!error_) {
        EXPECT_EQ(target.serves, version) << "target rank " << rank << " after success";
      } else if (!decided) {
        // Or the one before, which was decided but whose commit came late.
        EXPECT_TRUE(target.serves == before.at(rank) || late_commit(target.serves))
            << "target rank " << rank << ", " << error_->to_string();
      } else {
        EXPECT_TRUE(target.serves == version || target.serves == before.at(rank) ||
                    late_commit(target.serves));
      }
    }
    if (error_) {
      const std::string text = error_->to_string();
      EXPECT_TRUE(text.find(" rank ") != std::string::npos) << text;
    }
    ++(error_ ? failed_ : succeeded_);
  }

  Rng rng_;
  Faults faults_;
  TimePoint now_ = time_at(1000);
  TimePoint started_ = now_;
  std::uint64_t order_ = 0;
  std::vector<Event> events_;
  std::vector<Member> members_;
  std::map<std::int32_t, Source> sources_;
  std::map<std::int32_t, Target> targets_;
  std::set<Member> dead_;
  std::set<Member> stopped_;
  std::unique_ptr<CoordinatorCore> core_;
  std::uint64_t epoch_ = 0;
  std::set<std::uint64_t> decided_;
  std::vector<SendCommand> sent_;
  bool finished_ = false;
  std::optional<Error> error_;
  std::int64_t succeeded_ = 0;
  std::int64_t failed_ = 0;
};

TEST(ProtocolSimulation, NothingTornIsEverServed) {
  const char* wanted = std::getenv("TROUPE_SEED");  // of a failure, to see it again
  const std::uint64_t first = wanted != nullptr ? std::stoull(wanted) : 1;
  const std::uint64_t count = wanted != nullptr ? 1 : 20000;
  std::int64_t succeeded = 0;
  std::int64_t failed = 0;
  for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation simulation(seed);
    simulation.run();
    succeeded += simulation.succeeded();
    failed += simulation.failed();
  }
  std::printf("%lld publications went well, %lld failed\n", static_cast<long long>(succeeded),
              static_cast<long long>(failed));
  if (wanted != nullptr) return;
  EXPECT_GT(succeeded, 1000);
  EXPECT_GT(failed, 1000);
}

Command command_of(CommandKind kind, std::uint64_t epoch) {
  Command command;
  command.kind = kind;
  command.id = {.epoch = epoch,
                .version = WeightVersion{static_cast<std::int64_t>(epoch)},
                .digest = kDigest,
                .base = {}};
  return command;
}

template <class Effect>
Reply only_reply(const std::vector<Effect>& effects) {
  for (const Effect& effect : effects) {
    if (const auto* send = std::get_if<SendReply>(&effect)) return send->reply;
  }
  ADD_FAILURE() << "no reply";
  return {};
}

TEST(TargetCore, ALateCommitOfAnOldEpochIsFencedOff) {
  TargetCore core(0, kDigest, WeightVersion{0});
  for (const std::uint64_t epoch : {1, 2}) {
    core.step(command_of(CommandKind::kBegin, epoch));
    core.step(PrepareDone{.epoch = epoch, .error = {}, .address = {}});
    core.step(command_of(CommandKind::kReceive, epoch));
    core.step(FetchDone{.epoch = epoch, .error = {}, .received = {}});
  }
  const Reply late = only_reply(core.step(command_of(CommandKind::kCommit, 1)));
  EXPECT_EQ(late.kind, ReplyKind::kFailed);
  EXPECT_EQ(late.error->message, "target rank 0: commit of epoch 1 comes too late, 2 was seen");
  EXPECT_EQ(core.active(), WeightVersion{0});
  core.step(command_of(CommandKind::kCommit, 2));
  core.step(CommitDone{.epoch = 2, .error = {}});
  EXPECT_EQ(core.active(), WeightVersion{2});
}

TEST(TargetCore, RefusesADeltaAgainstAVersionThatItDoesNotServe) {
  TargetCore core(3, kDigest, WeightVersion{4});
  Command begin = command_of(CommandKind::kBegin, 9);
  begin.id.base = WeightVersion{5};
  const Reply reply = only_reply(core.step(begin));
  EXPECT_EQ(reply.error->message,
            "target rank 3: serves version 4, the delta is against 5: publish in full");
}

TEST(TargetCore, RefusesAnotherPlan) {
  TargetCore core(3, kDigest, WeightVersion{4});
  Command begin = command_of(CommandKind::kBegin, 9);
  begin.id.digest = 7;
  EXPECT_EQ(only_reply(core.step(begin)).error->code, ErrorCode::kConflict);
}

TEST(SourceCore, TheLeaseEndsWhenTheCoordinatorIsSilent) {
  SourceCore core(0, kDigest);
  Command begin = command_of(CommandKind::kBegin, 1);
  begin.within = milliseconds(100);
  core.step(begin, time_at(0));
  core.step(FreezeDone{.epoch = 1, .error = {}, .address = {}}, time_at(0));
  EXPECT_TRUE(core.step(LeaseTick{}, time_at(99)).empty());
  EXPECT_TRUE(core.frozen());
  core.step(LeaseTick{}, time_at(100));
  EXPECT_FALSE(core.frozen());
  EXPECT_EQ(only_reply(core.step(begin, time_at(101))).kind, ReplyKind::kFailed)
      << "epoch 1 is over";
}

/// Two targets, 8 and 9, that receive; no sources, whose answers are not waited for.
class ReceivingCoordinator {
 public:
  ReceivingCoordinator() : core_(options()) {
    core_.start(time_at(0));
    for (const std::int32_t rank : {8, 9}) step(rank, CommandKind::kBegin, ReplyKind::kReady, {});
  }
  void verify(std::int32_t rank) { step(rank, CommandKind::kReceive, ReplyKind::kVerified, {}); }
  void fail(std::int32_t rank, Member waited_for) {
    step(rank, CommandKind::kReceive, ReplyKind::kFailed, waited_for);
  }
  bool receives() const { return core_.state() == CoordinatorCore::State::kReceiving; }
  /// Lets the aborts be answered by nobody.
  std::string error_at(std::int64_t ms) {
    std::string text;
    for (int i = 0; i < 2; ++i) {
      for (const CoordinatorEffect& effect : core_.step(ClockTick{}, time_at(ms))) {
        const auto* finish = std::get_if<FinishPublication>(&effect);
        if (finish != nullptr && finish->error) text = finish->error->to_string();
      }
      ms += 1000;
    }
    return text;
  }

 private:
  void step(std::int32_t rank, CommandKind to, ReplyKind kind, std::optional<Member> waited_for) {
    Reply reply;
    reply.epoch = 1;
    reply.from = {Side::kTarget, rank};
    reply.to = to;
    reply.kind = kind;
    reply.waited_for = waited_for;
    if (kind == ReplyKind::kFailed)
      reply.error = Error{.code = ErrorCode::kDeadline,
                          .message = "of " + member_text(reply.from),
                          .origin = {},
                          .causes = {}};
    core_.step(reply, time_at(kind == ReplyKind::kReady ? 1 : 900));
  }
  static CoordinatorOptions options() {
    CoordinatorOptions options;
    options.id = command_of(CommandKind::kBegin, 1).id;
    options.members = {{Side::kTarget, 8}, {Side::kTarget, 9}};
    options.begin_within = milliseconds(100);
    options.receive_within = milliseconds(1000);
    options.commit_within = milliseconds(100);
    return options;
  }
  CoordinatorCore core_;
};

TEST(CoordinatorCore, ReportsWhomTheLastInARowOfTargetsWaitedFor) {
  ReceivingCoordinator all;
  all.fail(9, Member{Side::kTarget, 8});
  EXPECT_TRUE(all.receives()) << "target rank 8 knows why it did not hand on";
  all.fail(8, Member{Side::kSource, 0});
  EXPECT_FALSE(all.receives());
  EXPECT_EQ(all.error_at(3000), "deadline: of target rank 8");
}

TEST(CoordinatorCore, ReportsAtOnceWhoWaitedForOneThatHasEverything) {
  ReceivingCoordinator all;
  all.fail(9, Member{Side::kTarget, 8});
  all.verify(8);
  EXPECT_FALSE(all.receives()) << "a target that failed must not be committed";
  EXPECT_EQ(all.error_at(3000), "deadline: of target rank 9");
}

TEST(CoordinatorCore, NamesTheTargetThatAnotherWaitedForAndThatNeverAnswers) {
  ReceivingCoordinator all;
  all.fail(9, Member{Side::kTarget, 8});
  EXPECT_EQ(all.error_at(1100),
            "deadline: publication of version 1: no answer to receive from target rank 8 "
            "(caused by deadline: of target rank 9)");
}

TEST(CoordinatorCore, TargetsThatWaitForEachOtherEndThePublication) {
  ReceivingCoordinator all;
  all.fail(9, Member{Side::kTarget, 8});
  all.fail(8, Member{Side::kTarget, 9});
  EXPECT_FALSE(all.receives());
}

}  // namespace
}  // namespace troupe::reshard
