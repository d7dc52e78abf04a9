#include "runtime/comm/posted_call.hpp"

#include "runtime/base/index.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::runtime {
namespace {

std::string_view op_kind_name(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce:
      return "all_reduce";
    case OpKind::kAllGather:
      return "all_gather";
    case OpKind::kAllGatherBytes:
      return "all_gather_bytes";
    case OpKind::kGatherBytes:
      return "gather_bytes";
    case OpKind::kReduceScatter:
      return "reduce_scatter";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kBarrier:
      return "barrier";
    case OpKind::kSplit:
      return "split";
  }
  return "?";
}

bool has_count(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kAllGather ||
         kind == OpKind::kReduceScatter || kind == OpKind::kBroadcast;
}
bool has_op(OpKind kind) { return kind == OpKind::kAllReduce || kind == OpKind::kReduceScatter; }
bool has_root(OpKind kind) { return kind == OpKind::kBroadcast || kind == OpKind::kGatherBytes; }

/// True when the ranges share bytes, unless `part` is exactly `own_place`.
bool overlaps_elsewhere(const void* part, std::size_t part_bytes, const void* whole,
                        std::size_t whole_bytes, const void* own_place) {
  if (part == own_place || part_bytes == 0 || whole_bytes == 0) return false;
  const auto part_begin = reinterpret_cast<std::uintptr_t>(part);
  const auto whole_begin = reinterpret_cast<std::uintptr_t>(whole);
  return part_begin < whole_begin + whole_bytes && whole_begin < part_begin + part_bytes;
}

void check_root(PostedCall& call, int size) {
  if (call.root < 0 || call.root >= size)
    call.bad_argument = fmt::format("{}: group has {} ranks", call.describe(), size);
}

}  // namespace

bool PostedCall::agrees_with(const PostedCall& other) const {
  if (kind != other.kind) return false;
  if (has_count(kind) && (type != other.type || count != other.count)) return false;
  if (has_op(kind) && op != other.op) return false;
  return !has_root(kind) || root == other.root;
}

std::string PostedCall::describe() const {
  std::string text(op_kind_name(kind));
  text += '(';
  if (has_op(kind)) text += fmt::format("{}, ", reduce_op_name(op));
  if (has_count(kind)) text += fmt::format("{} × {}", element_type_name(type), count);
  if (has_root(kind)) text += fmt::format("{}root {}", has_count(kind) ? ", " : "", root);
  return text + ')';
}

PostedCall post_all_reduce(Buffer data, ReduceOp op) {
  PostedCall call{.kind = OpKind::kAllReduce, .type = data.type, .count = data.count, .op = op};
  call.source = call.target = data.data;
  if (data.type == ElementType::kByte) call.bad_argument = "all_reduce: bytes cannot be reduced";
  return call;
}

PostedCall post_reduce_scatter(ConstBuffer whole, Buffer part, ReduceOp op, int rank, int size) {
  PostedCall call{
      .kind = OpKind::kReduceScatter, .type = whole.type, .count = whole.count, .op = op};
  call.source = whole.data;
  call.target = part.data;
  const std::size_t begin = part.count * index(rank);
  if (whole.type == ElementType::kByte) {
    call.bad_argument = "reduce_scatter: bytes cannot be reduced";
  } else if (whole.type != part.type || whole.count != part.count * index(size)) {
    call.bad_argument = fmt::format("reduce_scatter: whole is {} × {}, part is {} × {}, {} ranks",
                                    element_type_name(whole.type), whole.count,
                                    element_type_name(part.type), part.count, size);
  } else if (overlaps_elsewhere(
                 part.data, part.bytes(), whole.data, whole.bytes(),
                 static_cast<const std::byte*>(whole.data) + begin * element_bytes(whole.type))) {
    call.bad_argument = "reduce_scatter: part overlaps whole elsewhere than at its own place";
  }
  return call;
}

PostedCall post_all_gather(ConstBuffer part, Buffer whole, int rank, int size) {
  PostedCall call{.kind = OpKind::kAllGather, .type = part.type, .count = part.count};
  call.source = part.data;
  call.target = whole.data;
  if (whole.type != part.type || whole.count != part.count * index(size)) {
    call.bad_argument = fmt::format("all_gather: part is {} × {}, whole is {} × {}, {} ranks",
                                    element_type_name(part.type), part.count,
                                    element_type_name(whole.type), whole.count, size);
  } else if (overlaps_elsewhere(
                 part.data, part.bytes(), whole.data, whole.bytes(),
                 static_cast<const std::byte*>(whole.data) + part.bytes() * index(rank))) {
    call.bad_argument = "all_gather: part overlaps whole elsewhere than at its own place";
  }
  return call;
}

PostedCall post_all_gather_bytes(std::span<const std::byte> part) {
  PostedCall call{.kind = OpKind::kAllGatherBytes, .count = part.size()};
  call.source = part.data();
  return call;
}

PostedCall post_gather_bytes(std::span<const std::byte> part, int root, int size) {
  PostedCall call{.kind = OpKind::kGatherBytes, .count = part.size(), .root = root};
  call.source = part.data();
  check_root(call, size);
  return call;
}

PostedCall post_broadcast(Buffer data, int root, int size) {
  PostedCall call{.kind = OpKind::kBroadcast, .type = data.type, .count = data.count, .root = root};
  call.source = call.target = data.data;
  check_root(call, size);
  return call;
}

std::string GroupLabels::describe(int rank) const {
  const int label = ranks[index(rank)];
  return label == rank ? fmt::format("rank {}", rank)
                       : fmt::format("rank {} (outer rank {})", rank, label);
}

Error GroupLabels::error(ErrorCode code, int rank, std::string message) const {
  return Error{.code = code,
               .message = fmt::format("{}: {}", name, std::move(message)),
               .origin = {.group = name, .rank = RankId{ranks[index(rank)]}, .node = {}},
               .causes = {}};
}

Error GroupLabels::gone(int rank) const {
  return error(ErrorCode::kRankDead, rank, describe(rank) + " is gone: its handle was destroyed");
}

Error GroupLabels::aborted(int rank, Error cause) const {
  Error outer = error(ErrorCode::kAborted, rank,
                      fmt::format("aborted by {}: {}", describe(rank), cause.message));
  outer.causes.push_back(std::move(cause));
  return outer;
}

std::optional<Error> GroupLabels::disagreement(std::span<const PostedCall> calls,
                                               std::uint64_t operation) const {
  for (int rank = 1; rank < size(); ++rank) {
    if (calls[0].agrees_with(calls[index(rank)])) continue;
    return error(ErrorCode::kConflict, rank,
                 fmt::format("operation {}: {} called {} but {} called {}", operation, describe(0),
                             calls[0].describe(), describe(rank), calls[index(rank)].describe()));
  }
  return std::nullopt;
}

Error GroupLabels::late(const PostedCall& call, std::uint64_t operation,
                        std::span<const char> arrived) const {
  std::string missing;
  int first_missing = -1;
  int came = 0;
  for (int rank = 0; rank < size(); ++rank) {
    if (arrived[index(rank)] != 0) {
      ++came;
      continue;
    }
    if (first_missing < 0) first_missing = rank;
    missing += (missing.empty() ? "" : ", ") + describe(rank);
  }
  return error(ErrorCode::kDeadline, std::max(first_missing, 0),
               fmt::format("{}, operation {}: deadline passed, {} of {} ranks came, missing {}",
                           call.describe(), operation, came, size(), missing));
}

Error GroupLabels::inherited(Error cause, const std::string& outer) const {
  return std::move(cause).wrap(ErrorCode::kAborted,
                               fmt::format("{}: outer group {} failed", name, outer));
}

}  // namespace troupe::runtime
