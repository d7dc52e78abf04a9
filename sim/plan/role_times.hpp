#pragma once

// Times and bytes of one role in one layout on one kind of device: what all levels of the search
// are made of. Results are kept, since the same question comes up in many candidates.
//
// **Ownership:** borrows the request.
// **Threads:** one.
// **Invariants:** a pure function of the request; a kept result equals a fresh one.

#include "placement/strategy.hpp"
#include "sim/plan/plan_request.hpp"
#include "sim/plan/plan_work.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

namespace troupe::sim {

/// Devices as the search speaks of them: an offer under a strategy.
struct Place {
  std::size_t offer = 0;
  placement::Strategy strategy = placement::Strategy::kPack;
  auto operator<=>(const Place&) const = default;
};

/// A trained or frozen role in a layout.
struct LayoutTimes {
  TrainLayout layout{};
  double pass_s = 0;
  double update_s = 0;  ///< 0 for frozen roles
  double kept_bytes = 0;
  double work_bytes = 0;  ///< while it works, what it keeps included
};

/// Engines on a number of devices.
struct EngineTimes {
  EngineLayout engine{};
  int replicas = 1;
  std::int64_t kv_tokens = 0;
  std::int64_t samples = 0;  ///< of one replica, of the fullest
  EngineTime time{};
};

class RoleTimes {
 public:
  /// Errors of the request and of its lengths.
  static result<RoleTimes> create(const PlanRequest& request);

  const PlanRequest& request() const { return *request_; }
  const PlanWork& work() const { return work_; }
  const DeviceSpec& device(Place place) const;

  /// Numbers of devices that a set may have on an offer, rising.
  const std::vector<int>& counts(std::size_t offer) const { return counts_[offer]; }
  /// All layouts of `role` on exactly `devices` that the model and the work admit.
  const std::vector<LayoutTimes>& layouts(PlanRole role, Place place, int devices);
  result<LayoutTimes> times_of(PlanRole role, Place place, const TrainLayout& layout) const;
  /// The same, looked up where it is one of `layouts`.
  result<LayoutTimes> known_times_of(PlanRole role, Place place, const TrainLayout& layout);

  /// Sizes of engines that divide `devices`.
  std::vector<int> engine_sizes(Place place, int devices) const;
  /// Engines of `tp` beside roles that keep `kept_bytes` on each device; nothing when weights, or
  /// the longest sample, do not fit.
  std::optional<EngineTimes> engines(Place place, int devices, int tp, double kept_bytes,
                                     std::int64_t ahead);
  /// Bytes that an engine keeps while others work.
  double engine_kept_bytes(Place place, int tp) const;

  /// Moving the weights, estimated: a copy to each rollout node over the adapters.
  double publish_s(Place from, int from_devices, const TrainLayout& layout, Place to,
                   int to_devices, bool same_set) const;

 private:
  explicit RoleTimes(const PlanRequest& request) : request_(&request) {}
  const TrainLayout& base_layout(PlanRole role) const;
  std::vector<TrainLayout> shapes(PlanRole role, Place place, int devices) const;

  const PlanRequest* request_;
  PlanWork work_;
  std::map<Place, DeviceSpec> devices_;
  std::vector<std::vector<int>> counts_;
  std::map<std::tuple<PlanRole, Place, int>, std::vector<LayoutTimes>> layouts_;
  std::map<std::pair<Place, int>, std::optional<DecodeCost>> decode_;
  std::map<std::tuple<Place, int, std::int64_t, std::int64_t, std::int64_t>, EngineTime> engines_;
};

}  // namespace troupe::sim
