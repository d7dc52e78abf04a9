#include "actors/pacing/rank_router.hpp"

#include <algorithm>

namespace troupe::actors {
namespace {

struct Room {
  RankId rank{};
  std::int64_t samples = 0;  ///< free
  std::int64_t tokens = 0;   ///< free
  std::int64_t used = 0;     ///< tokens of its tail
  bool pinned = false;
  std::vector<TailSample> tail{};
};

/// Puts `tail`, largest first, where the least room stays free; false when something does not fit.
bool absorb(std::vector<Room>& rooms, std::vector<TailSample> tail) {
  std::ranges::sort(tail, [](const TailSample& a, const TailSample& b) {
    return a.tokens != b.tokens ? a.tokens > b.tokens : a.attempt < b.attempt;
  });
  for (const TailSample& one : tail) {
    Room* best = nullptr;
    for (Room& room : rooms) {
      if (room.samples < 1 || room.tokens < one.tokens) continue;
      if (best == nullptr || room.tokens < best->tokens) best = &room;
    }
    if (best == nullptr) return false;
    --best->samples;
    best->tokens -= one.tokens;
    best->used += one.tokens;
    best->tail.push_back(one);
  }
  return true;
}

}  // namespace

RepackPlan plan_repack(const std::vector<RepackRank>& ranks, const std::vector<TailSample>& tail) {
  std::vector<Room> rooms;
  for (const RepackRank& rank : ranks) {
    Room room{.rank = rank.rank, .samples = rank.samples_max, .tokens = rank.tokens_max};
    for (const TailSample& one : tail) {
      if (one.rank != rank.rank) continue;
      --room.samples;
      room.tokens -= one.tokens;
      room.used += one.tokens;
      room.pinned = room.pinned || one.pinned;
      room.tail.push_back(one);
    }
    rooms.push_back(std::move(room));
  }
  RepackPlan plan;
  while (rooms.size() > 1) {
    std::ranges::sort(rooms, [](const Room& a, const Room& b) {
      if (a.pinned != b.pinned) return b.pinned;
      return a.used != b.used ? a.used < b.used : a.rank > b.rank;
    });
    const Room& least = rooms.front();
    std::vector<Room> others(rooms.begin() + 1, rooms.end());
    if (least.pinned || !absorb(others, least.tail)) break;
    plan.freed.push_back(least.rank);
    for (const TailSample& one : least.tail) plan.moved.push_back(one.attempt);
    rooms = std::move(others);
  }
  std::ranges::sort(plan.freed);
  std::ranges::sort(plan.moved);
  // What moved twice on paper moves once: only the last place counts.
  plan.moved.erase(std::unique(plan.moved.begin(), plan.moved.end()), plan.moved.end());
  return plan;
}

void RankRouter::join(RankId rank, std::int64_t samples_max, std::int64_t tokens_max) {
  RankLoad load;
  load.samples_max = samples_max;
  load.tokens_max = tokens_max;
  ranks_.insert_or_assign(rank, load);
}

void RankRouter::pull(RankId rank, std::int64_t samples, std::int64_t tokens) {
  const auto place = ranks_.find(rank);
  if (place == ranks_.end()) return;
  RankLoad& load = place->second;
  load.credit_samples = std::clamp<std::int64_t>(
      samples, 0, std::max<std::int64_t>(load.samples_max - load.running, 0));
  load.credit_tokens = std::clamp<std::int64_t>(tokens, 0, load.tokens_max);
}

void RankRouter::suspect(RankId rank, bool suspected) {
  if (const auto place = ranks_.find(rank); place != ranks_.end())
    place->second.suspected = suspected;
}

void RankRouter::release(RankId rank) {
  if (const auto place = ranks_.find(rank); place != ranks_.end()) place->second.released = true;
}

void RankRouter::recall_all() {
  for (auto& [rank, load] : ranks_) load.released = false;
}

std::optional<RankId> RankRouter::choose(std::uint64_t group, std::int64_t tokens,
                                         std::int64_t shared_tokens,
                                         std::optional<RankId> except) const {
  std::optional<RankId> best;
  std::int64_t best_free = 0;
  for (const auto& [rank, load] : ranks_) {
    if (load.suspected || load.released || load.credit_samples < 1 || rank == except) continue;
    const bool shares = load.groups.contains(group);
    const std::int64_t free = load.credit_tokens + (shares ? shared_tokens : 0);
    if (free < tokens && load.running > 0) continue;
    if (best && free <= best_free) continue;
    best = rank;
    best_free = free;
  }
  return best;
}

void RankRouter::start(RankId rank, std::uint64_t group, std::int64_t tokens) {
  RankLoad& load = ranks_.at(rank);
  --load.credit_samples;
  load.credit_tokens = std::max<std::int64_t>(load.credit_tokens - tokens, 0);
  ++load.running;
  ++load.groups[group];
}

void RankRouter::end(RankId rank, std::uint64_t group) {
  const auto place = ranks_.find(rank);
  if (place == ranks_.end()) return;
  --place->second.running;
  const auto count = place->second.groups.find(group);
  if (count != place->second.groups.end() && --count->second == 0)
    place->second.groups.erase(count);
}

bool RankRouter::any_credit() const {
  return std::ranges::any_of(ranks_, [](const auto& one) {
    const RankLoad& load = one.second;
    return !load.suspected && !load.released && load.credit_samples > 0;
  });
}

}  // namespace troupe::actors
