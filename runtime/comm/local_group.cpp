#include "runtime/comm/local_group.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

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

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

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

LocalGroup::LocalGroup(std::string name, std::vector<int> labels, std::size_t mailbox_bytes,
                       std::weak_ptr<LocalGroup> outer)
    : name_(std::move(name)),
      labels_(std::move(labels)),
      mailbox_bytes_(mailbox_bytes),
      outer_(std::move(outer)),
      calls_(labels_.size()),
      arrived_(labels_.size(), 0),
      splits_(labels_.size()),
      departed_(labels_.size(), 0),
      rebuilding_(labels_.size()) {
  for (std::size_t i = 0; i < labels_.size(); ++i) {
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

std::string LocalGroup::describe_rank(int rank) const {
  const int label = labels_[index(rank)];
  return label == rank ? fmt::format("rank {}", rank)
                       : fmt::format("rank {} (outer rank {})", rank, label);
}

Error LocalGroup::make_error(ErrorCode code, int rank, std::string message) const {
  return Error{.code = code,
               .message = fmt::format("{}: {}", name_, std::move(message)),
               .origin = {.group = name_, .rank = RankId{labels_[index(rank)]}, .node = {}},
               .causes = {}};
}

Error LocalGroup::gone_error(int rank) const {
  return make_error(ErrorCode::kRankDead, rank,
                    describe_rank(rank) + " is gone: its handle was destroyed");
}

Error LocalGroup::late_error(const PostedCall& call) const {
  std::string missing;
  int first_missing = -1;
  for (int rank = 0; rank < size(); ++rank) {
    if (arrived_[index(rank)]) continue;
    if (first_missing < 0) first_missing = rank;
    missing += (missing.empty() ? "" : ", ") + describe_rank(rank);
  }
  return make_error(
      ErrorCode::kDeadline, std::max(first_missing, 0),
      fmt::format("{}, operation {}: deadline passed, {} of {} ranks came, missing {}",
                  call.describe(), meetings_ + 1, arrived_count_, size(), missing));
}

std::optional<Error> LocalGroup::disagreement() const {
  for (int rank = 1; rank < size(); ++rank) {
    if (calls_[0].agrees_with(calls_[index(rank)])) continue;
    return make_error(
        ErrorCode::kConflict, rank,
        fmt::format("operation {}: {} called {} but {} called {}", meetings_ + 1, describe_rank(0),
                    calls_[0].describe(), describe_rank(rank), calls_[index(rank)].describe()));
  }
  return std::nullopt;
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
      group->fail_group(child_lock, group->inherited(cause, name_));
    }
  }
  lock.lock();
}

Error LocalGroup::inherited(Error cause, const std::string& outer_name) const {
  return std::move(cause).wrap(ErrorCode::kAborted,
                               fmt::format("{}: outer group {} failed", name_, outer_name));
}

std::optional<Error> LocalGroup::outer_failure() const {
  const auto outer = outer_.lock();
  if (!outer) return std::nullopt;
  {
    Lock lock(outer->mutex_);
    if (outer->failure_) return inherited(*outer->failure_, outer->name_);
  }
  return outer->outer_failure();
}

result<void> LocalGroup::arrive(int rank, const PostedCall& call, Deadline deadline) {
  Lock lock(mutex_);
  if (auto failed = present_failure()) return fail(*failed);
  if (call.bad_argument) {
    fail_group(lock, make_error(ErrorCode::kInvalidArgument, rank,
                                fmt::format("{}: {}", describe_rank(rank), *call.bad_argument)));
    return fail(*failure_);
  }
  calls_[index(rank)] = call;
  arrived_[index(rank)] = 1;
  if (++arrived_count_ == size()) {
    if (auto conflict = disagreement()) {
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
  if (!present_failure()) fail_group(lock, late_error(call));
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
    for (int rank : ranks) labels.push_back(labels_[index(rank)]);
    auto group = std::make_shared<LocalGroup>(fmt::format("{}/{}", name_, colour),
                                              std::move(labels), mailbox_bytes_, weak_from_this());
    children_.push_back(group);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      splits_[index(ranks[i])] = {group, static_cast<int>(i)};
    }
  }
}

void LocalGroup::abort(int rank, Error cause) {
  Lock lock(mutex_);
  auto reason = fmt::format("aborted by {}: {}", describe_rank(rank), cause.message);
  Error error = make_error(ErrorCode::kAborted, rank, std::move(reason));
  error.causes.push_back(std::move(cause));
  fail_group(lock, std::move(error));
}

void LocalGroup::depart(int rank) {
  // A rank that leaves because the outer group failed is not the cause, though it may get here
  // before the failure does.
  auto cause = outer_failure();
  Lock lock(mutex_);
  if (cause) fail_group(lock, std::move(*cause));
  departed_[index(rank)] = 1;
  if (!departure_) departure_ = gone_error(rank);
  if (rebuilding_count_ > 0) end_rebuild(gone_error(rank));
  met_.notify_all();
  for (const auto& mailbox : mailboxes_) mailbox->changed.notify_all();
}

result<void> LocalGroup::replace(int rank) {
  Lock lock(mutex_);
  if (rank < 0 || rank >= size()) {
    return fail(ErrorCode::kInvalidArgument, "{}: replace_rank {}: group has {} ranks", name_, rank,
                size());
  }
  if (!departed_[index(rank)]) {
    return fail(ErrorCode::kAlreadyExists, "{}: {} is alive", name_, describe_rank(rank));
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
    if (departed_[index(peer)]) return fail(gone_error(peer));
  }
  if (new_epoch <= epoch_) {
    return fail(ErrorCode::kInvalidArgument, "{}: rebuild to epoch {}, present epoch is {}", name_,
                new_epoch, epoch_);
  }
  if (!present_failure()) {
    fail_group(lock,
               make_error(ErrorCode::kAborted, rank,
                          fmt::format("{} left for epoch {}", describe_rank(rank), new_epoch)));
  }
  for (int peer = 0; peer < size(); ++peer) {
    const auto& other = rebuilding_[index(peer)];
    if (!other || *other == new_epoch) continue;
    Error error =
        make_error(ErrorCode::kConflict, peer,
                   fmt::format("{} rebuilds to epoch {} but {} to epoch {}", describe_rank(peer),
                               *other, describe_rank(rank), new_epoch));
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
    missing += (missing.empty() ? "" : ", ") + describe_rank(peer);
  }
  return fail(make_error(
      ErrorCode::kDeadline, rank,
      fmt::format("rebuild to epoch {}: deadline passed, missing {}", new_epoch, missing)));
}

}  // namespace troupe::runtime
