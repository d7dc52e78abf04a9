// A sample is a pure function of (weights, prompt, options, prompt id, sample index). Property
// tests over random request mixes: each way of running them must give the tokens and the bits of
// log-probs of the plainest way, one request at a time in a large engine. The seed is printed.

#include "tests/actors/rollout/engine_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

namespace troupe::actors {
namespace {

class Invariance : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const int kind = GetParam();
    config_ = kind == 0   ? tiny_config()
              : kind == 1 ? switched_config(ModelFamily::kLlama)
              : kind == 2 ? switched_config(ModelFamily::kQwen2)
                          : switched_config(ModelFamily::kQwen3);
    weights_.emplace(weights_for(config_));
    Rng rng(static_cast<std::uint64_t>(100 + kind));
    requests_ = random_requests(rng, 12, config_.vocab_size);
    for (const GenerateRequest& request : requests_) {
      auto engine = engine_for(config_, *weights_);
      for (GeneratedSequence& sequence : generate_all(*engine, {request}))
        wanted_.push_back(std::move(sequence));
    }
  }
  void expect_same(EngineOptions options, const std::string& place) {
    auto engine = engine_for(config_, *weights_, std::move(options));
    expect_identical(generate_all(*engine, requests_), wanted_, place);
    EXPECT_EQ(engine->unfinished(), 0);
  }
  ModelConfig config_;
  std::optional<WeightSet> weights_;
  std::vector<GenerateRequest> requests_;
  std::vector<GeneratedSequence> wanted_;
};

TEST_P(Invariance, HoldsForEveryBatchShapeChunkAndBlockPool) {
  Rng rng(static_cast<std::uint64_t>(GetParam()));
  std::int64_t preemptions = 0;
  for (int round = 0; round < 25; ++round) {
    EngineOptions options;
    options.max_num_seqs = static_cast<std::int32_t>(1 + rng.below(round % 2 == 0 ? 6 : 40));
    options.max_num_batched_tokens =
        options.max_num_seqs + static_cast<std::int32_t>(rng.below(round % 3 == 0 ? 4 : 200));
    options.kv_blocks = static_cast<std::int32_t>(5 + rng.below(round % 2 == 0 ? 4 : 60));
    options.share_prompt = rng.below(4) != 0;
    auto engine = engine_for(config_, *weights_, options);
    expect_identical(generate_all(*engine, requests_), wanted_,
                     fmt::format("round {}: seqs {}, tokens {}, blocks {}, share {}", round,
                                 options.max_num_seqs, options.max_num_batched_tokens,
                                 options.kv_blocks, options.share_prompt));
    preemptions += engine->stats().preemptions;
  }
  EXPECT_GT(preemptions, 0) << "the small pools were meant to preempt";
}

TEST_P(Invariance, HoldsForEveryKernelPath) {
  for (const KernelPath path : {KernelPath::kPortable, KernelPath::kAvx2, KernelPath::kAvx512})
    if (kernel_path_available(path))
      expect_same(EngineOptions{.kernel = path}, std::string(kernel_path_name(path)));
}

TEST_P(Invariance, HoldsForAnyOrderAndSpreadOverEngines) {
  Rng rng(static_cast<std::uint64_t>(7 + GetParam()));
  std::map<std::pair<std::uint64_t, std::uint32_t>, const GeneratedSequence*> by_key;
  for (const GeneratedSequence& s : wanted_) by_key[{s.prompt_id, s.sample_index}] = &s;
  for (const std::size_t engines : {1u, 2u, 3u, 5u}) {
    // Samples of one prompt may land on different engines, in any order.
    std::vector<std::vector<GenerateRequest>> parts(engines);
    std::vector<std::int64_t> order = rng.permutation(static_cast<std::int64_t>(requests_.size()));
    for (const std::int64_t index : order) {
      const GenerateRequest& request = requests_[static_cast<std::size_t>(index)];
      for (const std::uint32_t sample : request.sample_indices) {
        GenerateRequest one = request;
        one.sample_indices = {sample};
        parts[rng.below(engines)].push_back(one);
      }
    }
    std::size_t seen = 0;
    for (const auto& part : parts) {
      auto engine = engine_for(config_, *weights_, EngineOptions{.max_num_seqs = 7});
      for (const GeneratedSequence& s : generate_all(*engine, part)) {
        expect_identical(s, *by_key.at({s.prompt_id, s.sample_index}), "spread");
        ++seen;
      }
    }
    EXPECT_EQ(seen, wanted_.size());
  }
}

TEST_P(Invariance, HoldsWhenResumedFromAnySavedPrefix) {
  Rng rng(static_cast<std::uint64_t>(31 + GetParam()));
  for (int round = 0; round < 4; ++round) {
    std::vector<GenerateRequest> resumed = requests_;
    std::size_t next = 0;
    for (GenerateRequest& request : resumed) {
      for (std::size_t s = 0; s < request.sample_indices.size(); ++s) {
        const GeneratedSequence& whole = wanted_[next++];
        const auto keep = static_cast<std::ptrdiff_t>(rng.below(whole.tokens.size() + 1));
        const auto cut = [&](const auto& v) {
          return std::decay_t<decltype(v)>(v.begin(), v.begin() + keep);
        };
        request.prefixes.push_back(SamplePrefix{.tokens = cut(whole.tokens),
                                                .log_probs = cut(whole.log_probs),
                                                .full_log_probs = cut(whole.full_log_probs),
                                                .versions = cut(whole.versions)});
      }
    }
    auto engine = engine_for(config_, *weights_,
                             EngineOptions{.max_num_seqs = 5, .max_num_batched_tokens = 19});
    expect_identical(generate_all(*engine, resumed), wanted_, fmt::format("round {}", round));
  }
}

TEST_P(Invariance, HoldsThroughPreemptionsAbortsOfOthersAndSleep) {
  Rng rng(static_cast<std::uint64_t>(51 + GetParam()));
  for (int round = 0; round < 6; ++round) {
    auto engine = engine_for(config_, *weights_,
                             EngineOptions{.max_num_seqs = 9, .max_num_batched_tokens = 30});
    std::map<SequenceId, std::size_t> place;
    std::vector<SequenceId> all;
    std::vector<SequenceId> strangers;
    for (const GenerateRequest& request : requests_) {
      const std::vector<SequenceId> ids = engine->submit(request).value();
      for (const SequenceId id : ids) place.emplace(id, place.size());
      all.insert(all.end(), ids.begin(), ids.end());
      GenerateRequest other = request;
      other.prompt_id += 5000;
      const std::vector<SequenceId> other_ids = engine->submit(other).value();
      strangers.insert(strangers.end(), other_ids.begin(), other_ids.end());
    }
    std::vector<GeneratedSequence> results(place.size());
    while (engine->unfinished() > 0) {
      ASSERT_TRUE(engine->step());
      if (rng.below(3) == 0) engine->preempt(all[rng.below(all.size())]);
      if (rng.below(4) == 0) engine->abort(strangers[rng.below(strangers.size())]);
      if (rng.below(15) == 0) {
        engine->release_kv();
        EXPECT_FALSE(engine->step());
        ASSERT_TRUE(engine->acquire_kv());
      }
      for (GeneratedSequence& s : engine->take_finished())
        if (place.contains(s.id)) results[place.at(s.id)] = std::move(s);
    }
    expect_identical(results, wanted_, fmt::format("round {}", round));
  }
}

TEST_P(Invariance, HoldsForEnginesOnThreadsSideBySide) {
  std::vector<std::vector<GeneratedSequence>> outs(3);
  {
    std::vector<std::jthread> threads;
    for (std::vector<GeneratedSequence>& out : outs)
      threads.emplace_back([this, &out] {
        auto engine = engine_for(config_, *weights_, EngineOptions{.max_num_seqs = 6});
        out = generate_all(*engine, requests_);
      });
  }
  for (const auto& out : outs) expect_identical(out, wanted_, "thread");
}

INSTANTIATE_TEST_SUITE_P(Models, Invariance, ::testing::Range(0, 4));

}  // namespace
}  // namespace troupe::actors
