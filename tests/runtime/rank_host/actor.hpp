#pragma once

// The worker of the tests of groups across processes: it echoes, waits at doors that are files,
// fails and dies as it is told.
//
// **Threads:** as any worker.

#include "runtime/base/check.hpp"
#include "runtime/comm/collective.hpp"
#include "runtime/group/worker_group.hpp"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace troupe::runtime::testing {

/// What the constructor shall do, as the spec of the program.
struct ActorSpec {
  int fail_rank = -1;   ///< returns an error
  int throw_rank = -1;  ///< throws
  int kill_rank = -1;   ///< SIGKILLs its process
  int hang_rank = -1;   ///< sleeps
  bool meet = false;    ///< all ranks meet in a barrier
  static constexpr auto fields() {
    return std::tuple{field("fail_rank", &ActorSpec::fail_rank),
                      field("throw_rank", &ActorSpec::throw_rank),
                      field("kill_rank", &ActorSpec::kill_rank),
                      field("hang_rank", &ActorSpec::hang_rank), field("meet", &ActorSpec::meet)};
  }
};

struct Summary {
  std::string text;
  std::vector<double> numbers;
  bool operator==(const Summary&) const = default;
  static constexpr auto fields() {
    return std::tuple{field("text", &Summary::text), field("numbers", &Summary::numbers)};
  }
};

class Actor {
 public:
  static result<std::unique_ptr<Actor>> make(WorkerContext& context, const ActorSpec& spec) {
    const int rank = context.rank().value;
    if (rank == spec.hang_rank) std::this_thread::sleep_for(std::chrono::minutes(1));
    if (rank == spec.kill_rank) kill(getpid(), SIGKILL);
    if (rank == spec.throw_rank) throw std::runtime_error("no weights");
    if (rank == spec.fail_rank)
      return fail(ErrorCode::kConfig, "rank {} does not like its spec", rank);
    if (spec.meet) {
      TROUPE_TRY_VOID(context.collective().barrier(context.deadline()));
    }
    return std::make_unique<Actor>(context);
  }
  explicit Actor(WorkerContext& context) : context_(context) {}

  int echo(int value) { return value * 10 + rank(); }
  void append(int value) { log_.push_back(value); }
  std::vector<int> history() { return log_; }
  Summary describe(const Summary& summary, const std::map<std::string, int>& numbers) {
    Summary out = summary;
    for (const auto& [name, number] : numbers) out.text += fmt::format(" {}={}", name, number);
    out.numbers.push_back(rank());
    return out;
  }
  std::vector<int> double_all(const std::vector<int>& values) {
    std::vector<int> out;
    for (const int value : values) out.push_back(2 * value);
    return out;
  }
  int pid() { return static_cast<int>(getpid()); }
  double seconds_left() { return seconds(context_.deadline().at - SteadyClock().now()); }

  /// Waits until the file exists; marks that it is inside with `path.<rank>`.
  int wait_at_door(const std::string& path) {
    const auto waiting = context_.waiting_for("the door");
    enter(path);
    while (!std::filesystem::exists(path)) nap();
    return rank();
  }
  /// The same, and leaves when nobody wants the result; says so with `path.left.<rank>`.
  bool polite(const std::string& path) {
    enter(path);
    while (!std::filesystem::exists(path) && !context_.cancelled()) nap();
    if (context_.cancelled()) std::ofstream(fmt::format("{}.left.{}", path, rank()));
    return context_.cancelled();
  }

  result<int> fail_on(int culprit) {
    if (rank() == culprit) return fail(ErrorCode::kConflict, "it does not add up");
    return rank();
  }
  int throw_on(int culprit) {
    if (rank() == culprit) throw std::runtime_error("foreign trouble");
    return rank();
  }
  int check_on(int culprit) {
    TROUPE_CHECK(rank() != culprit, "rank {} is {}", rank(), culprit);
    return rank();
  }
  int kill_on(int culprit, int signal) {
    if (rank() == culprit) kill(getpid(), signal);
    return rank();
  }
  result<double> sum(double value) {
    return all_reduce_value(context_.collective(), value + rank(), ReduceOp::kSum,
                            context_.deadline());
  }
  /// One rank fails, the others wait for it in a collective.
  result<double> fail_before_sum(int culprit) {
    if (rank() == culprit) return fail(ErrorCode::kConflict, "it does not add up");
    return sum(0);
  }
  /// One rank dies, the others wait for it in a collective.
  result<double> kill_before_sum(int culprit) {
    if (rank() == culprit) kill(getpid(), SIGKILL);
    return sum(0);
  }
  result<double> sum_along(const std::string& axis) {
    return all_reduce_value(context_.collective(axis), 1.0 + rank(), ReduceOp::kSum,
                            context_.deadline());
  }

  /// Row-wise: adds `score`, twice `x`.
  result<Batch> score(const Batch& batch) {
    TROUPE_TRY(const Column x, batch.require("x"));
    std::vector<float> doubled = x.values<float>();
    for (float& value : doubled) value *= 2;
    Batch out;
    TROUPE_TRY_VOID(out.set("score", Column::dense(std::move(doubled))));
    out.metrics().add("rows", static_cast<double>(batch.rows()), Reduction::kSum);
    return out;
  }
  result<Batch> score_kept(const Batch& batch) { return score(batch); }
  result<double> total(const Batch& batch) {
    TROUPE_TRY(const Column scores, batch.require("score"));
    double sum_of = 0;
    for (const float value : scores.values<float>()) sum_of += static_cast<double>(value);
    return sum_of;
  }
  std::vector<float> numbers(std::int64_t count) {
    return std::vector<float>(static_cast<std::size_t>(count), 0.5F);
  }
  std::int64_t count(const std::vector<float>& values) {
    return static_cast<std::int64_t>(values.size());
  }
  int pointer(const int* value) { return *value; }
  Metrics measure(int steps) {
    Metrics metrics;
    for (int i = 0; i < steps; ++i) metrics.add("step", rank(), Reduction::kMean);
    context_.progress(steps);
    return metrics;
  }
  /// Runs inside the lane; a negative number is an error.
  result<int> train(int value) {
    if (value < 0) return fail(ErrorCode::kInvalidArgument, "{} is below 0", value);
    return value;
  }
  std::int64_t columns_held() { return context_.columns().columns_held(); }

  static constexpr auto methods() {
    return std::tuple{
        method<&Actor::echo>("echo", args(broadcast), returns(all)),
        method<&Actor::append>("append", args(broadcast), returns(none)),
        method<&Actor::history>("history", args(), returns(all)),
        method<&Actor::describe>("describe", args(broadcast, per_rank), returns(all)),
        method<&Actor::double_all>("double_all", args(scatter_padded), returns(concat)),
        method<&Actor::pid>("pid", args(), returns(all)),
        method<&Actor::seconds_left>("seconds_left", args(), returns(reduce(kMin))),
        method<&Actor::wait_at_door>("wait_at_door", args(broadcast), returns(all)),
        method<&Actor::polite>("polite", args(broadcast), returns(all)),
        method<&Actor::fail_on>("fail_on", args(broadcast), returns(all)),
        method<&Actor::throw_on>("throw_on", args(broadcast), returns(all)),
        method<&Actor::check_on>("check_on", args(broadcast), returns(all)),
        method<&Actor::kill_on>("kill_on", args(broadcast, broadcast), returns(all)),
        method<&Actor::sum>("sum", args(broadcast), returns(all)),
        method<&Actor::fail_before_sum>("fail_before_sum", args(broadcast), returns(all)),
        method<&Actor::kill_before_sum>("kill_before_sum", args(broadcast), returns(all)),
        method<&Actor::sum_along>("sum_along", args(broadcast), returns(all)),
        method<&Actor::score>("score", args(scatter), returns(concat)),
        method<&Actor::score_kept>("score_kept", args(scatter), returns(concat)).keep_columns(),
        method<&Actor::total>("total", args(scatter), returns(reduce(kSum))),
        method<&Actor::numbers>("numbers", args(broadcast), returns(first)),
        method<&Actor::count>("count", args(broadcast), returns(all)),
        method<&Actor::pointer>("pointer", args(broadcast), returns(first)),
        method<&Actor::measure>("measure", args(broadcast), returns(reduce(kMerge))),
        method<&Actor::train>("train", args(broadcast), returns(all)).phase("train"),
        method<&Actor::columns_held>("columns_held", args(), returns(all))};
  }

 private:
  int rank() const { return context_.rank().value; }
  void enter(const std::string& path) const { std::ofstream(fmt::format("{}.{}", path, rank())); }
  static void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

  WorkerContext& context_;
  std::vector<int> log_;
};

}  // namespace troupe::runtime::testing
