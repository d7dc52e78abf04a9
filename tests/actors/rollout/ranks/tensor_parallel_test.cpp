// The engine over several ranks: the same tokens and log-probs as one rank for every kind of model,
// bits that depend on nothing but the sample, and ranks that differ, die or come late end in an
// error on all of them. Ranks are threads; the slow reference is the engine of one rank.

#include "actors/rollout/model_share.hpp"
#include "reshard/layout.hpp"
#include "tests/actors/rollout/ranks/tp_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

namespace troupe::actors {
namespace {

using std::chrono::milliseconds;

GenerateRequest short_request(std::uint64_t id = 1, std::int32_t tokens = 12) {
  GenerateRequest request;
  request.prompt_id = id;
  request.prompt = {5, 9, 14, 3, 2};
  request.sampling.max_new_tokens = tokens;
  return request;
}

TEST(TensorParallel, GivesTheTokensOfOneRankForEveryModel) {
  for (const TpModel& model : tp_models()) {
    const WeightSet weights = weights_for(model.config, 3);
    Rng rng(11);
    const auto requests = random_requests(rng, 6, model.config.vocab_size);
    auto alone = engine_for(model.config, weights);
    const auto wanted = generate_all(*alone, requests);
    for (const int size : model.sizes) {
      const auto results = generate_on_ranks(size, model.config, weights, requests);
      for (const auto& result : results) {
        ASSERT_EQ(result.size(), wanted.size());
        expect_identical(result, results[0], model.name + ": ranks agree");
        for (std::size_t i = 0; i < wanted.size(); ++i)
          expect_close(result[i], wanted[i], 1e-5,
                       fmt::format("{}, {} ranks, sequence {}", model.name, size, i));
      }
    }
  }
}

TEST(TensorParallel, KeepsBitsWhateverElseIsInTheBatch) {
  const ModelConfig config = tiny_config();
  const WeightSet weights = weights_for(config);
  Rng rng(5);
  const auto requests = random_requests(rng, 12, config.vocab_size);
  const auto wanted = generate_on_ranks(2, config, weights, requests)[0];
  // Chunked prefills, few slots, preemption when blocks run out, one prefill per sample.
  const EngineOptions crowded =
      patient({.max_num_seqs = 5, .max_num_batched_tokens = 7, .kv_blocks = 12});
  EngineOptions apart = crowded;
  apart.share_prompt = false;
  for (const EngineOptions& options : {crowded, apart}) {
    std::vector<std::int64_t> preemptions(2);
    on_ranks(2, [&](runtime::Collective& tp) {
      auto engine = rank_engine(config, weights, tp, options);
      expect_identical(generate_all(*engine, requests), wanted, "crowded");
      preemptions[static_cast<std::size_t>(tp.rank())] = engine->stats().preemptions;
    });
    EXPECT_GT(preemptions[0], 0);
    EXPECT_EQ(preemptions[0], preemptions[1]);
  }
}

TEST(TensorParallel, AbortsAndPreemptsTogether) {
  const ModelConfig config = tiny_config();
  const WeightSet weights = weights_for(config);
  const auto wanted =
      generate_on_ranks(2, config, weights, {short_request(1), short_request(2)})[0];
  on_ranks(2, [&](runtime::Collective& tp) {
    auto engine = rank_engine(config, weights, tp);
    const SequenceId first = engine->submit(short_request(1)).value()[0];
    const SequenceId second = engine->submit(short_request(2)).value()[0];
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine->step());
    EXPECT_TRUE(engine->preempt(first));
    EXPECT_TRUE(engine->abort(second));
    while (engine->unfinished() > 0) ASSERT_TRUE(engine->step());
    const auto out = engine->take_finished();
    ASSERT_EQ(out.size(), 2u);
    EXPECT_EQ(out[0].reason, StopReason::kAborted);
    EXPECT_EQ(out[0].tokens.size(), 4u);
    EXPECT_EQ(out[1].tokens, wanted[0].tokens);
    EXPECT_EQ(bits_of(out[1].log_probs), bits_of(wanted[0].log_probs));
  });
}

TEST(TensorParallel, RefusesWhatDoesNotDivideWithBothNumbers) {
  const ModelConfig config = tiny_config();  // 4 query heads, 2 kv heads, 52 mlp columns
  const auto refused = [](ModelConfig model, std::int64_t size, std::vector<std::string> parts) {
    expect_error(share_of(model, 0, size), ErrorCode::kInvalidArgument, parts);
  };
  refused(config, 3, {"4 query heads", "3 tensor-parallel ranks"});
  ModelConfig odd = config;
  odd.head_count = 12;
  odd.kv_head_count = 6;
  refused(odd, 4, {"6 kv heads", "4 tensor-parallel ranks"});
  odd.intermediate_size = 5;
  refused(odd, 6, {"5 mlp columns", "6 tensor-parallel ranks"});
  on_ranks(3, [&](runtime::Collective& tp) {
    expect_error(RolloutEngine::create(config, patient(), &tp), ErrorCode::kInvalidArgument,
                 {"4 query heads", "3 tensor-parallel ranks"});
  });
  expect_error(RolloutEngine::create(config, {.tp_timeout = milliseconds(0)}),
               ErrorCode::kInvalidArgument, {"tp_timeout"});
}

TEST(TensorParallel, TakesTheSmallestKvCacheOfAllRanks) {
  on_ranks(2, [](runtime::Collective& tp) {
    EngineOptions options = patient();
    options.kv_blocks = tp.rank() == 0 ? 40 : 31;
    const auto engine = RolloutEngine::create(tiny_config(), options, &tp);
    ASSERT_TRUE(engine.has_value()) << engine.error().to_string();
    EXPECT_EQ((*engine)->options().kv_blocks, 31);
  });
}

TEST(TensorParallel, HoldsKvOfItsOwnHeadsOnly) {
  const ModelConfig config = tiny_config();  // 2 kv heads
  EngineOptions options = patient();
  options.kv_blocks = 8;
  const auto alone = RolloutEngine::create(config, options).value()->kv_bytes();
  for (const int size : {2, 4})
    on_ranks(size, [&](runtime::Collective& tp) {
      const auto engine = RolloutEngine::create(config, options, &tp).value();
      EXPECT_EQ(engine->kv_bytes().value * 2, alone.value) << size << " ranks";
    });
}

TEST(TensorParallel, RefusesRanksWithOtherModelsOrOptions) {
  on_ranks(2, [](runtime::Collective& tp) {
    EngineOptions options = patient();
    options.max_num_seqs = 8 + tp.rank();
    expect_error(RolloutEngine::create(tiny_config(), options, &tp), ErrorCode::kConflict,
                 {"create with options", "rank 1"});
    ModelConfig config = tiny_config();
    config.rope.theta += tp.rank();
    expect_error(RolloutEngine::create(config, patient(), &tp), ErrorCode::kConflict,
                 {"create with a model", "rank 1"});
    options = patient();
    options.max_num_seqs = 1 - tp.rank();  // wrong on rank 1 alone
    const auto engine = RolloutEngine::create(tiny_config(), options, &tp);
    if (tp.rank() == 0)
      expect_error(engine, ErrorCode::kAborted, {"rank 1", "max_num_seqs is 0"});
    else
      expect_error(engine, ErrorCode::kInvalidArgument, {"max_num_seqs is 0"});
  });
}

/// Two engines that agree so far; each rank then does `differ`, after which a step must fail on
/// both with `words`.
void expect_noticed(const std::function<void(RolloutEngine&, int)>& differ,
                    const std::vector<std::string>& words) {
  const ModelConfig config = tiny_config();
  const WeightSet weights = weights_for(config);
  on_ranks(2, [&](runtime::Collective& tp) {
    auto engine = rank_engine(config, weights, tp);
    ASSERT_TRUE(engine->submit(short_request(1)));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->step());
    differ(*engine, tp.rank());
    expect_error(engine->step(), ErrorCode::kConflict, words);
    expect_error(engine->step(), ErrorCode::kConflict, words);
  });
}

TEST(TensorParallel, NoticesRanksThatDiverge) {
  const std::vector<std::string> history = {"rank 1 differs from rank 0", "history"};
  expect_noticed(
      [](RolloutEngine& e, int rank) {
        GenerateRequest request = short_request(2);
        request.prompt[1] += rank;
        ASSERT_TRUE(e.submit(request));
      },
      history);
  expect_noticed(
      [](RolloutEngine& e, int rank) {
        GenerateRequest request = short_request(2);
        request.sampling.temperature = 1.0 + 1e-9 * rank;
        ASSERT_TRUE(e.submit(request));
      },
      history);
  expect_noticed(
      [](RolloutEngine& e, int rank) {
        for (const std::uint64_t id : {2 + rank, 3 - rank})
          ASSERT_TRUE(e.submit(short_request(static_cast<std::uint64_t>(id))));
      },
      history);
  expect_noticed(
      [](RolloutEngine& e, int rank) {
        if (rank == 1) e.abort_all();
      },
      history);
  expect_noticed(
      [](RolloutEngine& e, int rank) {
        if (rank == 1) {
          e.release_kv();
          ASSERT_TRUE(e.acquire_kv());
        }
      },
      history);
}

TEST(TensorParallel, LetsOneRankSleepAloneWhileNothingRuns) {
  const ModelConfig config = tiny_config();
  const WeightSet weights = weights_for(config);
  on_ranks(2, [&](runtime::Collective& tp) {
    auto engine = rank_engine(config, weights, tp);
    const auto before = generate_all(*engine, {short_request(1)});
    if (tp.rank() == 1) {
      ASSERT_TRUE(engine->sleep(SleepLevel::kKv));
      ASSERT_TRUE(engine->wake(MemoryTag::kKv));
    }
    expect_identical(generate_all(*engine, {short_request(1)}), before, "woken");
  });
}

TEST(TensorParallel, NamesTheRankThatCannotStep) {
  const ModelConfig config = tiny_config();
  const WeightSet weights = weights_for(config);
  on_ranks(2, [&](runtime::Collective& tp) {
    auto engine = rank_engine(config, weights, tp);
    ASSERT_TRUE(engine->submit(short_request(1)));
    if (tp.rank() == 1) engine->release_kv();
    const auto step = engine->step();
    if (tp.rank() == 0)
      expect_error(step, ErrorCode::kConflict, {"rank 1 cannot run", "KV cache is released"});
    else
      expect_error(step, ErrorCode::kConflict, {"step while the KV cache is released"});
  });
}

TEST(TensorParallel, LoadsWeightsOnAllRanksOrOnNone) {
  const ModelConfig config = tiny_config();
  const WeightSet weights = weights_for(config);
  const WeightSet fresh = weights_for(config, 2);
  on_ranks(2, [&](runtime::Collective& tp) {
    auto engine = rank_engine(config, weights, tp);
    const auto before = generate_all(*engine, {short_request(1)});
    const auto tensors = fresh.tensors();
    const auto given = tp.rank() == 1 ? tensors.first(tensors.size() - 1) : tensors;
    const auto loaded = engine->load_weights(given, WeightVersion{2});
    if (tp.rank() == 0)
      expect_error(loaded, ErrorCode::kAborted, {"rank 1 refused", tensors.back().name});
    else
      EXPECT_FALSE(loaded.has_value());
    EXPECT_EQ(engine->version(), WeightVersion{1});
    expect_error(engine->load_weights(tensors, WeightVersion{2 + tp.rank()}), ErrorCode::kConflict,
                 {"load weights", "rank 1 differs"});
    EXPECT_EQ(engine->version(), WeightVersion{1});
    expect_identical(generate_all(*engine, {short_request(1)}), before, "old weights");
    EXPECT_TRUE(engine->load_weights(tensors, WeightVersion{2}));
    EXPECT_NE(generate_all(*engine, {short_request(1)})[0].tokens, before[0].tokens);
  });
}

TEST(TensorParallel, EndsAtTheFirstDeadlineOnAllRanksAndGoesOn) {
  const ModelConfig config = tiny_config();
  const WeightSet weights = weights_for(config);
  const auto wanted = generate_on_ranks(2, config, weights, {short_request(7, 30)})[0];
  on_ranks(2, [&](runtime::Collective& tp) {
    auto engine = rank_engine(config, weights, tp);
    const SequenceId other = engine->submit(short_request(7, 30)).value()[0];
    // Only rank 1 is in a hurry, and its clock differs by nature.
    const Deadline deadline =
        tp.rank() == 1 ? Deadline::in(milliseconds(3)) : Deadline::by_default();
    std::vector<GenerateRequest> requests;
    for (std::uint64_t id = 10; id < 42; ++id) requests.push_back(short_request(id, 150));
    expect_error(engine->generate(requests, deadline), ErrorCode::kDeadline,
                 {"of 32 sequences unfinished"});
    while (engine->unfinished() > 0) ASSERT_TRUE(engine->step());
    const auto out = engine->take_finished();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].id, other);
    EXPECT_EQ(out[0].tokens, wanted[0].tokens);
    EXPECT_EQ(bits_of(out[0].log_probs), bits_of(wanted[0].log_probs));
  });
}

TEST(TensorParallel, NamesARankThatDies) {
  const ModelConfig config = tiny_config();
  const WeightSet weights = weights_for(config);
  auto group = runtime::make_local_group(3, {.name = "tp"});
  ModelConfig three = config;
  three.head_count = three.kv_head_count = 3;
  three.intermediate_size = 54;
  three.vocab_size = 150;
  const WeightSet of_three = weights_for(three);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      auto& handle = group[static_cast<std::size_t>(rank)];
      auto engine = rank_engine(three, of_three, *handle);
      ASSERT_TRUE(engine->submit(short_request(1, 100)));
      for (int i = 0; i < 5; ++i) ASSERT_TRUE(engine->step());
      if (rank == 2) {
        engine.reset();
        handle.reset();
        return;
      }
      const auto begin = std::chrono::steady_clock::now();
      expect_error(engine->step(), ErrorCode::kRankDead, {"rank 2"});
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
      expect_error(engine->step(), ErrorCode::kRankDead, {"rank 2"});
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(TensorParallel, DoesNotWaitForEverForARankThatStaysAway) {
  const ModelConfig config = tiny_config();
  const WeightSet weights = weights_for(config);
  on_ranks(2, [&](runtime::Collective& tp) {
    EngineOptions options = patient();
    if (tp.rank() == 0) options.tp_timeout = milliseconds(1500);
    auto engine = rank_engine(config, weights, tp, options);
    ASSERT_TRUE(engine->submit(short_request(1)));
    ASSERT_TRUE(engine->step());
    if (tp.rank() == 1) return;
    expect_error(engine->step(), ErrorCode::kDeadline, {"rank 1"});
  });
}

TEST(TensorParallel, RunsAgainAfterTheGroupIsRebuilt) {
  const ModelConfig config = tiny_config();
  const WeightSet weights = weights_for(config);
  const auto wanted = generate_on_ranks(2, config, weights, {short_request(1, 40)})[0];
  on_ranks(2, [&](runtime::Collective& tp) {
    auto engine = rank_engine(config, weights, tp);
    ASSERT_TRUE(engine->submit(short_request(1, 40)));
    for (int i = 0; i < 9; ++i) ASSERT_TRUE(engine->step());
    if (tp.rank() == 1) {
      Error cause;
      cause.message = "test";
      tp.abort(std::move(cause));
    }
    EXPECT_FALSE(engine->step().has_value());
    ASSERT_TRUE(tp.rebuild(1, Deadline::in(std::chrono::seconds(10))));
    while (engine->unfinished() > 0) {
      const auto step = engine->step();
      ASSERT_TRUE(step.has_value()) << step.error().to_report();
    }
    const auto out = engine->take_finished();
    EXPECT_EQ(out[0].tokens, wanted[0].tokens);
    EXPECT_EQ(bits_of(out[0].log_probs), bits_of(wanted[0].log_probs));
  });
}

TEST(TensorParallel, AFailedSequenceFailsAloneOnAllRanks) {
  ModelConfig config = tiny_config();
  config.tie_embeddings = false;
  WeightSet poisoned = weights_for(config);
  const auto rows = poisoned.mutable_data("model.embed_tokens.weight");
  std::fill_n(rows.begin() + 13 * config.hidden_size, config.hidden_size,
              std::numeric_limits<float>::quiet_NaN());
  std::vector<GenerateRequest> requests;
  for (std::uint64_t id = 0; id < 4; ++id) {
    requests.push_back(short_request(id, 6));
    requests.back().sampling.temperature = 0.0;
    if (id == 2) requests.back().prompt[2] = 13;
  }
  const auto results = generate_on_ranks(2, config, poisoned, requests);
  for (const auto& result : results) {
    for (std::size_t i = 0; i < result.size(); ++i)
      EXPECT_EQ(result[i].reason == StopReason::kFailed, i == 2) << i;
    expect_identical(result, results[0], "ranks");
  }
}

TEST(TensorParallel, RunsTheCanaryOnAllRanks) {
  const ModelConfig config = switched_config(ModelFamily::kQwen3);
  const WeightSet weights = weights_for(config);
  const std::vector<std::int32_t> prompt = {4, 8, 15, 16, 23, 42};
  const CanaryAnswer wanted = engine_for(config, weights)->canary(prompt, 10).value();
  on_ranks(4, [&](runtime::Collective& tp) {
    auto engine = rank_engine(config, weights, tp);
    const auto answer = engine->canary(prompt, 10);
    ASSERT_TRUE(answer.has_value()) << answer.error().to_string();
    EXPECT_EQ(answer->tokens, wanted.tokens);
    for (std::size_t i = 0; i < wanted.log_probs.size(); ++i)
      EXPECT_NEAR(answer->log_probs[i], wanted.log_probs[i], 1e-5);
    expect_error(engine->canary(prompt, 10 + tp.rank()), ErrorCode::kConflict,
                 {"rank 1 differs from rank 0", "another batch"});
  });
}

}  // namespace
}  // namespace troupe::actors
