#include "reshard/execution/bucket.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <utility>

namespace troupe::reshard {
namespace {

class Cutter {
 public:
  Cutter(const PublicationPlan& plan, const BucketOptions& options)
      : plan_(plan), options_(options) {
    TROUPE_CHECK(options.bucket_bytes >= 8, "buckets of {} bytes", options.bucket_bytes);
  }

  void add(std::int32_t index) {
    const Op& op = plan_.op(index);
    const Route route = options_.route(op);
    if (route == Route::kLocal) {
      push({.op = index, .first = 0, .count = op.elements()}, route, 0, 0);
      return;
    }
    const std::int64_t element = element_bytes(plan_.tensor_of(op).dtype);
    const RankLayout* sender =
        op.hands_on() ? plan_.target_layout(op.source_rank) : plan_.source_layout(op.source_rank);
    const bool dense = source_region(op, *sender).contiguous();
    for (std::int64_t first = 0; first < op.elements();) {
      const std::int64_t take = fitting(op, element, dense, first);
      if (take == 0) {
        close();
        continue;
      }
      const std::int64_t rows = dense ? 1 : take / (op.col_end - op.col_begin) + 1;
      push({.op = index, .first = first, .count = take}, route, take * element, rows);
      first += take;
    }
  }
  std::vector<Bucket> finish() && {
    close();
    return std::move(buckets_);
  }

 private:
  /// Elements from `first` on that the open bucket takes; 0: none, and it is not empty.
  std::int64_t fitting(const Op& op, std::int64_t element, bool dense, std::int64_t first) const {
    const std::int64_t cols = op.col_end - op.col_begin;
    if (static_cast<std::int64_t>(open_.pieces.size()) >= kBucketPiecesMax) return 0;
    const std::int64_t room = (options_.bucket_bytes - open_.bytes) / element;
    const std::int64_t left = op.elements() - first;
    std::int64_t take = std::min(room, left);
    if (!dense) take = std::min(take, (kBucketSpansMax - spans_ - 1) * cols);
    if (take <= 0) return 0;
    if (take == left || first % cols != 0) {
      // The rest of a row that was cut, or all of it.
      return first % cols == 0 ? take : std::min(take, cols - first % cols);
    }
    if (take >= cols) return take - take % cols;
    return cols * element > options_.bucket_bytes || open_.pieces.empty() ? take : 0;
  }
  void push(const OpPiece& piece, Route route, std::int64_t bytes, std::int64_t spans) {
    if (static_cast<std::int64_t>(open_.pieces.size()) >= kBucketPiecesMax) close();
    open_.pieces.push_back({.piece = piece, .route = route, .slot_offset = open_.bytes});
    open_.end += piece.count;
    open_.bytes += bytes;
    spans_ += spans;
  }
  void close() {
    if (open_.pieces.empty()) return;
    const std::int64_t end = open_.end;
    buckets_.push_back(std::move(open_));
    open_ = Bucket();
    open_.begin = open_.end = end;
    spans_ = 0;
  }

  const PublicationPlan& plan_;
  const BucketOptions& options_;
  Bucket open_;
  std::int64_t spans_ = 0;
  std::vector<Bucket> buckets_;
};

}  // namespace

std::vector<Bucket> cut_buckets(const PublicationPlan& plan, std::int32_t target_rank,
                                const BucketOptions& options) {
  Cutter cutter(plan, options);
  for (const std::int32_t op : plan.receive_order(target_rank).ops) cutter.add(op);
  return std::move(cutter).finish();
}

}  // namespace troupe::reshard
