#include "reshard/nccl/communicator_core.hpp"

#include "reshard/execution/error_of.hpp"

#include <utility>

namespace troupe::reshard::nccl {
namespace {

/// What NCCL's codes mean to our callers.
ErrorCode code_of(Code code) {
  if (code == Code::kRemoteError) return ErrorCode::kRankDead;
  if (code == Code::kInvalidArgument || code == Code::kInvalidUsage)
    return ErrorCode::kInvalidArgument;
  return ErrorCode::kIo;
}

}  // namespace

std::vector<CommEffect> CommunicatorCore::step(const CommEvent& event, TimePoint now) {
  Effects effects;
  std::visit([&](const auto& one) { on(one, now, effects); }, event);
  return effects;
}

std::string CommunicatorCore::place() const {
  return fmt::format("rank {}: membership {}", rank_, epoch_);
}

void CommunicatorCore::on(const JoinWanted& event, TimePoint now, Effects& effects) {
  const auto refuse = [&](Error error) {
    effects.emplace_back(JoinDone{event.epoch, std::move(error)});
  };
  if (event.epoch <= epoch_)
    return refuse(
        error_of(ErrorCode::kConflict, "{}: cannot join the older one {}", place(), event.epoch));
  if (stuck_ || busy())
    return refuse(error_of(ErrorCode::kConflict, "{}: {}; cannot join {}", place(),
                           stuck_ ? "its abort has not returned" : "is not over", event.epoch));
  epoch_ = event.epoch;
  members_ = event.members;
  state_ = State::kInitializing;
  init_returned_ = comm_ = aborted_ = false;
  joining_ = true;
  cause_.reset();
  until_ = event.until;
  if (now >= until_) {
    init_returned_ = true;  // nothing was started
    return fail_with(error_of(ErrorCode::kDeadline, "{}: no time to join", place()), now, effects);
  }
  effects.emplace_back(CallInit{epoch_});
}

void CommunicatorCore::on(const InitReturned& event, TimePoint now, Effects& effects) {
  if (event.epoch != epoch_ || init_returned_) return;
  init_returned_ = true;
  comm_ = event.comm;
  if (state_ == State::kAborting) {
    // The abort has waited for something to abort.
    aborted_ = true;
    if (comm_) {
      effects.emplace_back(CallAbort{epoch_});
    } else {
      on(AbortReturned{epoch_}, now, effects);
    }
    return;
  }
  if (event.code != Code::kSuccess && event.code != Code::kInProgress)
    return fail_with(error_of(code_of(event.code), "{}: init: {}", place(), event.text), now,
                     effects);
  if (!comm_)
    return fail_with(error_of(ErrorCode::kInternal, "{}: init gave no communicator", place()), now,
                     effects);
  effects.emplace_back(PollAsync{epoch_});
}

void CommunicatorCore::on(const AsyncState& event, TimePoint now, Effects& effects) {
  if (event.epoch != epoch_ || !busy() || state_ == State::kAborting) return;
  if (event.code == Code::kInProgress) return;
  if (event.code != Code::kSuccess)
    return fail_with(error_of(code_of(event.code), "{}: {}: {}", place(),
                              state_ == State::kInitializing ? "init"
                              : what_.empty()                ? "idle"
                                                             : what_,
                              event.text),
                     now, effects);
  if (state_ == State::kInitializing) {
    state_ = State::kReady;
    answer(std::nullopt, effects);
  } else if (state_ == State::kSubmitting) {
    state_ = State::kRunning;
    effects.emplace_back(RecordEvent{ticket_});
  }
}

void CommunicatorCore::on(const SubmitWanted& event, TimePoint now, Effects& effects) {
  if (state_ != State::kReady) {
    const Error refusal = error_of(ErrorCode::kConflict, "{}: {}: {}", place(), event.what,
                                   state_ == State::kIdle ? "nobody has joined"
                                   : busy()               ? "is not ready for it"
                                                          : "is broken");
    effects.emplace_back(TicketDone{
        event.ticket, cause_ ? Error(*cause_).wrap(refusal.code, refusal.message) : refusal});
    return;
  }
  state_ = State::kSubmitting;
  ticket_ = event.ticket;
  waiting_ = event.ticket;
  what_ = event.what;
  until_ = event.until;
  if (now >= until_)
    return fail_with(error_of(ErrorCode::kDeadline, "{}: {}: no time left", place(), what_), now,
                     effects);
  effects.emplace_back(CallSubmit{ticket_});
}

void CommunicatorCore::on(const SubmitReturned& event, TimePoint now, Effects& effects) {
  if (event.ticket != ticket_ || state_ != State::kSubmitting) return;
  if (event.code != Code::kSuccess && event.code != Code::kInProgress)
    return fail_with(error_of(code_of(event.code), "{}: {}: {}", place(), what_, event.text), now,
                     effects);
  // Also after success: with a non-blocking communicator the kernels may not be queued yet.
  effects.emplace_back(PollAsync{epoch_});
}

void CommunicatorCore::on(const EventState& event, TimePoint now, Effects& effects) {
  if (event.ticket != ticket_ || state_ != State::kRunning) return;
  if (event.error)
    return fail_with(
        Error(*event.error).wrap(event.error->code, fmt::format("{}: {}", place(), what_)), now,
        effects);
  if (!event.done) return;
  state_ = State::kReady;
  what_.clear();
  answer(std::nullopt, effects);
}

void CommunicatorCore::on(const AbortWanted& event, TimePoint now, Effects& effects) {
  if (state_ == State::kIdle || state_ == State::kBroken || state_ == State::kAborting) return;
  const std::string what = state_ == State::kInitializing ? "init" : what_;
  fail_with(Error(event.cause)
                .wrap(ErrorCode::kAborted,
                      fmt::format("{}: {}{}aborted", place(), what, what.empty() ? "" : ": ")),
            now, effects);
}

void CommunicatorCore::on(const AbortReturned& event, TimePoint now, Effects& effects) {
  (void)now;
  if (event.epoch != epoch_ || state_ != State::kAborting) return;
  state_ = State::kBroken;
  stuck_ = false;
  comm_ = false;
  answer(cause_, effects);
}

void CommunicatorCore::on(const Tick& event, TimePoint now, Effects& effects) {
  (void)event;
  switch (state_) {
    case State::kIdle:
    case State::kBroken:
      return;
    case State::kAborting:
      if (now < until_ || stuck_) return;
      stuck_ = true;
      cause_ = std::move(*cause_).wrap(
          ErrorCode::kInternal,
          fmt::format("{}: its abort has not returned; end this process", place()));
      return answer(cause_, effects);
    case State::kInitializing:
      if (now >= until_)
        return fail_with(error_of(ErrorCode::kDeadline,
                                  "{}: init: not all of {} ranks came in time", place(), members_),
                         now, effects);
      break;
    case State::kSubmitting:
    case State::kRunning:
      if (now >= until_)
        return fail_with(
            error_of(ErrorCode::kDeadline, "{}: {}: not over in time, and no error was reported",
                     place(), what_),
            now, effects);
      break;
    case State::kReady:
      break;
  }
  if (!init_returned_) return;
  effects.emplace_back(PollAsync{epoch_});
  if (state_ == State::kRunning) effects.emplace_back(QueryEvent{ticket_});
}

void CommunicatorCore::fail_with(Error error, TimePoint now, Effects& effects) {
  cause_ = std::move(error);
  state_ = State::kAborting;
  until_ = now + abort_within_;
  what_.clear();
  if (comm_ && !aborted_) {
    aborted_ = true;
    effects.emplace_back(CallAbort{epoch_});
  } else if (init_returned_) {
    on(AbortReturned{epoch_}, now, effects);
  }
}

void CommunicatorCore::answer(const std::optional<Error>& error, Effects& effects) {
  if (std::exchange(joining_, false)) effects.emplace_back(JoinDone{epoch_, error});
  if (const auto ticket = std::exchange(waiting_, std::nullopt))
    effects.emplace_back(TicketDone{*ticket, error});
}

}  // namespace troupe::reshard::nccl
