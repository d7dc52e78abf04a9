#pragma once

// `Mesh`: the named axes over which the ranks of a group are laid out.
//
//   auto mesh = Mesh::create({{"dp", 4}, {"pp", 2}, {"tp", 2}});   // 16 ranks
//
// Ranks are numbered with the last axis fastest, so that neighbours on the last axis (tp) are
// neighbours in rank; ranks are node-major, so with tp ≤ devices per node they share a node.
// **Threads:** an immutable value.
// **Invariants:** product of sizes = size(); axis names are unique; at least one rank.

#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

/// One axis. By custom: dp data, pp pipeline, tp tensor, cp context, ep expert parallel.
struct Axis {
  std::string name;
  int size = 1;
  bool operator==(const Axis&) const = default;
};

/// An index on one axis; negative counts from the end, -1 is the last.
struct AxisIndex {
  std::string_view axis;
  int index = 0;
};

class Mesh {
 public:
  /// One rank, axis dp.
  Mesh() : Mesh(std::vector<Axis>{{"dp", 1}}) {}
  /// Axes from slowest to fastest. kInvalidArgument names the axis: empty or repeated name, size
  /// below 1, more than kRanksMax ranks.
  static result<Mesh> create(std::vector<Axis> axes);
  /// As above, and CHECKs that `ranks` of them fit: the error names both numbers.
  static result<Mesh> create(std::vector<Axis> axes, int ranks);
  /// `ranks` ≥ 1 (CHECK) data-parallel ranks.
  static Mesh data_parallel(int ranks);

  static constexpr int kRanksMax = 1 << 20;

  int size() const { return size_; }
  const std::vector<Axis>& axes() const { return axes_; }
  /// Ranks on an axis; 1 for an axis that the mesh does not have.
  int axis_size(std::string_view axis) const;
  bool has(std::string_view axis) const;

  /// Position of `rank` on `axis`; 0 for an axis that the mesh does not have.
  int coordinate(RankId rank, std::string_view axis) const;
  /// [axes] in axis order.
  std::vector<int> coordinates(RankId rank) const;
  /// The rank at `coordinates` [axes]; kInvalidArgument names axis, index and size.
  result<RankId> rank_at(const std::vector<int>& coordinates) const;

  /// The ranks that differ from `rank` on `axis` only, itself included, in coordinate order.
  std::vector<RankId> along(RankId rank, std::string_view axis) const;
  /// All such sub-groups, in order of their first rank.
  std::vector<std::vector<RankId>> subgroups(std::string_view axis) const;
  /// Ranks at the given indices, all ranks on the axes that are not named, in rank order.
  /// kInvalidArgument names axis, index and size; an axis the mesh lacks has size 1.
  result<std::vector<RankId>> ranks_at(const std::vector<AxisIndex>& where) const;

  /// Data-parallel parts: the size of axis dp, and which part is `rank`'s.
  int data_parts() const { return axis_size("dp"); }
  int data_part(RankId rank) const { return coordinate(rank, "dp"); }

  /// `dp 4 × tp 2`.
  std::string to_string() const;
  bool operator==(const Mesh&) const = default;

 private:
  explicit Mesh(std::vector<Axis> axes);
  void require(RankId rank) const;

  std::vector<Axis> axes_;
  std::vector<int> strides_;
  int size_ = 1;
};

}  // namespace troupe::runtime
