#include "reshard/execution/proofs.hpp"

#include "reshard/execution/piece_summer.hpp"
#include "runtime/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace troupe::reshard {
namespace {

constexpr Duration kPauseFirst = std::chrono::microseconds(200);
constexpr Duration kPauseMost = std::chrono::milliseconds(1);

}  // namespace

Proofs::Entry* Proofs::entry(Id id) {
  if (id < first_) return nullptr;
  const Id at = id - first_;
  TROUPE_CHECK(at < entries_.size(), "proofs: piece {} of {}", id, first_ + entries_.size());
  return &entries_[at];
}

Proofs::Id Proofs::expect(const MemberAddress& from, const OpPiece& piece) {
  entries_.push_back({.from = from, .giver = nullptr, .piece = piece, .claimed = {}, .found = {}});
  return first_ + entries_.size() - 1;
}

Proofs::Id Proofs::expect_here(std::shared_ptr<PieceGiver> giver, Member from,
                               const OpPiece& piece) {
  entries_.push_back({.from = {.member = from, .address = {}},
                      .giver = std::move(giver),
                      .piece = piece,
                      .claimed = {},
                      .found = {}});
  return first_ + entries_.size() - 1;
}

void Proofs::ask(const Member& from) {
  std::vector<Id> ids;
  for (Id id = std::max(unasked_, first_); id < first_ + entries_.size(); ++id) {
    const Entry& one = *entry(id);
    if (one.giver == nullptr && one.from.member == from && !one.asked && !one.claimed)
      ids.push_back(id);
    if (ids.size() == kLanePartsMax) break;
  }
  if (!ids.empty()) send(from, ids);
  while (unasked_ < first_ + entries_.size() &&
         (unasked_ < first_ || entry(unasked_)->asked || entry(unasked_)->giver != nullptr))
    ++unasked_;
}

void Proofs::send(const Member& to, const std::vector<Id>& ids) {
  const ColumnKind kind = !context_.checks.tensor_sums ? ColumnKind::kCrc
                          : context_.checks.chunk_crc  ? ColumnKind::kSums
                                                       : ColumnKind::kTensorSum;
  Question question;
  question.to = to;
  question.ids = ids;
  question.answers = std::make_shared<std::vector<PieceSums>>(ids.size());
  std::vector<LanePart> parts;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Entry& one = *entry(ids[i]);
    one.asked = true;
    PieceSums& answer = (*question.answers)[i];
    parts.push_back({kind, one.piece, std::as_writable_bytes(std::span<PieceSums, 1>(&answer, 1))});
  }
  question.outcome = context_.lane->fetch(context_.epoch, entry(ids.front())->from, parts,
                                          question.answers, context_.deadline);
  questions_.push_back(std::move(question));
}

result<void> Proofs::found(Id id, const PieceSums& sums) {
  Entry& one = *entry(id);
  one.found = sums;
  TROUPE_TRY_VOID(compare(one));
  drop_proven();
  return {};
}

result<void> Proofs::claim(Id id, const PieceSums& sums) {
  Entry& one = *entry(id);
  one.claimed = sums;
  TROUPE_TRY_VOID(compare(one));
  drop_proven();
  return {};
}

bool Proofs::is_claimed(Id id) const {
  return id < first_ || entries_[id - first_].claimed.has_value();
}

std::string Proofs::piece_text(const OpPiece& piece) const {
  const Op& op = context_.plan->op(piece.op);
  return fmt::format("tensor {} {}: elements {}+{}", context_.plan->tensor_of(op).name,
                     box_text(op.box()), piece.first, piece.count);
}

result<void> Proofs::compare(const Entry& one) const {
  if (!one.found || !one.claimed) return {};
  if (one.found->crc != one.claimed->crc)
    return fail(ErrorCode::kCorrupt, "target rank {}: {} from {}: crc32c {:08x}, sent as {:08x}",
                context_.rank, piece_text(one.piece), member_text(one.from.member), one.found->crc,
                one.claimed->crc);
  if (one.found->tensor != one.claimed->tensor)
    return fail(ErrorCode::kCorrupt,
                "target rank {}: {} from {}: checksum {:016x}, sent as {:016x}", context_.rank,
                piece_text(one.piece), member_text(one.from.member), one.found->tensor,
                one.claimed->tensor);
  return {};
}

void Proofs::drop_proven() {
  while (!entries_.empty() && entries_.front().found && entries_.front().claimed) {
    entries_.pop_front();
    ++first_;
  }
}

result<bool> Proofs::advance() {
  TROUPE_TRY(const bool answers, take_answers());
  TROUPE_TRY(const bool here, look_here());
  drop_proven();
  if (answers || here)
    pause_ = kPauseFirst;
  else if (steady_now() >= repeat_at_)
    pause_ = std::min(pause_ * 3 / 2, kPauseMost);
  repeat();
  return answers || here;
}

result<bool> Proofs::take_answers() {
  bool moved = false;
  for (std::size_t i = 0; i < questions_.size();) {
    if (!questions_[i].outcome.ready()) {
      ++i;
      continue;
    }
    const Question over = std::move(questions_[i]);
    questions_.erase(questions_.begin() + static_cast<std::ptrdiff_t>(i));
    if (std::optional<Error> error = over.outcome.shared()->error()) {
      const ErrorCode code = error->code;
      failed_ = over.to;
      return fail(
          std::move(*error).wrap(code, fmt::format("target rank {}: sums from {} did not come",
                                                   context_.rank, member_text(over.to))));
    }
    for (std::size_t k = 0; k < over.ids.size(); ++k) {
      Entry* one = entry(over.ids[k]);
      if (one == nullptr) continue;
      one->asked = false;
      const PieceSums& sums = (*over.answers)[k];
      if (sums.known != 1) continue;
      moved = true;
      one->claimed = sums;
      TROUPE_TRY_VOID(compare(*one));
    }
  }
  return moved;
}

result<bool> Proofs::look_here() {
  if (steady_now() < repeat_at_) return false;
  bool moved = false;
  // In the order in which they are summed; what is behind the first that is not known can wait.
  for (Entry& one : entries_) {
    if (one.giver == nullptr || one.claimed) continue;
    // Inside a process bytes have no wire to be spoilt on, and no crc.
    const auto sums = context_.port->summer().look(one.giver, one.piece,
                                                   {.chunk_crc = false, .tensor_sums = true});
    if (!sums) break;
    if (!*sums) {
      Error error = sums->error();
      const ErrorCode code = error.code;
      return fail(std::move(error).wrap(
          code, fmt::format("target rank {}: {} of {}", context_.rank, piece_text(one.piece),
                            member_text(one.from.member))));
    }
    moved = true;
    one.claimed = **sums;
    TROUPE_TRY_VOID(compare(one));
  }
  return moved;
}

/// What was answered "not yet".
void Proofs::repeat() {
  const TimePoint now = steady_now();
  if (now < repeat_at_) return;
  repeat_at_ = now + pause_;
  std::set<Member> busy;
  for (const Question& question : questions_) busy.insert(question.to);
  std::map<Member, std::vector<Id>> again;
  for (Id id = first_; id < std::min(unasked_, first_ + entries_.size()); ++id) {
    const Entry& one = *entry(id);
    if (one.giver != nullptr || one.claimed || one.asked || busy.count(one.from.member) != 0)
      continue;
    std::vector<Id>& ids = again[one.from.member];
    if (ids.size() < kLanePartsMax) ids.push_back(id);
  }
  for (const auto& [member, ids] : again) send(member, ids);
}

std::string Proofs::first_open() const {
  if (entries_.empty()) return "nothing";
  const Entry& one = entries_.front();
  return fmt::format("the sum of {} from {}", piece_text(one.piece), member_text(one.from.member));
}

std::optional<Member> Proofs::first_member() const {
  if (entries_.empty()) return std::nullopt;
  return entries_.front().from.member;
}

std::optional<Member> Proofs::late_source() const {
  for (const Question& one : questions_) {
    const bool late = !one.outcome.ready() || one.outcome.shared()->error();
    if (late && one.to.side == Side::kSource) return one.to;
  }
  return std::nullopt;
}

const runtime::pending<void>* Proofs::answer() const {
  return questions_.empty() ? nullptr : &questions_.front().outcome;
}

}  // namespace troupe::reshard
