#include "reshard/execution/member_core.hpp"

#include "reshard/execution/error_of.hpp"

#include <fmt/format.h>

namespace troupe::reshard {
namespace {

CommandKind answered_by(ReplyKind kind) {
  switch (kind) {
    case ReplyKind::kReady:
      return CommandKind::kBegin;
    case ReplyKind::kVerified:
      return CommandKind::kReceive;
    case ReplyKind::kCommitted:
      return CommandKind::kCommit;
    case ReplyKind::kAborted:
    case ReplyKind::kFailed:
      break;
  }
  return CommandKind::kAbort;
}

Reply reply_of(std::uint64_t epoch, const Member& self, ReplyKind kind) {
  return {.epoch = epoch,
          .from = self,
          .to = answered_by(kind),
          .kind = kind,
          .address = {},
          .error = {},
          .received = {}};
}

Reply refusal_of(std::uint64_t epoch, const Member& self, CommandKind to, Error error) {
  Reply reply = reply_of(epoch, self, ReplyKind::kFailed);
  reply.to = to;
  reply.error = std::move(error);
  return reply;
}

Error wrong_digest(const Member& self, std::uint64_t found, std::uint64_t wanted) {
  return error_of(ErrorCode::kConflict, "{}: plan digest {:016x}, the coordinator's is {:016x}",
                  member_text(self), found, wanted);
}

Error old_epoch(const Member& self, const Command& command, std::uint64_t newest) {
  return error_of(ErrorCode::kConflict, "{}: {} of epoch {} comes too late, {} was seen",
                  member_text(self), command_name(command.kind), command.id.epoch, newest);
}

}  // namespace

std::vector<SourceEffect> SourceCore::step(const SourceEvent& event, TimePoint now) {
  Effects effects;
  if (const auto* command = std::get_if<Command>(&event)) {
    on_command(*command, now, effects);
  } else if (const auto* done = std::get_if<FreezeDone>(&event)) {
    if (!frozen_ || frozen_->epoch != done->epoch || !freezing_) return effects;
    freezing_ = false;
    address_ = done->address;
    if (done->error) {
      frozen_.reset();
      refuse(done->epoch, CommandKind::kBegin, *done->error, effects);
    } else {
      reply(done->epoch, ReplyKind::kReady, effects);
    }
  } else if (frozen_ && !freezing_ && now >= lease_until_) {
    thaw(false, effects);
  }
  return effects;
}

void SourceCore::on_command(const Command& command, TimePoint now, Effects& effects) {
  const std::uint64_t epoch = command.id.epoch;
  const bool current = frozen_ && frozen_->epoch == epoch && !freezing_;
  switch (command.kind) {
    case CommandKind::kBegin:
      return begin(command, now, effects);
    case CommandKind::kReceive:
      return refuse(
          epoch, CommandKind::kReceive,
          error_of(ErrorCode::kInvalidArgument, "{}: receives nothing", member_text(self_)),
          effects);
    case CommandKind::kCommit:
      // A lease that ran out after the last byte was read changes nothing for the targets.
      if (!current && epoch != over_ && epoch != newest_)
        return refuse(epoch, CommandKind::kCommit, old_epoch(self_, command, newest_), effects);
      over_ = epoch;
      if (current) thaw(true, effects);
      return reply(epoch, ReplyKind::kCommitted, effects);
    case CommandKind::kAbort:
      if (current) thaw(false, effects);
      newest_ = std::max(newest_, epoch);  // its begin may come after it
      return reply(epoch, ReplyKind::kAborted, effects);
  }
}

void SourceCore::begin(const Command& command, TimePoint now, Effects& effects) {
  const PublicationId& id = command.id;
  if (frozen_ == id && !freezing_) {
    lease_until_ = now + command.within;
    return reply(id.epoch, ReplyKind::kReady, effects);
  }
  if (frozen_ == id) return;  // being frozen: the answer is on its way
  if (id.epoch <= newest_)
    return refuse(id.epoch, CommandKind::kBegin, old_epoch(self_, command, newest_), effects);
  newest_ = id.epoch;
  if (frozen_) thaw(false, effects);
  if (id.digest != digest_)
    return refuse(id.epoch, CommandKind::kBegin, wrong_digest(self_, digest_, id.digest), effects);
  frozen_ = id;
  freezing_ = true;
  lease_until_ = now + command.within;
  effects.emplace_back(Freeze{id, command.checks});
}

void SourceCore::thaw(bool committed, Effects& effects) {
  effects.emplace_back(Thaw{*frozen_, committed});
  frozen_.reset();
}

void SourceCore::reply(std::uint64_t epoch, ReplyKind kind, Effects& effects) {
  Reply reply = reply_of(epoch, self_, kind);
  if (kind == ReplyKind::kReady) reply.address = address_;
  effects.emplace_back(SendReply{std::move(reply)});
}

void SourceCore::refuse(std::uint64_t epoch, CommandKind to, Error error, Effects& effects) {
  effects.emplace_back(SendReply{refusal_of(epoch, self_, to, std::move(error))});
}

std::vector<TargetEffect> TargetCore::step(const TargetEvent& event) {
  Effects effects;
  if (const auto* command = std::get_if<Command>(&event))
    on_command(*command, effects);
  else if (const auto* prepared = std::get_if<PrepareDone>(&event))
    on_prepared(*prepared, effects);
  else if (const auto* fetched = std::get_if<FetchDone>(&event))
    on_fetched(*fetched, effects);
  else if (const auto* committed = std::get_if<CommitDone>(&event))
    on_committed(*committed, effects);
  return effects;
}

void TargetCore::on_command(const Command& command, Effects& effects) {
  switch (command.kind) {
    case CommandKind::kBegin:
      return begin(command, effects);
    case CommandKind::kReceive:
      return receive(command, effects);
    case CommandKind::kCommit:
      return commit(command, effects);
    case CommandKind::kAbort:
      return abort(command, effects);
  }
}

std::optional<Error> TargetCore::fenced(const Command& command) const {
  if (state_ != State::kIdle && !dropped_ && command.id == id_) return std::nullopt;
  return old_epoch(self_, command, newest_);
}

void TargetCore::begin(const Command& command, Effects& effects) {
  const PublicationId& id = command.id;
  if (state_ == State::kPrepared && id == id_) return reply(id.epoch, ReplyKind::kReady, effects);
  if (state_ == State::kPreparing && id == id_) return;  // the answer is on its way
  if (id.epoch <= newest_)
    return refuse(id.epoch, CommandKind::kBegin, old_epoch(self_, command, newest_), effects);
  newest_ = id.epoch;
  const bool busy =
      state_ == State::kReceiving || state_ == State::kPreparing || state_ == State::kCommitting;
  if (busy) {
    // Its memory is still written to; whoever wants it asks again under a newer epoch.
    if (state_ == State::kReceiving && !dropped_) {
      dropped_ = true;
      effects.emplace_back(StopFetch{});
    }
    return refuse(id.epoch, CommandKind::kBegin,
                  error_of(ErrorCode::kConflict, "{}: is not done with epoch {} yet",
                           member_text(self_), id_.epoch),
                  effects);
  }
  if (state_ != State::kIdle) effects.emplace_back(AbortUpdate{id_.epoch});
  state_ = State::kIdle;
  if (id.digest != digest_)
    return refuse(id.epoch, CommandKind::kBegin, wrong_digest(self_, digest_, id.digest), effects);
  if (id.base && *id.base != active_)
    return refuse(id.epoch, CommandKind::kBegin,
                  error_of(ErrorCode::kConflict,
                           "{}: serves version {}, the delta is against {}: publish in full",
                           member_text(self_), active_.value, id.base->value),
                  effects);
  id_ = id;
  dropped_ = false;
  state_ = State::kPreparing;
  effects.emplace_back(PrepareUpdate{id});
}

void TargetCore::on_prepared(const PrepareDone& done, Effects& effects) {
  if (state_ != State::kPreparing || done.epoch != id_.epoch) return;
  if (done.error) {
    state_ = State::kIdle;
    return refuse(done.epoch, CommandKind::kBegin, *done.error, effects);
  }
  address_ = done.address;
  if (dropped_) {
    state_ = State::kIdle;
    effects.emplace_back(AbortUpdate{done.epoch});
    return;
  }
  state_ = State::kPrepared;
  reply(done.epoch, ReplyKind::kReady, effects);
}

void TargetCore::receive(const Command& command, Effects& effects) {
  if (const auto error = fenced(command))
    return refuse(command.id.epoch, CommandKind::kReceive, *error, effects);
  if (state_ == State::kReceiving) return;  // its answer is on its way
  if (state_ == State::kVerified) return reply(id_.epoch, ReplyKind::kVerified, effects);
  if (state_ != State::kPrepared)
    return refuse(command.id.epoch, CommandKind::kReceive,
                  error_of(ErrorCode::kConflict, "{}: receive of epoch {} out of order",
                           member_text(self_), command.id.epoch),
                  effects);
  state_ = State::kReceiving;
  effects.emplace_back(StartFetch{command});
}

void TargetCore::on_fetched(const FetchDone& done, Effects& effects) {
  if (state_ != State::kReceiving || done.epoch != id_.epoch) return;
  if (dropped_ || done.error) {
    state_ = State::kIdle;
    effects.emplace_back(AbortUpdate{done.epoch});
    const Error error =
        done.error ? *done.error
                   : error_of(ErrorCode::kAborted, "{}: epoch {} was aborted while it came",
                              member_text(self_), done.epoch);
    Reply reply = refusal_of(done.epoch, self_, CommandKind::kReceive, error);
    reply.waited_for = done.waited_for;
    effects.emplace_back(SendReply{std::move(reply)});
    return;
  }
  state_ = State::kVerified;
  received_ = done.received;
  reply(done.epoch, ReplyKind::kVerified, effects);
}

void TargetCore::commit(const Command& command, Effects& effects) {
  const std::uint64_t epoch = command.id.epoch;
  if (epoch == over_ && over_ != 0) return reply(epoch, ReplyKind::kCommitted, effects);
  if (const auto error = fenced(command))
    return refuse(epoch, CommandKind::kCommit, *error, effects);
  if (state_ == State::kCommitting) return;
  if (state_ != State::kVerified)
    return refuse(epoch, CommandKind::kCommit,
                  error_of(ErrorCode::kConflict, "{}: commit of epoch {}, which is not verified",
                           member_text(self_), epoch),
                  effects);
  state_ = State::kCommitting;
  effects.emplace_back(CommitUpdate{id_});
}

void TargetCore::on_committed(const CommitDone& done, Effects& effects) {
  if (state_ != State::kCommitting || done.epoch != id_.epoch) return;
  state_ = State::kIdle;
  if (done.error) {
    effects.emplace_back(AbortUpdate{done.epoch});
    return refuse(done.epoch, CommandKind::kCommit, *done.error, effects);
  }
  over_ = done.epoch;
  active_ = id_.version;
  reply(done.epoch, ReplyKind::kCommitted, effects);
}

void TargetCore::abort(const Command& command, Effects& effects) {
  const std::uint64_t epoch = command.id.epoch;
  const bool current = state_ != State::kIdle && epoch == id_.epoch;
  newest_ = std::max(newest_, epoch);  // its begin may come after it
  if (current && (state_ == State::kPrepared || state_ == State::kVerified)) {
    state_ = State::kIdle;
    effects.emplace_back(AbortUpdate{epoch});
  } else if (current && !dropped_ && state_ != State::kCommitting) {
    dropped_ = true;
    if (state_ == State::kReceiving) effects.emplace_back(StopFetch{});
  }
  reply(epoch, ReplyKind::kAborted, effects);
}

void TargetCore::reply(std::uint64_t epoch, ReplyKind kind, Effects& effects) {
  Reply reply = reply_of(epoch, self_, kind);
  if (kind == ReplyKind::kReady) reply.address = address_;
  if (kind == ReplyKind::kVerified) reply.received = received_;
  effects.emplace_back(SendReply{std::move(reply)});
}

void TargetCore::refuse(std::uint64_t epoch, CommandKind to, Error error, Effects& effects) {
  effects.emplace_back(SendReply{refusal_of(epoch, self_, to, std::move(error))});
}

}  // namespace troupe::reshard
