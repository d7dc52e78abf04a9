// Handles of a group between processes: the operations, as transfers between all ranks.

#include "runtime/comm/collective_gloo.hpp"

#include "runtime/base/index.hpp"
#include "runtime/comm/group_gloo.hpp"
#include "runtime/comm/rebuild_gloo.hpp"
#include "runtime/comm/reduce.hpp"
#include "runtime/comm/use_guard.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <utility>

namespace troupe::runtime {
namespace {

std::byte* at(void* data, std::size_t bytes) { return static_cast<std::byte*>(data) + bytes; }
const std::byte* at(const void* data, std::size_t bytes) {
  return static_cast<const std::byte*>(data) + bytes;
}

void copy_bytes(void* target, const void* source, std::size_t bytes) {
  if (bytes > 0 && target != source) std::memcpy(target, source, bytes);
}

class GlooCollective final : public Collective {
 public:
  /// Of a whole group; `group` may be null until the first `join`.
  GlooCollective(const GlooGroupOptions& options, GroupLabels labels,
                 std::shared_ptr<RendezvousStore> store)
      : name_(options.name),
        rank_(options.rank),
        size_(options.size),
        options_(options),
        labels_(labels),
        rendezvous_(std::make_unique<GlooRendezvous>(options, std::move(labels), std::move(store))),
        epoch_(options.epoch - 1) {}
  /// Of a group that was split from another.
  GlooCollective(GlooMembership joined, std::int64_t epoch)
      : name_(joined.group->labels().name),
        rank_(joined.group->rank()),
        size_(joined.group->size()),
        joined_(std::move(joined)),
        epoch_(epoch) {}
  GlooCollective(const GlooCollective&) = delete;
  GlooCollective& operator=(const GlooCollective&) = delete;
  ~GlooCollective() override {
    if (joined_.group) joined_.group->leave();
    if (rendezvous_ && size_ > 1) rendezvous_->leave();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }
  std::int64_t epoch() const override { return epoch_.load(); }

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
  void abort(Error cause) override;
  std::optional<Error> failure() const override;
  result<void> rebuild(std::int64_t new_epoch, Deadline deadline) override;

  result<void> join(std::int64_t epoch, Deadline deadline);
  result<void> take_over(Deadline deadline) { return rendezvous_->take_over(deadline); }

 private:
  UseGuard use() { return UseGuard(busy_, name_, rank_); }
  /// The present group; before the first connections, the error of a rank that has not joined.
  result<GlooMembership> present() const;
  result<std::vector<std::vector<std::byte>>> gather(GlooGroup& group,
                                                     std::span<const std::byte> part,
                                                     std::optional<int> root, Deadline deadline);
  result<void> reduce_chunk(GlooGroup& group, Buffer data, ReduceOp op, std::uint64_t phase,
                            std::vector<std::byte>& scratch, Deadline deadline);

  const std::string name_;
  const int rank_;
  const int size_;
  const GlooGroupOptions options_ = {};
  const GroupLabels labels_ = {};
  const std::unique_ptr<GlooRendezvous> rendezvous_;  // null for a group that was split
  mutable std::mutex mutex_;                          // guards joined_
  GlooMembership joined_;
  std::atomic<std::int64_t> epoch_;
  std::atomic<bool> busy_{false};
};

result<GlooMembership> GlooCollective::present() const {
  const std::lock_guard lock(mutex_);
  if (!joined_.group) return fail(labels_.gone(rank_));
  return joined_;
}

std::optional<Error> GlooCollective::failure() const {
  const auto joined = present();
  return joined ? joined->group->failure() : std::optional(joined.error());
}

void GlooCollective::abort(Error cause) {
  const auto joined = present();
  if (!joined) return;
  GlooGroup& group = *joined->group;
  group.request_failure(group.labels().aborted(rank_, std::move(cause)));
}

result<void> GlooCollective::barrier(Deadline deadline) {
  const auto guard = use();
  TROUPE_TRY(const auto joined, present());
  const auto& group = joined.group;
  return group->arrive(PostedCall{.kind = OpKind::kBarrier}, deadline);
}

/// All ranks give their slices to those who reduce them, and get the reduced ones back.
result<void> GlooCollective::reduce_chunk(GlooGroup& group, Buffer data, ReduceOp op,
                                          std::uint64_t phase, std::vector<std::byte>& scratch,
                                          Deadline deadline) {
  const std::size_t width = element_bytes(data.type);
  const auto slice = [&](int rank) { return slice_of(data.count, index(size_), index(rank)); };
  const Slice own = slice(rank_);
  const std::size_t own_bytes = (own.end - own.begin) * width;
  scratch.resize(own_bytes * index(size_));
  std::vector<TransferPart> give;
  std::vector<TransferPart> back;
  std::vector<const void*> sources(index(size_));
  for (int peer = 0; peer < size_; ++peer) {
    const Slice theirs = slice(peer);
    const std::size_t bytes = (theirs.end - theirs.begin) * width;
    std::byte* const place = scratch.data() + own_bytes * index(peer);
    sources[index(peer)] = peer == rank_ ? at(data.data, own.begin * width) : place;
    if (peer == rank_) continue;
    give.push_back(group.outgoing(peer, phase, at(data.data, theirs.begin * width), bytes));
    give.push_back(group.incoming(peer, phase, place, own_bytes));
    back.push_back(group.outgoing(peer, phase + 1, at(data.data, own.begin * width), own_bytes));
    back.push_back(group.incoming(peer, phase + 1, at(data.data, theirs.begin * width), bytes));
  }
  TROUPE_TRY_VOID(group.transfer(std::move(give), deadline));
  void* const target = at(data.data, own.begin * width);
  if (own_bytes > 0) reduce_slice(data.type, op, sources, {&target, 1}, {0, own.end - own.begin});
  return group.transfer(std::move(back), deadline);
}

result<void> GlooCollective::all_reduce(Buffer data, ReduceOp op, Deadline deadline) {
  const auto guard = use();
  TROUPE_TRY(const auto joined, present());
  const auto& group = joined.group;
  TROUPE_TRY_VOID(group->arrive(post_all_reduce(data, op), deadline));
  if (size_ == 1) return {};
  const std::size_t width = element_bytes(data.type);
  const std::size_t step = std::max<std::size_t>(group->place().scratch_bytes / width, 1);
  std::vector<std::byte> scratch;
  std::uint64_t phase = 0;
  for (std::size_t begin = 0; begin < data.count; begin += step, phase += 2) {
    Buffer chunk = data;
    chunk.data = at(data.data, begin * width);
    chunk.count = std::min(step, data.count - begin);
    TROUPE_TRY_VOID(reduce_chunk(*group, chunk, op, phase, scratch, deadline));
  }
  return {};
}

result<void> GlooCollective::reduce_scatter(ConstBuffer whole, Buffer part, ReduceOp op,
                                            Deadline deadline) {
  const auto guard = use();
  TROUPE_TRY(const auto joined, present());
  const auto& group = joined.group;
  TROUPE_TRY_VOID(group->arrive(post_reduce_scatter(whole, part, op, rank_, size_), deadline));
  // In place the part is written last; what goes to others is read before.
  const std::size_t width = element_bytes(part.type);
  const std::size_t step =
      std::max<std::size_t>(group->place().scratch_bytes / width / index(size_), 1);
  std::vector<std::byte> scratch;
  std::uint64_t phase = 0;
  for (std::size_t begin = 0; begin < part.count; begin += step, ++phase) {
    const std::size_t count = std::min(step, part.count - begin);
    const std::size_t bytes = count * width;
    scratch.resize(bytes * index(size_));
    std::vector<TransferPart> parts;
    std::vector<const void*> sources(index(size_));
    for (int peer = 0; peer < size_; ++peer) {
      const auto* theirs = at(whole.data, (part.count * index(peer) + begin) * width);
      std::byte* const place = scratch.data() + bytes * index(peer);
      sources[index(peer)] = peer == rank_ ? theirs : place;
      if (peer == rank_) continue;
      parts.push_back(group->outgoing(peer, phase, theirs, bytes));
      parts.push_back(group->incoming(peer, phase, place, bytes));
    }
    TROUPE_TRY_VOID(group->transfer(std::move(parts), deadline));
    void* const target = at(part.data, begin * width);
    reduce_slice(part.type, op, sources, {&target, 1}, {0, count});
  }
  return {};
}

result<void> GlooCollective::all_gather(ConstBuffer part, Buffer whole, Deadline deadline) {
  const auto guard = use();
  TROUPE_TRY(const auto joined, present());
  const auto& group = joined.group;
  TROUPE_TRY_VOID(group->arrive(post_all_gather(part, whole, rank_, size_), deadline));
  std::vector<TransferPart> parts;
  for (int peer = 0; peer < size_; ++peer) {
    std::byte* const place = at(whole.data, part.bytes() * index(peer));
    if (peer == rank_) {
      copy_bytes(place, part.data, part.bytes());
      continue;
    }
    parts.push_back(group->outgoing(peer, 0, part.data, part.bytes()));
    parts.push_back(group->incoming(peer, 0, place, part.bytes()));
  }
  return group->transfer(std::move(parts), deadline);
}

/// Parts of any length, at `root` or everywhere: first how long they are, then they.
result<std::vector<std::vector<std::byte>>> GlooCollective::gather(GlooGroup& group,
                                                                   std::span<const std::byte> part,
                                                                   std::optional<int> root,
                                                                   Deadline deadline) {
  const bool receives = !root || *root == rank_;
  std::vector<std::uint64_t> sizes(index(size_), part.size());
  std::vector<TransferPart> lengths;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const bool wants = !root || *root == peer;
    if (wants) lengths.push_back(group.outgoing(peer, 0, &sizes[index(rank_)], 8));
    if (receives) lengths.push_back(group.incoming(peer, 0, &sizes[index(peer)], 8));
  }
  TROUPE_TRY_VOID(group.transfer(std::move(lengths), deadline));
  std::vector<std::vector<std::byte>> gathered(receives ? index(size_) : 0);
  std::vector<TransferPart> parts;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) {
      if (receives) gathered[index(peer)].assign(part.begin(), part.end());
      continue;
    }
    if (!root || *root == peer) parts.push_back(group.outgoing(peer, 1, part.data(), part.size()));
    if (!receives) continue;
    gathered[index(peer)].resize(sizes[index(peer)]);
    parts.push_back(
        group.incoming(peer, 1, gathered[index(peer)].data(), gathered[index(peer)].size()));
  }
  TROUPE_TRY_VOID(group.transfer(std::move(parts), deadline));
  return gathered;
}

result<std::vector<std::vector<std::byte>>> GlooCollective::all_gather_bytes(
    std::span<const std::byte> part, Deadline deadline) {
  const auto guard = use();
  TROUPE_TRY(const auto joined, present());
  const auto& group = joined.group;
  TROUPE_TRY_VOID(group->arrive(post_all_gather_bytes(part), deadline));
  return gather(*group, part, std::nullopt, deadline);
}

result<std::vector<std::vector<std::byte>>> GlooCollective::gather_bytes(
    std::span<const std::byte> part, int root, Deadline deadline) {
  const auto guard = use();
  TROUPE_TRY(const auto joined, present());
  const auto& group = joined.group;
  TROUPE_TRY_VOID(group->arrive(post_gather_bytes(part, root, size_), deadline));
  return gather(*group, part, root, deadline);
}

result<void> GlooCollective::broadcast(Buffer data, int root, Deadline deadline) {
  const auto guard = use();
  TROUPE_TRY(const auto joined, present());
  const auto& group = joined.group;
  TROUPE_TRY_VOID(group->arrive(post_broadcast(data, root, size_), deadline));
  std::vector<TransferPart> parts;
  if (rank_ != root) {
    parts.push_back(group->incoming(root, 0, data.data, data.bytes()));
  } else {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != root) parts.push_back(group->outgoing(peer, 0, data.data, data.bytes()));
    }
  }
  return group->transfer(std::move(parts), deadline);
}

result<void> GlooCollective::send(ConstBuffer data, int peer, int tag, Deadline deadline) {
  const auto guard = use();
  TROUPE_TRY(const auto joined, present());
  const auto& group = joined.group;
  return group->send(data, peer, tag, deadline);
}

result<void> GlooCollective::recv(Buffer data, int peer, int tag, Deadline deadline) {
  const auto guard = use();
  TROUPE_TRY(const auto joined, present());
  const auto& group = joined.group;
  return group->receive(data, peer, tag, deadline);
}

result<std::unique_ptr<Collective>> GlooCollective::split(int colour, int key, Deadline deadline) {
  const auto guard = use();
  TROUPE_TRY(const auto joined, present());
  const auto& group = joined.group;
  const PostedCall call{.kind = OpKind::kSplit, .colour = colour, .key = key};
  TROUPE_TRY_VOID(group->arrive(call, deadline));
  TROUPE_TRY(auto part, group->split(colour, key, deadline));
  if (!part) return std::unique_ptr<Collective>{};
  GlooMembership own{joined.session, std::move(part)};
  return std::unique_ptr<Collective>(std::make_unique<GlooCollective>(std::move(own), epoch()));
}

result<void> GlooCollective::join(std::int64_t epoch, Deadline deadline) {
  const auto old = present();
  std::unique_ptr<GlooLinks> links;
  if (size_ > 1) {
    const auto gone = [&old](int rank) { return old && old->group->has_left(rank); };
    TROUPE_TRY(links, rendezvous_->meet(epoch, gone, deadline));
  }
  auto session = std::make_shared<GlooSession>(std::move(links));
  std::vector<int> peers(index(size_));
  std::iota(peers.begin(), peers.end(), 0);
  auto group = std::make_shared<GlooGroup>(GlooGroup::Place{.labels = labels_,
                                                            .peers = std::move(peers),
                                                            .rank = rank_,
                                                            .id = 1,
                                                            .mailbox_bytes = options_.mailbox_bytes,
                                                            .scratch_bytes = options_.scratch_bytes,
                                                            .stall_wait = options_.stall_wait,
                                                            .answer_wait = options_.answer_wait},
                                           *session);
  session->add(group->place().id, group);
  session->start();
  // All ranks have left the old connections, or they would not be here.
  if (old) {
    old->session->break_off(
        labels_.error(ErrorCode::kAborted, rank_,
                      fmt::format("{} left for epoch {}", labels_.describe(rank_), epoch)));
  }
  GlooMembership fresh{std::move(session), std::move(group)};
  {
    const std::lock_guard lock(mutex_);
    std::swap(joined_, fresh);
  }
  epoch_.store(epoch);
  return {};
}

result<void> GlooCollective::rebuild(std::int64_t new_epoch, Deadline deadline) {
  const auto guard = use();
  if (!rendezvous_) {
    return fail(ErrorCode::kUnsupported, "{}: rebuild the group that it was split from", name_);
  }
  if (new_epoch <= epoch()) {
    return fail(ErrorCode::kInvalidArgument, "{}: rebuild to epoch {}, present epoch is {}", name_,
                new_epoch, epoch());
  }
  if (const auto joined = present(); joined && !joined->group->failure()) {
    joined->group->request_failure(
        labels_.error(ErrorCode::kAborted, rank_,
                      fmt::format("{} left for epoch {}", labels_.describe(rank_), new_epoch)));
  }
  return join(new_epoch, deadline);
}

}  // namespace

result<std::unique_ptr<Collective>> make_gloo_collective(const GlooGroupOptions& options,
                                                         std::shared_ptr<RendezvousStore> store,
                                                         Deadline deadline) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return fail(ErrorCode::kInvalidArgument, "{}: rank {} of {}", options.name, options.rank,
                options.size);
  }
  GroupLabels labels{.name = options.name, .ranks = std::vector<int>(index(options.size))};
  std::iota(labels.ranks.begin(), labels.ranks.end(), 0);
  auto handle = std::make_unique<GlooCollective>(options, std::move(labels), std::move(store));
  if (options.join) {
    TROUPE_TRY_VOID(handle->join(options.epoch, deadline));
  } else {
    TROUPE_TRY_VOID(handle->take_over(deadline));
  }
  return std::unique_ptr<Collective>(std::move(handle));
}

}  // namespace troupe::runtime
