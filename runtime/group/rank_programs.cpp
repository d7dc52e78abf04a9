#include "runtime/group/rank_programs.hpp"

#include "runtime/base/check.hpp"

namespace troupe::runtime {

const RankProgram* RankPrograms::find(std::string_view name) const {
  const auto found = programs_.find(name);
  return found == programs_.end() ? nullptr : &found->second;
}

std::vector<std::string> RankPrograms::names() const {
  std::vector<std::string> all_names;
  for (const auto& [name, program] : programs_) all_names.push_back(name);
  return all_names;
}

void RankPrograms::add_program(std::string name, RankProgram program) {
  TROUPE_CHECK(!name.empty() && name.size() <= kJobNameMax, "rank program name '{}'", name);
  const auto [at, added] = programs_.emplace(std::move(name), std::move(program));
  TROUPE_CHECK(added, "rank program '{}' is added twice", at->first);
}

}  // namespace troupe::runtime
