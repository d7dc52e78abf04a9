#include "reshard/execution/publication_target.hpp"

#include "reshard/execution/error_of.hpp"
#include "reshard/execution/member_core.hpp"
#include "reshard/execution/receiver.hpp"
#include "runtime/base/check.hpp"

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

namespace troupe::reshard {
namespace {

constexpr std::int64_t kBucketLeast = 64;
constexpr std::int64_t kBucketMost = std::int64_t{1} << 30;
/// For writes of an attempt that failed; the transport drains them for 2 s.
constexpr Duration kLandingWait = std::chrono::seconds(3);

Reply no_answer(const Command& command, std::int32_t rank) {
  return {.epoch = command.id.epoch,
          .from = {Side::kTarget, rank},
          .to = command.kind,
          .kind = ReplyKind::kFailed,
          .address = {},
          .error = error_of(ErrorCode::kConflict, "target rank {}: {} of epoch {} is under way",
                            rank, command_name(command.kind), command.id.epoch),
          .received = {}};
}

}  // namespace

class PublicationTarget::Impl {
 public:
  Impl(std::shared_ptr<const PublicationPlan> plan, std::int32_t rank, WeightSink& sink,
       WeightPort& port, const TargetOptions& options)
      : plan_(std::move(plan)),
        rank_(rank),
        sink_(sink),
        port_(port),
        options_(options),
        lane_(options.lane                  ? options.lane(port)
              : port.transport() != nullptr ? transport_lane(port)
                                            : nullptr),
        core_(rank, plan_->plan().digest, sink.active()) {}

  ~Impl() {
    if (given_ != 0) port_.stop_giving(given_, self());
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Reply handle(const Command& command) {
    std::unique_lock lock(mutex_);
    std::optional<Reply> reply = carry_out(core_.step(command), lock);
    return reply ? *std::move(reply) : no_answer(command, rank_);
  }

 private:
  Member self() const { return {Side::kTarget, rank_}; }
  /// The lock is let go of while bytes come in.
  std::optional<Reply> carry_out(const std::vector<TargetEffect>& effects,
                                 std::unique_lock<std::mutex>& lock);
  PrepareDone prepare(const PublicationId& id);
  FetchDone fetch(const Command& command, std::unique_lock<std::mutex>& lock);
  void end_update();
  Route route_of(const Op& op, std::int32_t index, std::uint64_t epoch);
  void cut(std::uint64_t epoch);
  bool plain() const;
  BucketMemory& memory(std::size_t index);

  std::shared_ptr<const PublicationPlan> plan_;
  std::int32_t rank_;
  WeightSink& sink_;
  WeightPort& port_;
  TargetOptions options_;
  std::unique_ptr<PieceLane> lane_;
  std::mutex mutex_;  ///< guards the following
  TargetCore core_;
  std::atomic<bool> stop_{false};
  std::shared_ptr<HandOn> hand_on_;
  std::uint64_t given_ = 0;  ///< epoch under which the port knows us
  std::vector<Bucket> buckets_;
  std::vector<Route> routes_;  ///< of the operations of the receive order, when it was cut
  std::array<BucketMemory, 2> memory_;
  std::weak_ptr<const void> landing_;  ///< alive while an older attempt may still write
};

std::optional<Reply> PublicationTarget::Impl::carry_out(const std::vector<TargetEffect>& effects,
                                                        std::unique_lock<std::mutex>& lock) {
  std::optional<Reply> reply;
  const auto go_on = [&](const TargetEvent& event) {
    if (auto more = carry_out(core_.step(event), lock)) reply = std::move(more);
  };
  for (const TargetEffect& effect : effects) {
    if (const auto* send = std::get_if<SendReply>(&effect)) {
      reply = send->reply;
    } else if (const auto* one = std::get_if<PrepareUpdate>(&effect)) {
      go_on(prepare(one->id));
    } else if (const auto* start = std::get_if<StartFetch>(&effect)) {
      go_on(fetch(start->command, lock));
    } else if (std::get_if<StopFetch>(&effect) != nullptr) {
      stop_ = true;
    } else if (const auto* commit = std::get_if<CommitUpdate>(&effect)) {
      end_update();
      CommitDone done{.epoch = commit->id.epoch, .error = {}};
      if (auto committed = sink_.commit(); !committed) done.error = std::move(committed).error();
      go_on(done);
    } else if (std::get_if<AbortUpdate>(&effect) != nullptr) {
      end_update();
      sink_.abort();
    }
  }
  return reply;
}

PrepareDone PublicationTarget::Impl::prepare(const PublicationId& id) {
  PrepareDone done{.epoch = id.epoch, .error = {}, .address = port_.address()};
  const Deadline until = Deadline::in(kLandingWait);
  while (!landing_.expired()) {
    if (until.passed()) {
      done.error = error_of(ErrorCode::kConflict,
                            "target rank {}: bytes of an earlier attempt may still come in", rank_);
      return done;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (auto begun = sink_.begin(id.version, id.base.has_value()); !begun) {
    done.error = std::move(begun).error();
    return done;
  }
  stop_ = false;
  hand_on_ = std::make_shared<HandOn>(plan_, rank_, sink_, plain());
  auto given = port_.give(id.epoch, self(), hand_on_);
  if (given) {
    given_ = id.epoch;
    return done;
  }
  sink_.abort();
  hand_on_.reset();
  done.error = std::move(given).error();
  return done;
}

bool PublicationTarget::Impl::plain() const {
  const RankLayout& layout = *plan_->target_layout(rank_);
  for (std::size_t i = 0; i < layout.buffer_elements.size(); ++i) {
    if (layout.buffer_elements[i] > 0 && sink_.buffer(static_cast<std::int32_t>(i)).empty())
      return false;
  }
  return true;
}

Route PublicationTarget::Impl::route_of(const Op& op, std::int32_t index, std::uint64_t epoch) {
  const Member root{Side::kSource, plan_->root_of(index).source_rank};
  if (port_.giver(epoch, root) != nullptr) return Route::kLocal;
  const Region region = target_region(op, *plan_->target_layout(rank_));
  const bool in_place = region.contiguous() && !sink_.buffer(region.buffer).empty();
  return in_place ? Route::kInPlace : Route::kStaged;
}

/// Buckets stay as they are from one publication to the next unless somebody has moved.
void PublicationTarget::Impl::cut(std::uint64_t epoch) {
  const std::vector<std::int32_t>& ops = plan_->receive_order(rank_).ops;
  std::vector<Route> routes;
  routes.reserve(ops.size());
  for (const std::int32_t index : ops) routes.push_back(route_of(plan_->op(index), index, epoch));
  if (!routes_.empty() && routes == routes_) return;
  routes_ = std::move(routes);
  std::size_t next = 0;
  buckets_ = cut_buckets(*plan_, rank_,
                         {.bucket_bytes = options_.bucket_bytes,
                          .route = [&](const Op& /*op*/) { return routes_[next++]; }});
}

BucketMemory& PublicationTarget::Impl::memory(std::size_t index) {
  std::int64_t most = 0;
  for (const Bucket& bucket : buckets_) most = std::max(most, bucket.bytes);
  BucketMemory& memory = memory_[index];
  // One that something may still write to is left to it.
  const bool fits = memory != nullptr && memory.use_count() == 1 &&
                    static_cast<std::int64_t>(memory->size()) >= most;
  if (!fits && most > 0)
    memory = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(most));
  if (memory == nullptr) memory = std::make_shared<std::vector<std::byte>>();
  return memory;
}

FetchDone PublicationTarget::Impl::fetch(const Command& command,
                                         std::unique_lock<std::mutex>& lock) {
  FetchDone done{.epoch = command.id.epoch, .error = {}, .received = {}};
  if (command.id.base && !plain()) {
    done.error =
        error_of(ErrorCode::kUnsupported,
                 "target rank {}: deltas need a sink with plain buffers: publish in full", rank_);
    return done;
  }
  cut(command.id.epoch);
  ReceiveJob job;
  job.plan = plan_;
  job.rank = rank_;
  job.sink = &sink_;
  job.port = &port_;
  job.lane = lane_.get();
  job.id = command.id;
  job.checks = command.checks;
  for (const MemberAddress& one : command.members) job.members[one.member] = one;
  job.buckets = &buckets_;
  job.memory = {memory(0), memory(buckets_.size() > 1 ? 1 : 0)};
  job.permit_views = options_.permit_views;
  job.deadline = Deadline::in(command.within);
  job.stop = &stop_;
  job.hand_on = hand_on_;
  const auto landing = std::make_shared<int>(0);
  landing_ = landing;
  job.landing = landing;
  lock.unlock();
  Receiver receiver(std::move(job));
  result<ReceiveStatistics> received = receiver.run();
  lock.lock();
  if (received) {
    done.received = *received;
  } else {
    done.error = std::move(received).error();
    done.waited_for = receiver.waited_for();
  }
  return done;
}

void PublicationTarget::Impl::end_update() {
  if (given_ != 0) port_.stop_giving(given_, self());
  given_ = 0;
  hand_on_.reset();
}

PublicationTarget::PublicationTarget(std::shared_ptr<const PublicationPlan> plan, std::int32_t rank,
                                     WeightSink& sink, WeightPort& port,
                                     const TargetOptions& options) {
  TROUPE_CHECK(plan->target_layout(rank) != nullptr, "publication: rank {} is no target", rank);
  TROUPE_CHECK(options.bucket_bytes >= kBucketLeast && options.bucket_bytes <= kBucketMost,
               "target rank {}: buckets of {} bytes, wanted 64 B..1 GiB", rank,
               options.bucket_bytes);
  TROUPE_CHECK(rank >= 0 && rank < kProgressRanksMax, "target rank {}: wanted 0..{}", rank,
               kProgressRanksMax - 1);
  impl_ = std::make_shared<Impl>(std::move(plan), rank, sink, port, options);
}

PublicationTarget::~PublicationTarget() = default;

Reply PublicationTarget::handle(const Command& command) { return impl_->handle(command); }

}  // namespace troupe::reshard
