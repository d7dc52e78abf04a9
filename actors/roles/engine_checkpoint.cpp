#include "actors/roles/engine_checkpoint.hpp"

#include <memory>
#include <utility>
#include <vector>

namespace troupe::actors {

result<void> write_state(runtime::CheckpointWriter& writer, const std::string& role,
                         std::int64_t part, const EngineState& state) {
  if (part == 0) TROUPE_TRY_VOID(writer.add_state(role, state.json));
  TROUPE_TRY(const TensorRows rows, TensorRows::open(state.tensors));
  for (const NamedTensor& tensor : rows.tensors())
    TROUPE_TRY_VOID(writer.add_tensor<float>(role + "/" + tensor.name, tensor.shape, tensor.data));
  return {};
}

result<EngineState> read_state(const runtime::Checkpoint& checkpoint, const std::string& role) {
  EngineState state;
  TROUPE_TRY(state.json, checkpoint.state(role));
  const std::string prefix = role + "/";
  const auto values = std::make_shared<std::vector<std::vector<float>>>();
  std::vector<NamedTensor> tensors;
  for (const auto& [name, entry] : checkpoint.index().tensors) {
    if (name.compare(0, prefix.size(), prefix) != 0) continue;
    TROUPE_TRY(std::vector<float> data, checkpoint.tensor<float>(name));
    values->push_back(std::move(data));
    tensors.push_back(NamedTensor{
        .name = name.substr(prefix.size()), .shape = entry.shape, .data = values->back()});
  }
  TROUPE_TRY(state.tensors, tensor_batch(tensors, values));
  return state;
}

}  // namespace troupe::actors
