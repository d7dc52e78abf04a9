#include "reshard/execution/piece_summer.hpp"

#include "reshard/execution/weight_port.hpp"

#include <utility>

namespace troupe::reshard {
namespace {

/// Summed at once, in less than a microsecond, rather than by a thread that has to be woken.
constexpr std::int64_t kAtOnceBytes = 4096;
/// Sums of one port that are kept; others are summed anew.
constexpr std::size_t kKnownMax = std::size_t{1} << 20;

result<PieceSums> sum_piece(PieceGiver& giver, const OpPiece& piece, const Checks& checks) {
  TROUPE_TRY(const runtime::Pinned memory, giver.read(piece));
  return sums_of(giver.plan(), piece, memory.spans, checks);
}

}  // namespace

PieceSummer::~PieceSummer() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    queue_.clear();
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

PieceSummer::Key PieceSummer::key_of(const PieceGiver& giver, const OpPiece& piece,
                                     const Checks& checks) {
  const Op& op = giver.plan().op(piece.op);
  return {giver.number(), op.tensor,    op.row_begin,
          op.row_end,     op.col_begin, op.col_end,
          piece.first,    piece.count,  (checks.chunk_crc ? 1 : 0) | (checks.tensor_sums ? 2 : 0)};
}

std::optional<result<PieceSums>> PieceSummer::look(const std::shared_ptr<PieceGiver>& giver,
                                                   const OpPiece& piece, const Checks& checks) {
  const PublicationPlan& plan = giver->plan();
  const std::int64_t element = element_bytes(plan.tensor_of(plan.op(piece.op)).dtype);
  if (piece.count * element <= kAtOnceBytes) return sum_piece(*giver, piece, checks);
  const Key key = key_of(*giver, piece, checks);
  const std::lock_guard lock(mutex_);
  if (giver->closed())
    return result<PieceSums>(fail(ErrorCode::kAborted, "weights: they are given out no longer"));
  if (const auto place = known_.find(key); place != known_.end()) {
    if (!place->second) return std::nullopt;
    std::optional<result<PieceSums>> sums = place->second;
    if (!*sums) known_.erase(place);
    return sums;
  }
  if (queue_.size() >= kQueuedMax || closed_) return std::nullopt;
  if (known_.size() >= kKnownMax)
    std::erase_if(known_, [](const auto& one) { return one.second.has_value(); });
  known_[key] = std::nullopt;
  queue_.push_back({key, giver, piece, checks});
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  wake_.notify_one();
  return std::nullopt;
}

std::optional<PieceSums> PieceSummer::offer(const PieceGiver& giver, const OpPiece& piece,
                                            const PieceSums& sums) {
  const std::lock_guard lock(mutex_);
  if (giver.closed() || known_.size() >= kKnownMax) return sums;
  const Key key = key_of(giver, piece, {.chunk_crc = false, .tensor_sums = true});
  const auto [place, fresh] = known_.emplace(key, std::optional<result<PieceSums>>(sums));
  if (fresh) return sums;
  if (!place->second) return std::nullopt;
  if (!*place->second) place->second = sums;
  return **place->second;
}

void PieceSummer::forget(const PieceGiver& giver) {
  std::deque<Job> dropped;  // dies outside the lock
  const std::lock_guard lock(mutex_);
  for (std::size_t i = queue_.size(); i > 0; --i) {
    Job job = std::move(queue_.front());
    queue_.pop_front();
    (job.giver.get() == &giver ? dropped : queue_).push_back(std::move(job));
  }
  std::erase_if(known_, [&](const auto& one) { return std::get<0>(one.first) == giver.number(); });
}

void PieceSummer::drain(const PieceGiver& giver) {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return running_ != giver.number(); });
}

void PieceSummer::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return closed_ || !queue_.empty(); });
    if (closed_) return;
    Job job = std::move(queue_.front());
    queue_.pop_front();
    running_ = job.giver->number();
    lock.unlock();
    result<PieceSums> sums = sum_piece(*job.giver, job.piece, job.checks);
    job.giver.reset();  // may be the last who holds it
    lock.lock();
    running_ = 0;
    idle_.notify_all();
    // Forgotten meanwhile, or not.
    if (const auto place = known_.find(job.key); place != known_.end())
      place->second = std::move(sums);
  }
}

}  // namespace troupe::reshard
