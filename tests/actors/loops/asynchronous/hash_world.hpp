#pragma once

// A world whose weights and tokens are hashes of everything that they depend on, on virtual time.
//
// A token is a hash of the weights that sampled it, its key (seed, prompt, sample, position) and
// the token before it; weights after an update are a hash of the weights before and of every number
// in the rows of the batch, in order. So two runs have the same weights if and only if they trained
// on the same rows in the same order, sampled under the same weights. Replicas advance by slices,
// take new weights between slices, die, and come back; rewards and environments fail for a while.
// **Threads:** one.

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/asynchronous.hpp"
#include "actors/loops/synchronous.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/task/executor.hpp"
#include "runtime/task/virtual_clock.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors::testing {

using namespace std::chrono_literals;
using runtime::Batch;
using runtime::Column;
using runtime::Metrics;
using runtime::sleep_for;
using runtime::task;
using runtime::value_or_throw;

struct HashOptions {
  std::int64_t replicas = 2;
  std::int64_t samples_max = 4;  ///< of a replica
  std::uint64_t length_max = 12;
  double sigma = 0.9;        ///< of the log-normal time per token of a sample
  Duration step_time = 2ms;  ///< of an engine step, median
  std::uint64_t seed = 1;    ///< of times; never of tokens
  std::int64_t lent = 0;     ///< the last so many replicas are on the trainer's devices
  bool flat_scores = false;  ///< all the same
  bool environment = false;
  bool critic = false;
  std::int64_t version = 0;  ///< to begin with
  std::uint64_t weights = 42;
  std::optional<SampleId> endless{};  ///< by prompt id and sample: never gets a token
};

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) { return mix_seed(a, b); }

[[noreturn]] inline void die(ErrorCode code, std::string message) {
  throw runtime::Failure(
      Error{.code = code, .message = std::move(message), .origin = {}, .causes = {}});
}

/// What all roles share.
struct HashState {
  HashOptions options;
  runtime::VirtualClock clock{TimePoint(std::chrono::hours(1))};
  Rng times{1};
  std::uint64_t weights = 42;                          ///< the trainer's
  std::int64_t version = 0;                            ///< published
  std::map<std::int64_t, std::uint64_t> weights_of{};  ///< by version
  TimePoint reward_dead_until{};
  TimePoint environment_dead_until{};
  bool reward_dead = false;  ///< for good
  bool environment_dead = false;
  std::vector<Batch> batches{};     ///< of updates, parts joined
  std::vector<Batch> parts{};       ///< of the step under way
  std::int64_t gradient_fails = 0;  ///< next calls of `accumulate` that fail half-way
  std::int64_t steps_abandoned = 0;
  std::uint64_t critic_weights = 4711;
  std::vector<Batch> critic_parts{};
  std::vector<std::int64_t> part_rows{};
  std::int64_t publications = 0;
  std::int64_t messages = 0;  ///< calls that began or were about to be answered
  std::function<void(std::int64_t)> on_message{};

  /// A place where a plan of faults may strike.
  void message() {
    ++messages;
    if (on_message) on_message(messages);
  }

  Duration random_time(Duration median) {
    return Duration(static_cast<std::int64_t>(static_cast<double>(median.count()) *
                                              std::exp(options.sigma * times.normal())));
  }
};

struct HashToken {
  std::int32_t token = 0;
  float log_prob = 0;
  bool last = false;
};

/// The token at `position` behind `before`.
inline HashToken hash_token(std::uint64_t weights, std::uint64_t seed, std::uint64_t prompt,
                            std::uint32_t sample, std::uint64_t position, std::int32_t before) {
  std::uint64_t hash = mix(weights, seed);
  for (const std::uint64_t word :
       {prompt, std::uint64_t{sample}, position, static_cast<std::uint64_t>(before)})
    hash = mix(hash, word);
  return {.token = static_cast<std::int32_t>(hash % 1000),
          .log_prob = -static_cast<float>((hash >> 20) % 4096) / 1024,
          .last = (hash >> 40) % 6 == 0};
}

/// One more token; how it ended, if it did.
inline std::optional<StopReason> sample_token(const HashOptions& options, std::uint64_t weights,
                                              WeightVersion version, const Trajectory& one,
                                              SamplePrefix& piece) {
  const std::uint64_t position = one.sampler_position + piece.tokens.size();
  const std::int32_t before = !piece.tokens.empty() ? piece.tokens.back()
                              : !one.tokens.empty() ? one.tokens.back()
                                                    : one.prompt.back();
  const HashToken made =
      hash_token(weights, one.sampling.seed, one.prompt_id, one.sample_index, position, before);
  piece.tokens.push_back(made.token);
  piece.log_probs.push_back(made.log_prob);
  piece.full_log_probs.push_back(made.log_prob);
  piece.versions.push_back(version);
  const std::int64_t length = one.length() + static_cast<std::int64_t>(piece.tokens.size());
  if (made.last) return StopReason::kStopId;
  const auto most = std::min<std::int64_t>(static_cast<std::int64_t>(options.length_max),
                                           one.sampling.max_new_tokens);
  if (length >= most) return StopReason::kLength;
  return std::nullopt;
}

class HashRollout {
 public:
  explicit HashRollout(HashState& state) : state_(state) {}
  task<Batch> generate(Batch prompts, SamplingOptions sampling) {
    co_await sleep_for(10ms);
    std::vector<Trajectory> all;
    for (std::int64_t row = 0; row < prompts.rows(); ++row) {
      const auto prompt = prompts.column(column::kPrompts).row<std::int32_t>(row);
      Trajectory one = Trajectory::begin(
          0,
          static_cast<std::uint64_t>(prompts.column(column::kPromptIds).scalar<std::int64_t>(row)),
          static_cast<std::uint32_t>(
              prompts.column(column::kSampleIndex).scalar<std::int64_t>(row)),
          WeightVersion{state_.version}, {prompt.begin(), prompt.end()}, sampling);
      SamplePrefix piece;
      std::optional<StopReason> ended;
      while (!ended)
        ended = sample_token(state_.options, state_.weights_of.at(state_.version),
                             WeightVersion{state_.version}, one, piece);
      value_or_throw(one.extend(0, piece, ended));
      all.push_back(std::move(one));
    }
    const Batch columns = value_or_throw(response_columns(all));
    value_or_throw(prompts.merge(columns));
    co_return prompts;
  }
  task<void> sleep(bool) { co_return; }

 private:
  HashState& state_;
};

class HashStreaming {
 public:
  explicit HashStreaming(HashState& state) : state_(state) {
    for (std::int32_t r = 0; r < state.options.replicas; ++r)
      replicas_[RankId{r}] = {.alive = true, .version = state.version};
  }
  std::vector<ReplicaInfo> replicas() {
    std::vector<ReplicaInfo> all;
    for (const auto& [rank, one] : replicas_)
      if (one.alive)
        all.push_back({.replica = rank,
                       .samples_max = state_.options.samples_max,
                       .tokens_max = 1000,
                       .lent = rank.value >= state_.options.replicas - state_.options.lent});
    return all;
  }
  task<AdvanceReply> advance(RankId rank, AdvanceRequest request) {
    state_.message();
    require_alive(rank);
    const std::uint64_t life = replicas_.at(rank).life;
    if (replicas_.at(rank).busy) die(ErrorCode::kConflict, "two slices at once");
    replicas_.at(rank).busy = true;
    const std::int64_t steps = std::min<std::int64_t>(request.steps_max, 4);
    co_await sleep_for(state_.random_time(steps * state_.options.step_time));
    state_.message();
    Replica& own = replicas_.at(rank);
    if (own.life == life) own.busy = false;
    require_alive(rank);
    if (own.life != life) die(ErrorCode::kRankDead, "the replica is another one now");
    for (SampleStart& start : request.starts) {
      EXPECT_TRUE(seen_.insert(start.attempt).second) << "attempt number used twice";
      own.running[start.attempt] = {
          .trajectory = std::move(start.trajectory),
          .slowness = std::exp(state_.options.sigma * state_.times.normal())};
    }
    EXPECT_LE(static_cast<std::int64_t>(own.running.size()), state_.options.samples_max);
    AdvanceReply reply;
    for (auto place = own.running.begin(); place != own.running.end();) {
      const auto here = place++;
      SampleNews news = advance_one(own, here->first, here->second, steps);
      if (!news.ended && std::ranges::count(request.stops, here->first) > 0) news.ended = true;
      if (news.ended) own.running.erase(here);
      if (news.ended || !news.piece.tokens.empty()) reply.news.push_back(std::move(news));
    }
    if (own.next_version) own.version = *std::exchange(own.next_version, std::nullopt);
    reply.steps = steps;
    reply.samples_free = state_.options.samples_max - static_cast<std::int64_t>(own.running.size());
    reply.tokens_free = 1000;
    reply.version = WeightVersion{own.version};
    reply.metrics.add("rollout/steps", static_cast<double>(steps), runtime::Reduction::kSum);
    co_return reply;
  }
  task<void> revive(RankId rank) {
    state_.message();
    co_await sleep_for(state_.random_time(50ms));
    Replica& one = replicas_.at(rank);
    if (one.never_again) die(ErrorCode::kAborted, "its host is gone");
    const std::uint64_t life = one.life + 1;
    one = {.revived = true, .life = life};
  }

  // ---- faults and publications ----
  void kill(RankId rank, bool for_good = false) {
    Replica& one = replicas_.at(rank);
    const std::uint64_t life = one.life + 1;
    one = {.never_again = for_good, .life = life};
  }
  /// Between slices: one replica after the other, as calls in a mailbox.
  task<void> take_weights(std::int64_t version) {
    for (auto& [rank, one] : replicas_) {
      state_.message();
      co_await sleep_for(state_.random_time(1ms));
      one.next_version = version;
      while (one.busy && one.next_version) co_await sleep_for(1ms);
      one.alive = one.alive || one.revived;
      one.revived = false;
      one.version = version;
      one.next_version.reset();
    }
  }
  std::int64_t fails_left = 0;  ///< attempts that end by a failure

 private:
  struct Running {
    Trajectory trajectory{};
    SamplePrefix told{};
    double slowness = 1;
    double credit = 0;
  };
  struct Replica {
    bool alive = false;
    bool revived = false;
    bool never_again = false;
    bool busy = false;
    std::uint64_t life = 0;
    std::int64_t version = 0;
    std::optional<std::int64_t> next_version{};
    std::map<std::uint64_t, Running> running{};
  };
  void require_alive(RankId rank) const {
    if (!replicas_.at(rank).alive) die(ErrorCode::kRankDead, "the replica died");
  }
  SampleNews advance_one(Replica& own, std::uint64_t attempt, Running& one, std::int64_t steps) {
    SampleNews news{.attempt = attempt, .from = one.trajectory.length()};
    one.credit += static_cast<double>(steps) / one.slowness;
    const SampleId id{one.trajectory.prompt_id, one.trajectory.sample_index};
    if (state_.options.endless == id) return news;
    if (fails_left > 0 && one.trajectory.length() > 0) {
      --fails_left;
      news.ended = true;
      news.outcome = AttemptOutcome::kFailed;
      news.reason = StopReason::kFailed;
      news.error =
          Error{.code = ErrorCode::kInternal, .message = "NaN logits", .origin = {}, .causes = {}};
      return news;
    }
    std::optional<StopReason> ended;
    while (one.credit >= 1 && !ended) {
      one.credit -= 1;
      ended = sample_token(state_.options, state_.weights_of.at(own.version),
                           WeightVersion{own.version}, one.trajectory, news.piece);
    }
    value_or_throw(one.trajectory.extend(news.from, news.piece, ended));
    if (!ended) return news;
    news.ended = true;
    news.outcome = AttemptOutcome::kFinished;
    news.reason = *ended;
    return news;
  }

  HashState& state_;
  std::map<RankId, Replica> replicas_;
  std::set<std::uint64_t> seen_;
};

class HashReward {
 public:
  explicit HashReward(HashState& state) : state_(state) {}
  task<Batch> score(Batch batch) {
    const TimePoint begin = state_.clock.now();
    state_.message();
    co_await sleep_for(state_.random_time(3ms));
    state_.message();
    if (state_.reward_dead || begin < state_.reward_dead_until ||
        state_.clock.now() < state_.reward_dead_until)
      die(ErrorCode::kRankDead, "the reward worker died");
    std::vector<float> scores;
    std::vector<std::string> answers;
    for (std::int64_t row = 0; row < batch.rows(); ++row) {
      std::uint64_t hash = 7;
      for (const std::int32_t token : batch.column(column::kResponses).row<std::int32_t>(row))
        hash = mix(hash, static_cast<std::uint64_t>(token));
      scores.push_back(state_.options.flat_scores ? 1.0F : static_cast<float>(hash % 3));
      answers.push_back(std::to_string(hash));
    }
    Batch out;
    value_or_throw(out.set(std::string(column::kAccuracy), Column::dense(scores)));
    value_or_throw(out.set(std::string(column::kScores), Column::dense(std::move(scores))));
    value_or_throw(out.set(std::string(column::kAnswers), Column::strings(answers)));
    out.metrics().add("reward/rows", static_cast<double>(batch.rows()), runtime::Reduction::kSum);
    co_return out;
  }

 private:
  HashState& state_;
};

/// Two or three turns; says 2000 + the turn between them.
class HashEnvironment {
 public:
  explicit HashEnvironment(HashState& state) : state_(state) {}
  task<std::vector<EnvironmentAnswer>> turn(std::vector<EnvironmentTurn> turns) {
    const TimePoint begin = state_.clock.now();
    state_.message();
    co_await sleep_for(state_.random_time(5ms));
    state_.message();
    if (state_.environment_dead || begin < state_.environment_dead_until ||
        state_.clock.now() < state_.environment_dead_until)
      die(ErrorCode::kRankDead, "the environment died");
    std::vector<EnvironmentAnswer> answers;
    for (const EnvironmentTurn& one : turns) {
      EXPECT_FALSE(one.response.empty());
      EXPECT_EQ(one.row.rows(), 1);
      EnvironmentAnswer answer;
      const auto turn = static_cast<std::int32_t>(one.state.size());
      answer.done = turn >= 1 + static_cast<std::int32_t>(mix(one.group, one.sample_index) % 2);
      if (!answer.done) answer.tokens = {2000 + turn, 2001 + turn};
      answer.state.assign(one.state.size() + 1, std::byte{1});
      answers.push_back(std::move(answer));
    }
    co_return answers;
  }

 private:
  HashState& state_;
};

/// One number for each token of the responses.
template <class Of>
Batch token_numbers(const Batch& batch, std::string_view name, Of of) {
  std::vector<std::vector<float>> rows;
  for (std::int64_t row = 0; row < batch.rows(); ++row) {
    rows.emplace_back();
    for (const std::int32_t token : batch.column(column::kResponses).row<std::int32_t>(row))
      rows.back().push_back(of(static_cast<std::uint64_t>(token)));
  }
  Batch out;
  value_or_throw(out.set(std::string(name), Column::jagged(rows)));
  return out;
}

/// The hash of `weights` and of every number in the rows of the parts, in order.
inline std::uint64_t learn_hash(std::uint64_t weights, const Batch& all) {
  for (std::int64_t row = 0; row < all.rows(); ++row)
    for (const auto& [name, column] : all.columns())
      for (const std::byte byte : column.row_bytes(row))
        weights = weights * 0x100000001b3U ^ std::to_integer<std::uint64_t>(byte);
  return mix(weights, 1);
}

class HashPolicy {
 public:
  explicit HashPolicy(HashState& state) : state_(state) {}
  task<Batch> log_probs(Batch batch) {
    state_.message();
    co_await sleep_for(state_.random_time(10ms));
    co_return token_numbers(batch, column::kOldLogProbs, [this](std::uint64_t token) {
      return -static_cast<float>(mix(state_.weights, token) % 512) / 64;
    });
  }
  task<Metrics> update(Batch batch) {
    Metrics learned = co_await accumulate(std::move(batch));
    Metrics stepped = co_await finish_step();
    value_or_throw(learned.merge(stepped));
    co_return learned;
  }
  task<Metrics> accumulate(Batch part) {
    state_.message();
    co_await sleep_for(state_.random_time(20ms));
    if (broken_) die(ErrorCode::kConflict, "the streamed step broke and must be abandoned");
    state_.part_rows.push_back(part.rows());
    state_.parts.push_back(std::move(part));
    if (state_.gradient_fails > 0) {
      --state_.gradient_fails;
      broken_ = true;
      die(ErrorCode::kAborted, "a collective of the gradients failed");
    }
    co_return Metrics{};
  }
  task<void> abandon_step() {
    state_.message();
    co_await sleep_for(state_.random_time(1ms));
    broken_ = false;
    state_.parts.clear();
    ++state_.steps_abandoned;
  }
  task<Metrics> finish_step() {
    state_.message();
    co_await sleep_for(state_.random_time(10ms));
    Batch all = value_or_throw(Batch::concat(std::exchange(state_.parts, {})));
    all.metrics().clear();
    state_.weights = learn_hash(state_.weights, all);
    state_.batches.push_back(std::move(all));
    co_return Metrics{};
  }

 private:
  HashState& state_;
  bool broken_ = false;
};

class HashCritic {
 public:
  explicit HashCritic(HashState& state) : state_(state) {}
  task<Batch> values(Batch batch) {
    state_.message();
    co_await sleep_for(state_.random_time(5ms));
    co_return token_numbers(batch, column::kValues, [this](std::uint64_t token) {
      return static_cast<float>(mix(state_.critic_weights, token) % 64) / 64;
    });
  }
  task<Metrics> update(Batch batch) {
    co_await accumulate(std::move(batch));
    co_return co_await finish_step();
  }
  task<Metrics> accumulate(Batch part) {
    state_.message();
    co_await sleep_for(state_.random_time(5ms));
    state_.critic_parts.push_back(std::move(part));
    co_return Metrics{};
  }
  task<Metrics> finish_step() {
    co_await sleep_for(state_.random_time(5ms));
    Batch all = value_or_throw(Batch::concat(std::exchange(state_.critic_parts, {})));
    state_.critic_weights = learn_hash(state_.critic_weights, all);
    co_return Metrics{};
  }
  task<void> abandon_step() {
    state_.critic_parts.clear();
    co_return;
  }

 private:
  HashState& state_;
};

class HashWeights {
 public:
  HashWeights(HashState& state, HashStreaming& streaming) : state_(state), streaming_(streaming) {}
  WeightVersion version() const { return WeightVersion{state_.version}; }
  task<Metrics> publish() { return publish_as(state_.version + 1); }
  task<void> publish_present() { co_await publish_as(state_.version); }

 private:
  task<Metrics> publish_as(std::int64_t version) {
    ++state_.publications;
    state_.weights_of[version] = state_.weights;
    co_await streaming_.take_weights(version);
    state_.version = version;
    state_.message();
    co_return Metrics{};
  }
  HashState& state_;
  HashStreaming& streaming_;
};

struct HashWorld {
  using Rollout = HashRollout;
  using Streaming = HashStreaming;
  using Environment = HashEnvironment;
  using Reward = HashReward;
  using Policy = HashPolicy;
  using Reference = HashPolicy;
  using Critic = HashCritic;
  using Weights = HashWeights;

  explicit HashWorld(const HashOptions& options) {
    state.options = options;
    state.times = Rng(options.seed);
    state.weights = options.weights;
    state.version = options.version;
    state.weights_of[options.version] = options.weights;
    streaming = std::make_unique<HashStreaming>(state);
    weights = std::make_unique<HashWeights>(state, *streaming);
  }
  const Clock& clock() const { return state.clock; }

  HashState state;
  HashRollout rollout{state};
  std::unique_ptr<HashStreaming> streaming;
  HashReward reward{state};
  HashEnvironment environment{state};
  HashPolicy policy{state};
  HashCritic critic{state};
  std::unique_ptr<HashWeights> weights;
};
static_assert(World<HashWorld>);

/// Prompts 0, 1, 2, …: `rows` of them.
inline Batch hash_prompts(std::int64_t first, std::int64_t rows) {
  std::vector<std::int64_t> ids;
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<std::string> sources;
  for (std::int64_t id = first; id < first + rows; ++id) {
    ids.push_back(id);
    prompts.emplace_back(static_cast<std::size_t>(1 + id % 3), static_cast<std::int32_t>(id % 50));
    sources.push_back("source " + std::to_string(id % 2));
  }
  Batch batch;
  value_or_throw(batch.set(std::string(column::kPromptIds), Column::dense(std::move(ids))));
  value_or_throw(batch.set(std::string(column::kPrompts), Column::jagged(prompts)));
  value_or_throw(batch.set(std::string(column::kDataSource), Column::strings(sources)));
  return batch;
}

inline AdvantageStepOptions grpo() {
  AdvantageStepOptions options;
  options.estimator = *default_advantages().find("grpo");
  return options;
}

inline Cast<HashWorld> cast_of(HashWorld& world, AdvantageStep& advantage,
                               std::int64_t group_size) {
  Cast<HashWorld> cast{.world = world,
                       .rollout = world.rollout,
                       .reward = world.reward,
                       .policy = world.policy,
                       .weights = *world.weights,
                       .advantage = advantage,
                       .sampling = {.max_new_tokens = 12, .seed = 77},
                       .group_size = group_size};
  cast.streaming = world.streaming.get();
  if (world.state.options.critic) cast.critic = &world.critic;
  if (world.state.options.environment) cast.environment = &world.environment;
  return cast;
}

/// Tokens are what the weights of their version give: no seed, position or prefix went wrong on the
/// way. The seed is that of the group's step, which the caller knows.
inline void check_tokens(const HashState& state, const Batch& batch, std::int64_t row,
                         std::uint64_t seed) {
  const auto tokens = batch.column(column::kResponses).row<std::int32_t>(row);
  const auto versions = batch.column(column::kVersions).row<std::int64_t>(row);
  const auto mask = batch.column(column::kResponseMask).row<std::uint8_t>(row);
  const auto prompt = batch.column(column::kPrompts).row<std::int32_t>(row);
  const auto id =
      static_cast<std::uint64_t>(batch.column(column::kPromptIds).scalar<std::int64_t>(row));
  const auto sample =
      static_cast<std::uint32_t>(batch.column(column::kSampleIndex).scalar<std::int64_t>(row));
  ASSERT_FALSE(tokens.empty());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (versions[i] < 0) {
      ASSERT_EQ(mask[i], 0);
      ASSERT_GE(tokens[i], 2000);
      continue;
    }
    const std::int32_t before = i == 0 ? prompt.back() : tokens[i - 1];
    const HashToken wanted =
        hash_token(state.weights_of.at(versions[i]), seed, id, sample, prompt.size() + i, before);
    ASSERT_EQ(tokens[i], wanted.token) << "prompt " << id << " sample " << sample << " token " << i;
  }
}

enum class Loop { kAsynchronous, kOneStepOff, kPipelined };

/// One step of a loop; `part`: groups that the pipelined one trains at a time.
inline task<std::optional<StepReport>> step_of(Loop loop, Cast<HashWorld>& cast,
                                               RolloutService<HashWorld>& service,
                                               std::int64_t step, std::int64_t part) {
  if (loop == Loop::kOneStepOff) return one_step_off_step(cast, service, step);
  if (loop == Loop::kPipelined)
    return pipelined_step(cast, service, step, {.groups_per_part = part, .tries_max = 20});
  return asynchronous_step(cast, service, step);
}

}  // namespace troupe::actors::testing
