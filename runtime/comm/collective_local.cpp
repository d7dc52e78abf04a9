// Handles of an in-process group: argument checks and the copying between the two meetings.

#include "runtime/base/check.hpp"
#include "runtime/comm/local_group.hpp"
#include "runtime/comm/reduce.hpp"
#include "runtime/comm/use_guard.hpp"

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

void copy_bytes(void* target, const void* source, std::size_t bytes) {
  if (bytes > 0 && target != source) std::memcpy(target, source, bytes);
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

  const std::shared_ptr<LocalGroup> group_;  // shared by the handles of all ranks
  const int rank_;
  std::atomic<bool> busy_{false};
};

std::vector<const void*> LocalCollective::sources() const {
  std::vector<const void*> pointers;
  for (int rank = 0; rank < size(); ++rank) pointers.push_back(group_->call_of(rank).source);
  return pointers;
}

result<void> LocalCollective::all_reduce(Buffer data, ReduceOp op, Deadline deadline) {
  const auto guard = use();
  TROUPE_TRY_VOID(group_->arrive(rank_, post_all_reduce(data, op), deadline));
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
  const PostedCall call = post_reduce_scatter(whole, part, op, rank_, size());
  TROUPE_TRY_VOID(group_->arrive(rank_, call, deadline));
  const FinishGuard finish(*group_);
  if (part.count == 0) return {};
  const std::size_t begin = part.count * static_cast<std::size_t>(rank_);
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
  auto* const target = static_cast<std::byte*>(whole.data);
  const PostedCall call = post_all_gather(part, whole, rank_, size());
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
  TROUPE_TRY_VOID(group_->arrive(rank_, post_all_gather_bytes(part), deadline));
  const FinishGuard finish(*group_);
  return copies_of_parts();
}

result<std::vector<std::vector<std::byte>>> LocalCollective::gather_bytes(
    std::span<const std::byte> part, int root, Deadline deadline) {
  const auto guard = use();
  TROUPE_TRY_VOID(group_->arrive(rank_, post_gather_bytes(part, root, size()), deadline));
  const FinishGuard finish(*group_);
  if (rank_ != root) return std::vector<std::vector<std::byte>>{};
  return copies_of_parts();
}

result<void> LocalCollective::broadcast(Buffer data, int root, Deadline deadline) {
  const auto guard = use();
  TROUPE_TRY_VOID(group_->arrive(rank_, post_broadcast(data, root, size()), deadline));
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
