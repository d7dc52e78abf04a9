#include "runtime/comm/local_group.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/index.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace troupe::runtime {

LocalGroup::LocalGroup(std::string name, std::vector<int> labels, std::size_t mailbox_bytes,
                       std::weak_ptr<LocalGroup> outer)
    : labels_{std::move(name), std::move(labels)},
      mailbox_bytes_(mailbox_bytes),
      outer_(std::move(outer)),
      calls_(labels_.ranks.size()),
      arrived_(labels_.ranks.size(), 0),
      splits_(labels_.ranks.size()),
      departed_(labels_.ranks.size(), 0),
      rebuilding_(labels_.ranks.size()) {
  for (std::size_t i = 0; i < labels_.ranks.size(); ++i) {
    mailboxes_.push_back(std::make_unique<Mailbox>());
  }
}

std::int64_t LocalGroup::epoch() const {
  Lock lock(mutex_);
  return epoch_;
}

std::optional<Error> LocalGroup::failure() const {
  Lock lock(mutex_);
  return present_failure();
}

std::optional<Error> LocalGroup::present_failure() const {
  return failure_ ? failure_ : departure_;
}

void LocalGroup::fail_group(Lock& lock, Error error) {
  if (failure_) return;
  failure_ = std::move(error);
  met_.notify_all();
  for (const auto& mailbox : mailboxes_) mailbox->changed.notify_all();
  const auto children = children_;
  const Error cause = *failure_;
  // Children have their own mutex; never hold two.
  lock.unlock();
  for (const auto& child : children) {
    if (auto group = child.lock()) {
      Lock child_lock(group->mutex_);
      group->fail_group(child_lock, group->labels_.inherited(cause, name()));
    }
  }
  lock.lock();
}

std::optional<Error> LocalGroup::outer_failure() const {
  const auto outer = outer_.lock();
  if (!outer) return std::nullopt;
  {
    Lock lock(outer->mutex_);
    if (outer->failure_) return labels_.inherited(*outer->failure_, outer->name());
  }
  return outer->outer_failure();
}

result<void> LocalGroup::arrive(int rank, const PostedCall& call, Deadline deadline) {
  Lock lock(mutex_);
  if (auto failed = present_failure()) return fail(*failed);
  if (call.bad_argument) {
    fail_group(lock,
               labels_.error(ErrorCode::kInvalidArgument, rank,
                             fmt::format("{}: {}", labels_.describe(rank), *call.bad_argument)));
    return fail(*failure_);
  }
  calls_[index(rank)] = call;
  arrived_[index(rank)] = 1;
  if (++arrived_count_ == size()) {
    if (auto conflict = labels_.disagreement(calls_, meetings_ + 1)) {
      fail_group(lock, std::move(*conflict));
      return fail(*failure_);
    }
    if (call.kind == OpKind::kSplit) make_splits();
    arrived_count_ = 0;
    std::fill(arrived_.begin(), arrived_.end(), char{0});
    ++meetings_;
    met_.notify_all();
    return {};
  }
  const std::uint64_t before = meetings_;
  met_.wait_until(lock, deadline.at, [&] { return meetings_ != before || present_failure(); });
  // Having met comes first: an operation that began succeeds on every rank.
  if (meetings_ != before) return {};
  if (!present_failure()) fail_group(lock, labels_.late(call, meetings_ + 1, arrived_));
  return fail(*present_failure());
}

void LocalGroup::finish() {
  Lock lock(mutex_);
  if (++finished_count_ == size()) {
    finished_count_ = 0;
    ++finishes_;
    finished_.notify_all();
    return;
  }
  const std::uint64_t before = finishes_;
  finished_.wait(lock, [&] { return finishes_ != before; });
}

void LocalGroup::make_splits() {
  std::map<int, std::vector<int>> members;  // colour → ranks
  for (int rank = 0; rank < size(); ++rank) {
    splits_[index(rank)] = {nullptr, 0};
    if (calls_[index(rank)].colour >= 0) members[calls_[index(rank)].colour].push_back(rank);
  }
  std::erase_if(children_, [](const auto& child) { return child.expired(); });
  for (auto& [colour, ranks] : members) {
    std::stable_sort(ranks.begin(), ranks.end(),
                     [&](int a, int b) { return calls_[index(a)].key < calls_[index(b)].key; });
    std::vector<int> labels;
    for (int rank : ranks) labels.push_back(labels_.ranks[index(rank)]);
    auto group = std::make_shared<LocalGroup>(fmt::format("{}/{}", labels_.name, colour),
                                              std::move(labels), mailbox_bytes_, weak_from_this());
    children_.push_back(group);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      splits_[index(ranks[i])] = {group, static_cast<int>(i)};
    }
  }
}

void LocalGroup::abort(int rank, Error cause) {
  Lock lock(mutex_);
  fail_group(lock, labels_.aborted(rank, std::move(cause)));
}

void LocalGroup::depart(int rank) {
  // A rank that leaves because the outer group failed is not the cause, though it may get here
  // before the failure does.
  auto cause = outer_failure();
  Lock lock(mutex_);
  if (cause) fail_group(lock, std::move(*cause));
  departed_[index(rank)] = 1;
  if (!departure_) departure_ = labels_.gone(rank);
  if (rebuilding_count_ > 0) end_rebuild(labels_.gone(rank));
  met_.notify_all();
  for (const auto& mailbox : mailboxes_) mailbox->changed.notify_all();
}

result<void> LocalGroup::replace(int rank) {
  Lock lock(mutex_);
  if (rank < 0 || rank >= size()) {
    return fail(ErrorCode::kInvalidArgument, "{}: replace_rank {}: group has {} ranks",
                labels_.name, rank, size());
  }
  if (!departed_[index(rank)]) {
    return fail(ErrorCode::kAlreadyExists, "{}: {} is alive", labels_.name, labels_.describe(rank));
  }
  departed_[index(rank)] = 0;
  return {};
}

void LocalGroup::end_rebuild(std::optional<Error> error) {
  rebuild_error_ = std::move(error);
  rebuilding_count_ = 0;
  std::fill(rebuilding_.begin(), rebuilding_.end(), std::nullopt);
  ++rebuilds_ended_;
  met_.notify_all();
}

result<void> LocalGroup::rebuild(int rank, std::int64_t new_epoch, Deadline deadline) {
  Lock lock(mutex_);
  for (int peer = 0; peer < size(); ++peer) {
    if (departed_[index(peer)]) return fail(labels_.gone(peer));
  }
  if (new_epoch <= epoch_) {
    return fail(ErrorCode::kInvalidArgument, "{}: rebuild to epoch {}, present epoch is {}",
                labels_.name, new_epoch, epoch_);
  }
  if (!present_failure()) {
    fail_group(lock, labels_.error(
                         ErrorCode::kAborted, rank,
                         fmt::format("{} left for epoch {}", labels_.describe(rank), new_epoch)));
  }
  for (int peer = 0; peer < size(); ++peer) {
    const auto& other = rebuilding_[index(peer)];
    if (!other || *other == new_epoch) continue;
    Error error = labels_.error(
        ErrorCode::kConflict, peer,
        fmt::format("{} rebuilds to epoch {} but {} to epoch {}", labels_.describe(peer), *other,
                    labels_.describe(rank), new_epoch));
    end_rebuild(error);
    return fail(std::move(error));
  }
  rebuilding_[index(rank)] = new_epoch;
  if (++rebuilding_count_ == size()) {
    failure_.reset();
    departure_.reset();
    arrived_count_ = 0;
    std::fill(arrived_.begin(), arrived_.end(), char{0});
    for (const auto& mailbox : mailboxes_) {
      mailbox->queues.clear();
      mailbox->bytes = 0;
    }
    epoch_ = new_epoch;
    end_rebuild(std::nullopt);
    return {};
  }
  const std::uint64_t before = rebuilds_ended_;
  if (met_.wait_until(lock, deadline.at, [&] { return rebuilds_ended_ != before; })) {
    if (rebuild_error_) return fail(*rebuild_error_);
    return {};
  }
  rebuilding_[index(rank)].reset();
  --rebuilding_count_;
  std::string missing;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank || rebuilding_[index(peer)]) continue;
    missing += (missing.empty() ? "" : ", ") + labels_.describe(peer);
  }
  return fail(labels_.error(
      ErrorCode::kDeadline, rank,
      fmt::format("rebuild to epoch {}: deadline passed, missing {}", new_epoch, missing)));
}

}  // namespace troupe::runtime
