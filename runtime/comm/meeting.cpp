#include "runtime/comm/meeting.hpp"

#include "runtime/base/index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::runtime {

Meeting::Meeting(GroupLabels labels)
    : labels_(std::move(labels)),
      calls_(labels_.ranks.size()),
      arrived_(labels_.ranks.size(), 0),
      departed_(labels_.ranks.size(), 0) {}

std::optional<Verdict> Meeting::fail(Error error) {
  if (failure_) return std::nullopt;
  failure_ = std::move(error);
  return Verdict{.kind = Verdict::Kind::kFailed, .error = failure_};
}

std::optional<Verdict> Meeting::arrive(int rank, std::uint64_t operation, PostedCall call) {
  if (failure_) return std::nullopt;
  if (operation != begun_ + 1 || arrived_[index(rank)] != 0) {
    return fail(labels_.error(ErrorCode::kInternal, rank,
                              fmt::format("{} came to operation {}, the present one is {}",
                                          labels_.describe(rank), operation, begun_ + 1)));
  }
  calls_[index(rank)] = std::move(call);
  arrived_[index(rank)] = 1;
  if (++arrived_count_ < labels_.size()) return std::nullopt;
  if (auto conflict = labels_.disagreement(calls_, operation)) return fail(std::move(*conflict));
  arrived_count_ = 0;
  std::fill(arrived_.begin(), arrived_.end(), char{0});
  return Verdict{.kind = Verdict::Kind::kGo, .operation = ++begun_};
}

std::optional<Verdict> Meeting::withdraw(int rank, std::uint64_t operation) {
  if (failure_ || operation != begun_ + 1) return std::nullopt;
  return fail(labels_.late(calls_[index(rank)], operation, arrived_));
}

std::optional<Verdict> Meeting::depart(int rank) {
  if (departed_[index(rank)] != 0) return std::nullopt;
  departed_[index(rank)] = 1;
  return Verdict{.kind = Verdict::Kind::kGone, .rank = rank};
}

}  // namespace troupe::runtime
