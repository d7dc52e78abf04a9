#pragma once

// The manifest of a sharded state in a checkpoint: which box of which tensor is which entry.
//
// A sharded role has, beside its JSON state `<role>`, a JSON state `<role>.shards`:
//   {"format":1,"tensors":{"weights/…":{"shape":[512,64],"pieces":[{"box":[0,8,0,64],
//    "entry":"actor/weights/…@0-8,0-64"},…]},…}}
// The checkpoint's index says in which file an entry lies. The JSON state `<role>` also says under
// `mesh` how the ranks stood that wrote it; loading does not need it.
// **Threads:** values and pure functions; what reads blocks on the disk.
// **Invariants:** the pieces of a tensor cover it exactly once, and each entry has the shape of its
// box; both are checked when written and when read.

#include "actors/train/sharded_state.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

struct ManifestPiece {
  reshard::Box box;
  std::string entry;
  bool operator==(const ManifestPiece&) const = default;
};

struct ManifestTensor {
  std::vector<std::int64_t> shape;
  std::vector<ManifestPiece> pieces;
  bool operator==(const ManifestTensor&) const = default;
};

struct ShardManifest {
  std::map<std::string, ManifestTensor, std::less<>> tensors;
  bool operator==(const ShardManifest&) const = default;

  std::string to_json() const;
  /// kCorrupt naming what does not belong there.
  static result<ShardManifest> from_json(std::string_view text);
};

/// `<role>.shards`.
std::string manifest_state(std::string_view role);
/// `<role>/<tensor>@0-8,0-64`.
std::string piece_entry(std::string_view role, const StatePiece& piece);
/// The shape of an entry that holds `box` of a tensor of shape `whole`.
std::vector<std::int64_t> entry_shape(std::span<const std::int64_t> whole, const reshard::Box& box);

/// Adds a piece; kConflict when the tensor was given with another shape.
result<void> add_piece(ShardManifest& manifest, std::string_view role, const StatePiece& piece);

/// That the pieces of every tensor cover it exactly once. `place` (a folder) opens the messages,
/// which name tensor, box and entry. kCorrupt: outside, twice; kNotFound: missing.
result<void> check_coverage(const ShardManifest& manifest, std::string_view place);
/// That every entry is there with the shape of its box; messages name the file too.
result<void> check_entries(const ShardManifest& manifest, const runtime::Checkpoint& checkpoint);

/// The role's manifest, checked both ways; kNotFound when its state is not sharded.
result<ShardManifest> read_manifest(const runtime::Checkpoint& checkpoint, std::string_view role);

/// One whole tensor of a role, `weights/…`, put together from its pieces if the state is sharded.
/// `manifest`: of the role, or null when it is not sharded.
result<std::vector<float>> read_tensor(const runtime::Checkpoint& checkpoint, std::string_view role,
                                       const ShardManifest* manifest, const TensorShape& tensor);

}  // namespace troupe::actors
