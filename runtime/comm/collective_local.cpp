// Handles of an in-process group: argument checks and the copying between the two meetings.

#include "runtime/base/check.hpp"
#include "runtime/comm/local_group.hpp"
#include "runtime/comm/reduce.hpp"

#include <atomic>
#include <cstring>
#include <numeric>

namespace troupe::runtime {
namespace {

/// The second meeting, also when building a result throws: peers must not wait for ever.
class FinishGuard {
 public:
  explicit FinishGuard(LocalGroup& group) : group_(group) {}
  FinishGuard(const FinishGuard&) = delete;
  FinishGuard& operator=(const FinishGuard&) = delete;
  ~FinishGuard() { group_.finish(); }

 private:
  LocalGroup& group_;
};

class UseGuard {
 public:
  UseGuard(std::atomic<bool>& busy, const std::string& name, int rank) : busy_(busy) {
    TROUPE_CHECK(!busy_.exchange(true), "{} rank {}: handle used by two threads at once", name,
                 rank);
  }
  UseGuard(const UseGuard&) = delete;
  UseGuard& operator=(const UseGuard&) = delete;
  ~UseGuard() { busy_ = false; }

 private:
  std::atomic<bool>& busy_;
};

void copy_bytes(void* target, const void* source, std::size_t bytes) {
  if (bytes > 0 && target != source) std::memcpy(target, source, bytes);
}

/// True when the ranges share bytes, unless `part` is exactly `own_place`.
bool overlaps_elsewhere(const void* part, std::size_t part_bytes, const void* whole,
                        std::size_t whole_bytes, const void* own_place) {
  if (part == own_place || part_bytes == 0 || whole_bytes == 0) return false;
  const auto part_begin = reinterpret_cast<std::uintptr_t>(part);
  const auto whole_begin = reinterpret_cast<std::uintptr_t>(whole);
  return part_begin < whole_begin + whole_bytes && whole_begin < part_begin + part_bytes;
}

class LocalCollective final : public Collective {
 public:
  LocalCollective(std::shared_ptr<LocalGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}
  LocalCollective(const LocalCollective&) = delete;
  LocalCollective& operator=(const LocalCollective&) = delete;
  ~LocalCollective() override { group_->depart(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  const std::string& name() const override { return group_->name(); }
  std::int64_t epoch() const override { return group_->epoch(); }

  result<void> all_reduce(Buffer data, ReduceOp op, Deadline deadline) override;
  result<void> all_gather(ConstBuffer part, Buffer whole, Deadline deadline) override;
  result<std::vector<std::vector<std::byte>>> all_gather_bytes(std::span<const std::byte> part,
                                                               Deadline deadline) override;
  result<std::vector<std::vector<std::byte>>> gather_bytes(std::span<const std::byte> part,
                                                           int root, Deadline deadline) override;
  result<void> reduce_scatter(ConstBuffer whole, Buffer part, ReduceOp op,
                              Deadline deadline) override;
  result<void> broadcast(Buffer data, int root, Deadline deadline) override;
  result<void> barrier(Deadline deadline) override;
  result<void> send(ConstBuffer data, int peer, int tag, Deadline deadline) override;
  result<void> recv(Buffer data, int peer, int tag, Deadline deadline) override;
  result<std::unique_ptr<Collective>> split(int colour, int key, Deadline deadline) override;
  void abort(Error cause) override { group_->abort(rank_, std::move(cause)); }
  std::optional<Error> failure() const override { return group_->failure(); }
  result<void> rebuild(std::int64_t new_epoch, Deadline deadline) override;

  LocalGroup& group() { return *group_; }
  const std::shared_ptr<LocalGroup>& shared_group() const { return group_; }

 private:
  UseGuard use() { return UseGuard(busy_, group_->name(), rank_); }
  std::vector<const void*> sources() const;
  std::vector<std::vector<std::byte>> copies_of_parts() const;
  void check_root(PostedCall& call) const;

  const std::shared_ptr<LocalGroup> group_;  // shared by the handles of all ranks
  const int rank_;
  std::atomic<bool> busy_{false};
};

std::vector<const void*> LocalCollective::sources() const {
  std::vector<const void*> pointers;
  for (int rank = 0; rank < size(); ++rank) pointers.push_back(group_->call_of(rank).source);
  return pointers;
}

void LocalCollective::check_root(PostedCall& call) const {
  if (call.root < 0 || call.root >= size()) {
    call.bad_argument = fmt::format("{}: group has {} ranks", call.describe(), size());
  }
}

result<void> LocalCollective::all_reduce(Buffer data, ReduceOp op, Deadline deadline) {
  const auto guard = use();
  PostedCall call{.kind = OpKind::kAllReduce, .type = data.type, .count = data.count, .op = op};
  call.source = call.target = data.data;
  if (data.type == ElementType::kByte) call.bad_argument = "all_reduce: bytes cannot be reduced";
  TROUPE_TRY_VOID(group_->arrive(rank_, call, deadline));
  const FinishGuard finish(*group_);
  if (size() == 1) return {};
  // This rank alone reads and writes its slice, of every rank's buffer.
  std::vector<void*> targets;
  for (int rank = 0; rank < size(); ++rank) targets.push_back(group_->call_of(rank).target);
  reduce_slice(data.type, op, sources(), targets,
               slice_of(data.count, targets.size(), static_cast<std::size_t>(rank_)));
  return {};
}

result<void> LocalCollective::reduce_scatter(ConstBuffer whole, Buffer part, ReduceOp op,
                                             Deadline deadline) {
  const auto guard = use();
  PostedCall call{
      .kind = OpKind::kReduceScatter, .type = whole.type, .count = whole.count, .op = op};
  call.source = whole.data;
  call.target = part.data;
  const std::size_t begin = part.count * static_cast<std::size_t>(rank_);
  if (whole.type == ElementType::kByte) {
    call.bad_argument = "reduce_scatter: bytes cannot be reduced";
  } else if (whole.type != part.type ||
             whole.count != part.count * static_cast<std::size_t>(size())) {
    call.bad_argument = fmt::format("reduce_scatter: whole is {} × {}, part is {} × {}, {} ranks",
                                    element_type_name(whole.type), whole.count,
                                    element_type_name(part.type), part.count, size());
  } else if (overlaps_elsewhere(
                 part.data, part.bytes(), whole.data, whole.bytes(),
                 static_cast<const std::byte*>(whole.data) + begin * element_bytes(whole.type))) {
    call.bad_argument = "reduce_scatter: part overlaps whole elsewhere than at its own place";
  }
  TROUPE_TRY_VOID(group_->arrive(rank_, call, deadline));
  const FinishGuard finish(*group_);
  if (part.count == 0) return {};
  auto starts = sources();
  for (auto& start : starts) {
    start = static_cast<const std::byte*>(start) + begin * element_bytes(whole.type);
  }
  const std::array<void*, 1> targets{part.data};
  reduce_slice(whole.type, op, starts, targets, {0, part.count});
  return {};
}

result<void> LocalCollective::all_gather(ConstBuffer part, Buffer whole, Deadline deadline) {
  const auto guard = use();
  PostedCall call{.kind = OpKind::kAllGather, .type = part.type, .count = part.count};
  call.source = part.data;
  call.target = whole.data;
  auto* const target = static_cast<std::byte*>(whole.data);
  if (whole.type != part.type || whole.count != part.count * static_cast<std::size_t>(size())) {
    call.bad_argument = fmt::format("all_gather: part is {} × {}, whole is {} × {}, {} ranks",
                                    element_type_name(part.type), part.count,
                                    element_type_name(whole.type), whole.count, size());
  } else if (overlaps_elsewhere(part.data, part.bytes(), whole.data, whole.bytes(),
                                target + part.bytes() * static_cast<std::size_t>(rank_))) {
    call.bad_argument = "all_gather: part overlaps whole elsewhere than at its own place";
  }
  TROUPE_TRY_VOID(group_->arrive(rank_, call, deadline));
  const FinishGuard finish(*group_);
  for (int rank = 0; rank < size(); ++rank) {
    if (part.count == 0) break;
    copy_bytes(target + part.bytes() * static_cast<std::size_t>(rank), group_->call_of(rank).source,
               part.bytes());
  }
  return {};
}

std::vector<std::vector<std::byte>> LocalCollective::copies_of_parts() const {
  std::vector<std::vector<std::byte>> parts(static_cast<std::size_t>(size()));
  for (int rank = 0; rank < size(); ++rank) {
    const PostedCall& call = group_->call_of(rank);
    const auto* begin = static_cast<const std::byte*>(call.source);
    if (call.count > 0) parts[static_cast<std::size_t>(rank)].assign(begin, begin + call.count);
  }
  return parts;
}

result<std::vector<std::vector<std::byte>>> LocalCollective::all_gather_bytes(
    std::span<const std::byte> part, Deadline deadline) {
  const auto guard = use();
  PostedCall call{.kind = OpKind::kAllGatherBytes, .count = part.size()};
  call.source = part.data();
  TROUPE_TRY_VOID(group_->arrive(rank_, call, deadline));
  const FinishGuard finish(*group_);
  return copies_of_parts();
}

result<std::vector<std::vector<std::byte>>> LocalCollective::gather_bytes(
    std::span<const std::byte> part, int root, Deadline deadline) {
  const auto guard = use();
  PostedCall call{.kind = OpKind::kGatherBytes, .count = part.size(), .root = root};
  call.source = part.data();
  check_root(call);
  TROUPE_TRY_VOID(group_->arrive(rank_, call, deadline));
  const FinishGuard finish(*group_);
  if (rank_ != root) return std::vector<std::vector<std::byte>>{};
  return copies_of_parts();
}

result<void> LocalCollective::broadcast(Buffer data, int root, Deadline deadline) {
  const auto guard = use();
  PostedCall call{.kind = OpKind::kBroadcast, .type = data.type, .count = data.count, .root = root};
  call.source = call.target = data.data;
  check_root(call);
  TROUPE_TRY_VOID(group_->arrive(rank_, call, deadline));
  const FinishGuard finish(*group_);
  copy_bytes(data.data, group_->call_of(root).source, data.bytes());
  return {};
}

result<void> LocalCollective::barrier(Deadline deadline) {
  const auto guard = use();
  return group_->arrive(rank_, PostedCall{.kind = OpKind::kBarrier}, deadline);
}

result<void> LocalCollective::send(ConstBuffer data, int peer, int tag, Deadline deadline) {
  const auto guard = use();
  return group_->send(rank_, data, peer, tag, deadline);
}

result<void> LocalCollective::recv(Buffer data, int peer, int tag, Deadline deadline) {
  const auto guard = use();
  return group_->receive(rank_, data, peer, tag, deadline);
}

result<std::unique_ptr<Collective>> LocalCollective::split(int colour, int key, Deadline deadline) {
  const auto guard = use();
  const PostedCall call{.kind = OpKind::kSplit, .colour = colour, .key = key};
  TROUPE_TRY_VOID(group_->arrive(rank_, call, deadline));
  const FinishGuard finish(*group_);
  auto [group, rank] = group_->split_of(rank_);
  if (!group) return std::unique_ptr<Collective>{};
  return std::unique_ptr<Collective>(std::make_unique<LocalCollective>(std::move(group), rank));
}

result<void> LocalCollective::rebuild(std::int64_t new_epoch, Deadline deadline) {
  const auto guard = use();
  return group_->rebuild(rank_, new_epoch, deadline);
}

}  // namespace

std::vector<std::unique_ptr<Collective>> make_local_group(int size,
                                                          const LocalGroupOptions& options) {
  TROUPE_CHECK(size >= 1, "make_local_group: {} ranks, wanted at least 1", size);
  std::vector<int> labels(static_cast<std::size_t>(size));
  std::iota(labels.begin(), labels.end(), 0);
  auto group = std::make_shared<LocalGroup>(options.name, std::move(labels), options.mailbox_bytes);
  std::vector<std::unique_ptr<Collective>> handles;
  for (int rank = 0; rank < size; ++rank) {
    handles.push_back(std::make_unique<LocalCollective>(group, rank));
  }
  return handles;
}

result<std::unique_ptr<Collective>> replace_rank(Collective& survivor, int rank) {
  auto* local = dynamic_cast<LocalCollective*>(&survivor);
  if (local == nullptr) {
    return fail(ErrorCode::kUnsupported, "{}: replace_rank: not an in-process group",
                survivor.name());
  }
  TROUPE_TRY_VOID(local->group().replace(rank));
  return std::unique_ptr<Collective>(
      std::make_unique<LocalCollective>(local->shared_group(), rank));
}

}  // namespace troupe::runtime
