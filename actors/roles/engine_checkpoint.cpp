#include "actors/roles/engine_checkpoint.hpp"

#include <utility>
#include <vector>

namespace troupe::actors {

result<void> save_engine(const TrainEngine& engine, const CheckpointTarget& target) {
  const TrainState state = engine.state();
  TROUPE_TRY_VOID(target.writer->add_state(target.role, state.json));
  for (const NamedTensor& tensor : state.tensors)
    TROUPE_TRY_VOID(target.writer->add_tensor<float>(target.role + "/" + tensor.name, tensor.shape,
                                                     tensor.data));
  return {};
}

result<void> load_engine(TrainEngine& engine, const CheckpointSource& source) {
  TROUPE_TRY(const std::string json, source.checkpoint.state(source.role));
  const std::string prefix = source.role + "/";
  std::vector<std::vector<float>> values;
  std::vector<NamedTensor> tensors;
  for (const auto& [name, entry] : source.checkpoint.index().tensors) {
    if (name.compare(0, prefix.size(), prefix) != 0) continue;
    TROUPE_TRY(std::vector<float> data, source.checkpoint.tensor<float>(name));
    values.push_back(std::move(data));
    tensors.push_back(NamedTensor{
        .name = name.substr(prefix.size()), .shape = entry.shape, .data = values.back()});
  }
  return engine.load_state(json, tensors);
}

}  // namespace troupe::actors
