#include "runtime/comm/copy_pool.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>

namespace troupe::runtime {
namespace {

/// Of one slice; several to a job so that threads end together, few enough to wake nobody in vain.
constexpr std::int64_t kSliceBytesMin = std::int64_t{256} << 10;
constexpr std::int64_t kSliceBytesMax = std::int64_t{4} << 20;
/// Of a copy that is watched: read into a buffer that stays in the second cache.
constexpr std::int64_t kWatchedBytes = std::int64_t{256} << 10;

/// Reads some bytes aside, and has the watch bring them to their place: it walks over them in any
/// case, and writes around the caches, which the kernel does not.
result<std::int64_t> copy_watched(const CopyJob& job, std::int64_t most, DirectProgress& at) {
  static thread_local std::vector<std::byte> aside(static_cast<std::size_t>(kWatchedBytes));
  const auto some = static_cast<std::size_t>(std::min(most, kWatchedBytes));
  const std::span<std::byte> into = std::span(aside).first(some);
  DirectProgress source{.place = at.place, .in_place = at.in_place};
  TROUPE_TRY(const std::int64_t copied, copy_directly(job.owner, job.places, std::span(&into, 1),
                                                      static_cast<std::int64_t>(some), source));
  std::span<const std::byte> rest = into.first(static_cast<std::size_t>(copied));
  DirectProgress target = at;
  skip_directly(job.places, job.targets, copied, at);
  while (!rest.empty()) {
    const std::span<std::byte> place = job.targets[target.target].subspan(target.in_target);
    const std::size_t take = std::min(rest.size(), place.size());
    if (take > 0) job.watch->bring(place.data(), rest.first(take));
    rest = rest.subspan(take);
    ++target.target;
    target.in_target = 0;
  }
  return copied;
}

}  // namespace

CopyPool::CopyPool(int threads) {
  TROUPE_CHECK(threads > 0, "copy pool: {} threads", threads);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

CopyPool::~CopyPool() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    slices_.clear();
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void CopyPool::add(CopyJob job) {
  auto work = std::make_shared<Work>();
  work->job = std::move(job);
  const std::int64_t total = work->job.bytes;
  const auto shares = static_cast<std::int64_t>(threads_.size()) * 2;
  const std::int64_t size = std::clamp(total / shares, kSliceBytesMin, kSliceBytesMax);
  std::vector<Slice> slices;
  DirectProgress at;
  for (std::int64_t done = 0; done < total; done += size) {
    const std::int64_t bytes = std::min(size, total - done);
    slices.push_back({work, at, bytes});
    skip_directly(work->job.places, work->job.targets, bytes, at);
  }
  if (slices.empty()) return work->job.finished({});
  work->slices_left = static_cast<std::int64_t>(slices.size());
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    slices_.insert(slices_.end(), slices.begin(), slices.end());
  }
  if (slices.size() == 1)
    wake_.notify_one();
  else
    wake_.notify_all();
}

void CopyPool::copy_now(CopyJob job) {
  auto work = std::make_shared<Work>();
  work->job = std::move(job);
  work->slices_left = 1;
  copy({work, DirectProgress(), work->job.bytes});
}

void CopyPool::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return closed_ || !slices_.empty(); });
    if (closed_) return;
    const Slice slice = std::move(slices_.front());
    slices_.pop_front();
    lock.unlock();
    copy(slice);
    lock.lock();
  }
}

void CopyPool::copy(const Slice& slice) {
  Work& work = *slice.work;
  DirectProgress at = slice.from;
  std::int64_t left = slice.bytes;
  while (left > 0) {
    {
      const std::lock_guard lock(work.mutex);
      if (work.error) break;
    }
    const bool watched = work.job.watch != nullptr;
    result<std::int64_t> copied =
        watched ? copy_watched(work.job, left, at)
                : copy_directly(work.job.owner, work.job.places, work.job.targets, left, at);
    if (!copied) {
      const std::lock_guard lock(work.mutex);
      if (!work.error) work.error = std::move(copied).error();
      break;
    }
    left -= *copied;
  }
  if (work.slices_left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  work.job.finished(work.error ? result<void>(fail(*work.error)) : result<void>());
}

}  // namespace troupe::runtime
