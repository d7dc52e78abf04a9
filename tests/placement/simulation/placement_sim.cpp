// Runs the placement protocol under simulation, seed after seed.
//
//   troupe_placement_sim --seeds A..B      one line a failure, totals at the end; exit code 1 on
//   any troupe_placement_sim --replay SEED     the whole event log of one seed
//
// Options: --twice runs each seed a second time and compares the hashes; --limit SECONDS stops
// after so long, which is no failure.

#include "tests/placement/simulation/simulate.hpp"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string_view>

namespace {

using namespace troupe::placement::simulation;

struct Arguments {
  std::uint64_t first = 1;
  std::uint64_t last = 200;
  std::optional<std::uint64_t> replay;
  bool twice = false;
  double limit_s = 0;
};

bool number(std::string_view text, std::uint64_t& value) {
  const auto end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

std::optional<Arguments> parse(int count, char** values) {
  Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string_view option = values[i];
    const std::string_view value = i + 1 < count ? values[i + 1] : "";
    if (option == "--twice") {
      arguments.twice = true;
      continue;
    }
    ++i;
    std::uint64_t whole = 0;
    if (option == "--seeds") {
      const std::size_t dots = value.find("..");
      const bool range = dots != std::string_view::npos &&
                         number(value.substr(0, dots), arguments.first) &&
                         number(value.substr(dots + 2), arguments.last);
      if (!range) return std::nullopt;
    } else if (option == "--replay" && number(value, whole)) {
      arguments.replay = whole;
    } else if (option == "--limit" && number(value, whole)) {
      arguments.limit_s = static_cast<double>(whole);
    } else {
      return std::nullopt;
    }
  }
  return arguments;
}

void print_failure(std::uint64_t seed, const SimReport& report) {
  fmt::print("seed {}: {}\n  replay: troupe_placement_sim --replay {}\n", seed, *report.failure,
             seed);
}

void add(SimCounts& sum, const SimCounts& one) {
  sum.events += one.events;
  sum.created += one.created;
  sum.refused += one.refused;
  sum.activated += one.activated;
  sum.moved += one.moved;
  sum.lost += one.lost;
  sum.resized += one.resized;
  sum.removed += one.removed;
  sum.head_restarts += one.head_restarts;
  sum.node_deaths += one.node_deaths;
  sum.passes += one.passes;
  sum.stale += one.stale;
  sum.refusals += one.refusals;
}

void print_counts(const SimCounts& counts) {
  fmt::print(
      "{} events, {} passes ({} stale, {} operations refused); groups: {} created, {} refused, {} "
      "activated, {} lost, {} moved, {} resized, {} removed; {} node deaths, {} head restarts\n",
      counts.events, counts.passes, counts.stale, counts.refusals, counts.created, counts.refused,
      counts.activated, counts.lost, counts.moved, counts.resized, counts.removed,
      counts.node_deaths, counts.head_restarts);
}

}  // namespace

int main(int count, char** values) {
  const std::optional<Arguments> arguments = parse(count, values);
  if (!arguments) {
    fmt::print(stderr,
               "usage: troupe_placement_sim [--seeds A..B] [--replay SEED] [--twice] "
               "[--limit SECONDS]\n");
    return 2;
  }
  if (arguments->replay) {
    const SimReport report = simulate({.seed = *arguments->replay, .keep_log = true});
    for (const std::string& line : report.log) fmt::print("{}\n", line);
    print_counts(report.counts);
    if (report.failure) print_failure(*arguments->replay, report);
    fmt::print("hash {:016x}\n", report.hash);
    return report.failure ? 1 : 0;
  }
  const auto begin = std::chrono::steady_clock::now();
  std::uint64_t failures = 0;
  std::uint64_t runs = 0;
  SimCounts sum;
  double elapsed = 0;
  for (std::uint64_t seed = arguments->first; seed <= arguments->last; ++seed) {
    elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (arguments->limit_s > 0 && elapsed > arguments->limit_s) break;
    SimReport report = simulate({.seed = seed});
    ++runs;
    if (!report.failure && arguments->twice && simulate({.seed = seed}).hash != report.hash)
      report.failure = "a second run took another course";
    add(sum, report.counts);
    if (!report.failure) continue;
    ++failures;
    print_failure(seed, report);
    std::fflush(stdout);
  }
  print_counts(sum);
  fmt::print("{} seeds in {:.1f} s, {} failed\n", runs, elapsed, failures);
  return failures == 0 ? 0 : 1;
}
