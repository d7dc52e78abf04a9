#include "reshard/execution/hand_on.hpp"

#include "reshard/execution/piece.hpp"

#include <algorithm>
#include <utility>

namespace troupe::reshard {

HandOn::HandOn(std::shared_ptr<const PublicationPlan> plan, std::int32_t rank, WeightSink& sink,
               bool plain)
    : plan_(std::move(plan)), rank_(rank), sink_(sink), plain_(plain) {
  for (const std::int32_t taker : plan_->takers_of(rank)) taken_[taker] = 0;
}

result<runtime::Pinned> HandOn::read(const OpPiece& piece) {
  const Op& op = plan_->op(piece.op);
  if (!op.hands_on() || op.source_rank != rank_)
    return fail(ErrorCode::kNotFound, "weights: target rank {} does not hand on operation {}",
                rank_, piece.op);
  std::int64_t at = plan_->begin_at_sender(piece.op) + piece.first;
  const std::int64_t end = at + piece.count;
  const std::lock_guard lock(mutex_);
  if (end > delivered_)
    return fail(ErrorCode::kNotFound, "weights: target rank {} is at {} of {} elements", rank_,
                delivered_, end);
  runtime::Pinned pinned;
  if (plain_) {
    const Op& mine = plan_->op(op.after);
    const Region region = target_region(mine, *plan_->target_layout(rank_));
    pinned.spans = piece_spans(sink_.buffer(region.buffer), region,
                               element_bytes(plan_->tensor_of(op).dtype), piece.first, piece.count);
    pinned.keep = shared_from_this();
    return pinned;
  }
  auto keeps = std::make_shared<std::vector<BucketMemory>>();
  auto run = kept_.upper_bound(at);
  if (run != kept_.begin()) --run;
  for (; at < end; ++run) {
    if (run == kept_.end() || run->first > at || run->second.end <= at)
      return fail(ErrorCode::kNotFound, "weights: target rank {} no longer keeps element {}", rank_,
                  at);
    const std::int64_t until = std::min(end, run->second.end);
    const std::int64_t element = run->second.element;
    pinned.spans.emplace_back(run->second.data + (at - run->first) * element,
                              static_cast<std::size_t>((until - at) * element));
    keeps->push_back(run->second.memory);
    at = until;
  }
  pinned.keep = std::move(keeps);
  return pinned;
}

std::int64_t HandOn::progress(std::int32_t taker, std::int64_t taken) {
  std::int64_t delivered = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto place = taken_.find(taker);
    // A message that was overtaken must not take anything back.
    if (place != taken_.end()) place->second = std::max(place->second, taken);
    drop_taken();
    delivered = delivered_;
  }
  moved_.notify_all();
  return delivered;
}

void HandOn::drop_taken() {
  std::int64_t least = delivered_;
  for (const auto& [taker, taken] : taken_) least = std::min(least, taken);
  while (!kept_.empty() && kept_.begin()->second.end <= least) kept_.erase(kept_.begin());
}

void HandOn::delivered(const BucketPiece& one, std::int64_t begin, const BucketMemory& memory) {
  const std::lock_guard lock(mutex_);
  delivered_ = begin + one.piece.count;
  // What is local here comes from the weights themselves, also for others.
  if (plain_ || taken_.empty() || one.route != Route::kStaged) return;
  kept_[begin] = {.end = delivered_,
                  .element = element_bytes(plan_->tensor_of(plan_->op(one.piece.op)).dtype),
                  .memory = memory,
                  .data = memory->data() + one.slot_offset};
}

bool HandOn::wait_taken(std::int64_t end, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (plain_) return true;
  return moved_.wait_until(lock, deadline.at, [&] {
    return std::all_of(taken_.begin(), taken_.end(),
                       [end](const auto& one) { return one.second >= end; });
  });
}

std::int32_t HandOn::last_taker() {
  const std::lock_guard lock(mutex_);
  const auto last =
      std::min_element(taken_.begin(), taken_.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return last == taken_.end() ? -1 : last->first;
}

}  // namespace troupe::reshard
