#include "runtime/comm/rebuild_gloo.hpp"

#include "runtime/base/index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>
#include <utility>

namespace troupe::runtime {
namespace {

/// Between two looks of rank 0 at who has come; grows while ranks are missing.
constexpr Duration kLookFirst = std::chrono::milliseconds(1);
constexpr Duration kLookLast = std::chrono::milliseconds(50);
/// How long a look at a key that should be there waits for it.
constexpr Duration kLookWait = std::chrono::milliseconds(100);
constexpr std::string_view kGo = "go ";
constexpr std::string_view kConflictWord = "conflict ";
constexpr std::string_view kGoneWord = "gone ";

Deadline at_most(Deadline deadline, Duration span) {
  return std::min(deadline, Deadline::in(span));
}

}  // namespace

std::string GlooRendezvous::key(std::string_view what, int rank) const {
  return fmt::format("{}/{}/{}", options_.name, what, rank);
}

std::string GlooRendezvous::answer_key(int rank, std::uint64_t attempt) const {
  return fmt::format("{}/answer/{}/{}", options_.name, rank, attempt);
}

result<void> GlooRendezvous::post(Wish wish) {
  own_ = wish;
  return store_->set(key("wish", options_.rank), fmt::format("{} {}", wish.epoch, wish.attempt));
}

result<GlooRendezvous::Wish> GlooRendezvous::wish_of(int rank, Deadline deadline) const {
  TROUPE_TRY(const std::string text, store_->get(key("wish", rank), deadline));
  std::istringstream words(text);
  Wish wish;
  if (!(words >> wish.epoch >> wish.attempt))
    return fail(ErrorCode::kCorrupt, "{}: wish of rank {} is `{}`", options_.name, rank, text);
  return wish;
}

result<void> GlooRendezvous::take_over(Deadline deadline) {
  TROUPE_TRY(const Wish old, wish_of(options_.rank, deadline));
  return post({kWaiting, old.attempt + 1});
}

void GlooRendezvous::leave() {
  // Best effort: peers also see the connections close.
  (void)post({kGone, own_.attempt + 1});
}

result<void> GlooRendezvous::answer(int rank, std::uint64_t attempt, const std::string& text) {
  answered_[index(rank)] = attempt;
  return rank == options_.rank ? result<void>{} : store_->set(answer_key(rank, attempt), text);
}

result<void> GlooRendezvous::refuse_all(const std::vector<std::uint64_t>& joined,
                                        const std::string& text) {
  for (int rank = 0; rank < labels_.size(); ++rank) {
    if (joined[index(rank)] != 0) TROUPE_TRY_VOID(answer(rank, joined[index(rank)], text));
  }
  return {};
}

/// Rank 0: waits until all ranks wish for this epoch, and tells them to go; the tag to connect
/// under.
result<std::string> GlooRendezvous::gather(const std::function<bool(int)>& gone,
                                           Deadline deadline) {
  std::vector<std::uint64_t> joined(labels_.ranks.size(), 0);
  joined[0] = own_.attempt;
  for (Duration pause = kLookFirst;; pause = std::min(2 * pause, kLookLast)) {
    std::string missing;
    int first_missing = 0;
    for (int rank = 1; rank < labels_.size(); ++rank) {
      const auto wish = wish_of(rank, at_most(deadline, missing.empty() ? kLookWait : kLookFirst));
      if (!wish && wish.error().code != ErrorCode::kDeadline) return fail(wish.error());
      const bool fresh = wish && wish->attempt > answered_[index(rank)];
      if (fresh && wish->epoch == own_.epoch) {
        joined[index(rank)] = wish->attempt;
        continue;
      }
      joined[index(rank)] = 0;
      const bool waits = wish && wish->epoch == kWaiting;
      if (!waits && ((wish && wish->epoch == kGone) || (!fresh && gone(rank)))) {
        TROUPE_TRY_VOID(refuse_all(joined, fmt::format("{}{}", kGoneWord, rank)));
        return fail(labels_.gone(rank));
      }
      if (fresh && !waits) {
        const std::string text =
            fmt::format("{} rebuilds to epoch {} but {} to epoch {}", labels_.describe(0),
                        own_.epoch, labels_.describe(rank), wish->epoch);
        TROUPE_TRY_VOID(answer(rank, wish->attempt, fmt::format("{}{}", kConflictWord, text)));
        if (wish->epoch > own_.epoch) return fail(labels_.error(ErrorCode::kConflict, rank, text));
      }
      if (missing.empty()) first_missing = rank;
      missing += (missing.empty() ? "" : ", ") + labels_.describe(rank);
    }
    if (missing.empty()) break;
    TROUPE_TRY_VOID(store_->set(key("missing", 0), missing));
    if (deadline.passed()) {
      return fail(labels_.error(
          ErrorCode::kDeadline, first_missing,
          fmt::format("rebuild to epoch {}: deadline passed, missing {}", own_.epoch, missing)));
    }
    std::this_thread::sleep_for(pause);
  }
  const std::string tag = fmt::format("{}.{}", own_.epoch, own_.attempt);
  TROUPE_TRY_VOID(refuse_all(joined, fmt::format("{}{}", kGo, tag)));
  return tag;
}

/// The other ranks: what rank 0 says to this rank's wish.
result<std::string> GlooRendezvous::await_answer(Deadline deadline) {
  for (;;) {
    const Deadline slice = at_most(deadline, 2 * kLookLast);
    const auto text = store_->get(answer_key(options_.rank, own_.attempt), slice);
    if (text) {
      own_.attempt += 1;  // used up
      if (text->starts_with(kGo)) return text->substr(kGo.size());
      if (text->starts_with(kConflictWord))
        return fail(labels_.error(ErrorCode::kConflict, 0, text->substr(kConflictWord.size())));
      int rank = 0;
      std::istringstream(text->substr(std::min(text->size(), kGoneWord.size()))) >> rank;
      return fail(labels_.gone(std::clamp(rank, 0, labels_.size() - 1)));
    }
    if (text.error().code != ErrorCode::kDeadline) return fail(text.error());
    const auto first = wish_of(0, Deadline::in(kLookWait));
    if (first && first->epoch == kGone) return fail(labels_.gone(0));
    if (!deadline.passed()) continue;
    std::string missing = labels_.describe(0);
    if (first && first->epoch == own_.epoch) {
      const auto named = store_->get(key("missing", 0), Deadline::in(kLookWait));
      if (named) missing = *named;
    }
    return fail(labels_.error(
        ErrorCode::kDeadline, 0,
        fmt::format("rebuild to epoch {}: deadline passed, missing {}", own_.epoch, missing)));
  }
}

result<std::unique_ptr<GlooLinks>> GlooRendezvous::meet(std::int64_t epoch,
                                                        const std::function<bool(int)>& gone,
                                                        Deadline deadline) {
  const bool stands = own_.epoch == epoch && own_.attempt > answered_[index(options_.rank)];
  if (!stands) TROUPE_TRY_VOID(post({epoch, own_.attempt + 1}));
  std::string tag;
  if (options_.rank == 0) {
    TROUPE_TRY(tag, gather(gone, deadline));
  } else {
    auto answered = await_answer(deadline);
    if (!answered && answered.error().code == ErrorCode::kDeadline)
      return fail(std::move(answered).error());
    answered_[index(options_.rank)] = own_.attempt;
    TROUPE_TRY(tag, std::move(answered));
  }
  return GlooLinks::connect({.name = options_.name,
                             .rank = options_.rank,
                             .size = options_.size,
                             .host = options_.host,
                             .prefix = fmt::format("{}/links/{}/", options_.name, tag),
                             .connect_wait = options_.answer_wait},
                            *store_);
}

}  // namespace troupe::runtime
