#pragma once

// Shared by the tests of streamed rollout: replicas of one or more ranks, a driver that keeps
// trajectories as a controller does, and a clock that the test moves.
// **Threads:** one test, one thread; a replica of several ranks has one thread a rank in a call.

#include "actors/roles/rollout_stream.hpp"
#include "actors/roles/streaming_wire.hpp"
#include "runtime/comm/collective.hpp"
#include "tests/actors/rollout/engine_case.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::actors {

/// Stands still unless somebody sleeps or the test moves it.
class TestClock final : public WaitingClock {
 public:
  explicit TestClock(Duration at = std::chrono::hours(1)) : now_(at) {}
  TimePoint now() const override { return TimePoint(now_); }
  void sleep_for(Duration span) override {
    now_ += span;
    slept_ += span;
  }
  void move(Duration span) { now_ += span; }
  Duration slept() const { return slept_; }

 private:
  Duration now_;
  Duration slept_{0};
};

inline constexpr Duration kLong = std::chrono::minutes(10);
inline Deadline late() { return Deadline::in(kLong); }

/// One engine and its stream. Not movable: streams point at their engines.
struct StreamRank {
  std::unique_ptr<RolloutEngine> engine;
  TestClock clock;
  std::unique_ptr<RolloutStream> stream;

  explicit StreamRank(std::unique_ptr<RolloutEngine> made, const SimulatedDelay& delay = {},
                      Duration at = std::chrono::hours(1))
      : engine(std::move(made)),
        clock(at),
        stream(std::make_unique<RolloutStream>(*engine, delay, clock)) {}
};

inline bool operator==(const SamplePrefix& a, const SamplePrefix& b) {
  return a.tokens == b.tokens && bits_of(a.log_probs) == bits_of(b.log_probs) &&
         bits_of(a.full_log_probs) == bits_of(b.full_log_probs) && a.versions == b.versions;
}

inline bool same_news(const AdvanceReply& a, const AdvanceReply& b) {
  const auto same = [](const SampleNews& x, const SampleNews& y) {
    return x.attempt == y.attempt && x.from == y.from && x.piece == y.piece && x.ended == y.ended &&
           x.outcome == y.outcome && x.reason == y.reason && x.text == y.text;
  };
  return a.news.size() == b.news.size() &&
         std::equal(a.news.begin(), a.news.end(), b.news.begin(), same) && a.steps == b.steps &&
         a.samples_free == b.samples_free && a.tokens_free == b.tokens_free &&
         a.version == b.version;
}

/// A replica of one rank or of several; the ranks must answer alike.
class Replica {
 public:
  Replica(const ModelConfig& config, const WeightSet& weights, EngineOptions options, int ranks = 1,
          const SimulatedDelay& delay = {}) {
    options.tp_timeout = std::chrono::seconds(20);
    if (ranks == 1) {
      ranks_.push_back(std::make_unique<StreamRank>(engine_for(config, weights, options), delay));
      return;
    }
    group_ = runtime::make_local_group(ranks, {.name = "tp"});
    ranks_.resize(static_cast<std::size_t>(ranks));
    on_all([&](std::size_t rank) {
      auto made = RolloutEngine::create(config, options, group_[rank].get());
      TROUPE_CHECK(made.has_value(), "{}", made.error().to_string());
      TROUPE_CHECK((*made)->load_weights(weights.tensors(), WeightVersion{1}).has_value(), "load");
      // Clocks of ranks do not agree: the second one is a second behind.
      const Duration at = std::chrono::hours(1) - std::chrono::seconds(rank);
      ranks_[rank] = std::make_unique<StreamRank>(std::move(*made), delay, at);
    });
  }

  result<AdvanceReply> advance(const AdvanceRequest& request) {
    std::vector<result<AdvanceReply>> replies(ranks_.size(), result<AdvanceReply>(AdvanceReply{}));
    on_all(
        [&](std::size_t rank) { replies[rank] = ranks_[rank]->stream->advance(request, late()); });
    for (const result<AdvanceReply>& other : replies) {
      TROUPE_CHECK(other.has_value() == replies[0].has_value(), "ranks do not agree: {} and {}",
                   other ? "fine" : other.error().to_string(),
                   replies[0] ? "fine" : replies[0].error().to_string());
      if (other) TROUPE_CHECK(same_news(*other, *replies[0]), "ranks answer differently");
    }
    return std::move(replies[0]);
  }

  void on_all(const std::function<void(std::size_t)>& run) {
    if (ranks_.size() == 1) return run(0);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      threads.emplace_back([&run, rank] { run(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  StreamRank& rank(std::size_t index = 0) { return *ranks_[index]; }
  RolloutEngine& engine() { return *ranks_[0]->engine; }

 private:
  std::vector<std::unique_ptr<runtime::Collective>> group_;
  std::vector<std::unique_ptr<StreamRank>> ranks_;
};

/// Through the bytes that processes would exchange.
template <class T>
T over_wire(const T& value) {
  const auto bytes = runtime::encode_value(value);
  TROUPE_CHECK(bytes.has_value(), "{}", bytes.error().to_string());
  auto back = runtime::decode_value<T>(*bytes);
  TROUPE_CHECK(back.has_value(), "{}", back.error().to_string());
  return std::move(*back);
}

/// Keeps the trajectories of attempts, as a controller does.
class Keeper {
 public:
  /// An attempt that goes on from `from`.
  SampleStart start(Trajectory from) {
    const std::uint64_t attempt = next_++;
    kept_.emplace(attempt, from);
    return SampleStart{.attempt = attempt, .trajectory = std::move(from)};
  }

  void take(const AdvanceReply& reply) {
    for (const SampleNews& news : reply.news) {
      const auto place = kept_.find(news.attempt);
      ASSERT_NE(place, kept_.end()) << "attempt " << news.attempt << " has ended, or never began";
      Trajectory& one = place->second;
      ASSERT_EQ(news.from, one.length()) << "attempt " << news.attempt << ": each token once";
      const bool finished = news.ended && news.outcome == AttemptOutcome::kFinished;
      const auto taken = one.extend(
          news.from, news.piece, finished ? std::optional(news.reason) : std::nullopt, news.text);
      ASSERT_TRUE(taken.has_value()) << taken.error().to_string();
      if (!news.ended) continue;
      ended_[news.attempt] = news.outcome;
      done_.emplace(news.attempt, std::move(one));
      kept_.erase(place);
    }
  }

  const std::map<std::uint64_t, Trajectory>& under_way() const { return kept_; }
  const std::map<std::uint64_t, AttemptOutcome>& ended() const { return ended_; }
  const Trajectory& done(std::uint64_t attempt) const { return done_.at(attempt); }
  Trajectory take_done(std::uint64_t attempt) {
    Trajectory one = std::move(done_.at(attempt));
    done_.erase(attempt);
    ended_.erase(attempt);
    return one;
  }

 private:
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, Trajectory> kept_;
  std::map<std::uint64_t, Trajectory> done_;
  std::map<std::uint64_t, AttemptOutcome> ended_;
};

/// One trajectory for each sample of `requests`; group = place of the request.
inline std::vector<Trajectory> trajectories_of(const std::vector<GenerateRequest>& requests) {
  std::vector<Trajectory> made;
  for (std::size_t i = 0; i < requests.size(); ++i)
    for (const std::uint32_t& sample : requests[i].sample_indices)
      made.push_back(Trajectory::begin(i, requests[i].prompt_id, sample, WeightVersion{1},
                                       requests[i].prompt, requests[i].sampling));
  return made;
}

inline void expect_same_sample(const Trajectory& one, const GeneratedSequence& wanted,
                               const std::string& place) {
  SCOPED_TRACE(place);
  EXPECT_EQ(one.tokens, wanted.tokens);
  EXPECT_EQ(bits_of(one.log_probs), bits_of(wanted.log_probs));
  EXPECT_EQ(bits_of(one.full_log_probs), bits_of(wanted.full_log_probs));
  EXPECT_EQ(one.reason, wanted.reason);
  EXPECT_EQ(one.text, wanted.text);
  EXPECT_EQ(one.state, TrajectoryState::kFinished);
}

/// Slices until nothing is under way; the last reply.
inline AdvanceReply run_to_end(Replica& replica, Keeper& keeper,
                               std::vector<SampleStart> starts = {}) {
  AdvanceRequest request{.starts = std::move(starts), .slice = kLong};
  AdvanceReply last;
  for (int slice = 0; slice < 10'000; ++slice) {
    auto reply = replica.advance(request);
    TROUPE_CHECK(reply.has_value(), "{}", reply.error().to_string());
    keeper.take(*reply);
    last = std::move(*reply);
    request.starts.clear();
    if (keeper.under_way().empty() || ::testing::Test::HasFatalFailure()) break;
  }
  return last;
}

inline GenerateRequest plain_request(std::uint64_t id = 1, std::int32_t tokens = 20) {
  GenerateRequest request;
  request.prompt_id = id;
  request.prompt = {5, 9, 14, 3, 2};
  request.sampling.max_new_tokens = tokens;
  request.sampling.seed = 11;
  return request;
}

template <class T>
void expect_refused(const result<T>& outcome, ErrorCode code,
                    const std::vector<std::string>& parts) {
  ASSERT_FALSE(outcome.has_value());
  EXPECT_EQ(outcome.error().code, code) << outcome.error().to_report();
  for (const std::string& part : parts)
    EXPECT_NE(outcome.error().to_report().find(part), std::string::npos)
        << "wanted \"" << part << "\" in: " << outcome.error().to_report();
}

}  // namespace troupe::actors
