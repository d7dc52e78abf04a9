#include "actors/roles/role_meshes.hpp"

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

}  // namespace troupe::actors
