// Proves that nobody hangs when a rank of a cut engine refuses its input, fails in its loss, cannot
// be created, gets other sequences than its peers, or dies in the middle of a step; and that the
// group goes on where it can.
#include "tests/actors/train/mesh/mesh_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>

namespace troupe::actors {
namespace {

using ::testing::HasSubstr;
using testing::make_parallel_engine;
using testing::on_ranks;
using testing::policy_update;
using testing::Sample;
using testing::Share;
using testing::share_of;

constexpr int kRanks = 8;
constexpr ErrorCode kNone = ErrorCode::kInternal;  // nothing here fails with it

TrainEngineOptions cut_options() {
  TrainEngineOptions options;
  options.micro_batch_tokens_max = 30;
  options.parallel = {.tp = 2, .pp = 2};
  return options;
}

testing::ParallelModel model() { return testing::parallel_models()[1]; }

std::vector<Sample> samples() {
  Rng rng(3);
  return testing::random_samples(rng, 11, model().config.vocab_size);
}

Share share_for(int rank) {
  const MeshPlace place = mesh_place(cut_options().parallel, rank, kRanks);
  return share_of(samples(), place.dp, place.dp_size);
}

template <class T>
ErrorCode code_of(const result<T>& outcome) {
  return outcome ? kNone : outcome.error().code;
}

TEST(ParallelFault, ARefusalIsToldToAllAndLeavesTheGroupUsable) {
  constexpr int kRefuses = 5;  // not the last stage, not a speaker
  on_ranks(kRanks, [&](int rank, runtime::Collective& world) {
    const auto engine = make_parallel_engine(model(), cut_options(), &world);
    const Share good = share_for(rank);
    Share wrong = share_for(rank);
    if (rank == kRefuses) {
      Sample s;
      s.prompt = {999};
      wrong.add(s);
    }
    const ErrorCode wanted = rank == kRefuses ? ErrorCode::kInvalidArgument : ErrorCode::kAborted;
    const auto done = engine->update_policy(wrong.pack.view(), policy_update(wrong, "vanilla"));
    EXPECT_EQ(code_of(done), wanted);
    if (rank != kRefuses) {
      EXPECT_THAT(done.error().message, HasSubstr("rank 5"));
    }
    // Only the ranks with the same sequences take part in a forward pass.
    const bool is_peer = mesh_place(cut_options().parallel, rank, kRanks).dp == 0;
    const auto log_probs = engine->log_probs(wrong.pack.view(), 1.0F);
    EXPECT_EQ(code_of(log_probs), is_peer ? wanted : kNone);
    EXPECT_TRUE(engine->log_probs(good.pack.view(), 1.0F));
    EXPECT_TRUE(engine->update_policy(good.pack.view(), policy_update(good, "vanilla")));
  });
}

TEST(ParallelFault, AnErrorOfTheLossIsToldToAllAndLeavesTheGroupUsable) {
  on_ranks(kRanks, [&](int rank, runtime::Collective& world) {
    const auto engine = make_parallel_engine(model(), cut_options(), &world);
    const MeshPlace place = mesh_place(cut_options().parallel, rank, kRanks);
    Share share = share_for(rank);
    const std::vector<float> advantages = share.advantages;
    share.mask.assign(share.mask.size(), 1);
    if (place.dp == 1) share.advantages.front() = std::numeric_limits<float>::quiet_NaN();
    const auto done = engine->update_policy(share.pack.view(), policy_update(share, "vanilla"));
    const bool sees_the_loss = place.dp == 1 && place.pp == 1;
    EXPECT_EQ(code_of(done), sees_the_loss ? ErrorCode::kInvalidArgument : ErrorCode::kAborted);
    share.advantages = advantages;
    EXPECT_TRUE(engine->update_policy(share.pack.view(), policy_update(share, "vanilla")));
  });
}

TEST(ParallelFault, PeersWithOtherSequencesAreAConflict) {
  on_ranks(kRanks, [&](int rank, runtime::Collective& world) {
    const auto engine = make_parallel_engine(model(), cut_options(), &world);
    const Share share = rank == 6 ? share_for(0) : share_for(rank);  // 6 belongs to dp 1
    const auto done = engine->update_policy(share.pack.view(), policy_update(share, "vanilla"));
    EXPECT_EQ(code_of(done), ErrorCode::kConflict);
    EXPECT_THAT(done.error().message, HasSubstr("rank 6"));
  });
}

TEST(ParallelFault, ARankThatCannotBeCreatedLeavesNobodyWaiting) {
  on_ranks(kRanks, [&](int rank, runtime::Collective& world) {
    const WeightSet weights = testing::tiny_weights(model().config, 31);
    std::vector<NamedTensor> some(weights.tensors().begin(), weights.tensors().end());
    if (rank == 3) some.erase(some.begin());
    const auto engine = TrainEngine::create(model().config, some, cut_options(), &world);
    EXPECT_EQ(code_of(engine), rank == 3 ? ErrorCode::kNotFound : ErrorCode::kAborted);
  });
}

/// Every rank but the dead one ends with an error soon, though all may wait for minutes.
void expect_all_end(int dead, const std::function<void(Share&, PolicyUpdate&)>& death) {
  auto group = runtime::make_local_group(kRanks, {.name = "policy"});
  std::vector<ErrorCode> codes(kRanks, kNone);
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      const auto r = static_cast<std::size_t>(rank);
      auto engine = make_parallel_engine(model(), cut_options(), group[r].get());
      Share share = share_for(rank);
      PolicyUpdate update = policy_update(share, "vanilla");
      if (rank == dead) {
        try {
          death(share, update);
          (void)engine->update_policy(share.pack.view(), update);
        } catch (const std::exception&) {
        }
        engine.reset();
        group[r].reset();
        return;
      }
      codes[r] = code_of(engine->update_policy(share.pack.view(), update));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == dead) continue;
    const ErrorCode code = codes[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(code == ErrorCode::kRankDead || code == ErrorCode::kAborted)
        << "rank " << rank << ": " << error_code_name(code);
  }
}

TEST(ParallelFault, ADeathBeforeTheStepEndsAll) {
  for (const int dead : {0, 3, 6})
    expect_all_end(dead, [](Share&, PolicyUpdate&) { throw std::runtime_error("dead"); });
}

TEST(ParallelFault, ADeathInTheMiddleOfTheStepEndsAll) {
  expect_all_end(7, [](Share&, PolicyUpdate& update) {
    const PolicyLossFunction vanilla = update.loss.apply;
    auto calls = std::make_shared<int>(0);
    update.loss.apply = [vanilla, calls](const PolicyLossInput& in, const PolicyLossOptions& o) {
      if (++*calls == 2) throw std::runtime_error("dead in the loss");
      return vanilla(in, o);
    };
  });
}

TEST(ParallelFault, MailboxesOfOneMessageAreEnough) {
  // Activations of a large model fill a mailbox; a send then waits, and must not wait for ever.
  for (const int virtual_stages : {1, 2}) {
    testing::ParallelModel deep = testing::parallel_models()[3];
    deep.head = ModelHead::kLanguage;
    TrainEngineOptions options;
    options.micro_batch_tokens_max = 23;
    options.parallel = {.pp = 4, .virtual_stages = virtual_stages};
    auto group = runtime::make_local_group(4, {.name = "policy", .mailbox_bytes = 1});
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < 4; ++rank)
      threads.emplace_back([&, rank] {
        const auto engine = make_parallel_engine(deep, options, group[rank].get());
        const Share share = share_of(samples(), 0, 1);
        const auto done = engine->update_policy(share.pack.view(), policy_update(share, "vanilla"));
        ASSERT_TRUE(done) << done.error().to_string();
        EXPECT_GE(*done->value("actor/micro_batches"), 4);
        EXPECT_TRUE(engine->log_probs(share.pack.view(), 1.0F));
      });
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(ParallelFault, ANewEpochCutsTheGroupsAnew) {
  on_ranks(kRanks, [&](int rank, runtime::Collective& world) {
    const auto engine = make_parallel_engine(model(), cut_options(), &world);
    const Share share = share_for(rank);
    const auto deadline = [] { return Deadline::in(std::chrono::seconds(20)); };
    ASSERT_TRUE(world.barrier(deadline()));
    if (rank == 2)
      world.abort(
          Error{.code = ErrorCode::kAborted, .message = "asked to", .origin = {}, .causes = {}});
    EXPECT_FALSE(engine->update_policy(share.pack.view(), policy_update(share, "vanilla")));
    ASSERT_TRUE(world.rebuild(world.epoch() + 1, deadline()));
    EXPECT_TRUE(engine->update_policy(share.pack.view(), policy_update(share, "vanilla")));
  });
}

}  // namespace
}  // namespace troupe::actors
