#include "actors/environment/environment.hpp"

#include "actors/environment/guess_environment.hpp"

namespace troupe::actors {

result<void> EnvironmentRegistry::add_batch(std::string name, EnvironmentTurns turns) {
  if (name.empty() || name == "*")
    return fail(ErrorCode::kInvalidArgument, "environments: name '{}', wanted a data source", name);
  if (!turns)
    return fail(ErrorCode::kInvalidArgument, "environments: {}: the environment is empty", name);
  if (environments_.contains(name))
    return fail(ErrorCode::kAlreadyExists, "environments: {} is there already", name);
  environments_.emplace(std::move(name), std::move(turns));
  return {};
}

const EnvironmentTurns* EnvironmentRegistry::find(std::string_view data_source) const {
  const EnvironmentTurns* best = nullptr;
  std::size_t best_length = 0;
  for (const auto& [name, turns] : environments_) {
    if (name == data_source && !name.ends_with('*')) return &turns;
    if (!name.ends_with('*') || name.size() < best_length) continue;
    if (data_source.starts_with(std::string_view(name).substr(0, name.size() - 1))) {
      best = &turns;
      best_length = name.size();
    }
  }
  return best;
}

std::vector<std::string> EnvironmentRegistry::names() const {
  std::vector<std::string> names;
  for (const auto& entry : environments_) names.push_back(entry.first);
  return names;
}

EnvironmentRegistry default_environments() {
  EnvironmentRegistry registry;
  (void)registry.add("troupe/guess", GuessEnvironment{});  // the first name: cannot be taken
  return registry;
}

}  // namespace troupe::actors
