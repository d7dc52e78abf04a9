#include "actors/train/sharded_groups.hpp"

namespace troupe::actors {

ShardGroups::ShardGroups(const ParallelOptions& parallel, int dp_rank, int dp_size,
                         Duration timeout) {
  const int each = parallel.shard_ranks > 0 ? parallel.shard_ranks : dp_size;
  const int ranks = parallel.sharding == Sharding::kNone ? 1 : each;
  shards_ = {.ranks = ranks,
             .rank = dp_rank % ranks,
             .weights = parallel.sharding == Sharding::kFsdp,
             .group = nullptr,
             .timeout = timeout};
  copy_ = dp_rank / ranks;
  copies_ = dp_size / ranks;
}

result<void> ShardGroups::refresh(runtime::Collective* dp, std::int64_t epoch) {
  if (dp == nullptr || epoch_ == epoch) return {};
  shards_.group = nullptr;
  replicas_ = nullptr;
  if (shards_.ranks == 1) {
    replicas_ = dp;
  } else if (copies_ == 1) {
    shards_.group = dp;
  } else {
    const Deadline deadline = Deadline::in(shards_.timeout);
    owned_shard_.reset();
    owned_replicas_.reset();
    TROUPE_TRY(owned_shard_, dp->split(copy_, dp->rank(), deadline));
    TROUPE_TRY(owned_replicas_, dp->split(shards_.rank, dp->rank(), deadline));
    shards_.group = owned_shard_.get();
    replicas_ = owned_replicas_.get();
  }
  epoch_ = epoch;
  return {};
}

}  // namespace troupe::actors
