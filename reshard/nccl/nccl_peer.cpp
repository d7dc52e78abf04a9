#include "reshard/nccl/nccl_peer.hpp"

#include "reshard/execution/error_of.hpp"
#include "reshard/execution/member_core.hpp"
#include "reshard/execution/weight_port.hpp"
#include "runtime/base/check.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

namespace troupe::reshard::nccl {
namespace {

/// A walk that goes well is let end by itself for so long after an abort.
constexpr Duration kWalkGrace = std::chrono::milliseconds(200);

Reply failed(const Member& self, const Command& command, Error error) {
  return {.epoch = command.id.epoch,
          .from = self,
          .to = command.kind,
          .kind = ReplyKind::kFailed,
          .address = {},
          .error = std::move(error),
          .received = {}};
}

}  // namespace

class NcclPeer::Impl {
 public:
  Impl(std::shared_ptr<const PublicationPlan> plan, std::int32_t rank,
       std::shared_ptr<const NcclLibrary> library, const CudaDevice& device,
       const NcclPeerOptions& options, std::unique_ptr<Communicator> communicator)
      : plan_(std::move(plan)),
        rank_(rank),
        library_(std::move(library)),
        device_(device),
        options_(options),
        communicator_(std::move(communicator)),
        port_(WeightPort::local()) {
    if (plan_->source_layout(rank) != nullptr)
      source_ = std::make_unique<PublicationSource>(plan_, rank, options_.sources, *port_);
    if (options_.sink != nullptr)
      target_.emplace(rank, plan_->plan().digest, options_.sink->active());
  }

  const NcclLibrary& library() const { return *library_; }
  const CudaDevice& device() const { return device_; }
  std::int32_t rank() const { return rank_; }
  Communicator& communicator() const { return *communicator_; }
  result<void> join(const Membership& membership, Deadline deadline);
  Reply handle(Side side, const Command& command);
  result<std::unique_ptr<UpdateLease>> start_update(Deadline deadline);

 private:
  using Lock = std::unique_lock<std::mutex>;
  /// One walk through the rounds, on behalf of both sides.
  struct Walk {
    PublicationId id;
    bool over = false;
    std::optional<Error> error;
    ReceiveStatistics received;
  };

  Reply handle_source(const Command& command);
  Reply handle_target(const Command& command);
  std::optional<Reply> carry_out(const std::vector<TargetEffect>& effects, Lock& lock);
  PrepareDone prepare(const PublicationId& id);
  std::optional<Error> unfit(const PublicationId& id) const;
  /// Takes part in the walk of this epoch, which the first one who comes carries out.
  Walk walk(const Command& command, Lock& lock);
  void stop(std::uint64_t epoch, const Error& cause, Lock& lock);
  bool walking() const { return walk_ != nullptr && !walk_->over; }

  std::shared_ptr<const PublicationPlan> plan_;
  std::int32_t rank_;
  std::shared_ptr<const NcclLibrary> library_;
  const CudaDevice& device_;
  NcclPeerOptions options_;
  std::unique_ptr<Exchange> exchange_;  ///< guarded by mutex_; dies after what writes to its memory
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<WeightPort> port_;
  std::unique_ptr<PublicationSource> source_;

  std::mutex mutex_;  ///< guards the following
  std::condition_variable changed_;
  std::optional<TargetCore> target_;
  std::optional<PublicationId> frozen_;  ///< that the source has begun
  std::shared_ptr<Walk> walk_;           ///< the last one
  std::atomic<bool> stop_{false};
};

result<void> NcclPeer::Impl::join(const Membership& membership, Deadline deadline) {
  TROUPE_TRY_VOID(check_membership(membership));
  {
    Lock lock(mutex_);
    if (walking())
      return fail(ErrorCode::kConflict, "rank {}: cannot join membership {} in a publication",
                  rank_, membership.epoch);
    if (membership.epoch <= communicator_->epoch())
      return fail(ErrorCode::kConflict, "rank {}: cannot join membership {}, {} was seen", rank_,
                  membership.epoch, communicator_->epoch());
  }
  // Others may have given the old one up without our knowing.
  communicator_->abort(
      error_of(ErrorCode::kAborted, "rank {}: membership {} follows", rank_, membership.epoch));
  TROUPE_TRY_VOID(communicator_->wait_idle(deadline));
  {
    Lock lock(mutex_);
    exchange_.reset();  // before the new one, so that there is never twice the staging
  }
  TROUPE_TRY(auto exchange, Exchange::create(plan_, rank_, membership, device_, *communicator_));
  runtime::pending<void> joined = communicator_->join(membership, deadline);
  TROUPE_TRY_VOID(joined.wait(Deadline{deadline.at + options_.abort_within * 2}));
  Lock lock(mutex_);
  if (communicator_->epoch() != membership.epoch)
    return fail(ErrorCode::kConflict, "rank {}: membership {} was overtaken by {}", rank_,
                membership.epoch, communicator_->epoch());
  exchange_ = std::move(exchange);
  return {};
}

Reply NcclPeer::Impl::handle(Side side, const Command& command) {
  if (side == Side::kSource && source_ != nullptr) return handle_source(command);
  if (side == Side::kTarget && target_) return handle_target(command);
  return failed({side, rank_}, command,
                error_of(ErrorCode::kInvalidArgument, "rank {}: is no {} of the plan", rank_,
                         side_name(side)));
}

/// Why a publication cannot even begin here.
std::optional<Error> NcclPeer::Impl::unfit(const PublicationId& id) const {
  if (id.base)
    return error_of(ErrorCode::kUnsupported,
                    "rank {}: deltas do not travel over nccl: publish in full", rank_);
  if (exchange_ == nullptr || !communicator_->ready())
    return error_of(ErrorCode::kConflict,
                    "rank {}: its communicator is not ready (membership {}): all must join a newer "
                    "membership",
                    rank_, communicator_->epoch());
  return std::nullopt;
}

Reply NcclPeer::Impl::handle_source(const Command& command) {
  const Member self{Side::kSource, rank_};
  Lock lock(mutex_);
  switch (command.kind) {
    case CommandKind::kBegin: {
      if (auto why = unfit(command.id)) return failed(self, command, *std::move(why));
      Reply reply = source_->handle(command);
      if (reply.kind == ReplyKind::kReady) frozen_ = command.id;
      return reply;
    }
    case CommandKind::kReceive: {
      if (frozen_ != command.id || !source_->frozen())
        return failed(self, command,
                      error_of(ErrorCode::kConflict, "{}: epoch {} is not begun, or is over",
                               member_text(self), command.id.epoch));
      Walk walked = walk(command, lock);
      if (walked.error) return failed(self, command, *std::move(walked.error));
      return {.epoch = command.id.epoch,
              .from = self,
              .to = command.kind,
              .kind = ReplyKind::kVerified,
              .address = {},
              .error = {},
              .received = {}};
    }
    case CommandKind::kAbort:
      stop(command.id.epoch,
           command.cause.value_or(error_of(ErrorCode::kAborted, "the publication was aborted")),
           lock);
      [[fallthrough]];
    case CommandKind::kCommit:
      if (frozen_ && frozen_->epoch == command.id.epoch) frozen_.reset();
      return source_->handle(command);
  }
  return failed(self, command, error_of(ErrorCode::kInvalidArgument, "no such command"));
}

Reply NcclPeer::Impl::handle_target(const Command& command) {
  Lock lock(mutex_);
  if (command.kind == CommandKind::kAbort)
    stop(command.id.epoch,
         command.cause.value_or(error_of(ErrorCode::kAborted, "the publication was aborted")),
         lock);
  std::optional<Reply> reply = carry_out(target_->step(command), lock);
  if (reply) return *std::move(reply);
  return failed({Side::kTarget, rank_}, command,
                error_of(ErrorCode::kConflict, "target rank {}: {} of epoch {} is under way", rank_,
                         command_name(command.kind), command.id.epoch));
}

std::optional<Reply> NcclPeer::Impl::carry_out(const std::vector<TargetEffect>& effects,
                                               Lock& lock) {
  std::optional<Reply> reply;
  const auto go_on = [&](const TargetEvent& event) {
    if (auto more = carry_out(target_->step(event), lock)) reply = std::move(more);
  };
  for (const TargetEffect& effect : effects) {
    if (const auto* send = std::get_if<SendReply>(&effect)) {
      reply = send->reply;
    } else if (const auto* one = std::get_if<PrepareUpdate>(&effect)) {
      go_on(prepare(one->id));
    } else if (const auto* start = std::get_if<StartFetch>(&effect)) {
      const Walk walked = walk(start->command, lock);
      go_on(FetchDone{start->command.id.epoch, walked.error, walked.received});
    } else if (std::get_if<StopFetch>(&effect) != nullptr) {
      stop_ = true;
    } else if (const auto* commit = std::get_if<CommitUpdate>(&effect)) {
      CommitDone done{.epoch = commit->id.epoch, .error = {}};
      if (auto committed = options_.sink->commit(); !committed)
        done.error = std::move(committed).error();
      go_on(done);
    } else if (std::get_if<AbortUpdate>(&effect) != nullptr) {
      options_.sink->abort();
    }
  }
  return reply;
}

PrepareDone NcclPeer::Impl::prepare(const PublicationId& id) {
  PrepareDone done{.epoch = id.epoch, .error = unfit(id), .address = {}};
  if (done.error) return done;
  if (auto begun = options_.sink->begin(id.version, false); !begun)
    done.error = std::move(begun).error();
  return done;
}

NcclPeer::Impl::Walk NcclPeer::Impl::walk(const Command& command, Lock& lock) {
  if (walk_ != nullptr && walk_->id == command.id) {
    const std::shared_ptr<Walk> other = walk_;
    changed_.wait(lock, [&] { return other->over; });  // it has a deadline of its own
    return *other;
  }
  Walk refused{.id = command.id, .over = true, .error = unfit(command.id), .received = {}};
  if (!refused.error && walking())
    refused.error = error_of(ErrorCode::kConflict, "rank {}: epoch {} is still on the wire", rank_,
                             walk_->id.epoch);
  if (refused.error) return refused;
  ExchangeJob job;
  job.id = command.id;
  job.checks = command.checks;
  job.sources = options_.sources;
  job.deadline = Deadline::in(command.within);
  job.round_within = options_.round_within;
  job.stop = &stop_;
  if (options_.sink != nullptr) {
    const RankLayout& layout = *plan_->target_layout(rank_);
    for (std::size_t i = 0; i < layout.buffer_elements.size(); ++i) {
      job.targets.push_back(options_.sink->buffer(static_cast<std::int32_t>(i)));
      if (layout.buffer_elements[i] == 0 || !job.targets.back().empty()) continue;
      refused.error = error_of(ErrorCode::kUnsupported,
                               "target rank {}: its sink has no memory for buffer {}", rank_, i);
      return refused;
    }
    job.layer_ready = [sink = options_.sink](std::int32_t layer) { sink->layer_ready(layer); };
  }
  const auto own = std::make_shared<Walk>();
  own->id = command.id;
  walk_ = own;
  stop_ = false;
  lock.unlock();
  result<ReceiveStatistics> received = exchange_->run(job);
  lock.lock();
  own->over = true;
  if (received)
    own->received = *received;
  else
    own->error = std::move(received).error();
  changed_.notify_all();
  return *own;
}

/// Returns when the walk of this epoch reads and writes nothing any more.
void NcclPeer::Impl::stop(std::uint64_t epoch, const Error& cause, Lock& lock) {
  if (!walking() || walk_->id.epoch != epoch) return;
  const std::shared_ptr<Walk> other = walk_;
  // What failed need not be the wire: when all still walk, the group survives.
  if (changed_.wait_for(lock, kWalkGrace, [&] { return other->over; })) return;
  stop_ = true;
  communicator_->abort(cause);
  changed_.wait(lock, [&] { return other->over; });
}

result<std::unique_ptr<UpdateLease>> NcclPeer::Impl::start_update(Deadline deadline) {
  if (source_ == nullptr)
    return fail(ErrorCode::kInvalidArgument, "rank {}: is no source of the plan", rank_);
  {
    Lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline.at, [this] { return !walking(); }))
      return fail(ErrorCode::kConflict, "source rank {}: version {} is being published", rank_,
                  walk_->id.version.value);
  }
  return source_->start_update(deadline);
}

result<std::unique_ptr<NcclPeer>> NcclPeer::create(std::shared_ptr<const PublicationPlan> plan,
                                                   std::int32_t rank,
                                                   std::shared_ptr<const NcclLibrary> library,
                                                   const CudaDevice& device,
                                                   const NcclPeerOptions& options) {
  const RankLayout* source = plan->source_layout(rank);
  const std::size_t buffers = source == nullptr ? 0 : source->buffer_elements.size();
  if (options.sources.size() != buffers)
    return fail(ErrorCode::kInvalidArgument, "source rank {}: {} buffers, its layout has {}", rank,
                options.sources.size(), buffers);
  if ((plan->target_layout(rank) != nullptr) != (options.sink != nullptr))
    return fail(ErrorCode::kInvalidArgument, "rank {}: {} a sink, the plan has it {} target", rank,
                options.sink == nullptr ? "without" : "with",
                options.sink == nullptr ? "as a" : "as no");
  TROUPE_TRY(
      auto communicator,
      Communicator::create(library, device, {.rank = rank, .abort_within = options.abort_within}));
  return std::unique_ptr<NcclPeer>(new NcclPeer(std::make_unique<Impl>(
      std::move(plan), rank, std::move(library), device, options, std::move(communicator))));
}

NcclPeer::NcclPeer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NcclPeer::~NcclPeer() = default;

result<std::vector<std::byte>> NcclPeer::new_unique_id() const {
  TROUPE_TRY_VOID(impl_->device().use());
  TROUPE_TRY(const UniqueId id, impl_->library().unique_id());
  return id_bytes(id);
}
DeviceMember NcclPeer::device_member(std::string host) const {
  return {impl_->rank(), std::move(host), impl_->device().bus_id()};
}
result<void> NcclPeer::join(const Membership& membership, Deadline deadline) {
  return impl_->join(membership, deadline);
}
void NcclPeer::abort(Error cause) { impl_->communicator().abort(std::move(cause)); }
Reply NcclPeer::handle(Side side, const Command& command) { return impl_->handle(side, command); }
result<std::unique_ptr<UpdateLease>> NcclPeer::start_update(Deadline deadline) {
  return impl_->start_update(deadline);
}
bool NcclPeer::ready() const { return impl_->communicator().ready(); }
bool NcclPeer::stuck() const { return impl_->communicator().stuck(); }

}  // namespace troupe::reshard::nccl
