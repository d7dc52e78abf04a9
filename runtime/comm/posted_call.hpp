#pragma once

// What one rank of a group asks for, how it is compared with what others ask for, and the words in
// which the group's errors speak of ranks. Shared by the groups in a process and between processes.
//
// **Threads:** values and pure functions.
// **Invariants:** the same misuse gives the same message whatever the ranks are.

#include "runtime/comm/collective.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

enum class OpKind : std::uint8_t {
  kAllReduce,
  kAllGather,
  kAllGatherBytes,
  kGatherBytes,
  kReduceScatter,
  kBroadcast,
  kBarrier,
  kSplit,
};
inline constexpr int kOpKinds = 8;

/// Ranks must agree on kind and, where the kind has them, type, count, op and root.
struct PostedCall {
  OpKind kind = OpKind::kBarrier;
  ElementType type = ElementType::kByte;
  std::size_t count = 0;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  int colour = 0;  ///< split only
  int key = 0;     ///< split only
  const void* source = nullptr;
  void* target = nullptr;
  std::optional<std::string> bad_argument = {};  ///< told to all ranks

  bool agrees_with(const PostedCall& other) const;
  std::string describe() const;  ///< `all_reduce(sum, f32 × 12)`
};

// One per operation of `Collective`, with `bad_argument` where its arguments do not fit together.
PostedCall post_all_reduce(Buffer data, ReduceOp op);
PostedCall post_reduce_scatter(ConstBuffer whole, Buffer part, ReduceOp op, int rank, int size);
PostedCall post_all_gather(ConstBuffer part, Buffer whole, int rank, int size);
PostedCall post_all_gather_bytes(std::span<const std::byte> part);
PostedCall post_gather_bytes(std::span<const std::byte> part, int root, int size);
PostedCall post_broadcast(Buffer data, int root, int size);

/// A group's name and its ranks' places in the outermost group: what errors call them.
struct GroupLabels {
  std::string name;
  std::vector<int> ranks;  ///< [R] in the outermost group

  int size() const { return static_cast<int>(ranks.size()); }
  /// `rank 1 (outer rank 3)`.
  std::string describe(int rank) const;
  /// `<name>: <message>`, with this rank as its origin.
  Error error(ErrorCode code, int rank, std::string message) const;
  Error gone(int rank) const;
  Error aborted(int rank, Error cause) const;
  /// The first rank that differs from rank 0; `operation` counts from 1.
  std::optional<Error> disagreement(std::span<const PostedCall> calls,
                                    std::uint64_t operation) const;
  /// A deadline passed before all of `arrived` [R] were true.
  Error late(const PostedCall& call, std::uint64_t operation, std::span<const char> arrived) const;
  /// A group that was split from `outer`, which failed.
  Error inherited(Error cause, const std::string& outer) const;
};

}  // namespace troupe::runtime
