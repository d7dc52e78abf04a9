// The engine over a group as processes have it (Gloo over TCP; here its ranks are threads): the
// same bits as over the group of threads, and a rank that goes away ends a step with its name.

#include "runtime/comm/collective_gloo.hpp"
#include "tests/actors/rollout/ranks/tp_case.hpp"

#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

void on_gloo_ranks(int size, const std::function<void(std::unique_ptr<runtime::Collective>)>& run) {
  const auto store = std::make_shared<runtime::LocalRendezvous>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&run, store, rank, size] {
      runtime::GlooGroupOptions options;
      options.name = "tp";
      options.rank = rank;
      options.size = size;
      auto made =
          runtime::make_gloo_collective(options, store, Deadline::in(std::chrono::seconds(20)));
      ASSERT_TRUE(made.has_value()) << made.error().to_string();
      run(std::move(*made));
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(TensorParallelOverGloo, GivesTheBitsOfThreads) {
  const ModelConfig config = switched_config(ModelFamily::kQwen2);
  const WeightSet weights = weights_for(config);
  Rng rng(2);
  const auto requests = random_requests(rng, 4, config.vocab_size);
  const auto wanted = generate_on_ranks(2, config, weights, requests)[0];
  on_gloo_ranks(2, [&](std::unique_ptr<runtime::Collective> tp) {
    auto engine = rank_engine(config, weights, *tp);
    expect_identical(generate_all(*engine, requests), wanted, "gloo");
    const std::vector<std::int32_t> prompt = {1, 2, 3};
    EXPECT_TRUE(engine->canary(prompt, 4));
    EXPECT_TRUE(engine->load_weights(weights.tensors(), WeightVersion{2}));
  });
}

TEST(TensorParallelOverGloo, NamesARankThatGoesAway) {
  const ModelConfig config = tiny_config();
  const WeightSet weights = weights_for(config);
  on_gloo_ranks(2, [&](std::unique_ptr<runtime::Collective> tp) {
    auto engine = rank_engine(config, weights, *tp);
    GenerateRequest request;
    request.prompt = {1, 2, 3};
    request.sampling.max_new_tokens = 100;
    ASSERT_TRUE(engine->submit(request));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->step());
    if (tp->rank() == 1) return;
    const auto begin = std::chrono::steady_clock::now();
    expect_error(engine->step(), ErrorCode::kRankDead, {"rank 1"});
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1500));
  });
}

}  // namespace
}  // namespace troupe::actors
