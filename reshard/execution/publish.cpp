#include "reshard/execution/publish.hpp"

#include "runtime/base/check.hpp"

#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <utility>

namespace troupe::reshard {
namespace {

/// Calls of members that are under way, and a bell that rings when one ends.
class Calls {
 public:
  struct Call {
    Member to;
    CommandKind kind = CommandKind::kBegin;
    runtime::pending<Reply> answer;
  };

  void add(MemberLink& link, const Command& command, Deadline deadline) {
    calls_.push_back({link.member(), command.kind, link.call(command, deadline)});
    const auto& state = calls_.back().answer.shared();
    if (!state->subscribe(runtime::Ref<runtime::Observer>(bell_.get()))) bell_->notify();
  }
  bool has(const Member& to, CommandKind kind) const {
    for (const Call& call : calls_) {
      if (call.to == to && call.kind == kind) return true;
    }
    return false;
  }
  /// The next one that is over, if any by `until`.
  std::optional<Call> next(TimePoint until) {
    for (;;) {
      bell_->reset();
      for (auto place = calls_.begin(); place != calls_.end(); ++place) {
        if (!place->answer.ready()) continue;
        Call over = std::move(*place);
        calls_.erase(place);
        return over;
      }
      if (!bell_->wait(until)) return std::nullopt;
    }
  }

 private:
  class Bell final : public runtime::Observer {
   public:
    void notify() noexcept override {
      {
        const std::lock_guard lock(mutex_);
        rung_ = true;
      }
      rings_.notify_all();
    }
    void reset() {
      const std::lock_guard lock(mutex_);
      rung_ = false;
    }
    bool wait(TimePoint until) {
      std::unique_lock lock(mutex_);
      return rings_.wait_until(lock, until, [this] { return rung_; });
    }

   private:
    std::mutex mutex_;  ///< guards `rung_`
    std::condition_variable rings_;
    bool rung_ = false;
  };

  runtime::Ref<Bell> bell_ = runtime::make_ref<Bell>();
  std::list<Call> calls_;
};

class Driver {
 public:
  Driver(const PublishOptions& options, const std::vector<MemberLink*>& members)
      : core_(core_options(options, members)) {
    for (MemberLink* link : members) links_[link->member()] = link;
  }

  result<PublicationOutcome> run() {
    carry_out(core_.start(now()));
    while (!finished_) {
      std::optional<Calls::Call> over = calls_.next(core_.due());
      if (!over) {
        carry_out(core_.step(ClockTick{}, now()));
        continue;
      }
      result<Reply> reply = over->answer.wait();
      if (reply)
        carry_out(core_.step(*reply, now()));
      else if (reply.error().code == ErrorCode::kDeadline)
        carry_out(core_.step(ClockTick{}, now()));  // the core's own time tells who is late
      else
        carry_out(core_.step(MemberLost{over->to, std::move(reply).error()}, now()));
    }
    if (error_) return fail(*std::move(error_));
    return core_.outcome();
  }

 private:
  static TimePoint now() { return steady_now(); }
  static CoordinatorOptions core_options(const PublishOptions& options,
                                         const std::vector<MemberLink*>& members) {
    CoordinatorOptions core;
    core.id = options.id;
    core.checks = options.checks;
    core.begin_within = options.begin_within;
    core.sources_send = options.sources_send;
    core.receive_within = options.receive_within;
    core.commit_within = options.commit_within;
    for (const MemberLink* link : members) core.members.push_back(link->member());
    return core;
  }
  void carry_out(const std::vector<CoordinatorEffect>& effects) {
    for (const CoordinatorEffect& effect : effects) {
      if (const auto* send = std::get_if<SendCommand>(&effect)) {
        // A call that is under way needs no repetition: it ends by itself.
        if (calls_.has(send->to, send->command.kind)) continue;
        calls_.add(*links_.at(send->to), send->command, Deadline::in(send->command.within));
      } else if (const auto* finish = std::get_if<FinishPublication>(&effect)) {
        finished_ = true;
        error_ = finish->error;
      }
    }
  }

  std::map<Member, MemberLink*> links_;
  CoordinatorCore core_;
  Calls calls_;
  bool finished_ = false;
  std::optional<Error> error_;
};

}  // namespace

result<PublicationOutcome> publish(const PublishOptions& options,
                                   const std::vector<MemberLink*>& members) {
  return Driver(options, members).run();
}

}  // namespace troupe::reshard
