#include "actors/roles/role_meshes.hpp"

#include "reshard/nested_groups.hpp"

#include <cstddef>
#include <numeric>

namespace troupe::actors {

using runtime::Mesh;

result<Mesh> train_mesh(const ParallelOptions& parallel, int devices) {
  if (parallel.tp < 1 || parallel.pp < 1)
    return fail(ErrorCode::kConfig, "mesh: tp {}, pp {}, wanted at least 1", parallel.tp,
                parallel.pp);
  const int replica = parallel.tp * parallel.pp;
  if (devices < replica || devices % replica != 0)
    return fail(ErrorCode::kConfig, "mesh: {} devices cannot be cut into tp {} × pp {} = {}",
                devices, parallel.tp, parallel.pp, replica);
  return Mesh::create({{"pp", parallel.pp}, {"dp", devices / replica}, {"tp", parallel.tp}});
}

result<Mesh> rollout_mesh(int tp, int devices) {
  if (tp < 1) return fail(ErrorCode::kConfig, "mesh: rollout tp {}, wanted at least 1", tp);
  if (devices < tp || devices % tp != 0)
    return fail(ErrorCode::kConfig, "mesh: {} devices cannot be cut into rollout tp {}", devices,
                tp);
  return Mesh::create({{"dp", devices / tp}, {"tp", tp}});
}

std::vector<int> devices_from(int begin, int count) {
  std::vector<int> found(static_cast<std::size_t>(count));
  std::iota(found.begin(), found.end(), begin);
  return found;
}

std::vector<int> rollout_devices(const ParallelOptions& policy, int tp, int devices) {
  std::vector<int> found = devices_from(0, devices);
  if (tp == 1 || policy.tp % tp != 0) return found;
  const reshard::HybridMesh mesh{.pp = policy.pp,
                                 .tp = policy.tp,
                                 .dp = devices / (policy.pp * policy.tp),
                                 .generation_pp = 1,
                                 .generation_tp = tp};
  for (int device = 0; device < devices; ++device) {
    const reshard::GenerationPlace place =
        reshard::generation_place(mesh, reshard::Grouping::kNested, device);
    const std::int64_t replica = place.dp * mesh.micro_dp() + place.micro;
    found[static_cast<std::size_t>(replica * tp + place.tp)] = device;
  }
  return found;
}

namespace {

/// An engine for every `tp` of `devices`.
void seat_engines(const std::vector<int>& devices, int tp, bool lent,
                  std::vector<RolloutSeat>& seats) {
  const auto ranks = static_cast<std::ptrdiff_t>(tp);
  for (auto next = devices.begin(); next != devices.end(); next += ranks)
    seats.push_back({.name = "rollout-" + std::to_string(seats.size()),
                     .devices = {next, next + ranks},
                     .lent = lent});
}

}  // namespace

result<std::vector<RolloutSeat>> rollout_seats(const RolloutPool& pool) {
  const int count = pool.own > 0 ? pool.own : pool.devices;
  TROUPE_TRY_VOID(rollout_mesh(pool.tp, count));
  const bool shared = pool.own == 0;
  if (!shared && pool.lend) TROUPE_TRY_VOID(rollout_mesh(pool.tp, pool.devices));
  const std::vector<int> trained = shared || pool.lend
                                       ? rollout_devices(pool.policy, pool.tp, pool.devices)
                                       : std::vector<int>();
  const std::vector<int> main = shared ? trained : devices_from(pool.devices, pool.own);
  if (!pool.streaming)
    return std::vector<RolloutSeat>{{.name = "rollout", .devices = main, .lent = false}};
  std::vector<RolloutSeat> seats;
  seat_engines(main, pool.tp, false, seats);
  if (!shared && pool.lend) seat_engines(trained, pool.tp, true, seats);
  return seats;
}

result<RolloutSeat> evaluation_seat(const RolloutPool& pool) {
  TROUPE_TRY_VOID(rollout_mesh(pool.tp, pool.evaluation));
  return RolloutSeat{.name = "evaluation",
                     .devices = devices_from(pool.devices + pool.own, pool.evaluation),
                     .lent = false};
}

}  // namespace troupe::actors
