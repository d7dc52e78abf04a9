#include "reshard/execution/publication_source.hpp"

#include "reshard/execution/member_core.hpp"
#include "reshard/execution/piece.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

namespace troupe::reshard {
namespace {

/// The bytes of all buffers at some version.
struct Base {
  WeightVersion version;
  std::vector<std::vector<std::byte>> buffers;
};

}  // namespace

/// Weights, who reads them and who writes them.
class PublicationSource::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(std::shared_ptr<const PublicationPlan> plan, std::int32_t rank,
       std::vector<std::span<const std::byte>> buffers, WeightPort& port,
       const SourceOptions& options)
      : plan_(std::move(plan)),
        rank_(rank),
        buffers_(std::move(buffers)),
        port_(port),
        options_(options),
        core_(rank, plan_->plan().digest) {}

  Reply handle(const Command& command);
  result<std::unique_ptr<UpdateLease>> start_update(Deadline deadline);
  bool frozen() {
    const std::lock_guard lock(mutex_);
    tick();
    return core_.frozen().has_value() || readers_ > 0;
  }
  void close();

 private:
  class Giver;
  class Update;
  /// Alive while somebody reads; counted by the source.
  result<std::shared_ptr<const void>> reader(std::uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    if (!core_.frozen() || core_.frozen()->epoch != epoch)
      return fail(ErrorCode::kAborted, "source rank {}: epoch {} is over", rank_, epoch);
    ++readers_;
    return std::shared_ptr<const void>(this, [self = shared_from_this()](const void*) {
      {
        const std::lock_guard inner(self->mutex_);
        --self->readers_;
      }
      self->changed_.notify_all();
    });
  }
  std::optional<Reply> carry_out(const std::vector<SourceEffect>& effects);
  FreezeDone freeze(const Freeze& freeze);
  void thaw(const Thaw& thaw);
  void tick();

  std::shared_ptr<const PublicationPlan> plan_;
  std::int32_t rank_;
  std::vector<std::span<const std::byte>> buffers_;
  WeightPort& port_;
  SourceOptions options_;
  std::mutex mutex_;  ///< guards the following
  std::condition_variable changed_;
  SourceCore core_;
  std::int64_t readers_ = 0;
  bool updating_ = false;
  std::optional<Base> base_;
};

/// The frozen weights of one epoch, for the port.
class PublicationSource::Impl::Giver final : public PieceGiver {
 public:
  Giver(std::shared_ptr<Impl> source, std::uint64_t epoch, const Base* base)
      : source_(std::move(source)), epoch_(epoch), base_(base) {}

  const PublicationPlan& plan() const override { return *source_->plan_; }
  result<runtime::Pinned> read(const OpPiece& piece) override {
    TROUPE_TRY(const Region region, region_of_op(piece.op));
    runtime::Pinned pinned;
    // The root of a chain has the same box as what asks for it.
    pinned.spans = piece_spans(source_->buffers_[static_cast<std::size_t>(region.buffer)], region,
                               element_of(piece.op), piece.first, piece.count);
    TROUPE_TRY(pinned.keep, source_->reader(epoch_));
    return pinned;
  }
  std::int64_t progress(std::int32_t /*taker*/, std::int64_t /*taken*/) override { return 0; }
  std::optional<MemoryView> view(std::int32_t op) override {
    const result<Region> region = region_of_op(op);
    if (!region) return std::nullopt;
    result<std::shared_ptr<const void>> keep = source_->reader(epoch_);
    if (!keep) return std::nullopt;
    return MemoryView{source_->buffers_[static_cast<std::size_t>(region->buffer)].data() +
                          region->offset * element_of(op),
                      region->row_stride, *std::move(keep)};
  }
  result<runtime::Pinned> read_base(const OpPiece& piece) override {
    if (base_ == nullptr) return runtime::Pinned{};
    TROUPE_TRY(const Region region, region_of_op(piece.op));
    runtime::Pinned pinned;
    pinned.spans = piece_spans(base_->buffers[static_cast<std::size_t>(region.buffer)], region,
                               element_of(piece.op), piece.first, piece.count);
    TROUPE_TRY(pinned.keep, source_->reader(epoch_));
    return pinned;
  }

 private:
  result<Region> region_of_op(std::int32_t index) const {
    const Op& root = source_->plan_->root_of(index);
    if (root.source_rank != source_->rank_)
      return fail(ErrorCode::kNotFound, "weights: operation {} is of source rank {}, this is {}",
                  index, root.source_rank, source_->rank_);
    return source_region(root, *source_->plan_->source_layout(source_->rank_));
  }
  std::int64_t element_of(std::int32_t index) const {
    return element_bytes(source_->plan_->tensor_of(source_->plan_->op(index)).dtype);
  }

  std::shared_ptr<Impl> source_;
  std::uint64_t epoch_;
  const Base* base_;  ///< does not change while this is given out
};

class PublicationSource::Impl::Update final : public UpdateLease {
 public:
  explicit Update(std::shared_ptr<Impl> source) : source_(std::move(source)) {}
  ~Update() override {
    {
      const std::lock_guard lock(source_->mutex_);
      source_->updating_ = false;
    }
    source_->changed_.notify_all();
  }
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;

 private:
  std::shared_ptr<Impl> source_;
};

Reply PublicationSource::Impl::handle(const Command& command) {
  const std::lock_guard lock(mutex_);
  tick();
  std::optional<Reply> reply = carry_out(core_.step(command, steady_now()));
  TROUPE_CHECK(reply.has_value(), "source rank {}: {} has no answer", rank_,
               command_name(command.kind));
  return *std::move(reply);
}

std::optional<Reply> PublicationSource::Impl::carry_out(const std::vector<SourceEffect>& effects) {
  std::optional<Reply> reply;
  for (const SourceEffect& effect : effects) {
    if (const auto* send = std::get_if<SendReply>(&effect)) {
      reply = send->reply;
    } else if (const auto* one = std::get_if<Freeze>(&effect)) {
      if (auto more = carry_out(core_.step(freeze(*one), steady_now()))) reply = std::move(more);
    } else if (const auto* end = std::get_if<Thaw>(&effect)) {
      thaw(*end);
    }
  }
  return reply;
}

FreezeDone PublicationSource::Impl::freeze(const Freeze& freeze) {
  FreezeDone done{.epoch = freeze.id.epoch, .error = {}, .address = port_.address()};
  const auto refuse = [&](ErrorCode code, std::string why) {
    done.error = Error{.code = code,
                       .message = fmt::format("source rank {}: {}", rank_, why),
                       .origin = {},
                       .causes = {}};
    return done;
  };
  if (updating_)
    return refuse(ErrorCode::kConflict,
                  fmt::format("its weights are being updated, version {} cannot be published",
                              freeze.id.version.value));
  const Base* base = nullptr;
  if (freeze.id.base) {
    if (!base_ || base_->version != *freeze.id.base)
      return refuse(ErrorCode::kConflict,
                    fmt::format("keeps version {}, the delta is against {}: publish in full",
                                base_ ? std::to_string(base_->version.value) : "none",
                                freeze.id.base->value));
    base = &*base_;
  }
  const Member self{Side::kSource, rank_};
  auto given = port_.give(freeze.id.epoch, self,
                          std::make_shared<Giver>(shared_from_this(), freeze.id.epoch, base));
  if (!given) done.error = std::move(given).error();
  return done;
}

void PublicationSource::Impl::thaw(const Thaw& thaw) {
  port_.stop_giving(thaw.id.epoch, {Side::kSource, rank_});
  if (thaw.committed && options_.keep_base) {
    if (!base_) base_.emplace().buffers.resize(buffers_.size());
    base_->version = thaw.id.version;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      base_->buffers[i].resize(buffers_[i].size());
      std::memcpy(base_->buffers[i].data(), buffers_[i].data(), buffers_[i].size());
    }
  }
  changed_.notify_all();
}

void PublicationSource::Impl::tick() { carry_out(core_.step(LeaseTick{}, steady_now())); }

result<std::unique_ptr<UpdateLease>> PublicationSource::Impl::start_update(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto free = [this] { return !core_.frozen() && readers_ == 0 && !updating_; };
  tick();
  while (!free()) {
    if (deadline.passed())
      return fail(ErrorCode::kConflict,
                  "source rank {}: its weights cannot be updated: {}, {} reads under way", rank_,
                  core_.frozen()
                      ? fmt::format("version {} is being published", core_.frozen()->version.value)
                  : updating_ ? std::string("another update holds them")
                              : std::string("a publication has just ended"),
                  readers_);
    const TimePoint lease = core_.frozen() ? core_.lease_until() : deadline.at;
    changed_.wait_until(lock, std::min(deadline.at, lease));
    tick();
  }
  updating_ = true;
  return std::unique_ptr<UpdateLease>(std::make_unique<Update>(shared_from_this()));
}

void PublicationSource::Impl::close() {
  std::optional<PublicationId> frozen;
  {
    const std::lock_guard lock(mutex_);
    frozen = core_.frozen();
  }
  if (frozen) port_.stop_giving(frozen->epoch, {Side::kSource, rank_});
  // The caller's buffers go next: nobody may read them any more.
  std::unique_lock lock(mutex_);
  const bool free =
      changed_.wait_until(lock, Deadline::by_default().at, [this] { return readers_ == 0; });
  if (!free) log::error("source rank {}: {} reads do not end", rank_, readers_);
}

PublicationSource::PublicationSource(std::shared_ptr<const PublicationPlan> plan, std::int32_t rank,
                                     std::vector<std::span<const std::byte>> buffers,
                                     WeightPort& port, const SourceOptions& options) {
  const RankLayout* layout = plan->source_layout(rank);
  TROUPE_CHECK(layout != nullptr, "publication: rank {} is no source of the plan", rank);
  TROUPE_CHECK(layout->buffer_elements.size() == buffers.size(),
               "source rank {}: {} buffers, its layout has {}", rank, buffers.size(),
               layout->buffer_elements.size());
  impl_ = std::make_shared<Impl>(std::move(plan), rank, std::move(buffers), port, options);
}

PublicationSource::~PublicationSource() { impl_->close(); }

Reply PublicationSource::handle(const Command& command) { return impl_->handle(command); }

result<std::unique_ptr<UpdateLease>> PublicationSource::start_update(Deadline deadline) {
  return impl_->start_update(deadline);
}

bool PublicationSource::frozen() const { return impl_->frozen(); }

}  // namespace troupe::reshard
