#include "actors/roles/streaming_wire.hpp"

#include "actors/pacing/trajectory_codec.hpp"

#include <cstring>
#include <string>
#include <utility>

namespace troupe::actors {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

void append(const SamplePrefix& piece, AdvanceReplyRecord& record) {
  const auto join = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  record.tokens_count.push_back(static_cast<std::uint32_t>(piece.tokens.size()));
  join(record.tokens, piece.tokens);
  join(record.log_probs, piece.log_probs);
  join(record.full_log_probs, piece.full_log_probs);
  for (const WeightVersion version : piece.versions) {
    if (record.run_version.empty() || record.run_version.back() != version.value) {
      record.run_version.push_back(version.value);
      record.run_count.push_back(0);
    }
    ++record.run_count.back();
  }
}

/// Runs are expanded only up to the tokens that are really there.
result<std::vector<WeightVersion>> versions_of(const AdvanceReplyRecord& record) {
  if (record.run_version.size() != record.run_count.size())
    return fail(ErrorCode::kCorrupt, ": {} versions of {} runs", record.run_version.size(),
                record.run_count.size());
  std::vector<WeightVersion> versions;
  versions.reserve(record.tokens.size());
  for (std::size_t i = 0; i < record.run_version.size(); ++i) {
    const std::size_t count = record.run_count[i];
    const bool repeats = i > 0 && record.run_version[i] == record.run_version[i - 1];
    if (count == 0 || repeats || count > record.tokens.size() - versions.size())
      return fail(ErrorCode::kCorrupt, ": run {} of {} tokens of version {} at token {} of {}", i,
                  count, record.run_version[i], versions.size(), record.tokens.size());
    versions.insert(versions.end(), count, WeightVersion{record.run_version[i]});
  }
  if (versions.size() != record.tokens.size())
    return fail(ErrorCode::kCorrupt, ": {} versions for {} tokens", versions.size(),
                record.tokens.size());
  return versions;
}

result<void> check_columns(const AdvanceReplyRecord& record) {
  const std::size_t news = record.attempts.size();
  if (record.from.size() != news || record.tokens_count.size() != news)
    return fail(ErrorCode::kCorrupt, ": {} attempts, {} places, {} counts", news,
                record.from.size(), record.tokens_count.size());
  std::size_t tokens = 0;
  for (const std::uint32_t count : record.tokens_count) tokens += count;
  if (record.tokens.size() != tokens || record.log_probs.size() != tokens ||
      record.full_log_probs.size() != tokens)
    return fail(ErrorCode::kCorrupt, ": {} tokens counted, {} there, {} and {} log-probs", tokens,
                record.tokens.size(), record.log_probs.size(), record.full_log_probs.size());
  return {};
}

result<void> read_ends(const AdvanceReplyRecord& record, std::vector<SampleNews>& news) {
  std::size_t next = 0;
  for (const NewsEndRecord& end : record.ends) {
    if (end.news < next || end.news >= news.size())
      return fail(ErrorCode::kCorrupt, ": end of news {}, wanted {} to {}", end.news, next,
                  news.size());
    SampleNews& one = news[end.news];
    one.ended = true;
    one.outcome = end.outcome;
    one.reason = end.reason;
    one.text.assign(reinterpret_cast<const char*>(end.text.data()), end.text.size());
    one.error = end.error;
    next = end.news + 1;
  }
  return {};
}

}  // namespace

result<AdvanceRequestRecord> record_of(const AdvanceRequest& request) {
  AdvanceRequestRecord record;
  std::vector<Trajectory> trajectories;
  trajectories.reserve(request.starts.size());
  for (const SampleStart& one : request.starts) {
    record.attempts.push_back(one.attempt);
    trajectories.push_back(one.trajectory);
  }
  if (!trajectories.empty()) {
    TROUPE_TRY(record.trajectories, encode_trajectories(trajectories));
  }
  record.stops = request.stops;
  record.steps_max = request.steps_max;
  record.slice = request.slice;
  return record;
}

result<AdvanceRequest> request_of(const AdvanceRequestRecord& record) {
  AdvanceRequest request{
      .starts = {}, .stops = record.stops, .steps_max = record.steps_max, .slice = record.slice};
  std::vector<Trajectory> trajectories;
  if (!record.trajectories.empty()) {
    TROUPE_TRY(trajectories, decode_trajectories(record.trajectories));
  }
  if (trajectories.size() != record.attempts.size())
    return fail(ErrorCode::kCorrupt, ": {} trajectories for {} attempts", trajectories.size(),
                record.attempts.size());
  for (std::size_t i = 0; i < trajectories.size(); ++i)
    request.starts.push_back(
        {.attempt = record.attempts[i], .trajectory = std::move(trajectories[i])});
  return request;
}

AdvanceReplyRecord record_of(const AdvanceReply& reply) {
  AdvanceReplyRecord record;
  for (const SampleNews& one : reply.news) {
    if (one.ended)
      record.ends.push_back({.news = record.attempts.size(),
                             .outcome = one.outcome,
                             .reason = one.reason,
                             .text = bytes_of(one.text),
                             .error = one.error});
    record.attempts.push_back(one.attempt);
    record.from.push_back(one.from);
    append(one.piece, record);
  }
  record.samples_free = reply.samples_free;
  record.tokens_free = reply.tokens_free;
  record.version = reply.version;
  record.steps = reply.steps;
  record.metrics = reply.metrics;
  return record;
}

result<AdvanceReply> reply_of(const AdvanceReplyRecord& record) {
  TROUPE_TRY_VOID(check_columns(record));
  TROUPE_TRY(const std::vector<WeightVersion> versions, versions_of(record));
  AdvanceReply reply;
  std::ptrdiff_t at = 0;
  for (std::size_t i = 0; i < record.attempts.size(); ++i) {
    const std::ptrdiff_t end = at + static_cast<std::ptrdiff_t>(record.tokens_count[i]);
    const auto cut = [&](const auto& all) {
      return std::decay_t<decltype(all)>(all.begin() + at, all.begin() + end);
    };
    SampleNews& news = reply.news.emplace_back();
    news.attempt = record.attempts[i];
    news.from = record.from[i];
    news.piece = {.tokens = cut(record.tokens),
                  .log_probs = cut(record.log_probs),
                  .full_log_probs = cut(record.full_log_probs),
                  .versions = cut(versions)};
    at = end;
  }
  TROUPE_TRY_VOID(read_ends(record, reply.news));
  reply.samples_free = record.samples_free;
  reply.tokens_free = record.tokens_free;
  reply.version = record.version;
  reply.steps = record.steps;
  reply.metrics = record.metrics;
  return reply;
}

}  // namespace troupe::actors

namespace troupe::runtime {

void WireTraits<actors::AdvanceRequest>::write(WireWriter out,
                                               const actors::AdvanceRequest& request) {
  auto record = actors::record_of(request);
  if (record) return Record::write(out, *record);
  out.fail(std::move(record).error());
}

result<actors::AdvanceRequest> WireTraits<actors::AdvanceRequest>::read(const WireReader& in) {
  TROUPE_TRY(const actors::AdvanceRequestRecord record, Record::read(in));
  auto request = actors::request_of(record);
  if (!request && !request.error().message.starts_with(':'))
    return fail(wire_error_at(std::move(request).error(), "trajectories", '.'));
  return request;
}

void WireTraits<actors::AdvanceReply>::write(WireWriter out, const actors::AdvanceReply& reply) {
  Record::write(out, actors::record_of(reply));
}

result<actors::AdvanceReply> WireTraits<actors::AdvanceReply>::read(const WireReader& in) {
  TROUPE_TRY(const actors::AdvanceReplyRecord record, Record::read(in));
  return actors::reply_of(record);
}

}  // namespace troupe::runtime
