// The scheduler without a model: a simulation grows each sequence to its wanted length and checks,
// after every step, budgets, block tables, exclusive writes, order and progress. Random loads with
// pools from barely large enough to ample; the seed is printed.

#include "actors/rollout/batch_scheduler.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <vector>

namespace troupe::actors {
namespace {

/// Plays the engine: submits groups, "generates" token 7, ends members at their wanted length.
class Simulation {
 public:
  Simulation(SchedulerLimits limits, std::int64_t blocks)
      : limits_(limits), pool_(blocks), scheduler_(limits, pool_) {}

  PromptGroup& add(std::int32_t prompt, const std::vector<std::int32_t>& outputs,
                   std::int32_t prefix = 0) {
    auto group = std::make_unique<PromptGroup>();
    group->arrival = next_arrival_++;
    group->trunk.group = group.get();
    group->trunk.member = Sequence::kTrunk;
    group->trunk.tokens.assign(static_cast<std::size_t>(prompt), 1);
    group->trunk.prompt_tokens = prompt;
    group->waiting = group->unfinished = static_cast<std::int32_t>(outputs.size());
    for (const std::int32_t output : outputs) {
      auto member = std::make_unique<Sequence>();
      member->id = SequenceId{next_id_++};
      member->group = group.get();
      member->member = static_cast<std::int32_t>(group->members.size());
      member->tokens.assign(static_cast<std::size_t>(prompt + std::min(prefix, output - 1)), 1);
      member->prompt_tokens = prompt;
      wanted_[member.get()] = output;
      group->members.push_back(std::move(member));
    }
    scheduler_.submit(*group);
    groups_.push_back(std::move(group));
    unfinished_ += outputs.size();
    return *groups_.back();
  }

  /// One step with all checks; false when there was nothing to do.
  bool step() {
    scheduler_.next_step(plan_);
    scheduler_.check_invariants();
    served_arrivals_.clear();
    for (const ScheduledRun& run : plan_.runs)
      served_arrivals_.push_back(run.sequence->group->arrival);
    EXPECT_LE(plan_.tokens, limits_.step_tokens);
    EXPECT_LE(scheduler_.running_members(), limits_.running_sequences);
    check_runs();
    for (const ScheduledRun& run : plan_.runs) {
      const bool completes = run.completes();
      scheduler_.complete(run);
      if (run.sequence->is_trunk()) trunk_tokens_ += run.tokens;
      if (completes) sampled(*run.sequence);
    }
    for (const PromptGroup* group : scheduler_.take_retired())
      std::erase_if(groups_, [&](const auto& g) { return g.get() == group; });
    scheduler_.check_invariants();
    ++steps_;
    return !plan_.runs.empty();
  }
  void run_to_end() {
    while (unfinished_ > 0) {
      ASSERT_TRUE(step()) << "an empty step with " << unfinished_ << " unfinished";
      ASSERT_LT(steps_, 200'000);
    }
    EXPECT_TRUE(scheduler_.idle());
    EXPECT_EQ(pool_.free_count(), pool_.block_count());
    EXPECT_TRUE(groups_.empty());
  }
  void finish(Sequence& member) {
    scheduler_.finish(member);
    finished_order_.push_back(member.id.value);
    --unfinished_;
  }
  /// Members that are queued or run, in order of submission.
  std::vector<Sequence*> alive() const {
    std::vector<Sequence*> all;
    for (const auto& group : groups_)
      for (const auto& member : group->members)
        if (member->state != SequenceState::kFinished) all.push_back(member.get());
    return all;
  }

  SchedulerLimits limits_;
  BlockPool pool_;
  BatchScheduler scheduler_;
  StepPlan plan_;
  std::vector<std::unique_ptr<PromptGroup>> groups_;
  std::map<const Sequence*, std::int32_t> wanted_;
  std::vector<std::int64_t> finished_order_;
  std::vector<std::int64_t> served_arrivals_;  // of the last step
  std::size_t unfinished_ = 0;
  std::int64_t trunk_tokens_ = 0;
  std::int64_t steps_ = 0;

 private:
  void check_runs() {
    std::int32_t tokens = 0;
    std::set<const Sequence*> seen;
    std::set<std::int32_t> written;
    for (const BlockCopy& copy : plan_.copies) EXPECT_NE(copy.source, copy.target);
    for (const ScheduledRun& run : plan_.runs) {
      const Sequence& sequence = *run.sequence;
      tokens += run.tokens;
      EXPECT_TRUE(seen.insert(&sequence).second) << "scheduled twice";
      EXPECT_EQ(sequence.state, SequenceState::kRunning);
      ASSERT_GE(run.tokens, 1);
      ASSERT_LE(run.tokens, sequence.pending());
      const std::int64_t end = sequence.computed + run.tokens;
      ASSERT_GE(static_cast<std::int64_t>(sequence.blocks.size()), blocks_for_tokens(end));
      for (std::int64_t b = sequence.computed / kBlockTokens; b < blocks_for_tokens(end); ++b) {
        const std::int32_t block = sequence.blocks[static_cast<std::size_t>(b)];
        EXPECT_EQ(pool_.holders(block), 1) << "writes into a shared block";
        EXPECT_TRUE(written.insert(block).second) << "two writers of one block";
      }
    }
    EXPECT_EQ(tokens, plan_.tokens);
  }
  void sampled(Sequence& sequence) {
    if (!sequence.is_trunk()) return append(sequence);
    std::vector<Sequence*> fresh;
    for (const auto& member : sequence.group->members)
      if (member->state == SequenceState::kWaiting && member->output_tokens() == 0)
        fresh.push_back(member.get());
    for (Sequence* member : fresh) append(*member);
  }
  void append(Sequence& member) {
    member.tokens.push_back(7);
    if (member.output_tokens() >= wanted_.at(&member)) finish(member);
  }
  std::int64_t next_arrival_ = 0;
  std::int64_t next_id_ = 1;
};

TEST(BatchScheduler, FinishesEveryRandomLoadWithinItsLimits) {
  std::int64_t preemptions = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const auto seqs = static_cast<std::int32_t>(1 + rng.below(12));
    const auto step_tokens = seqs + static_cast<std::int32_t>(rng.below(seed % 3 == 0 ? 3 : 60));
    // The longest sequence here has 40 + 40 − 1 tokens with KV: 5 blocks.
    Simulation simulation({.running_sequences = seqs, .step_tokens = step_tokens},
                          5 + static_cast<std::int64_t>(rng.below(seed % 2 == 0 ? 4 : 60)));
    const std::uint64_t groups = 1 + rng.below(20);
    for (std::uint64_t g = 0; g < groups; ++g) {
      std::vector<std::int32_t> outputs(1 + rng.below(6));
      for (auto& output : outputs) output = static_cast<std::int32_t>(1 + rng.below(40));
      simulation.add(static_cast<std::int32_t>(1 + rng.below(40)), outputs,
                     static_cast<std::int32_t>(rng.below(3) == 0 ? rng.below(30) : 0));
      for (std::uint64_t s = rng.below(4); s > 0; --s) simulation.step();
    }
    simulation.run_to_end();
    preemptions += simulation.scheduler_.counts().preemptions;
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(preemptions, 100);
}

TEST(BatchScheduler, SurvivesRandomAbortsAndPreemptions) {
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    Simulation simulation({.running_sequences = 6, .step_tokens = 20},
                          6 + static_cast<std::int64_t>(rng.below(10)));
    for (int g = 0; g < 12; ++g)
      simulation.add(static_cast<std::int32_t>(1 + rng.below(40)),
                     std::vector<std::int32_t>(1 + rng.below(5), 30));
    while (simulation.unfinished_ > 0) {
      ASSERT_TRUE(simulation.step());
      const auto alive = simulation.alive();
      if (alive.empty()) break;
      Sequence& chosen = *alive[rng.below(alive.size())];
      const std::uint64_t action = rng.below(8);
      if (action == 0)
        simulation.finish(chosen);
      else if (action == 1 && chosen.state == SequenceState::kRunning)
        simulation.scheduler_.preempt(chosen);
      else if (action == 2 && rng.below(10) == 0)
        simulation.scheduler_.preempt_all();
    }
    // Aborted members may have been a group's last: a step retires what is left.
    simulation.step();
    EXPECT_TRUE(simulation.scheduler_.idle());
    EXPECT_EQ(simulation.pool_.free_count(), simulation.pool_.block_count());
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(BatchScheduler, PrefillsAPromptOncePerGroup) {
  Simulation simulation({.running_sequences = 64, .step_tokens = 256}, 400);
  for (int g = 0; g < 5; ++g) simulation.add(37, std::vector<std::int32_t>(8, 20));
  simulation.run_to_end();
  EXPECT_EQ(simulation.trunk_tokens_, 5 * 37);
  EXPECT_EQ(simulation.scheduler_.counts().preemptions, 0);
  EXPECT_EQ(simulation.scheduler_.counts().forks, 5 * 7);
  EXPECT_EQ(simulation.scheduler_.counts().prefix_tokens_shared, 5 * 7 * 37);
}

TEST(BatchScheduler, PrefillsOnceThoughOnlyPartOfTheGroupRunsAtATime) {
  Simulation simulation({.running_sequences = 3, .step_tokens = 16}, 60);
  simulation.add(37, std::vector<std::int32_t>(10, 12));
  simulation.run_to_end();
  EXPECT_EQ(simulation.trunk_tokens_, 37);
}

TEST(BatchScheduler, NeedsNoForkForMembersThatEndWithTheirFirstToken) {
  Simulation simulation({.running_sequences = 4, .step_tokens = 64}, 20);
  simulation.add(20, std::vector<std::int32_t>(16, 1));
  simulation.run_to_end();
  EXPECT_EQ(simulation.steps_, 1);
  EXPECT_EQ(simulation.scheduler_.counts().forks, 0);
}

TEST(BatchScheduler, ServesEqualRequestsInOrderOfArrival) {
  for (const std::int64_t blocks : {4, 6, 9, 40}) {
    Simulation simulation({.running_sequences = 4, .step_tokens = 24}, blocks);
    for (int g = 0; g < 20; ++g) simulation.add(30, {20});
    simulation.run_to_end();
    EXPECT_TRUE(std::ranges::is_sorted(simulation.finished_order_)) << blocks << " blocks";
  }
}

TEST(BatchScheduler, DecodesEveryRunningSequenceWhileALongPromptIsChunked) {
  Simulation simulation({.running_sequences = 8, .step_tokens = 12}, 100);
  for (int g = 0; g < 5; ++g) simulation.add(3, {60});
  for (int i = 0; i < 4; ++i) simulation.step();
  simulation.add(400, {2});
  for (int i = 0; i < 30; ++i) {
    const auto before = simulation.alive();
    std::map<Sequence*, std::int32_t> lengths;
    for (Sequence* s : before)
      if (s->prompt_tokens == 3) lengths[s] = s->length();
    ASSERT_TRUE(simulation.step());
    for (const auto& [sequence, length] : lengths)
      EXPECT_EQ(sequence->length(), length + 1) << "a decode waited for the long prompt";
    EXPECT_EQ(simulation.plan_.tokens, 12) << "the rest of the budget is used for the prompt";
  }
  simulation.run_to_end();
}

TEST(BatchScheduler, TheOldestAdvancesAndNobodyOvertakesInTheSmallestPool) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    Simulation simulation({.running_sequences = 6, .step_tokens = 12}, 5);
    for (int g = 0; g < 15; ++g)
      simulation.add(static_cast<std::int32_t>(1 + rng.below(40)),
                     std::vector<std::int32_t>(1 + rng.below(4), 39));
    std::int64_t begun_last = -1;
    while (simulation.unfinished_ > 0) {
      const Sequence* oldest = nullptr;
      for (const Sequence* s : simulation.alive())
        if (s->state == SequenceState::kRunning && (oldest == nullptr || priority(*s, *oldest) < 0))
          oldest = s;
      const std::int64_t arrival = oldest != nullptr ? oldest->group->arrival : INT64_MAX;
      std::set<const PromptGroup*> fresh;
      for (const auto& group : simulation.groups_)
        if (!group->begun) fresh.insert(group.get());
      ASSERT_TRUE(simulation.step());
      std::int64_t served = INT64_MAX;
      for (const std::int64_t run : simulation.served_arrivals_) served = std::min(served, run);
      ASSERT_LE(served, arrival) << "step " << simulation.steps_;
      for (const auto& group : simulation.groups_) {
        if (!group->begun || !fresh.contains(group.get())) continue;
        EXPECT_GT(group->arrival, begun_last) << "groups begin in order of arrival";
        begun_last = std::max(begun_last, group->arrival);
      }
    }
  }
}

TEST(BatchScheduler, PreemptsTheYoungestAndKeepsTheOldest) {
  Simulation simulation({.running_sequences = 2, .step_tokens = 64}, 4);
  PromptGroup& first = simulation.add(15, {40});
  PromptGroup& second = simulation.add(15, {40});
  const Sequence* old = first.members[0].get();
  const Sequence* young = second.members[0].get();
  while (simulation.scheduler_.counts().preemptions == 0) ASSERT_TRUE(simulation.step());
  EXPECT_EQ(old->state, SequenceState::kRunning);
  EXPECT_EQ(young->state, SequenceState::kWaiting);
  simulation.run_to_end();
}

TEST(BatchScheduler, HoldsNewGroupsBackWhilePausedAndFinishesThoseThatBegan) {
  Simulation simulation({.running_sequences = 4, .step_tokens = 64}, 40);
  simulation.add(10, {5, 9});
  simulation.step();
  PromptGroup& late = simulation.add(10, {5});
  simulation.scheduler_.pause_new_groups(true);
  while (simulation.scheduler_.has_begun()) ASSERT_TRUE(simulation.step());
  EXPECT_EQ(simulation.unfinished_, 1u);
  EXPECT_FALSE(late.begun);
  EXPECT_FALSE(simulation.step()) << "paused: nothing to do";
  simulation.scheduler_.pause_new_groups(false);
  simulation.run_to_end();
}

TEST(BatchScheduler, RefusesToRunOnKvOfAnEarlierEra) {
  for (const bool preempted : {true, false}) {
    Simulation simulation({.running_sequences = 2, .step_tokens = 64}, 40);
    simulation.add(20, {5, 5, 5, 5});  // two run, two wait to fork from the trunk
    simulation.step();
    simulation.step();
    EXPECT_TRUE(simulation.scheduler_.holds_kv());
    if (preempted) simulation.scheduler_.preempt_all();
    EXPECT_EQ(simulation.scheduler_.holds_kv(), !preempted);
    simulation.scheduler_.new_era();
    if (preempted)
      simulation.run_to_end();
    else
      EXPECT_THROW(simulation.step(), CheckFailure);
  }
}

TEST(BatchScheduler, ChecksItsCallers) {
  Simulation simulation({.running_sequences = 4, .step_tokens = 64}, 40);
  PromptGroup& group = simulation.add(10, {5, 5});
  EXPECT_THROW(simulation.scheduler_.submit(group), CheckFailure);
  EXPECT_THROW(simulation.scheduler_.preempt(*group.members[0]), CheckFailure);
  Sequence& member = *group.members[0];
  simulation.finish(member);
  EXPECT_THROW(simulation.scheduler_.finish(member), CheckFailure);
}

}  // namespace
}  // namespace troupe::actors
