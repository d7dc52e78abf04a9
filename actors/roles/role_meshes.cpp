#include "actors/roles/role_meshes.hpp"

#include "reshard/nested_groups.hpp"

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

std::vector<int> rollout_devices(const ParallelOptions& policy, int tp, int devices) {
  std::vector<int> found(static_cast<std::size_t>(devices));
  std::iota(found.begin(), found.end(), 0);
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

}  // namespace troupe::actors
