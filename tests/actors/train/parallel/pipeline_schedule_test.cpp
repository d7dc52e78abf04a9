// Proves the order of pipeline steps by running all stages against each other, slowly and without
// any model: every schedule ends, does each step once, after what it needs, holds no more
// micro-batches than it says, and gets by with mailboxes of one message.
#include "actors/train/pipeline_schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace troupe::actors {
namespace {

using Done = std::set<std::tuple<bool, int, std::int64_t>>;

/// May `step` run, given what has been done?
bool is_ready(const PipelineShape& shape, const PipelineStep& step, const Done& done) {
  if (step.forward) return step.run == 0 || done.contains({true, step.run - 1, step.micro_batch});
  if (!done.contains({true, step.run, step.micro_batch})) return false;
  return step.run + 1 == shape.runs() || done.contains({false, step.run + 1, step.micro_batch});
}

/// Runs the stages until none can go on; false: somebody waits for ever.
bool ends(const PipelineShape& shape, const std::vector<std::vector<PipelineStep>>& stages) {
  Done done;
  std::vector<std::size_t> next(stages.size(), 0);
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t s = 0; s < stages.size(); ++s)
      while (next[s] < stages[s].size() && is_ready(shape, stages[s][next[s]], done)) {
        const PipelineStep& step = stages[s][next[s]++];
        EXPECT_TRUE(done.insert({step.forward, step.run, step.micro_batch}).second);
        moved = true;
      }
  }
  for (std::size_t s = 0; s < stages.size(); ++s)
    if (next[s] != stages[s].size()) return false;
  return true;
}

/// One stage with two mailboxes of one message each, for activations and for gradients.
struct Stage {
  std::vector<PipelineStep> steps;
  std::size_t next = 0;
  bool has_run = false;  // the step's work is done, its message not yet sent
  std::optional<PipelineStep> mailbox[2] = {};
};

/// Does a step of `stage` go on, and how far; false: it waits.
bool advance(const PipelineShape& shape, std::vector<Stage>& stages, std::size_t index) {
  Stage& stage = stages[index];
  if (stage.next == stage.steps.size()) return false;
  const PipelineStep& step = stage.steps[stage.next];
  const int direction = step.forward ? 1 : -1;
  const int last = step.forward ? shape.runs() - 1 : 0;
  if (!stage.has_run) {
    const int first = step.forward ? 0 : shape.runs() - 1;
    if (step.run != first) {
      std::optional<PipelineStep>& message = stage.mailbox[step.forward ? 0 : 1];
      if (!message) return false;
      EXPECT_EQ(*message, (PipelineStep{step.forward, step.run - direction, step.micro_batch}));
      message.reset();
    }
    stage.has_run = true;
  }
  if (step.run != last) {
    const int to = (step.run + direction) % shape.stages;
    std::optional<PipelineStep>& box =
        stages[static_cast<std::size_t>(to)].mailbox[step.forward ? 0 : 1];
    if (box) return false;
    box = step;
  }
  stage.has_run = false;
  ++stage.next;
  return true;
}

/// As `ends`, when a send waits until the one before it has been read.
bool ends_in_small_mailboxes(const PipelineShape& shape,
                             const std::vector<std::vector<PipelineStep>>& steps) {
  std::vector<Stage> stages;
  for (const std::vector<PipelineStep>& mine : steps) stages.push_back({.steps = mine});
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t s = 0; s < stages.size(); ++s)
      while (true) {
        const bool had_run = stages[s].has_run;
        const bool done = advance(shape, stages, s);
        moved = moved || done || stages[s].has_run != had_run;
        if (!done) break;
      }
  }
  return std::ranges::all_of(stages,
                             [](const Stage& stage) { return stage.next == stage.steps.size(); });
}

void check_schedule(const PipelineShape& shape, std::int64_t micro_batches) {
  SCOPED_TRACE(std::to_string(shape.stages) + " stages × " + std::to_string(shape.virtual_stages) +
               ", " + std::to_string(micro_batches) + " micro-batches");
  std::vector<std::vector<PipelineStep>> training;
  std::vector<std::vector<PipelineStep>> forward;
  for (int stage = 0; stage < shape.stages; ++stage) {
    training.push_back(training_steps(shape, stage, micro_batches));
    forward.push_back(forward_steps(shape, stage, micro_batches));
    const auto wanted = static_cast<std::size_t>(shape.virtual_stages * micro_batches);
    EXPECT_EQ(training.back().size(), 2 * wanted);
    EXPECT_EQ(forward.back().size(), wanted);
    std::int64_t in_flight = 0;
    for (const PipelineStep& step : training.back()) {
      EXPECT_EQ(step.run % shape.stages, stage);
      in_flight += step.forward ? 1 : -1;
      EXPECT_LE(in_flight, in_flight_max(shape, stage));
    }
  }
  EXPECT_TRUE(ends(shape, training));
  EXPECT_TRUE(ends(shape, forward));
  EXPECT_TRUE(ends_in_small_mailboxes(shape, training));
  EXPECT_TRUE(ends_in_small_mailboxes(shape, forward));
}

TEST(PipelineSchedule, EveryStageGetsToTheEndOnAnyNumberOfMicroBatches) {
  for (int stages = 1; stages <= 8; ++stages)
    for (int virtual_stages = 1; virtual_stages <= 4; ++virtual_stages)
      for (std::int64_t micro_batches = 0; micro_batches <= 19; ++micro_batches)
        check_schedule({.stages = stages, .virtual_stages = virtual_stages}, micro_batches);
}

TEST(PipelineSchedule, OneForwardOneBackwardHoldsAsManyAsStagesAreLeft) {
  for (int stage = 0; stage < 5; ++stage)
    EXPECT_EQ(in_flight_max({.stages = 5, .virtual_stages = 1}, stage), 5 - stage);
  const auto last = training_steps({.stages = 3, .virtual_stages = 1}, 2, 2);
  const std::vector<PipelineStep> wanted = {
      {true, 2, 0}, {false, 2, 0}, {true, 2, 1}, {false, 2, 1}};
  EXPECT_EQ(last, wanted);
}

TEST(PipelineSchedule, ABoundaryCarriesMicroBatchesInOneOrderEachWay) {
  // Messages of a boundary and direction share a tag, so sender and receiver must agree on order.
  for (int virtual_stages = 1; virtual_stages <= 3; ++virtual_stages) {
    const PipelineShape shape{.stages = 4, .virtual_stages = virtual_stages};
    for (int stage = 0; stage < shape.stages; ++stage) {
      std::set<std::tuple<bool, int, std::int64_t>> seen;
      for (const PipelineStep& step : training_steps(shape, stage, 10)) {
        if (step.micro_batch > 0) {
          EXPECT_TRUE(seen.contains({step.forward, step.run, step.micro_batch - 1}));
        }
        seen.insert({step.forward, step.run, step.micro_batch});
      }
    }
  }
}

}  // namespace
}  // namespace troupe::actors
