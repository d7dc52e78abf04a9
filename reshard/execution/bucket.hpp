#pragma once

// Cuts what a target receives into buckets: runs of its receive order that fit a bounded buffer.
//
// **Threads:** pure functions.
// **Invariants:** the pieces of all buckets, in order, are the receive order exactly once; staged
// bytes of a bucket are at most `bucket_bytes`, its pieces at most kBucketPiecesMax, and the places
// that any one sender must name for it at most kBucketSpansMax. A piece of more than one row is of
// whole rows, unless a row alone exceeds a bucket.

#include "reshard/execution/publication_plan.hpp"
#include "reshard/execution/weight_port.hpp"

#include <cstdint>
#include <functional>
#include <vector>

namespace troupe::reshard {

inline constexpr std::int64_t kBucketPiecesMax = 192;
inline constexpr std::int64_t kBucketSpansMax = 3584;

/// How the bytes of an operation come.
enum class Route : std::uint8_t {
  kLocal,    ///< read where they lie, in this process; never cut
  kInPlace,  ///< pulled straight into the sink's memory
  kStaged,   ///< pulled into the bucket, then unpacked
};

struct BucketPiece {
  OpPiece piece;
  Route route = Route::kStaged;
  std::int64_t slot_offset = 0;  ///< bytes into the bucket, when staged
  bool operator==(const BucketPiece&) const = default;
};

struct Bucket {
  std::vector<BucketPiece> pieces;
  std::int64_t begin = 0;  ///< elements of the receive order before it
  std::int64_t end = 0;
  std::int64_t bytes = 0;  ///< that travel
};

struct BucketOptions {
  std::int64_t bucket_bytes = 0;
  std::function<Route(const Op&)> route;
};

std::vector<Bucket> cut_buckets(const PublicationPlan& plan, std::int32_t target_rank,
                                const BucketOptions& options);

}  // namespace troupe::reshard
