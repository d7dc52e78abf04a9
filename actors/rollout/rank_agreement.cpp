#include "actors/rollout/rank_agreement.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

namespace troupe::actors {
namespace {

using Numbers = std::array<std::int64_t, kClaimNumbers>;

/// Of a vote: success, then the digest of the subject, then the error's text.
constexpr std::size_t kVoteHeader = 1 + sizeof(std::int64_t);
constexpr std::size_t kVoteTextMax = 1024;

std::string_view refusal_text(std::int64_t refusal) {
  if (refusal == RankClaim::kKv) return "its KV cache is released";
  return refusal == RankClaim::kWeights ? "it has no whole weights" : "it refused the request";
}

/// The first field in which two claims differ, in words; empty when they agree.
std::string difference(const RankClaim& a, const RankClaim& b) {
  if (a.action != b.action) return "calls another function";
  if (a.version != b.version)
    return fmt::format("serves weight version {}, not {}", b.version, a.version);
  if (a.history != b.history)
    return fmt::format(
        "has another history of submissions, aborts and tokens ({:016x}, not {:016x})",
        static_cast<std::uint64_t>(b.history), static_cast<std::uint64_t>(a.history));
  if (a.plan != b.plan)
    return fmt::format("would run another batch ({:016x}, not {:016x})",
                       static_cast<std::uint64_t>(b.plan), static_cast<std::uint64_t>(a.plan));
  return {};
}

std::vector<std::byte> vote_bytes(const result<void>& local, std::int64_t subject) {
  const std::string text =
      local ? std::string() : local.error().to_string().substr(0, kVoteTextMax);
  std::vector<std::byte> bytes(kVoteHeader + text.size());
  bytes[0] = std::byte{local ? std::uint8_t{1} : std::uint8_t{0}};
  std::memcpy(bytes.data() + 1, &subject, sizeof(subject));
  if (!text.empty()) std::memcpy(bytes.data() + kVoteHeader, text.data(), text.size());
  return bytes;
}

}  // namespace

RankAgreement::RankAgreement(runtime::Collective& group, Duration timeout)
    : group_(&group),
      timeout_(timeout),
      claims_(static_cast<std::size_t>(group.size()) * kClaimNumbers) {}

result<Verdict> RankAgreement::compare(const RankClaim& claim) {
  const auto mine = std::bit_cast<Numbers>(claim);
  TROUPE_TRY_VOID(group_->all_gather(mine, claims_, deadline()));
  const auto claim_of = [&](int rank) {
    Numbers numbers;
    std::copy_n(claims_.begin() + rank * static_cast<std::ptrdiff_t>(kClaimNumbers), kClaimNumbers,
                numbers.begin());
    return std::bit_cast<RankClaim>(numbers);
  };
  for (int rank = 0; rank < size(); ++rank)
    if (const std::int64_t refusal = claim_of(rank).refusal; refusal != RankClaim::kNone)
      return fail(ErrorCode::kConflict, "rollout engine: tensor-parallel rank {} cannot run: {}",
                  rank, refusal_text(refusal));
  bool expired = false;
  for (int rank = 0; rank < size(); ++rank) {
    const RankClaim other = claim_of(rank);
    if (const std::string differs = difference(claim_of(0), other); !differs.empty())
      return fail(ErrorCode::kConflict,
                  "rollout engine: tensor-parallel rank {} differs from rank 0: it {}", rank,
                  differs);
    expired = expired || other.expired != 0;
  }
  return expired ? Verdict::kExpired : Verdict::kGo;
}

result<void> RankAgreement::vote(std::string_view what, const result<void>& local,
                                 std::int64_t subject) {
  const std::vector<std::byte> mine = vote_bytes(local, subject);
  auto votes = group_->all_gather_bytes(mine, deadline());
  if (!local) return local;
  if (!votes) return fail(std::move(votes).error());
  for (std::size_t rank = 0; rank < votes->size(); ++rank) {
    const std::vector<std::byte>& bytes = (*votes)[rank];
    if (bytes.size() < kVoteHeader)
      return fail(ErrorCode::kCorrupt, "rollout engine: {}: vote of rank {} has {} bytes", what,
                  rank, bytes.size());
    if (bytes[0] == std::byte{1}) continue;
    const std::string text(reinterpret_cast<const char*>(bytes.data()) + kVoteHeader,
                           bytes.size() - kVoteHeader);
    return fail(ErrorCode::kAborted, "rollout engine: {}: tensor-parallel rank {} refused: {}",
                what, rank, text);
  }
  for (std::size_t rank = 0; rank < votes->size(); ++rank) {
    const auto subject_of = [&](std::size_t of) {
      std::int64_t value = 0;
      std::memcpy(&value, (*votes)[of].data() + 1, sizeof(value));
      return value;
    };
    if (subject_of(rank) != subject_of(0))
      return fail(ErrorCode::kConflict,
                  "rollout engine: {}: tensor-parallel rank {} differs from rank 0 ({:016x}, not "
                  "{:016x})",
                  what, rank, static_cast<std::uint64_t>(subject_of(rank)),
                  static_cast<std::uint64_t>(subject_of(0)));
  }
  return {};
}

result<std::int64_t> RankAgreement::minimum(std::int64_t value) {
  return runtime::all_reduce_value(*group_, value, runtime::ReduceOp::kMin, deadline());
}

}  // namespace troupe::actors
