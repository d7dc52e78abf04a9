#include "runtime/group/typed_call.hpp"

namespace troupe::runtime {

GroupPlan::GroupPlan(const Mesh& layout) : mesh(layout) {
  for (int rank = 0; rank < mesh.size(); ++rank) data_part.push_back(mesh.data_part(RankId{rank}));
}

result<std::vector<RankId>> collecting_ranks_of(const Mesh& mesh, std::string_view method,
                                                ResultKind kind, const Collect& collect) {
  std::vector<AxisIndex> where;
  if (kind != ResultKind::kAll) {
    for (const Axis& axis : mesh.axes()) {
      if (axis.name != "dp") where.push_back({axis.name, axis.name == "pp" ? -1 : 0});
    }
  }
  for (std::size_t i = 0; i < collect.count; ++i) {
    const auto& wanted = collect.entries[i];
    std::erase_if(where, [&](const AxisIndex& one) { return one.axis == wanted.axis; });
    where.push_back({wanted.axis, wanted.index});
  }
  auto ranks = mesh.ranks_at(where);
  if (!ranks) {
    return fail(ErrorCode::kInvalidArgument, "{}: collect: {}", method, ranks.error().message);
  }
  return ranks;
}

}  // namespace troupe::runtime
