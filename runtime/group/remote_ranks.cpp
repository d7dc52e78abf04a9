#include "runtime/group/remote_ranks.hpp"

#include "runtime/exchange/column_exchange.hpp"
#include "runtime/group/call_trace.hpp"
#include "runtime/group/exchange_context.hpp"
#include "runtime/group/remote_ranks_shared.hpp"
#include "runtime/task/failure.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace troupe::runtime {
namespace {

/// An encoded argument above this is held and pulled instead of travelling in the frame.
constexpr std::size_t kPartBytesMax = std::size_t{256} << 10;
/// All arguments of one call to one rank, in the frame.
constexpr std::size_t kCallBytesMax = std::size_t{900} << 10;
/// It travels in the answer to `rank.hello`.
constexpr std::size_t kSpecBytesMax = std::size_t{512} << 10;

result<CallTravel::Part> part_of(std::vector<std::byte> bytes, ExchangeContext& context) {
  const bool large = bytes.size() > kPartBytesMax;
  if (!large) return CallTravel::Part{std::move(bytes), false};
  TROUPE_TRY(auto held, context.hold(std::move(bytes)));
  return CallTravel::Part{std::move(held), true};
}

}  // namespace

// --- starting

result<void> RemoteRanks::Shared::check_lanes() const {
  const GroupOptions& options = core_->options();
  for (std::size_t i = 0; i < options.lanes.size(); ++i) {
    TROUPE_TRY(const auto turn, options.lanes[i]->reserve(LaneRequest{"", "group start"}));
    if (turn->ticket()) continue;
    return fail(ErrorCode::kUnsupported,
                "{}: the lane of rank {} is in this process; a rank process needs its agent's",
                options.name, i);
  }
  return {};
}

result<void> RemoteRanks::Shared::start(const Ref<GroupCore>& core, Deadline deadline) {
  const GroupOptions& options = core->options();
  const auto size = static_cast<std::size_t>(options.mesh.size());
  name_ = options.name;
  collectives_ = options.collectives && size > 1;
  {
    const std::lock_guard lock(mutex_);
    core_ = core;
    create_until_ = deadline;
    round_ = PlanRound(size);
    failed_seen_.resize(size, CallId{0});
    broken_.resize(size, 0);
    watched_.resize(size);
  }
  TROUPE_TRY_VOID(check_job_name("group", name_));
  TROUPE_TRY_VOID(check_lanes());
  if (program_.spec.size() > kSpecBytesMax) {
    return fail(ErrorCode::kInvalidArgument, "{}: a spec of {} bytes, wanted at most {}", name_,
                program_.spec.size(), kSpecBytesMax);
  }
  if (!program_.bundles.empty() && program_.bundles.size() != size) {
    return fail(ErrorCode::kInvalidArgument, "{}: {} bundles for {} ranks", name_,
                program_.bundles.size(), size);
  }
  TROUPE_TRY_VOID(job_.add_group(name_));
  for (std::size_t i = 0; i < size; ++i) {
    ranks_.push_back(make_ref<RemoteRank>(job_, Ref<RemoteRankOwner>(this), name_,
                                          RankId{static_cast<std::int32_t>(i)}));
    job_.expect(ranks_.back());
  }
  return launch_all(deadline);
}

result<void> RemoteRanks::Shared::launch_all(Deadline deadline) {
  std::vector<pending<void>> started;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    RankLaunch launch{.job = job_.options().job,
                      .group = name_,
                      .rank = ranks_[i]->rank(),
                      .reservation = program_.reservation,
                      .bundle = static_cast<int>(i),
                      .controller = job_.address(),
                      .command = program_.command,
                      .environment = job_.options().environment};
    if (!program_.bundles.empty()) launch.bundle = program_.bundles[i];
    if (launch.command.empty()) launch.command = job_.options().command;
    for (const auto& [key, value] : program_.environment) launch.environment[key] = value;
    started.push_back(ranks_[i]->launch(launch));
  }
  for (std::size_t i = 0; i < started.size(); ++i) {
    auto done = started[i].wait(deadline);
    if (done) continue;
    ranks_[i]->not_launched();
    Error error = std::move(done).error();
    error.message = "launch: " + error.message;
    return fail(std::move(error).at({.group = name_, .rank = ranks_[i]->rank(), .node = {}}));
  }
  watch_again();
  return {};
}

RankWelcome RemoteRanks::Shared::welcome(RankId) {
  const std::lock_guard lock(mutex_);
  RankWelcome welcome;
  welcome.program = program_.name;
  welcome.spec = program_.spec;
  welcome.methods = methods_;
  welcome.exchange = job_.exchange() != nullptr;
  const auto key = std::as_bytes(std::span(job_.key()));
  welcome.key.assign(key.begin(), key.end());
  welcome.holder = job_.holder();
  welcome.create_within = create_until_.at - steady_now();
  if (core_) {
    for (const Axis& axis : core_->options().mesh.axes())
      welcome.mesh.push_back({axis.name, axis.size});
    welcome.collectives = core_->options().collectives;
  }
  return welcome;
}

void RemoteRanks::Shared::on_constructed(RankId rank, std::optional<Error> error) {
  if (const auto own = core()) own->rank_constructed(rank, std::move(error));
}

// --- calls

result<void> RemoteRanks::Shared::prepare(Call& call) {
  call.travel = std::make_unique<CallTravel>();
  ExchangeContext context({.exchange = job_.exchange(), .give = ExchangeContext::Give::kLend});
  const std::size_t count = call.wire().argument_count();
  for (std::size_t i = 0; i < count; ++i) {
    auto encoded = call.wire().encode_argument(i, &context);
    if (!encoded) {
      Error error = std::move(encoded).error();
      error.message = fmt::format("argument {}: {}", i, error.message);
      return fail(std::move(error));
    }
    auto& parts = call.travel->arguments.emplace_back();
    for (auto& bytes : *encoded) {
      auto part = part_of(std::move(bytes), context);
      if (!part) {
        Error error = std::move(part).error();
        error.message = fmt::format("argument {}: {}", i, error.message);
        return fail(std::move(error));
      }
      parts.push_back(std::move(*part));
    }
  }
  call.travel->keep = context.take_keeps();
  for (const auto& rank : ranks_) {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i)
      bytes += call.travel->arguments[i][call.wire().part_of(i, rank->rank())].bytes.size();
    if (bytes > kCallBytesMax) {
      return fail(ErrorCode::kResourceExhausted,
                  "{} bytes of arguments for rank {}, a frame takes {}", bytes, rank->rank().value,
                  kCallBytesMax);
    }
  }
  return {};
}

void RemoteRanks::Shared::trace(RankId rank, const Call& call, const ResultFrame& frame) const {
  const auto own = core();
  if (!own || own->options().trace == nullptr || !frame.ran) return;
  const Duration offset = at(rank).clock_offset();
  own->options().trace->on_call(CallSpan{.group = name_,
                                         .rank = rank,
                                         .method = call.method,
                                         .phase = call.phase,
                                         .call = call.id,
                                         .submitted = call.submitted,
                                         .begin = frame.begin - offset,
                                         .end = frame.end - offset,
                                         .ok = !frame.error});
}

result<void> RemoteRanks::Shared::take_value(RankId rank, Call& call, std::vector<std::byte> bytes,
                                             bool held) {
  ExchangeContext context({.exchange = job_.exchange(), .resolve = !call.wire().keeps_columns()});
  try {
    if (held) {
      TROUPE_TRY(bytes, context.fetch(bytes));
    }
    return call.wire().put_value(rank, bytes, &context);
  } catch (...) {
    return fail(error_of_current_exception());
  }
}

void RemoteRanks::Shared::on_result(RankId rank, const Ref<Call>& call, const ResultFrame& frame) {
  const auto own = core();
  if (!own) return;
  call->take_turn(rank).reset();  // the rank has released it, or will never take it
  trace(rank, *call, frame);
  if (frame.error) {
    {
      const std::lock_guard lock(mutex_);
      failed_seen_[static_cast<std::size_t>(rank.value)] = call->id;
      broken_[static_cast<std::size_t>(rank.value)] = frame.broken ? 1 : 0;
    }
    own->rank_done(*call, rank, fail(*frame.error));
    if (collectives_) want({}, {}, false);  // the rank holds until it is told to go on
    return;
  }
  if (!frame.value) {
    // A call is skipped only after it has ended.
    const bool missing = call->wire().wanted_from(rank) && (frame.ran || !call->settled.load());
    own->rank_done(*call, rank,
                   missing ? result<void>(fail(ErrorCode::kCorrupt, "its value did not come"))
                           : result<void>());
    return;
  }
  if (!frame.value->held && !call->wire().value_has_columns()) {
    result<void> put;
    try {
      put = call->wire().put_value(rank, frame.value->bytes, nullptr);
    } catch (...) {
      put = fail(error_of_current_exception());
    }
    own->rank_done(*call, rank, std::move(put));
    return;
  }
  // Payload may have to be pulled, which must not hold up the link.
  std::vector<std::byte> bytes(frame.value->bytes.begin(), frame.value->bytes.end());
  job_.post([self = Ref<Shared>(this), own, rank, call, bytes = std::move(bytes),
             held = frame.value->held]() mutable {
    own->rank_done(*call, rank, self->take_value(rank, *call, std::move(bytes), held));
  });
}

void RemoteRanks::Shared::on_death(RankId rank, Error cause, Ref<Call> during) {
  if (const auto own = core()) own->rank_died(rank, std::move(cause), during.get());
}

std::unique_ptr<GroupRanks> make_remote_ranks(
    ClusterJob& job, RemoteProgram program,
    std::vector<std::pair<std::string, std::uint64_t>> methods) {
  std::vector<MethodName> names;
  for (auto& [name, signature] : methods) names.push_back({std::move(name), signature});
  return std::make_unique<RemoteRanks>(job, std::move(program), std::move(names));
}

ActorSystem& actor_system_of(ClusterJob& job) { return job.system(); }

// --- the core's side

RemoteRanks::RemoteRanks(ClusterJob& job, RemoteProgram program, std::vector<MethodName> methods)
    : shared_(make_ref<Shared>(job, std::move(program), std::move(methods))) {}
RemoteRanks::~RemoteRanks() = default;

result<void> RemoteRanks::start(const Ref<GroupCore>& core, Deadline deadline) {
  return shared_->start(core, deadline);
}
result<void> RemoteRanks::prepare(Call& call) { return shared_->prepare(call); }
void RemoteRanks::push(const Ref<Call>& call) {
  for (const auto& rank : shared_->ranks()) rank->push(call);
}
void RemoteRanks::wake() {
  for (const auto& rank : shared_->ranks()) rank->wake();
}
void RemoteRanks::skip(const Ref<Call>& call) {
  // Nothing is left to agree upon when all ranks are through with it.
  if (call->ranks_left.load() > 0) shared_->want(call, {}, false);
}
void RemoteRanks::cancel(const Call& call) {
  for (const auto& rank : shared_->ranks()) rank->send(kGroupCancel, GroupCancel{call.id});
}
void RemoteRanks::expire(const Ref<Call>& call, const Error& error) {
  shared_->want(call, error, false);
}
void RemoteRanks::break_call(Call& call, RankId culprit, const Error& cause, bool others_wait) {
  shared_->break_call(call, culprit, cause, others_wait);
}
void RemoteRanks::abort(RankId, const Error& cause) {
  if (!shared_->have_collectives()) return;
  shared_->abort(cause, CallId{0});
  shared_->want({}, {}, true);
}
void RemoteRanks::bury(RankId rank, const Error& cause) { shared_->bury(rank, cause); }
void RemoteRanks::leave() { shared_->set_leaving(); }
void RemoteRanks::close(Deadline deadline) { shared_->close(deadline); }
RankStatus RemoteRanks::status_of(RankId rank) const { return shared_->at(rank).status(); }
bool RemoteRanks::runs(RankId rank, const Call& call) const { return shared_->at(rank).runs(call); }
result<std::vector<RankStatus>> RemoteRanks::status(Deadline deadline) {
  return shared_->status(deadline);
}
void RemoteRanks::kill(RankId rank, Error cause) { shared_->at(rank).kill(std::move(cause)); }
void RemoteRanks::request_abort(RankId rank, Error cause) {
  if (const auto own = shared_->core()) own->abort(rank, cause);
}

}  // namespace troupe::runtime
