// Events per second of the simulator's engine, by number pending (hold model: each event that
// leaves schedules one more): the bare queue, whole simulations with handlers and keyed random
// numbers, and with a coroutine program beside them.
//
//   bench_sim_events [--check] [--events N] [--json]
//
// With --check it ends non-zero when a bar is missed: bare queue ≥ 5 M events/s with ≤ 16k
// pending, ≥ 1 M with handlers. With --json it prints one line instead, for bench/peers: events per
// second of 1,024 clocks as handlers and as coroutine programs, and customers per second of an
// M/M/1 queue with what they waited on average.

#include "bench/elapsed.hpp"
#include "runtime/base/check.hpp"
#include "sim/engine/random.hpp"
#include "sim/engine/simulation.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::sim;
using Steady = std::chrono::steady_clock;

/// A cheap stream of gaps, so that the queue and not the draw is measured.
struct Gaps {
  std::uint64_t state = 88172645463325252ULL;
  Duration next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return Duration(static_cast<std::int64_t>(state % 1'000'000));
  }
};

double bare_rate(std::uint64_t pending, std::uint64_t events) {
  EventQueue<Event> queue;
  Gaps gaps;
  for (std::uint64_t i = 0; i < pending; ++i)
    queue.push(TimePoint(gaps.next()), EventClass::kDefault, Event{});
  const auto begin = Steady::now();
  for (std::uint64_t i = 0; i < events; ++i) {
    const auto popped = queue.pop();
    queue.push(popped->at + gaps.next(), popped->event_class, popped->event);
  }
  return static_cast<double>(events) / bench::seconds_since(begin);
}

/// Draws its next time by a keyed exponential, as models do.
class Clockwork : public Process {
 public:
  explicit Clockwork(std::uint64_t entity) : entity_(entity) {}
  void on_event(Simulation& simulation, const Event& event) override {
    const double gap = exponential({1, entity_, Purpose::kStepNoise, draws_++});
    simulation.after(Duration(static_cast<std::int64_t>(gap * 1e6)), *this, event.kind);
  }
  std::string_view name_of(std::uint32_t) const override { return "tick"; }

 private:
  std::uint64_t entity_;
  std::uint64_t draws_ = 0;
};

double handler_rate(std::uint64_t pending, std::uint64_t events, bool with_program) {
  SimulationOptions options;
  options.events_max = events + pending;
  EventLog log;
  options.log = &log;
  Simulation simulation(options);
  std::vector<Clockwork> works;
  for (std::uint64_t i = 0; i < pending; ++i) works.emplace_back(i + 1);
  for (Clockwork& work : works) simulation.after(Duration(1), work, 0);
  const auto begin = Steady::now();
  // Gaps are 1 ms on average: so long does it take until `events` have happened.
  const Duration span = std::chrono::milliseconds(1) * (events / pending);
  if (with_program) {
    const auto sleeper = [](Duration all) -> runtime::task<void> {
      for (int i = 0; i < 1'000; ++i) co_await runtime::sleep_for(all / 1'000);
    };
    auto done = simulation.run_task(sleeper(span));
    if (!done) fmt::print("{}\n", done.error().to_string());
  } else {
    auto done = simulation.run_until(TimePoint(span));
    if (!done) fmt::print("{}\n", done.error().to_string());
  }
  return static_cast<double>(simulation.events()) / bench::seconds_since(begin);
}

/// Ticks as Clockwork does, as a program.
runtime::task<void> tick(std::uint64_t entity, std::uint64_t& ticks) {
  for (std::uint64_t draw = 0;; ++draw) {
    const double gap = exponential({1, entity, Purpose::kStepNoise, draw});
    co_await runtime::sleep_for(Duration(static_cast<std::int64_t>(gap * 1e6)));
    ++ticks;
  }
}

double program_rate(std::uint64_t programs, std::uint64_t events) {
  std::uint64_t ticks = 0;
  Simulation simulation;
  const auto main = [](Duration span) -> runtime::task<void> { co_await runtime::sleep_for(span); };
  std::vector<runtime::pending<void>> running;
  for (std::uint64_t i = 0; i < programs; ++i)
    running.push_back(simulation.executor().spawn(tick(i + 1, ticks)));
  const auto begin = Steady::now();
  const auto done = simulation.run_task(main(std::chrono::milliseconds(1) * (events / programs)));
  TROUPE_CHECK(done, "bench: {}", done.error().to_string());
  return static_cast<double>(ticks) / bench::seconds_since(begin);
}

/// One server, customers who wait in line; service takes 1 s on average, load is 0.8.
class Queue : public Process {
 public:
  explicit Queue(std::uint64_t customers) : customers_(customers) {}
  void on_event(Simulation& simulation, const Event& event) override {
    if (event.kind == kArrival) {
      waiting_.push_back(simulation.now());
      if (waiting_.size() == 1) serve(simulation);
      if (++arrived_ < customers_) arrive(simulation);
      return;
    }
    const Duration spent = simulation.now() - waiting_.front();
    spent_s += std::chrono::duration<double>(spent).count();
    waiting_.pop_front();
    if (!waiting_.empty()) serve(simulation);
  }
  std::string_view name_of(std::uint32_t kind) const override {
    return kind == kArrival ? "arrival" : "done";
  }
  void arrive(Simulation& simulation) {
    simulation.after(drawn(1, arrived_, 1 / 0.8), *this, kArrival);
  }
  double spent_s = 0;

 private:
  enum Kind : std::uint32_t { kArrival, kDone };
  static Duration drawn(std::uint64_t entity, std::uint64_t index, double mean_s) {
    const double span = mean_s * exponential({1, entity, Purpose::kTest, index});
    return Duration(static_cast<std::int64_t>(span * 1e9));
  }
  void serve(Simulation& simulation) { simulation.after(drawn(2, served_++, 1), *this, kDone); }

  const std::uint64_t customers_;
  std::uint64_t arrived_ = 0;
  std::uint64_t served_ = 0;
  std::deque<TimePoint> waiting_;
};

void print_json(std::uint64_t events) {
  const double handlers = handler_rate(1024, events, false);
  const double programs = program_rate(1024, events);
  const std::uint64_t customers = events / 2;
  Simulation simulation;
  Queue queue(customers);
  queue.arrive(simulation);
  const auto begin = Steady::now();
  const auto done = simulation.run();
  TROUPE_CHECK(done, "bench: {}", done.error().to_string());
  const double rate = static_cast<double>(customers) / bench::seconds_since(begin);
  fmt::print(
      "{{\"handlers\": {:.0f}, \"programs\": {:.0f}, \"customers\": {:.0f}, \"spent_s\": "
      "{:.4f}}}\n",
      handlers, programs, rate, queue.spent_s / static_cast<double>(customers));
}

}  // namespace

int main(int count, char** words) {
  bool check = false;
  bool json = false;
  std::uint64_t events = 4'000'000;
  CLI::App app("Events per second of the simulator's engine");
  app.add_flag("--check", check, "end non-zero when a bar is missed");
  app.add_flag("--json", json, "one line for bench/peers");
  app.add_option("--events", events, "per measurement")->check(CLI::Range(100'000, 1'000'000'000));
  CLI11_PARSE(app, count, words);
  if (json) {
    print_json(events);
    return 0;
  }
  bool held = true;
  fmt::print("{:>9} {:>14} {:>14} {:>14}   M events/s\n", "pending", "bare queue", "handlers",
             "with program");
  for (const std::uint64_t pending : {64U, 1'024U, 16'384U, 262'144U}) {
    const double bare = bare_rate(pending, events) / 1e6;
    const double handled = handler_rate(pending, events / 4, false) / 1e6;
    const double program = handler_rate(pending, events / 4, true) / 1e6;
    fmt::print("{:>9} {:>14.2f} {:>14.2f} {:>14.2f}\n", pending, bare, handled, program);
    if (pending <= 16'384) held = held && bare >= 5 && handled >= 1 && program >= 1;
  }
  if (check && !held) fmt::print("missed: wanted 5 M/s bare and 1 M/s with handlers up to 16k\n");
  return check && !held ? 1 : 0;
}
