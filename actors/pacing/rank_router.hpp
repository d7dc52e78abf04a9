#pragma once

// Which rollout rank gets a sample: ranks pull, the router answers with what fits.
//
// A rank says how many more samples and KV tokens it would take (credit); each start uses credit
// up, the next pull replaces it. Of the ranks with room the one with the most free tokens wins; a
// rank that already has the prompt's KV counts its tokens as free, so affinity is a hint and never
// sends a whole group to one engine. A rank that runs nothing takes anything, so that a sample
// larger than every estimate still runs.
// **Threads:** one at a time.
// **Invariants:** no choice depends on hashes or pointers; suspected and released ranks get
// nothing.
// **Cost:** O(ranks) a choice.

#include "runtime/base/ids.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace troupe::actors {

struct RankLoad {
  std::int64_t credit_samples = 0;
  std::int64_t credit_tokens = 0;
  std::int64_t samples_max = 0;                    ///< it may run at once
  std::int64_t tokens_max = 0;                     ///< of KV
  std::int64_t running = 0;                        ///< attempts
  std::map<std::uint64_t, std::int64_t> groups{};  ///< attempts by group
  bool suspected = false;
  bool released = false;
};

/// A sample under way, for repacking.
struct TailSample {
  std::uint64_t attempt = 0;
  RankId rank{};
  std::int64_t tokens = 0;  ///< KV it will need, the estimated rest included
  bool pinned = false;      ///< stays where it is
  bool operator==(const TailSample&) const = default;
};

struct RepackRank {
  RankId rank{};
  std::int64_t samples_max = 0;
  std::int64_t tokens_max = 0;
};

struct RepackPlan {
  std::vector<RankId> freed{};
  std::vector<std::uint64_t> moved{};  ///< attempts that leave a freed rank
};

/// Packs the tail onto few ranks: frees the rank with the fewest tokens as long as everything that
/// it runs fits into the room of the others. Nothing moves between ranks that stay.
RepackPlan plan_repack(const std::vector<RepackRank>& ranks, const std::vector<TailSample>& tail);

class RankRouter {
 public:
  void join(RankId rank, std::int64_t samples_max, std::int64_t tokens_max);
  void lose(RankId rank) { ranks_.erase(rank); }
  bool knows(RankId rank) const { return ranks_.contains(rank); }
  void pull(RankId rank, std::int64_t samples, std::int64_t tokens);
  void suspect(RankId rank, bool suspected);
  void release(RankId rank);
  void recall_all();  ///< released ranks take work again
  /// Rank for a sample of `group` that will need `tokens`, of which `shared_tokens` are there
  /// already where the group runs. Never `except`.
  std::optional<RankId> choose(std::uint64_t group, std::int64_t tokens, std::int64_t shared_tokens,
                               std::optional<RankId> except) const;
  void start(RankId rank, std::uint64_t group, std::int64_t tokens);
  void end(RankId rank, std::uint64_t group);
  bool any_credit() const;
  const std::map<RankId, RankLoad>& ranks() const { return ranks_; }

 private:
  std::map<RankId, RankLoad> ranks_;
};

}  // namespace troupe::actors
