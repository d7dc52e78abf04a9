#include "runtime/group/mesh.hpp"

#include "runtime/base/check.hpp"

#include <cstdint>

namespace troupe::runtime {

Mesh::Mesh(std::vector<Axis> axes) : axes_(std::move(axes)), strides_(axes_.size()) {
  for (std::size_t i = axes_.size(); i-- > 0;) {
    strides_[i] = size_;
    size_ *= axes_[i].size;
  }
}

result<Mesh> Mesh::create(std::vector<Axis> axes) {
  std::int64_t ranks = 1;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const Axis& axis = axes[i];
    if (axis.name.empty()) return fail(ErrorCode::kInvalidArgument, "mesh: axis {} has no name", i);
    for (std::size_t j = 0; j < i; ++j) {
      if (axes[j].name == axis.name) {
        return fail(ErrorCode::kInvalidArgument, "mesh: axis {} is given twice, sizes {} and {}",
                    axis.name, axes[j].size, axis.size);
      }
    }
    if (axis.size < 1) {
      return fail(ErrorCode::kInvalidArgument, "mesh: axis {} has size {}, wanted at least 1",
                  axis.name, axis.size);
    }
    ranks *= axis.size;
    if (ranks > kRanksMax) {
      return fail(ErrorCode::kInvalidArgument, "mesh: more than {} ranks at axis {} of size {}",
                  kRanksMax, axis.name, axis.size);
    }
  }
  return Mesh(std::move(axes));
}

result<Mesh> Mesh::create(std::vector<Axis> axes, int ranks) {
  TROUPE_TRY(Mesh mesh, create(std::move(axes)));
  if (mesh.size() != ranks) {
    return fail(ErrorCode::kInvalidArgument, "mesh: {} needs {} ranks, but there are {}",
                mesh.to_string(), mesh.size(), ranks);
  }
  return mesh;
}

Mesh Mesh::data_parallel(int ranks) {
  TROUPE_CHECK(ranks >= 1 && ranks <= kRanksMax, "mesh: {} ranks, wanted 1..{}", ranks, kRanksMax);
  return Mesh({{"dp", ranks}});
}

int Mesh::axis_size(std::string_view axis) const {
  for (const Axis& one : axes_) {
    if (one.name == axis) return one.size;
  }
  return 1;
}

bool Mesh::has(std::string_view axis) const {
  for (const Axis& one : axes_) {
    if (one.name == axis) return true;
  }
  return false;
}

void Mesh::require(RankId rank) const {
  TROUPE_CHECK(rank.value >= 0 && rank.value < size_, "mesh: rank {} of {}", rank.value, size_);
}

int Mesh::coordinate(RankId rank, std::string_view axis) const {
  require(rank);
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return rank.value / strides_[i] % axes_[i].size;
  }
  return 0;
}

std::vector<int> Mesh::coordinates(RankId rank) const {
  require(rank);
  std::vector<int> all(axes_.size());
  for (std::size_t i = 0; i < axes_.size(); ++i) all[i] = rank.value / strides_[i] % axes_[i].size;
  return all;
}

result<RankId> Mesh::rank_at(const std::vector<int>& coordinates) const {
  if (coordinates.size() != axes_.size()) {
    return fail(ErrorCode::kInvalidArgument, "mesh: {} coordinates for the {} axes of {}",
                coordinates.size(), axes_.size(), to_string());
  }
  int rank = 0;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (coordinates[i] < 0 || coordinates[i] >= axes_[i].size) {
      return fail(ErrorCode::kInvalidArgument, "mesh: index {} on axis {} of size {}",
                  coordinates[i], axes_[i].name, axes_[i].size);
    }
    rank += coordinates[i] * strides_[i];
  }
  return RankId{rank};
}

std::vector<RankId> Mesh::along(RankId rank, std::string_view axis) const {
  require(rank);
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name != axis) continue;
    const int first = rank.value - coordinate(rank, axis) * strides_[i];
    std::vector<RankId> line;
    for (int k = 0; k < axes_[i].size; ++k) line.push_back(RankId{first + k * strides_[i]});
    return line;
  }
  return {rank};
}

std::vector<std::vector<RankId>> Mesh::subgroups(std::string_view axis) const {
  std::vector<std::vector<RankId>> groups;
  for (int rank = 0; rank < size_; ++rank) {
    if (coordinate(RankId{rank}, axis) == 0) groups.push_back(along(RankId{rank}, axis));
  }
  return groups;
}

result<std::vector<RankId>> Mesh::ranks_at(const std::vector<AxisIndex>& where) const {
  std::vector<RankId> ranks;
  for (int rank = 0; rank < size_; ++rank) ranks.push_back(RankId{rank});
  for (const AxisIndex& one : where) {
    const int size = axis_size(one.axis);
    const int index = one.index < 0 ? one.index + size : one.index;
    if (index < 0 || index >= size) {
      return fail(ErrorCode::kInvalidArgument, "mesh: index {} on axis {} of size {}", one.index,
                  one.axis, size);
    }
    std::erase_if(ranks, [&](RankId rank) { return coordinate(rank, one.axis) != index; });
  }
  return ranks;
}

std::string Mesh::to_string() const {
  std::string text;
  for (const Axis& axis : axes_) {
    if (!text.empty()) text += " × ";
    text += fmt::format("{} {}", axis.name, axis.size);
  }
  return text.empty() ? "1 rank" : text;
}

}  // namespace troupe::runtime
