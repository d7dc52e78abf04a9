#include "sim/world/pool_use.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace troupe::sim {
namespace {

/// What others may be doing, nearest to the loop first.
enum class Activity : std::size_t {
  kWeights,
  kTraining,
  kEvaluation,
  kCheckpoint,
  kReward,
  kEnvironment,
  kRollout,
  kCount
};
constexpr std::size_t kActivities = static_cast<std::size_t>(Activity::kCount);
constexpr std::array<std::string_view, kActivities> kCauses{
    "weights", "training", "evaluation", "checkpoint", "reward", "environment", "rollout"};

Activity activity_of(const PhaseSpan& span) {
  if (span.phase == "publish") return Activity::kWeights;
  if (span.phase == "update") return Activity::kTraining;
  if (span.phase == "forward") return Activity::kEvaluation;
  if (span.phase == "checkpoint") return Activity::kCheckpoint;
  if (span.role == "reward") return Activity::kReward;
  if (span.role == "environment") return Activity::kEnvironment;
  return Activity::kRollout;
}

/// What is under way at a time, as numbers of spans by activity; changes at `at`.
struct Moment {
  TimePoint at{};
  std::array<int, kActivities> running{};
};

/// Rising; the first lies at `begin`.
std::vector<Moment> timeline(std::span<const PhaseSpan> spans, TimePoint begin, TimePoint end) {
  std::vector<std::tuple<TimePoint, std::size_t, int>> changes;
  for (const PhaseSpan& span : spans) {
    if (span.phase == "failed" || span.end <= begin || span.begin >= end) continue;
    const auto activity = static_cast<std::size_t>(activity_of(span));
    changes.emplace_back(std::max(span.begin, begin), activity, 1);
    changes.emplace_back(std::min(span.end, end), activity, -1);
  }
  std::sort(changes.begin(), changes.end());
  std::vector<Moment> moments{{.at = begin}};
  for (const auto& [at, activity, change] : changes) {
    if (at != moments.back().at) {
      moments.push_back(moments.back());
      moments.back().at = at;
    }
    moments.back().running[activity] += change;
  }
  return moments;
}

/// Devices between two borders of spans do the same all the time.
std::vector<std::pair<int, int>> units_of(std::span<const PhaseSpan> spans, std::size_t pool,
                                          int devices) {
  std::vector<int> borders{0, devices};
  for (const PhaseSpan& span : spans) {
    if (span.pool != pool || span.devices < 1) continue;
    borders.push_back(std::clamp(span.first_device, 0, devices));
    borders.push_back(std::clamp(span.first_device + span.devices, 0, devices));
  }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  std::vector<std::pair<int, int>> units;
  for (std::size_t i = 1; i < borders.size(); ++i) units.emplace_back(borders[i - 1], borders[i]);
  return units;
}

class Accounts {
 public:
  Accounts(std::vector<Moment> moments, TimePoint begin, TimePoint end)
      : moments_(std::move(moments)), begin_(begin), end_(end) {}

  /// One unit: its spans in order of beginning.
  void add(const std::vector<const PhaseSpan*>& spans, double weight, PoolUse& use) const {
    TimePoint covered = begin_;
    for (const PhaseSpan* span : spans) {
      const TimePoint from = std::max(span->begin, covered);
      const TimePoint to = std::min(span->end, end_);
      if (to <= from) continue;
      add_idle(covered, from, weight, use);
      const double share = seconds(to - from) * weight;
      if (span->phase == "failed")
        add_cause("failure", share, use);
      else
        use.busy_by[span->role + "/" + span->phase] += share;
      covered = to;
    }
    add_idle(covered, end_, weight, use);
  }

 private:
  static void add_cause(std::string_view cause, double share, PoolUse& use) {
    use.idle_by[std::string(cause)] += share;
    use.idle_share += share;
  }
  void add_idle(TimePoint from, TimePoint to, double weight, PoolUse& use) const {
    auto moment = std::upper_bound(moments_.begin(), moments_.end(), from,
                                   [](TimePoint at, const Moment& one) { return at < one.at; });
    --moment;
    while (from < to) {
      const auto next = moment + 1;
      const TimePoint until = next == moments_.end() ? to : std::min(to, next->at);
      std::size_t activity = 0;
      while (activity < kActivities && moment->running[activity] == 0) ++activity;
      add_cause(activity == kActivities ? "host" : kCauses[activity],
                seconds(until - from) * weight, use);
      from = until;
      moment = next;
    }
  }

  const std::vector<Moment> moments_;
  const TimePoint begin_;
  const TimePoint end_;
};

}  // namespace

std::vector<PoolUse> pool_use(std::span<const DevicePool> pools, std::span<const PhaseSpan> spans,
                              TimePoint begin, TimePoint end) {
  std::vector<PoolUse> all;
  const Accounts accounts(timeline(spans, begin, end), begin, end);
  for (std::size_t pool = 0; pool < pools.size(); ++pool) {
    PoolUse use{.pool = pools[pool].name, .devices = pools[pool].devices};
    const double whole = seconds(end - begin) * use.devices;
    for (const auto& [first, last] : units_of(spans, pool, use.devices)) {
      std::vector<const PhaseSpan*> here;
      for (const PhaseSpan& span : spans)
        if (span.pool == pool && span.first_device <= first &&
            first < span.first_device + span.devices && span.end > begin && span.begin < end)
          here.push_back(&span);
      std::stable_sort(here.begin(), here.end(),
                       [](const PhaseSpan* a, const PhaseSpan* b) { return a->begin < b->begin; });
      if (whole > 0) accounts.add(here, (last - first) / whole, use);
    }
    all.push_back(std::move(use));
  }
  return all;
}

}  // namespace troupe::sim
