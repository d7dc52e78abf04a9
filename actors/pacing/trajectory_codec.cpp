#include "actors/pacing/trajectory_codec.hpp"

#include "runtime/batch/codec_support.hpp"
#include "runtime/batch/durable_file.hpp"
#include "runtime/batch/frame.hpp"

#include <capnp/serialize.h>
#include <schemas/trajectory.capnp.h>

#include <bit>
#include <cstring>
#include <utility>

namespace troupe::actors {
namespace {

using runtime::FrameFormat;
using runtime::kFramePrefixBytes;
using runtime::list_size;

constexpr FrameFormat kFormat{.place = "trajectories", .magic = "TRPTRAJ\n", .version = 1};

capnp::Data::Reader data_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}
capnp::Data::Reader data_of(const std::string& text) {
  return {reinterpret_cast<const kj::byte*>(text.data()), text.size()};
}

template <class T, class List>
void write_list(const std::vector<T>& values, List out) {
  for (unsigned i = 0; i < out.size(); ++i) out.set(i, values[i]);
}

template <class T, class List>
std::vector<T> read_list(List in) {
  std::vector<T> values;
  values.reserve(in.size());
  for (const auto value : in) values.push_back(value);
  return values;
}

result<void> within(std::string_view what, std::size_t found, std::size_t most, ErrorCode code) {
  if (found > most) return fail(code, "trajectories: {} {}, wanted at most {}", found, what, most);
  return {};
}

result<void> check_limits(const Trajectory& one, const TrajectoryLimits& limits) {
  constexpr ErrorCode kCode = ErrorCode::kResourceExhausted;
  TROUPE_TRY_VOID(
      within("tokens", one.prompt.size() + one.tokens.size(), limits.tokens_max, kCode));
  TROUPE_TRY_VOID(
      within("environment bytes", one.environment.size(), limits.environment_bytes_max, kCode));
  TROUPE_TRY_VOID(within("stop ids", one.sampling.stop_ids.size(), limits.stops_max, kCode));
  return within("stop strings", one.sampling.stop_strings.size(), limits.stops_max, kCode);
}

void write_sampling(const SamplingOptions& sampling, schemas::SamplingRecord::Builder out) {
  out.setTemperature(sampling.temperature);
  out.setTopP(sampling.top_p);
  out.setTopK(sampling.top_k);
  out.setMinP(sampling.min_p);
  out.setRepetitionPenalty(sampling.repetition_penalty);
  out.setFrequencyPenalty(sampling.frequency_penalty);
  out.setPresencePenalty(sampling.presence_penalty);
  out.setMaxNewTokens(sampling.max_new_tokens);
  write_list(sampling.stop_ids, out.initStopIds(list_size(sampling.stop_ids.size())));
  auto strings = out.initStopStrings(list_size(sampling.stop_strings.size()));
  for (unsigned i = 0; i < strings.size(); ++i) strings.set(i, data_of(sampling.stop_strings[i]));
  out.setIgnoreEos(sampling.ignore_eos);
  out.setSeed(sampling.seed);
}

void write_runs(const std::vector<WeightVersion>& versions,
                schemas::TrajectoryRecord::Builder out) {
  std::vector<std::pair<std::int64_t, std::uint32_t>> runs;
  for (const WeightVersion version : versions) {
    if (runs.empty() || runs.back().first != version.value) runs.emplace_back(version.value, 0);
    ++runs.back().second;
  }
  auto list = out.initVersionRuns(list_size(runs.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    list[i].setVersion(runs[i].first);
    list[i].setCount(runs[i].second);
  }
}

void write_one(const Trajectory& one, schemas::TrajectoryRecord::Builder out) {
  out.setGroup(one.group);
  out.setPromptId(one.prompt_id);
  out.setSampleIndex(one.sample_index);
  out.setIssuedAt(one.issued_at.value);
  write_list(one.prompt, out.initPrompt(list_size(one.prompt.size())));
  write_list(one.tokens, out.initTokens(list_size(one.tokens.size())));
  write_list(one.log_probs, out.initLogProbs(list_size(one.log_probs.size())));
  write_list(one.full_log_probs, out.initFullLogProbs(list_size(one.full_log_probs.size())));
  write_runs(one.versions, out);
  out.setMask(data_of(std::as_bytes(std::span(one.mask))));
  write_sampling(one.sampling, out.initSampling());
  out.setSamplerPosition(one.sampler_position);
  out.setTurnBegin(static_cast<std::uint64_t>(one.turn_begin));
  out.setEnvironment(data_of(one.environment));
  out.setFinished(one.state == TrajectoryState::kFinished);
  out.setReason(static_cast<std::uint8_t>(one.reason));
  out.setText(data_of(one.text));
  out.setHasScore(one.score.has_value());
  out.setScore(one.score.value_or(0.0));
}

std::string text_of(capnp::Data::Reader data) {
  return {reinterpret_cast<const char*>(data.begin()), data.size()};
}

result<SamplingOptions> read_sampling(schemas::SamplingRecord::Reader in,
                                      const TrajectoryLimits& limits) {
  constexpr ErrorCode kCode = ErrorCode::kCorrupt;
  const auto ids = in.getStopIds();
  const auto strings = in.getStopStrings();
  TROUPE_TRY_VOID(within("stop ids", ids.size(), limits.stops_max, kCode));
  TROUPE_TRY_VOID(within("stop strings", strings.size(), limits.stops_max, kCode));
  SamplingOptions sampling{.temperature = in.getTemperature(),
                           .top_p = in.getTopP(),
                           .top_k = in.getTopK(),
                           .min_p = in.getMinP(),
                           .repetition_penalty = in.getRepetitionPenalty(),
                           .frequency_penalty = in.getFrequencyPenalty(),
                           .presence_penalty = in.getPresencePenalty(),
                           .max_new_tokens = in.getMaxNewTokens(),
                           .stop_ids = read_list<std::int32_t>(ids),
                           .stop_strings = {},
                           .ignore_eos = in.getIgnoreEos(),
                           .seed = in.getSeed()};
  for (const auto text : strings) sampling.stop_strings.push_back(text_of(text));
  return sampling;
}

/// Runs are expanded only up to the number of tokens that are really there.
result<std::vector<WeightVersion>> read_runs(capnp::List<schemas::VersionRun>::Reader in,
                                             std::size_t wanted) {
  std::vector<WeightVersion> versions;
  versions.reserve(wanted);
  for (const auto run : in) {
    const std::size_t count = run.getCount();
    if (count == 0 || count > wanted - versions.size())
      return fail(ErrorCode::kCorrupt, "trajectories: run of {} versions at token {} of {}", count,
                  versions.size(), wanted);
    if (!versions.empty() && versions.back().value == run.getVersion())
      return fail(ErrorCode::kCorrupt, "trajectories: version {} in two runs at token {}",
                  run.getVersion(), versions.size());
    versions.insert(versions.end(), count, WeightVersion{run.getVersion()});
  }
  return versions;  // `check` compares the count
}

/// The columns. Each list is dereferenced once: every time counts against the traversal limit.
result<void> read_columns(schemas::TrajectoryRecord::Reader in, const TrajectoryLimits& limits,
                          Trajectory& one) {
  constexpr ErrorCode kCode = ErrorCode::kCorrupt;
  const auto prompt = in.getPrompt();
  const auto tokens = in.getTokens();
  const auto log_probs = in.getLogProbs();
  const auto full_log_probs = in.getFullLogProbs();
  const auto mask = in.getMask();
  const auto environment = in.getEnvironment();
  const std::size_t count = tokens.size();
  TROUPE_TRY_VOID(within("tokens", prompt.size() + count, limits.tokens_max, kCode));
  TROUPE_TRY_VOID(within("log-probs", log_probs.size(), count, kCode));
  TROUPE_TRY_VOID(within("full log-probs", full_log_probs.size(), count, kCode));
  TROUPE_TRY_VOID(within("masks", mask.size(), count, kCode));
  TROUPE_TRY_VOID(
      within("environment bytes", environment.size(), limits.environment_bytes_max, kCode));
  if (in.getTurnBegin() > count)
    return fail(kCode, "trajectories: turn begins at {} of {} tokens", in.getTurnBegin(), count);
  one.prompt = read_list<std::int32_t>(prompt);
  one.tokens = read_list<std::int32_t>(tokens);
  one.log_probs = read_list<float>(log_probs);
  one.full_log_probs = read_list<float>(full_log_probs);
  TROUPE_TRY(one.versions, read_runs(in.getVersionRuns(), count));
  one.mask.assign(mask.begin(), mask.end());
  const auto* bytes = reinterpret_cast<const std::byte*>(environment.begin());
  one.environment.assign(bytes, bytes + environment.size());
  return {};
}

result<Trajectory> read_one(schemas::TrajectoryRecord::Reader in, const TrajectoryLimits& limits) {
  constexpr ErrorCode kCode = ErrorCode::kCorrupt;
  if (in.getReason() > static_cast<unsigned>(StopReason::kFailed))
    return fail(kCode, "trajectories: stop reason {}, wanted 0..4", in.getReason());
  if (!in.getHasScore() && std::bit_cast<std::uint64_t>(in.getScore()) != 0)
    return fail(kCode, "trajectories: no score, yet {}", in.getScore());
  Trajectory one;
  TROUPE_TRY_VOID(read_columns(in, limits, one));
  one.group = in.getGroup();
  one.prompt_id = in.getPromptId();
  one.sample_index = in.getSampleIndex();
  one.issued_at = WeightVersion{in.getIssuedAt()};
  TROUPE_TRY(one.sampling, read_sampling(in.getSampling(), limits));
  one.sampler_position = in.getSamplerPosition();
  one.turn_begin = static_cast<std::int64_t>(in.getTurnBegin());
  one.state = in.getFinished() ? TrajectoryState::kFinished : TrajectoryState::kPartial;
  one.reason = static_cast<StopReason>(in.getReason());
  one.text = text_of(in.getText());
  if (in.getHasScore()) one.score = in.getScore();
  TROUPE_TRY_VOID(runtime::as_corrupt(one.check()));
  return one;
}

result<std::vector<Trajectory>> read_all(schemas::TrajectoryList::Reader in,
                                         const TrajectoryLimits& limits) {
  const auto list = in.getTrajectories();
  TROUPE_TRY_VOID(
      within("trajectories", list.size(), limits.trajectories_max, ErrorCode::kCorrupt));
  std::vector<Trajectory> trajectories;
  for (const auto record : list) {
    TROUPE_TRY(Trajectory one, read_one(record, limits));
    trajectories.push_back(std::move(one));
  }
  return trajectories;
}

}  // namespace

result<std::vector<std::byte>> encode_trajectories(std::span<const Trajectory> trajectories,
                                                   const TrajectoryLimits& limits) {
  TROUPE_TRY_VOID(within("trajectories", trajectories.size(), limits.trajectories_max,
                         ErrorCode::kResourceExhausted));
  for (const Trajectory& one : trajectories) {
    TROUPE_TRY_VOID(one.check());
    TROUPE_TRY_VOID(check_limits(one, limits));
  }
  capnp::MallocMessageBuilder message;
  auto list =
      message.initRoot<schemas::TrajectoryList>().initTrajectories(list_size(trajectories.size()));
  for (unsigned i = 0; i < list.size(); ++i) write_one(trajectories[i], list[i]);
  const kj::Array<capnp::word> flat = capnp::messageToFlatArray(message);
  const std::span<const std::byte> header(reinterpret_cast<const std::byte*>(flat.begin()),
                                          flat.size() * sizeof(capnp::word));
  const std::size_t bytes = static_cast<std::size_t>(kFramePrefixBytes) + header.size();
  TROUPE_TRY_VOID(within("bytes", bytes, limits.frame_bytes_max, ErrorCode::kResourceExhausted));
  std::vector<std::byte> frame(bytes);
  runtime::write_frame_prefix(kFormat, header, static_cast<std::int64_t>(bytes), frame);
  std::memcpy(frame.data() + kFramePrefixBytes, header.data(), header.size());
  return frame;
}

result<std::vector<Trajectory>> decode_trajectories(std::span<const std::byte> frame,
                                                    const TrajectoryLimits& limits) {
  const auto most = static_cast<std::int64_t>(limits.frame_bytes_max);
  TROUPE_TRY(const auto header, runtime::open_frame(kFormat, frame,
                                                    {.frame_bytes_max = most,
                                                     .header_bytes_max = most,
                                                     .checksums = limits.checksums}));
  if (static_cast<std::size_t>(kFramePrefixBytes) + header.size() != frame.size())
    return fail(ErrorCode::kCorrupt, "trajectories: message ends at {} of {} bytes",
                static_cast<std::size_t>(kFramePrefixBytes) + header.size(), frame.size());
  runtime::AlignedBytes aligned(header.size());
  std::memcpy(aligned.mutable_bytes().data(), header.data(), header.size());
  const auto bytes = std::as_const(aligned).bytes();
  return runtime::guarded_decode<std::vector<Trajectory>>(
      "trajectories", [&]() -> result<std::vector<Trajectory>> {
        capnp::FlatArrayMessageReader message(runtime::words_of(bytes),
                                              runtime::reader_options(bytes.size()));
        TROUPE_TRY_VOID(runtime::check_end(message.getEnd(), bytes, "trajectories"));
        return read_all(message.getRoot<schemas::TrajectoryList>(), limits);
      });
}

}  // namespace troupe::actors
