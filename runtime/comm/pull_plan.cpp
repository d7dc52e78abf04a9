#include "runtime/comm/pull_plan.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <cstring>

namespace troupe::runtime {
namespace {

class Planner {
 public:
  explicit Planner(const PlanOptions& options) : options_(options) {}

  void add(const PullPart& part) {
    const auto bytes = static_cast<std::int64_t>(part.into.size());
    std::int64_t skip = 0;
    do {
      if (!fits(part.into.data() + skip, bytes - skip)) close();
      const std::int64_t take = std::min(bytes - skip, options_.chunk_bytes - open_.bytes);
      open_.parts.push_back({.chunk = chunks_.size(),
                             .column = part.column.value,
                             .first = part.first_row,
                             .rows = part.rows,
                             .bytes = bytes,
                             .skip = skip,
                             .take = take});
      target(part.into.subspan(static_cast<std::size_t>(skip), static_cast<std::size_t>(take)));
      skip += take;
    } while (skip < bytes);
  }
  std::vector<ChunkPlan> finish() && {
    close();
    return std::move(chunks_);
  }

 private:
  /// Whether the open chunk can take at least some of `bytes` bytes that go to `where`.
  bool fits(const std::byte* where, std::int64_t bytes) const {
    if (open_.parts.size() == kRequestPartsMax) return false;
    if (bytes == 0) return true;
    if (open_.bytes == options_.chunk_bytes) return false;
    const bool beside =
        open_.targets.empty() ||
        (open_.targets.size() == 1 && open_.targets[0].data() + open_.targets[0].size() == where);
    return beside || (bytes <= options_.scatter_part_max && open_is_small_ &&
                      open_.bytes + bytes <= options_.scatter_bytes_max);
  }
  void target(std::span<std::byte> into) {
    if (into.empty()) return;
    open_.bytes += static_cast<std::int64_t>(into.size());
    open_is_small_ =
        open_is_small_ && static_cast<std::int64_t>(into.size()) <= options_.scatter_part_max;
    if (!open_.targets.empty()) {
      std::span<std::byte>& last = open_.targets.back();
      if (last.data() + last.size() == into.data()) {
        last = {last.data(), last.size() + into.size()};
        return;
      }
    }
    open_.targets.push_back(into);
  }
  void close() {
    if (!open_.parts.empty()) chunks_.push_back(std::move(open_));
    open_ = ChunkPlan();
    open_is_small_ = true;
  }

  PlanOptions options_;
  ChunkPlan open_;
  bool open_is_small_ = true;  ///< all its parts may share a chunk
  std::vector<ChunkPlan> chunks_;
};

}  // namespace

std::vector<ChunkPlan> plan_chunks(std::span<const PullPart> parts, const PlanOptions& options) {
  TROUPE_CHECK(options.chunk_bytes > 0, "pull plan: chunks of {} bytes", options.chunk_bytes);
  Planner planner(options);
  for (const PullPart& part : parts) planner.add(part);
  return std::move(planner).finish();
}

void scatter_bytes(std::span<const std::byte> bytes,
                   std::span<const std::span<std::byte>> targets) {
  for (const std::span<std::byte> target : targets) {
    if (target.empty()) continue;
    TROUPE_DCHECK(target.size() <= bytes.size(), "scatter: {} bytes of {}", target.size(),
                  bytes.size());
    std::memcpy(target.data(), bytes.data(), target.size());
    bytes = bytes.subspan(target.size());
  }
}

}  // namespace troupe::runtime
