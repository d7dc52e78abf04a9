#include "apps/training/evaluation_lane.hpp"

#include "runtime/base/log.hpp"

#include <utility>

namespace troupe::apps {

using actors::GroupWorld;
using runtime::Metrics;
using runtime::Reduction;
using runtime::task;
using runtime::value_or_throw;

std::map<std::string, double> values_of(const Metrics& metrics) {
  std::map<std::string, double> values;
  for (const auto& [name, entry] : metrics) values[name] = entry.value().value_or(0);
  return values;
}

result<std::unique_ptr<EvaluationLane>> EvaluationLane::open(
    actors::GroupEvaluator& evaluator, actors::GroupReward& reward, const Clock& clock,
    EvaluationLaneOptions options, std::optional<std::int64_t> resumed,
    std::function<void(const Values&)> done) {
  // A run that was killed before its first evaluation has no file to go on with.
  std::error_code ignored;
  if (!std::filesystem::exists(options.file, ignored)) resumed.reset();
  TROUPE_TRY(auto writer, runtime::MetricsWriter::open(options.file.string(), resumed));
  return std::unique_ptr<EvaluationLane>(new EvaluationLane(
      evaluator, reward, clock, std::move(options), std::move(writer), std::move(done)));
}

task<Metrics> EvaluationLane::begin(std::int64_t step, double wall) {
  if (writer_.last_step() >= step) co_return Metrics();
  if (running_) {
    log::warn("evaluation of step {} is left out: that of step {} still runs", step, *running_);
    co_return Metrics();
  }
  Metrics moved = co_await evaluator_.publish();
  if (!background_) {
    const runtime::TaskContext& context = co_await runtime::this_context();
    background_ =
        std::make_unique<actors::BackgroundTasks>(context.executor, [this](const Error& error) {
          log::warn("evaluation of step {} failed: {}", running_.value_or(-1), error.to_string());
          running_.reset();
          ended_.ring();
        });
  }
  running_ = step;
  background_->add(evaluate(step, wall));
  co_return moved;
}

task<void> EvaluationLane::evaluate(std::int64_t step, double wall) {
  const TimePoint began = clock_.now();
  Metrics found = co_await actors::validate<GroupWorld>(
      evaluator_.rollout(), reward_, options_.batches, options_.samples_per_prompt,
      options_.sampling, nullptr, options_.environment);
  const Values values = values_of(found);
  found.add("evaluation/weight_version", static_cast<double>(evaluator_.version().value),
            Reduction::kLast);
  found.add("perf/wall_s", wall, Reduction::kLast);
  found.add("timing_s/testing", seconds(clock_.now() - began), Reduction::kSum);
  value_or_throw(writer_.write(step, found));
  done_(values);
  running_.reset();
  ended_.ring();
}

task<bool> EvaluationLane::finish(TimePoint until) {
  while (running_ && clock_.now() < until) co_await ended_.wait(until);
  if (!running_) co_return true;
  log::warn("evaluation of step {} did not end in time and is left out", *running_);
  co_await background_->stop(runtime::cancelled("the run is over"));
  running_.reset();
  co_return false;
}

}  // namespace troupe::apps
