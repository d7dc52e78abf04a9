#include "actors/pacing/trajectory.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace troupe::actors {
namespace {

std::string place_of(const Trajectory& one) {
  return fmt::format("trajectory of group {} sample {}", one.group, one.sample_index);
}

/// Log-probs travel as bits: the same sample resumed gives the same ones, or it is another sample.
bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

result<void> check_lengths(const Trajectory& one) {
  const std::size_t count = one.tokens.size();
  if (one.log_probs.size() != count || one.full_log_probs.size() != count ||
      one.versions.size() != count || one.mask.size() != count)
    return fail(ErrorCode::kInvalidArgument,
                "{}: {} tokens, {} log-probs, {} full log-probs, {} versions, {} masks",
                place_of(one), count, one.log_probs.size(), one.full_log_probs.size(),
                one.versions.size(), one.mask.size());
  if (one.prompt.empty())
    return fail(ErrorCode::kInvalidArgument, "{}: prompt has 0 tokens, wanted ≥ 1", place_of(one));
  if (one.sampler_position != one.prompt.size() + count)
    return fail(ErrorCode::kInvalidArgument,
                "{}: sampler position {}, but prompt {} + tokens {} = {}", place_of(one),
                one.sampler_position, one.prompt.size(), count, one.prompt.size() + count);
  if (one.turn_begin < 0 || one.turn_begin > one.length())
    return fail(ErrorCode::kInvalidArgument, "{}: turn begins at {} of {} tokens", place_of(one),
                one.turn_begin, count);
  if (one.length() > one.sampling.max_new_tokens)
    return fail(ErrorCode::kInvalidArgument, "{}: {} tokens, max_new_tokens is {}", place_of(one),
                count, one.sampling.max_new_tokens);
  return {};
}

result<void> check_tokens(const Trajectory& one) {
  const auto negative = [](std::int32_t token) { return token < 0; };
  if (std::ranges::any_of(one.prompt, negative) || std::ranges::any_of(one.tokens, negative))
    return fail(ErrorCode::kInvalidArgument, "{}: a token id is negative", place_of(one));
  for (std::size_t i = 0; i < one.tokens.size(); ++i) {
    const WeightVersion version = one.versions[i];
    const bool sampled = version != kNoVersion;
    if (version < kNoVersion)
      return fail(ErrorCode::kInvalidArgument, "{}: token {} has version {}", place_of(one), i,
                  version.value);
    if (one.mask[i] > 1 || (one.mask[i] == 1 && !sampled))
      return fail(ErrorCode::kInvalidArgument, "{}: token {} has mask {} and version {}",
                  place_of(one), i, one.mask[i], version.value);
    if (std::isnan(one.log_probs[i]) || std::isnan(one.full_log_probs[i]))
      return fail(ErrorCode::kInvalidArgument, "{}: token {} has log-probs {} and {}",
                  place_of(one), i, one.log_probs[i], one.full_log_probs[i]);
    if (!sampled && (one.log_probs[i] != 0.0F || one.full_log_probs[i] != 0.0F))
      return fail(ErrorCode::kInvalidArgument, "{}: token {} was not sampled, log-probs {} and {}",
                  place_of(one), i, one.log_probs[i], one.full_log_probs[i]);
    if (!sampled && static_cast<std::int64_t>(i) >= one.turn_begin)
      return fail(ErrorCode::kInvalidArgument,
                  "{}: token {} is the environment's, but the turn begins at {}", place_of(one), i,
                  one.turn_begin);
  }
  return {};
}

/// The answer must repeat the prefix that was sent, bit for bit.
result<void> check_prefix(const Trajectory& one, const GeneratedSequence& answer) {
  const auto begin = static_cast<std::size_t>(one.turn_begin);
  const std::size_t had = one.tokens.size() - begin;
  if (answer.tokens.size() < had)
    return fail(ErrorCode::kConflict, "{}: answer of {} tokens to a prefix of {}", place_of(one),
                answer.tokens.size(), had);
  for (std::size_t i = 0; i < had; ++i) {
    const std::size_t at = begin + i;
    if (answer.tokens[i] != one.tokens[at] || answer.versions[i] != one.versions[at] ||
        !same_bits(answer.log_probs[i], one.log_probs[at]) ||
        !same_bits(answer.full_log_probs[i], one.full_log_probs[at]))
      return fail(ErrorCode::kConflict,
                  "{}: token {} is {} of version {}, the answer says {} of version {}",
                  place_of(one), at, one.tokens[at], one.versions[at].value, answer.tokens[i],
                  answer.versions[i].value);
  }
  return {};
}

}  // namespace

void VersionSpan::add(WeightVersion version) {
  if (version == kNoVersion) return;
  oldest = empty() ? version : std::min(oldest, version);
  newest = std::max(newest, version);
}

void VersionSpan::add(const VersionSpan& other) {
  add(other.oldest);
  add(other.newest);
}

Trajectory Trajectory::begin(std::uint64_t group, std::uint64_t prompt_id,
                             std::uint32_t sample_index, WeightVersion issued_at,
                             std::vector<std::int32_t> prompt, SamplingOptions sampling) {
  Trajectory made;
  made.group = group;
  made.prompt_id = prompt_id;
  made.sample_index = sample_index;
  made.issued_at = issued_at;
  made.sampler_position = prompt.size();
  made.prompt = std::move(prompt);
  made.sampling = std::move(sampling);
  return made;
}

result<void> Trajectory::check() const {
  if (auto checked = sampling.check(); !checked)
    return fail(std::move(checked).error().wrap(ErrorCode::kInvalidArgument, place_of(*this)));
  TROUPE_TRY_VOID(check_lengths(*this));
  TROUPE_TRY_VOID(check_tokens(*this));
  if (issued_at.value < 0)
    return fail(ErrorCode::kInvalidArgument, "{}: issued at version {}", place_of(*this),
                issued_at.value);
  if (score && !std::isfinite(*score))
    return fail(ErrorCode::kInvalidArgument, "{}: score {}", place_of(*this), *score);
  const bool ended = reason != StopReason::kAborted && reason != StopReason::kFailed;
  if (state == TrajectoryState::kPartial && score)
    return fail(ErrorCode::kInvalidArgument, "{}: partial, but has score {}", place_of(*this),
                *score);
  if (state == TrajectoryState::kPartial && ended)
    return fail(ErrorCode::kInvalidArgument, "{}: partial, but ended by {}", place_of(*this),
                stop_reason_name(reason));
  return {};
}

VersionSpan Trajectory::span() const {
  VersionSpan span;
  for (const WeightVersion version : versions) span.add(version);
  return span;
}

result<GenerateRequest> Trajectory::resume_request() const { return resume_group({this, 1}); }

result<void> Trajectory::absorb(const GeneratedSequence& answer) {
  if (answer.prompt_id != prompt_id || answer.sample_index != sample_index)
    return fail(ErrorCode::kConflict, "{}: of prompt {}, the answer is of prompt {} sample {}",
                place_of(*this), prompt_id, answer.prompt_id, answer.sample_index);
  if (answer.reason == StopReason::kFailed)
    return fail(answer.error.value_or(Error{.code = ErrorCode::kInternal,
                                            .message = place_of(*this) + ": failed",
                                            .origin = {},
                                            .causes = {}}));
  const std::size_t count = answer.tokens.size();
  if (answer.log_probs.size() != count || answer.full_log_probs.size() != count ||
      answer.versions.size() != count)
    return fail(ErrorCode::kConflict,
                "{}: answer of {} tokens, {} log-probs, {} full log-probs, {} versions",
                place_of(*this), count, answer.log_probs.size(), answer.full_log_probs.size(),
                answer.versions.size());
  TROUPE_TRY_VOID(check_prefix(*this, answer));
  const std::size_t had = tokens.size() - static_cast<std::size_t>(turn_begin);
  const bool whole = answer.reason != StopReason::kAborted;
  if (state == TrajectoryState::kFinished) {
    if (count == had && (answer.reason == reason || !whole)) return {};  // the same answer again
    return fail(ErrorCode::kConflict, "{}: ended by {} at {} tokens, the answer has {}",
                place_of(*this), stop_reason_name(reason), had, count);
  }
  if (static_cast<std::int64_t>(count - had) > budget_left())
    return fail(ErrorCode::kConflict, "{}: {} more tokens, the budget has {}", place_of(*this),
                count - had, budget_left());
  const auto append = [had](auto& to, const auto& from) {
    to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(had), from.end());
  };
  append(tokens, answer.tokens);
  append(log_probs, answer.log_probs);
  append(full_log_probs, answer.full_log_probs);
  append(versions, answer.versions);
  mask.resize(tokens.size(), 1);
  sampler_position = prompt.size() + tokens.size();
  reason = answer.reason;
  text = answer.text;
  if (whole) state = TrajectoryState::kFinished;
  return {};
}

result<void> Trajectory::extend(std::int64_t from, const SamplePrefix& piece,
                                std::optional<StopReason> ended, std::string_view text_of_turn) {
  const std::size_t count = piece.tokens.size();
  if (piece.log_probs.size() != count || piece.full_log_probs.size() != count ||
      piece.versions.size() != count)
    return fail(ErrorCode::kConflict,
                "{}: piece of {} tokens, {} log-probs, {} full log-probs, {} versions",
                place_of(*this), count, piece.log_probs.size(), piece.full_log_probs.size(),
                piece.versions.size());
  if (from < turn_begin || from > length())
    return fail(ErrorCode::kConflict, "{}: piece begins at {}, wanted {} (this turn) to {}",
                place_of(*this), from, turn_begin, length());
  const auto begin = static_cast<std::size_t>(from);
  const std::size_t had = std::min(tokens.size() - begin, count);
  for (std::size_t i = 0; i < had; ++i) {
    const std::size_t at = begin + i;
    if (piece.tokens[i] != tokens[at] || piece.versions[i] != versions[at] ||
        !same_bits(piece.log_probs[i], log_probs[at]) ||
        !same_bits(piece.full_log_probs[i], full_log_probs[at]))
      return fail(ErrorCode::kConflict,
                  "{}: token {} is {} of version {}, the piece says {} of version {}",
                  place_of(*this), at, tokens[at], versions[at].value, piece.tokens[i],
                  piece.versions[i].value);
  }
  const std::size_t added = count - had;
  const bool repeated = ended && reason == *ended && begin + count == tokens.size();
  if (state == TrajectoryState::kFinished && (added > 0 || (ended && !repeated)))
    return fail(ErrorCode::kConflict, "{}: ended by {} at {} tokens, the piece adds {}",
                place_of(*this), stop_reason_name(reason), tokens.size(), added);
  if (static_cast<std::int64_t>(added) > budget_left())
    return fail(ErrorCode::kConflict, "{}: {} more tokens, the budget has {}", place_of(*this),
                added, budget_left());
  if (ended && (*ended == StopReason::kAborted || *ended == StopReason::kFailed))
    return fail(ErrorCode::kConflict, "{}: a turn does not end by {}", place_of(*this),
                stop_reason_name(*ended));
  const auto append = [had](auto& to, const auto& more) {
    to.insert(to.end(), more.begin() + static_cast<std::ptrdiff_t>(had), more.end());
  };
  append(tokens, piece.tokens);
  append(log_probs, piece.log_probs);
  append(full_log_probs, piece.full_log_probs);
  append(versions, piece.versions);
  mask.resize(tokens.size(), 1);
  sampler_position = prompt.size() + tokens.size();
  if (!ended) return {};
  state = TrajectoryState::kFinished;
  reason = *ended;
  text = text_of_turn;
  return {};
}

result<void> Trajectory::append_environment(std::span<const std::int32_t> added,
                                            std::vector<std::byte> environment_state) {
  if (static_cast<std::int64_t>(added.size()) >= budget_left())
    return fail(ErrorCode::kConflict, "{}: {} tokens of the environment, the budget has {}",
                place_of(*this), added.size(), budget_left());
  tokens.insert(tokens.end(), added.begin(), added.end());
  log_probs.resize(tokens.size(), 0.0F);
  full_log_probs.resize(tokens.size(), 0.0F);
  versions.resize(tokens.size(), kNoVersion);
  mask.resize(tokens.size(), 0);
  sampler_position = prompt.size() + tokens.size();
  turn_begin = length();
  environment = std::move(environment_state);
  state = TrajectoryState::kPartial;
  reason = StopReason::kAborted;
  text.clear();
  score.reset();
  return {};
}

void Trajectory::rewind(std::int64_t to) {
  TROUPE_CHECK(to >= turn_begin && to <= length(),
               "{}: rewind to {} of {} tokens, turn begins at "
               "{}",
               place_of(*this), to, length(), turn_begin);
  const auto count = static_cast<std::size_t>(to);
  tokens.resize(count);
  log_probs.resize(count);
  full_log_probs.resize(count);
  versions.resize(count);
  mask.resize(count);
  sampler_position = prompt.size() + count;
  state = TrajectoryState::kPartial;
  reason = StopReason::kAborted;
  text.clear();
  score.reset();
}

std::int64_t Trajectory::mask_older_than(WeightVersion oldest) {
  std::int64_t masked = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (mask[i] == 0 || versions[i] >= oldest) continue;
    mask[i] = 0;
    ++masked;
  }
  return masked;
}

std::int64_t Trajectory::tokens_in_loss() const {
  return std::ranges::count(mask, std::uint8_t{1});
}

result<GenerateRequest> resume_group(std::span<const Trajectory> samples) {
  if (samples.empty()) return fail(ErrorCode::kInvalidArgument, "resume: 0 samples, wanted ≥ 1");
  const Trajectory& front = samples.front();
  const auto turn = static_cast<std::ptrdiff_t>(front.turn_begin);
  GenerateRequest request;
  request.prompt_id = front.prompt_id;
  request.sample_indices.clear();
  request.prompt = front.prompt;
  request.prompt.insert(request.prompt.end(), front.tokens.begin(), front.tokens.begin() + turn);
  request.sampling = front.sampling;
  request.sampling.max_new_tokens -= static_cast<std::int32_t>(front.turn_begin);
  for (const Trajectory& one : samples) {
    TROUPE_TRY_VOID(one.check());
    if (one.state == TrajectoryState::kFinished || one.budget_left() < 1)
      return fail(ErrorCode::kConflict, "{}: ended by {}, {} tokens of its budget are left",
                  place_of(one), stop_reason_name(one.reason), one.budget_left());
    if (one.group != front.group || one.prompt_id != front.prompt_id ||
        one.prompt != front.prompt || one.sampling != front.sampling ||
        one.turn_begin != front.turn_begin ||
        !std::equal(one.tokens.begin(), one.tokens.begin() + turn, front.tokens.begin()))
      return fail(ErrorCode::kConflict, "{}: prompt, turn or sampling differ from those of {}",
                  place_of(one), place_of(front));
    request.sample_indices.push_back(one.sample_index);
    request.prefixes.push_back(
        {.tokens = {one.tokens.begin() + turn, one.tokens.end()},
         .log_probs = {one.log_probs.begin() + turn, one.log_probs.end()},
         .full_log_probs = {one.full_log_probs.begin() + turn, one.full_log_probs.end()},
         .versions = {one.versions.begin() + turn, one.versions.end()}});
  }
  return request;
}

}  // namespace troupe::actors
