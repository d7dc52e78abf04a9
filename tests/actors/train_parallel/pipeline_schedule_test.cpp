// Proves the order of pipeline steps by running all stages against each other, slowly and without
// any model: every schedule ends, does each step once, after what it needs, and holds no more
// micro-batches than it says.
#include "actors/train/pipeline_schedule.hpp"

#include <gtest/gtest.h>

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
