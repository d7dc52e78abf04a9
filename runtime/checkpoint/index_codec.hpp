#pragma once

// The index of a checkpoint directory: what lies where, and its bytes.
//
// **Threads:** value types and pure functions.
// **Invariants:** a decoded index is consistent: names are unique, file names are plain names,
// sections lie inside their file and do not overlap, a tensor's bytes are those of its shape,
// states are JSON. A failure is one kCorrupt error naming the entry and both values.

#include "runtime/base/result.hpp"
#include "runtime/batch/column.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace troupe::runtime {

struct CheckpointFile {
  std::string name;  ///< inside the directory
  std::int64_t bytes = 0;
  bool operator==(const CheckpointFile&) const = default;
};

/// Bytes [offset, offset + bytes) of one file, and their CRC-32C.
struct CheckpointSection {
  std::uint32_t file = 0;  ///< index into CheckpointIndex::files
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  std::uint32_t checksum = 0;
  bool operator==(const CheckpointSection&) const = default;
};

struct CheckpointTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  CheckpointSection section;
  bool operator==(const CheckpointTensor&) const = default;
};

struct CheckpointIndex {
  std::int64_t step = 0;
  std::vector<CheckpointFile> files;
  std::map<std::string, CheckpointTensor, std::less<>> tensors;
  std::map<std::string, CheckpointSection, std::less<>> blobs;
  std::map<std::string, std::string, std::less<>> states;  ///< name -> JSON text
  bool operator==(const CheckpointIndex&) const = default;
};

/// Largest index, encoded; states are part of it.
inline constexpr std::int64_t kIndexBytesMax = std::int64_t{256} << 20;

/// kInvalidArgument when the index is inconsistent or outgrows kIndexBytesMax.
result<std::vector<std::byte>> encode_index(const CheckpointIndex& index);
result<CheckpointIndex> decode_index(std::span<const std::byte> frame, bool checksums = true);

/// The frame size that the start of an index file claims; 0 when it is too short to say.
std::uint64_t claimed_index_bytes(std::span<const std::byte> frame);

}  // namespace troupe::runtime
