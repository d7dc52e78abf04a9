#include "actors/roles/world_place.hpp"

#include <utility>

namespace troupe::actors {

RolloutPool rollout_pool(const WorldOptions& options) {
  return {.policy = options.policy.engine.parallel,
          .tp = options.rollout_tp,
          .devices = options.devices,
          .own = options.rollout_devices_own,
          .evaluation = options.evaluation_devices,
          .streaming = options.streaming,
          .lend = options.lend_trainer_devices};
}

runtime::GroupOptions role_group(const WorldOptions& options, const std::string& name,
                                 runtime::Mesh mesh) {
  runtime::GroupOptions group;
  group.name = name;
  group.mesh = std::move(mesh);
  group.trace = options.trace;
  group.call_deadline = options.call_deadline;
  group.create_deadline = options.create_deadline;
  return group;
}

runtime::GroupOptions role_group(const WorldOptions& options, const std::string& name,
                                 runtime::Mesh mesh, const GroupMaking& making) {
  runtime::GroupOptions group =
      role_group(options, group_name(name, making.generation), std::move(mesh));
  group.create_deadline = making.within;
  return group;
}

runtime::GroupOptions judge_group(const WorldOptions& options, const std::string& name, int ranks,
                                  const GroupMaking& making) {
  runtime::GroupOptions group =
      role_group(options, name, runtime::Mesh::data_parallel(ranks), making);
  group.collectives = false;
  return group;
}

}  // namespace troupe::actors
