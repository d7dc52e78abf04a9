// The rollout engine's own promises: how sequences end, what is refused and with which words,
// weight updates while sequences run, isolation of failures, sleep and wake, bounds, counters.

#include "tests/actors/rollout/engine_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace troupe::actors {
namespace {

GenerateRequest simple_request(std::uint64_t id = 1, std::int32_t tokens = 20) {
  GenerateRequest request;
  request.prompt_id = id;
  request.prompt = {5, 9, 14, 33, 2};
  request.sampling.max_new_tokens = tokens;
  return request;
}

class Engine : public ::testing::Test {
 protected:
  Engine() : weights_(weights_for(config_)) {}
  std::unique_ptr<RolloutEngine> make(EngineOptions options = {}) {
    return engine_for(config_, weights_, std::move(options));
  }
  ModelConfig config_ = tiny_config();
  WeightSet weights_;
};

template <class T>
void expect_error(const result<T>& outcome, ErrorCode code, std::vector<std::string> parts) {
  ASSERT_FALSE(outcome.has_value()) << parts.front();
  EXPECT_EQ(outcome.error().code, code) << outcome.error().to_string();
  for (const std::string& part : parts)
    EXPECT_NE(outcome.error().to_string().find(part), std::string::npos)
        << "wanted \"" << part << "\" in: " << outcome.error().to_string();
}

TEST_F(Engine, KeepsTheStopIdAndStopsThere) {
  auto engine = make();
  const auto free_run = generate_all(*engine, {simple_request()})[0];
  ASSERT_EQ(free_run.reason, StopReason::kLength);
  ASSERT_EQ(free_run.tokens.size(), 20u);
  GenerateRequest request = simple_request();
  const std::int32_t stop = free_run.tokens[11];
  request.sampling.stop_ids = {stop};
  const auto stopped = generate_all(*engine, {request})[0];
  const auto first = std::ranges::find(free_run.tokens, stop) - free_run.tokens.begin();
  EXPECT_EQ(stopped.reason, StopReason::kStopId);
  EXPECT_EQ(stopped.tokens, std::vector<std::int32_t>(free_run.tokens.begin(),
                                                      free_run.tokens.begin() + first + 1));
  EXPECT_EQ(stopped.log_probs.size(), stopped.tokens.size());
  request.sampling.ignore_eos = true;
  EXPECT_EQ(generate_all(*engine, {request})[0].tokens, free_run.tokens);
}

TEST_F(Engine, CutsTheTextAtAStopStringAndKeepsTheTokens) {
  EngineOptions options;
  options.token_bytes = [](std::int32_t id) { return fmt::format("<{}>", id); };
  auto engine = make(options);
  const auto free_run = generate_all(*engine, {simple_request()})[0];
  EXPECT_EQ(free_run.text, "") << "no stop strings, no text";
  // Half of one token's bytes and half of the next one's.
  const std::string stop = fmt::format("{}><", free_run.tokens[6]);
  GenerateRequest request = simple_request();
  request.sampling.stop_strings = {"never", stop};
  const auto stopped = generate_all(*engine, {request})[0];
  ASSERT_EQ(stopped.reason, StopReason::kStopString);
  std::string whole;
  for (const std::int32_t id : stopped.tokens) whole += options.token_bytes(id);
  EXPECT_EQ(stopped.text, whole.substr(0, whole.find(stop)));
  EXPECT_TRUE(std::equal(stopped.tokens.begin(), stopped.tokens.end(), free_run.tokens.begin()));
}

TEST_F(Engine, RefusesWrongRequestsNamingPlaceAndValues) {
  EngineOptions options;
  options.kv_blocks = 3;
  auto engine = make(options);
  const auto refused = [&](const GenerateRequest& request, ErrorCode code,
                           const std::vector<std::string>& parts) {
    expect_error(engine->submit(request), code, parts);
    expect_error(engine->generate({simple_request(2), request}), code, parts);
    EXPECT_EQ(engine->unfinished(), 0) << "nothing of a refused call is queued";
  };
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  GenerateRequest request = simple_request(77);
  request.prompt = {};
  refused(request, kInvalid, {"prompt 77", "0 tokens"});
  request = simple_request(77);
  request.prompt[3] = 61;
  refused(request, kInvalid, {"prompt 77", "prompt token 3 is 61", "61"});
  request.prompt[3] = -1;
  refused(request, kInvalid, {"prompt token 3 is -1"});
  request = simple_request(77);
  request.sample_indices = {};
  refused(request, kInvalid, {"0 samples"});
  request = simple_request(77);
  request.sampling.top_p = 0.0;
  refused(request, kInvalid, {"prompt 77", "top_p is 0"});
  request = simple_request(77);
  request.sampling.stop_ids = {61};
  refused(request, kInvalid, {"stop id 61"});
  request = simple_request(77);
  request.sampling.stop_strings = {"x"};
  refused(request, kInvalid, {"stop_strings", "token_bytes"});
  refused(simple_request(77, 156), kInvalid, {"161 tokens", "max_model_tokens is 160"});
  refused(simple_request(77, 2'147'483'647), kInvalid, {"max_model_tokens is 160"});
  // 5 + 45 tokens, the last without KV: 49 tokens in 4 blocks.
  refused(simple_request(77, 45), ErrorCode::kResourceExhausted, {"needs 4", "has 3"});
  EXPECT_TRUE(engine->generate({simple_request(77, 44)}).has_value());
}

TEST_F(Engine, RefusesWrongPrefixes) {
  auto engine = make();
  const auto with = [](SamplePrefix prefix) {
    GenerateRequest request = simple_request(4, 3);
    request.sampling.stop_ids = {8};
    request.prefixes = {std::move(prefix)};
    return request;
  };
  const std::vector<float> two = {-1.0f, -1.0f};
  const std::vector<WeightVersion> versions(2);
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  GenerateRequest request = simple_request(4);
  request.prefixes.resize(2);
  expect_error(engine->submit(request), kInvalid, {"2 prefixes for 1 samples"});
  expect_error(engine->submit(with({{1, 2}, {-1.0f}, two, versions})), kInvalid,
               {"prompt 4", "2 tokens, 1 log-probs"});
  expect_error(engine->submit(with({{1, 61}, two, two, versions})), kInvalid, {"token 1 is 61"});
  expect_error(engine->submit(with({{8, 2}, two, two, versions})), kInvalid,
               {"ends at token 1 (stop_id)", "has 2"});
  const std::vector<float> four(4, -1.0f);
  expect_error(engine->submit(with({{1, 2, 3, 4}, four, four, std::vector<WeightVersion>(4)})),
               kInvalid, {"ends at token 3 (length)", "has 4"});
  EXPECT_EQ(engine->unfinished(), 0);
}

TEST_F(Engine, GivesACompletePrefixBackAtOnce) {
  auto engine = make();
  GenerateRequest request = simple_request(4, 3);
  request.sample_indices = {0, 1};
  request.sampling.stop_ids = {8};
  const std::vector<float> p(2, -0.5f);
  request.prefixes = {{{4, 8}, p, p, std::vector<WeightVersion>(2)}, {}};
  const auto out = generate_all(*engine, {request});
  EXPECT_EQ(out[0].tokens, (std::vector<std::int32_t>{4, 8}));
  EXPECT_EQ(out[0].reason, StopReason::kStopId);
  EXPECT_EQ(out[0].log_probs, p);
  EXPECT_FALSE(out[1].tokens.empty());
}

TEST_F(Engine, RefusesContradictoryOptions) {
  const auto refused = [&](EngineOptions options, const std::vector<std::string>& parts,
                           ErrorCode code = ErrorCode::kInvalidArgument) {
    expect_error(RolloutEngine::create(config_, std::move(options)), code, parts);
  };
  refused({.max_model_tokens = 161}, {"161", "160"});
  refused({.max_model_tokens = -3}, {"max_model_tokens is -3"});
  refused({.max_num_seqs = 0}, {"max_num_seqs is 0"});
  refused({.max_num_seqs = 9, .max_num_batched_tokens = 8}, {"is 8", "max_num_seqs 9"});
  refused({.max_queued_sequences = 0}, {"max_queued_sequences is 0"});
  refused({.kv_blocks = -1}, {"kv_blocks is -1"});
  refused({.kv_bytes_max = Bytes{100}}, {"kv_bytes_max is 100 B"});
  ModelConfig broken = config_;
  broken.kv_head_count = 3;
  EXPECT_FALSE(RolloutEngine::create(broken, {}).has_value());
}

TEST_F(Engine, BoundsItsQueue) {
  auto engine = make({.max_queued_sequences = 5});
  GenerateRequest request = simple_request();
  request.sample_indices = {0, 1, 2};
  ASSERT_TRUE(engine->submit(request));
  expect_error(engine->submit(request), ErrorCode::kResourceExhausted, {"queue of 3", "is 5"});
  expect_error(engine->generate({simple_request(), request}), ErrorCode::kResourceExhausted,
               {"max_queued_sequences is 5"});
  EXPECT_EQ(engine->unfinished(), 3) << "the refused call leaves nothing behind";
  while (engine->unfinished() > 0) ASSERT_TRUE(engine->step());
  EXPECT_EQ(engine->take_finished().size(), 3u);
}

TEST_F(Engine, AbortsQueuedAndRunningSequencesWithTheirTokensSoFar) {
  auto engine = make();
  const auto wanted = generate_all(*engine, {simple_request()})[0];
  const SequenceId id = engine->submit(simple_request()).value()[0];
  const SequenceId other = engine->submit(simple_request(2)).value()[0];
  EXPECT_TRUE(engine->abort(other)) << "before any step";
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine->step());
  EXPECT_TRUE(engine->abort(id));
  EXPECT_FALSE(engine->abort(id));
  EXPECT_FALSE(engine->abort(SequenceId{99999}));
  EXPECT_FALSE(engine->preempt(id));
  const auto out = engine->take_finished();
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].id, other);
  EXPECT_TRUE(out[0].tokens.empty());
  EXPECT_EQ(out[1].reason, StopReason::kAborted);
  EXPECT_EQ(out[1].tokens,
            std::vector<std::int32_t>(wanted.tokens.begin(), wanted.tokens.begin() + 4));
  EXPECT_EQ(engine->unfinished(), 0);
  EXPECT_EQ(engine->step().value().rows, 0);
  EXPECT_EQ(engine->stats().aborted, 2);
}

TEST_F(Engine, GivesUpAtTheDeadlineAndForgetsItsRequests) {
  auto engine = make();
  const SequenceId mine = engine->submit(simple_request(9)).value()[0];
  expect_error(engine->generate({simple_request(), simple_request(2)},
                                Deadline::in(std::chrono::nanoseconds(-1))),
               ErrorCode::kDeadline, {"2 of 2 sequences unfinished"});
  EXPECT_EQ(engine->unfinished(), 1);
  const auto out = generate_all(*engine, {simple_request(3, 30)});
  EXPECT_EQ(out.size(), 1u);
  const auto waiting = engine->take_finished();
  ASSERT_EQ(waiting.size(), 1u) << "results of others wait for take_finished";
  EXPECT_EQ(waiting[0].id, mine);
}

TEST_F(Engine, RefusesToStepWithoutWeightsOrCache) {
  auto engine = std::move(RolloutEngine::create(config_, {}).value());
  ASSERT_TRUE(engine->submit(simple_request()));
  expect_error(engine->step(), ErrorCode::kConflict, {"without weights"});
  expect_error(engine->generate({simple_request()}), ErrorCode::kConflict, {"without weights"});
  EXPECT_EQ(engine->unfinished(), 1);
  ASSERT_TRUE(engine->load_weights(weights_.tensors(), WeightVersion{3}));
  EXPECT_EQ(engine->version(), WeightVersion{3});
  engine->release_kv();
  EXPECT_EQ(engine->kv_bytes(), Bytes{0});
  expect_error(engine->step(), ErrorCode::kConflict, {"KV cache is released"});
  ASSERT_TRUE(engine->acquire_kv());
  EXPECT_GT(engine->kv_bytes(), Bytes{0});
  EXPECT_TRUE(engine->step());
  engine->release_weights();
  EXPECT_EQ(engine->weight_bytes(), Bytes{0});
  expect_error(engine->step(), ErrorCode::kConflict, {"without weights"});
}

TEST_F(Engine, RefusesWrongWeightsAndKeepsTheOldOnes) {
  auto engine = make();
  const auto wanted = generate_all(*engine, {simple_request()});
  std::vector<NamedTensor> tensors(weights_.tensors().begin(), weights_.tensors().end());
  const NamedTensor last = tensors.back();
  tensors.pop_back();
  EXPECT_FALSE(engine->load_weights(tensors, WeightVersion{5}));
  NamedTensor wrong = last;
  wrong.shape = {39};
  wrong.data = wrong.data.first(39);
  tensors.push_back(wrong);
  expect_error(engine->load_weights(tensors, WeightVersion{5}), ErrorCode::kInvalidArgument,
               {last.name, "39", "40"});
  EXPECT_EQ(engine->version(), WeightVersion{1});
  expect_identical(generate_all(*engine, {simple_request()}), wanted, "old weights");
}

/// Runs `before` steps under the old weights, swaps, finishes.
struct Update {
  std::vector<GeneratedSequence> results;  // by submission
  std::vector<std::size_t> tokens_before;
};

class WeightUpdates : public Engine {
 protected:
  Update run(WeightUpdate mode, int before) {
    auto engine = make({.max_num_seqs = 3, .max_num_batched_tokens = 8});
    for (std::uint64_t id = 0; id < 6; ++id)
      ids_.push_back(engine->submit(simple_request(id)).value()[0]);
    for (int i = 0; i < before; ++i) EXPECT_TRUE(engine->step());
    EXPECT_TRUE(engine->load_weights(fresh_.tensors(), WeightVersion{2}, mode));
    while (engine->unfinished() > 0) EXPECT_TRUE(engine->step());
    Update update;
    update.results = engine->take_finished();
    std::ranges::sort(update.results, {}, &GeneratedSequence::id);
    for (const GeneratedSequence& s : update.results)
      update.tokens_before.push_back(
          static_cast<std::size_t>(std::ranges::count(s.versions, WeightVersion{1})));
    return update;
  }
  std::vector<GeneratedSequence> plain(const WeightSet& weights) {
    auto engine = engine_for(config_, weights);
    std::vector<GenerateRequest> requests;
    for (std::uint64_t id = 0; id < 6; ++id) requests.push_back(simple_request(id));
    return generate_all(*engine, requests);
  }
  WeightSet fresh_ = weights_for(config_, 2);
  std::vector<SequenceId> ids_;
};

TEST_F(WeightUpdates, DrainFinishesWhatBeganUnderTheOldWeights) {
  const auto old_results = plain(weights_);
  const auto new_results = plain(fresh_);
  const Update update = run(WeightUpdate::kDrain, 5);
  std::size_t drained = 0;
  for (std::size_t i = 0; i < update.results.size(); ++i) {
    const bool begun = update.tokens_before[i] > 0;
    drained += begun ? 1 : 0;
    expect_identical(update.results[i], begun ? old_results[i] : new_results[i], "drain");
  }
  EXPECT_GT(drained, 0u);
  EXPECT_LT(drained, update.results.size()) << "queued groups wait for the new weights";
}

TEST_F(WeightUpdates, RecomputeEqualsResumingEachPrefixUnderTheNewWeights) {
  const auto old_results = plain(weights_);
  const Update update = run(WeightUpdate::kRecompute, 6);
  auto engine = engine_for(config_, fresh_);
  std::size_t mixed = 0;
  for (std::size_t i = 0; i < update.results.size(); ++i) {
    const auto keep = static_cast<std::ptrdiff_t>(update.tokens_before[i]);
    mixed += keep > 0 ? 1 : 0;
    const auto cut = [&](const auto& v) {
      return std::decay_t<decltype(v)>(v.begin(), v.begin() + keep);
    };
    const GeneratedSequence& old = old_results[i];
    GenerateRequest request = simple_request(i);
    request.prefixes = {
        {cut(old.tokens), cut(old.log_probs), cut(old.full_log_probs), cut(old.versions)}};
    expect_identical(update.results[i], generate_all(*engine, {request})[0], "recompute");
  }
  EXPECT_GT(mixed, 0u);
}

TEST_F(WeightUpdates, KeepKvGoesOnAndStampsEachTokenWithItsVersion) {
  const auto old_results = plain(weights_);
  const Update update = run(WeightUpdate::kKeepKv, 6);
  for (std::size_t i = 0; i < update.results.size(); ++i) {
    const GeneratedSequence& s = update.results[i];
    EXPECT_TRUE(std::ranges::is_sorted(s.versions));
    EXPECT_EQ(s.versions.size(), s.tokens.size());
    const auto keep = static_cast<std::ptrdiff_t>(update.tokens_before[i]);
    EXPECT_TRUE(
        std::equal(s.tokens.begin(), s.tokens.begin() + keep, old_results[i].tokens.begin()));
  }
  EXPECT_GT(update.tokens_before[0], 0u);
  EXPECT_LT(update.tokens_before[0], update.results[0].tokens.size());
}

TEST(EngineFailures, AFailedSequenceFailsAloneAndLeavesNoTraceInTheCache) {
  // Untied, so that a poisoned embedding row harms only sequences that hold its token.
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    ModelConfig config = tiny_config();
    config.tie_embeddings = false;
    const WeightSet clean = weights_for(config);
    WeightSet poisoned = weights_for(config);
    const std::int64_t hidden = config.hidden_size;
    const auto rows = poisoned.mutable_data("model.embed_tokens.weight");
    std::fill_n(rows.begin() + 13 * hidden, hidden, poison);

    std::vector<GenerateRequest> requests;
    for (std::uint64_t id = 0; id < 12; ++id) {
      GenerateRequest request = simple_request(id, 25);
      request.prompt.resize(5 + id);
      request.sampling.frequency_penalty = 2.0;
      if (id % 3 == 1) request.prompt[2] = 13;
      requests.push_back(request);
    }
    const EngineOptions options{.max_num_seqs = 4, .max_num_batched_tokens = 16, .kv_blocks = 16};
    auto clean_engine = engine_for(config, clean, options);
    const auto wanted = generate_all(*clean_engine, requests);
    auto engine = engine_for(config, poisoned, options);
    const auto out = generate_all(*engine, requests);
    std::size_t failed = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto drawn = std::ranges::find(wanted[i].tokens, 13);
      // The poison enters the model with the token after 13 was appended; the last needs no run.
      const bool hit =
          i % 3 == 1 || (drawn != wanted[i].tokens.end() && drawn + 1 != wanted[i].tokens.end());
      if (!hit) {
        expect_identical(out[i], wanted[i], "healthy");
        continue;
      }
      ++failed;
      EXPECT_EQ(out[i].reason, StopReason::kFailed);
      ASSERT_TRUE(out[i].error.has_value());
      EXPECT_NE(out[i].error->message.find(
                    fmt::format("prompt {} sample 0 (sequence {})", i, out[i].id.value)),
                std::string::npos)
          << out[i].error->to_string();
      EXPECT_TRUE(std::equal(out[i].tokens.begin(), out[i].tokens.end(), wanted[i].tokens.begin()));
    }
    EXPECT_GE(failed, 4u);
    EXPECT_LT(failed, out.size());
    EXPECT_EQ(engine->stats().failed, static_cast<std::int64_t>(failed));
  }
}

TEST_F(Engine, CountsTokensStepsAndSharing) {
  auto engine = make({.max_num_seqs = 16});
  GenerateRequest request = simple_request(1, 10);
  request.sample_indices = {0, 1, 2, 3};
  const auto out = generate_all(*engine, {request});
  const RolloutStats stats = engine->stats();
  EXPECT_EQ(stats.tokens_generated, 40);
  EXPECT_EQ(stats.prefill_tokens, 5) << "one prefill for the group";
  EXPECT_EQ(stats.decode_tokens, 4 * 9) << "the last token of a sample is not run";
  EXPECT_EQ(stats.forks, 3);
  EXPECT_EQ(stats.prefix_tokens_shared, 15);
  EXPECT_EQ(stats.steps, 10);
  EXPECT_EQ(
      std::accumulate(stats.rows_histogram.begin(), stats.rows_histogram.end(), std::int64_t{0}),
      10);
  EXPECT_EQ(stats.rows_histogram[2], 10) << "5 rows once, then 4";
  EXPECT_EQ(stats.finished, 4);
  EXPECT_GT(stats.gemm_s, 0.0);
  EXPECT_GE(stats.step_s, stats.gemm_s + stats.attention_s);
  engine->reset_stats();
  EXPECT_EQ(engine->stats().steps, 0);
  EXPECT_EQ(engine->stats().forks, 0);
}

TEST_F(Engine, GivesResultsInRequestOrderWhateverEndsFirst) {
  auto engine = make();
  std::vector<GenerateRequest> requests;
  for (std::uint64_t id = 0; id < 8; ++id) {
    requests.push_back(simple_request(id, static_cast<std::int32_t>(20 - 2 * id)));
    requests.back().sample_indices = {7, 3};
  }
  const auto out = generate_all(*engine, requests);
  ASSERT_EQ(out.size(), 16u);
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i].prompt_id, i / 2);
    EXPECT_EQ(out[i].sample_index, i % 2 == 0 ? 7u : 3u);
    EXPECT_EQ(out[i].tokens.size(), 20 - 2 * (i / 2));
  }
  EXPECT_TRUE(generate_all(*engine, {}).empty());
}

TEST_F(Engine, SeedAndPromptAndSampleEachChangeTheDraws) {
  auto engine = make();
  GenerateRequest base = simple_request(1, 30);
  GenerateRequest seed = base;
  seed.sampling.seed = 1;
  GenerateRequest prompt = base;
  prompt.prompt_id = 2;
  GenerateRequest sample = base;
  sample.sample_indices = {1};
  const auto out = generate_all(*engine, {base, seed, prompt, sample, base});
  EXPECT_EQ(out[0].tokens, out[4].tokens);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_NE(out[0].tokens, out[i].tokens) << i;
}

TEST(StopReason, HasANameForEachKind) {
  EXPECT_EQ(stop_reason_name(StopReason::kLength), "length");
  EXPECT_EQ(stop_reason_name(StopReason::kStopId), "stop_id");
  EXPECT_EQ(stop_reason_name(StopReason::kStopString), "stop_string");
  EXPECT_EQ(stop_reason_name(StopReason::kAborted), "aborted");
  EXPECT_EQ(stop_reason_name(StopReason::kFailed), "failed");
}

}  // namespace
}  // namespace troupe::actors
