#pragma once

// Slices between processes: wire forms of `AdvanceRequest` and `AdvanceReply`.
//
// Trajectories travel as one frame of actors/pacing/trajectory_codec. News travels in columns: the
// pieces of all attempts one behind the other, versions as runs, and ends apart, since most news
// has none. Bytes of a reply are about 12 a token.
// **Threads:** stateless.
// **Invariants:** as runtime/wire: what decodes encodes again to an equal value; counts that do not
// add up are kCorrupt.

#include "actors/loops/streaming.hpp"
#include "runtime/wire/wire.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace troupe::actors {

struct AdvanceRequestRecord {
  std::vector<std::uint64_t> attempts;
  std::vector<std::byte> trajectories;  ///< one for each of `attempts`
  std::vector<std::uint64_t> stops;
  std::int64_t steps_max = 0;
  Duration slice{0};

  static constexpr auto fields() {
    using runtime::field;
    using T = AdvanceRequestRecord;
    return std::tuple{field("attempts", &T::attempts), field("trajectories", &T::trajectories),
                      field("stops", &T::stops), field("steps_max", &T::steps_max),
                      field("slice", &T::slice)};
  }
};

/// How the attempt of news number `news` ended.
struct NewsEndRecord {
  std::uint64_t news = 0;
  AttemptOutcome outcome = AttemptOutcome::kInterrupted;
  StopReason reason = StopReason::kAborted;
  std::vector<std::byte> text;  ///< any bytes: a token may end inside a character
  std::optional<Error> error;

  static constexpr auto fields() {
    using runtime::field;
    using T = NewsEndRecord;
    return std::tuple{field("news", &T::news), field("outcome", &T::outcome),
                      field("reason", &T::reason), field("text", &T::text),
                      field("error", &T::error)};
  }
};

struct AdvanceReplyRecord {
  // One entry for each news.
  std::vector<std::uint64_t> attempts;
  std::vector<std::int64_t> from;
  std::vector<std::uint32_t> tokens_count;
  // One entry for each token.
  std::vector<std::int32_t> tokens;
  std::vector<float> log_probs;
  std::vector<float> full_log_probs;
  // Runs of equal versions over all tokens.
  std::vector<std::int64_t> run_version;
  std::vector<std::uint32_t> run_count;
  std::vector<NewsEndRecord> ends;  ///< by news, rising
  std::int64_t samples_free = 0;
  std::int64_t tokens_free = 0;
  WeightVersion version{};
  std::int64_t steps = 0;
  runtime::Metrics metrics;

  static constexpr auto fields() {
    using runtime::field;
    using T = AdvanceReplyRecord;
    return std::tuple{field("attempts", &T::attempts),
                      field("from", &T::from),
                      field("tokens_count", &T::tokens_count),
                      field("tokens", &T::tokens),
                      field("log_probs", &T::log_probs),
                      field("full_log_probs", &T::full_log_probs),
                      field("run_version", &T::run_version),
                      field("run_count", &T::run_count),
                      field("ends", &T::ends),
                      field("samples_free", &T::samples_free),
                      field("tokens_free", &T::tokens_free),
                      field("version", &T::version),
                      field("steps", &T::steps),
                      field("metrics", &T::metrics)};
  }
};

result<AdvanceRequestRecord> record_of(const AdvanceRequest& request);
result<AdvanceRequest> request_of(const AdvanceRequestRecord& record);
AdvanceReplyRecord record_of(const AdvanceReply& reply);
result<AdvanceReply> reply_of(const AdvanceReplyRecord& record);

}  // namespace troupe::actors

namespace troupe::runtime {

template <>
struct WireTraits<actors::AdvanceRequest> {
  using Record = WireTraits<actors::AdvanceRequestRecord>;
  static void write(WireWriter out, const actors::AdvanceRequest& request);
  static result<actors::AdvanceRequest> read(const WireReader& in);
  static void describe(WireSignature& signature) { Record::describe(signature); }
};

template <>
struct WireTraits<actors::AdvanceReply> {
  using Record = WireTraits<actors::AdvanceReplyRecord>;
  static void write(WireWriter out, const actors::AdvanceReply& reply);
  static result<actors::AdvanceReply> read(const WireReader& in);
  static void describe(WireSignature& signature) { Record::describe(signature); }
};

}  // namespace troupe::runtime
