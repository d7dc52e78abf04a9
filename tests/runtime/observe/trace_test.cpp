// Proves that a trace file is what Perfetto's JSON format asks for, that it reads back to the same
// spans whatever the names, that the buffer is bounded and counted, and that idle shares equal a
// count over single nanoseconds.

#include "runtime/observe/trace.hpp"

#include "runtime/base/file.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/observe/idle_share.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <limits>
#include <set>
#include <thread>

namespace troupe::runtime {
namespace {

using Json = nlohmann::json;

TimePoint at(std::int64_t nanoseconds) { return TimePoint(Duration(nanoseconds)); }

TraceSpan span(std::string process, std::string thread, std::string name, std::int64_t begin,
               std::int64_t end, std::string category = "compute", std::int64_t step = -1) {
  return {{std::move(process), std::move(thread)},
          std::move(name),
          std::move(category),
          at(begin),
          at(end),
          step};
}

Trace::Options from_zero(std::size_t events_max = 1 << 18) { return {events_max, at(0)}; }

TEST(Trace, FileHasTheFieldsThatPerfettoReads) {
  Trace trace(from_zero());
  trace.span(span("policy", "rank 10", "update", 2000, 5500, "compute", 3));
  trace.span(span("policy", "rank 9", "update", 1000, 4000));
  trace.counter("device 0", "kv blocks", at(3000), 17);
  trace.flow(7, "weights", {"policy", "rank 9"}, at(1500), FlowPoint::kStart);
  trace.flow(7, "weights", {"rollout", "rank 0"}, at(6000), FlowPoint::kEnd);
  const Json file = Json::parse(trace.to_json());
  std::map<std::string, int> pids;
  std::map<std::string, int> tids;
  for (const auto& event : file["traceEvents"]) {
    if (event["name"] == "process_name") pids[event["args"]["name"]] = event["pid"];
    if (event["name"] == "thread_name") tids[event["args"]["name"]] = event["tid"];
  }
  EXPECT_LT(tids["rank 9"], tids["rank 10"]) << "ranks in counting order";
  bool seen = false;
  std::set<std::string> kinds;
  for (const auto& event : file["traceEvents"]) {
    kinds.insert(event["ph"].get<std::string>());
    if (event["ph"] != "X" || event["tid"] != tids["rank 10"]) continue;
    seen = true;
    EXPECT_EQ(event["pid"], pids["policy"]);
    EXPECT_EQ(event["ts"], 2.0);  // microseconds
    EXPECT_EQ(event["dur"], 3.5);
    EXPECT_EQ(event["args"]["step"], 3);
  }
  EXPECT_TRUE(seen);
  EXPECT_EQ(kinds, (std::set<std::string>{"M", "X", "C", "s", "f"}));
}

TEST(Trace, ReadsBackTheSameSpansInOrder) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed);
    const std::vector<std::string> names{"a",    "",          "\"quote\\", "new\nline",
                                         "日本", "</script>", "x\x01"};
    const auto name = [&] { return names[rng.below(names.size())]; };
    Trace trace(from_zero());
    std::vector<TraceSpan> wanted;
    for (int i = 0; i < 20; ++i) {
      const auto begin = static_cast<std::int64_t>(rng.below(1'000'000'000'000));
      wanted.push_back(span(name(), name(), name(), begin,
                            begin + static_cast<std::int64_t>(rng.below(1'000'000)), name(),
                            static_cast<std::int64_t>(rng.below(5)) - 1));
      trace.span(wanted.back());
    }
    std::stable_sort(wanted.begin(), wanted.end(),
                     [](const auto& a, const auto& b) { return a.begin < b.begin; });
    EXPECT_EQ(trace.spans(), wanted) << "seed " << seed;
    const auto file = parse_trace(trace.to_json(), "t.json");
    ASSERT_TRUE(file) << file.error().message << " seed " << seed;
    EXPECT_EQ(file->spans, wanted) << "seed " << seed;
  }
}

TEST(Trace, KeepsTheNewestEventsAndCountsTheRest) {
  Trace trace(from_zero(10));
  for (int i = 0; i < 25; ++i) trace.span(span("p", "t", std::to_string(i), i, i + 1));
  EXPECT_EQ(trace.size(), 10U);
  EXPECT_EQ(trace.dropped(), 15);
  EXPECT_EQ(trace.spans().front().name, "15");
  trace.counter("p", "x", at(0), std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(trace.dropped(), 16);
  EXPECT_EQ(parse_trace(trace.to_json(), "t")->dropped, 16);
}

TEST(Trace, OddInputStaysValidJson) {
  Trace trace(from_zero());
  trace.span(span("p", "t", std::string(5000, 'x'), 10, 5));   // long name, ends first
  trace.span(span("\xff\xfe", "\x80", "\xed\xa0\x80", 0, 1));  // not UTF-8
  const auto file = parse_trace(trace.to_json(), "t");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_LE(file->spans[1].name.size(), 200U);
  EXPECT_EQ(file->spans[1].begin, file->spans[1].end);
  EXPECT_TRUE(parse_trace(Trace().to_json(), "t")->spans.empty());
}

TEST(Trace, RecordsFromManyThreads) {
  Trace trace;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&trace, i] {
      for (int k = 0; k < 500; ++k) {
        const ScopedSpan scoped(&trace, {"group", "rank " + std::to_string(i)}, "work");
      }
    });
  }
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(parse_trace(trace.to_json(), "t"));
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(trace.spans().size(), 2000U);
  const ScopedSpan nothing(nullptr, {"a", "b"}, "c");
}

TEST(Trace, WritesAtomicallyAndNamesFailures) {
  Trace trace(from_zero());
  trace.span(span("p", "t", "n", 0, 5));
  const std::string path = testing::TempDir() + "troupe_trace_test.json";
  ASSERT_TRUE(trace.write(path));
  EXPECT_EQ(read_trace(path)->spans.size(), 1U);
  std::remove(path.c_str());
  EXPECT_EQ(read_trace(path).error().code, ErrorCode::kNotFound);
  const auto refused = trace.write("/nonexistent/folder/trace.json");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNotFound);
  EXPECT_NE(refused.error().message.find("/nonexistent/folder"), std::string::npos);
}

TEST(ParseTrace, RefusesWhatIsNoTraceAndToleratesOthersTraces) {
  for (const char* bad :
       {"", "{", "3", "{}", "{\"traceEvents\":3}", "[3]", "[{\"ph\":\"X\"}]",
        "[{\"ph\":\"X\",\"ts\":\"a\",\"dur\":1}]", "[{\"ph\":\"X\",\"ts\":1,\"dur\":-1}]",
        "[{\"ph\":\"X\",\"ts\":1e300,\"dur\":1}]"}) {
    const auto file = parse_trace(bad, "t.json");
    ASSERT_FALSE(file) << bad;
    EXPECT_EQ(file.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(file.error().message.find("t.json"), std::string::npos);
  }
  const auto other = parse_trace(
      R"([{"ph":"X","ts":1,"dur":2,"pid":"a","tid":null},{"ph":"Z"},{"ph":3},{"ph":"M","args":4}])",
      "t");
  ASSERT_TRUE(other) << other.error().message;
  EXPECT_EQ(other->spans[0].place.process, "process a");
}

TEST(IdleShare, EqualsACountOfSingleMoments) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    std::vector<TraceSpan> spans;
    for (std::uint64_t i = rng.below(12); i > 0; --i) {
      const auto begin = static_cast<std::int64_t>(rng.below(60));
      spans.push_back(span("g" + std::to_string(rng.below(2)), "r" + std::to_string(rng.below(3)),
                           "n", begin, begin + static_cast<std::int64_t>(rng.below(30)),
                           rng.below(4) == 0 ? "wait" : "compute"));
    }
    const std::int64_t from = 10;
    const std::int64_t to = 60;
    const auto share = idle_share(spans, at(from), at(to));
    std::set<std::string> workers;
    for (const auto& one : spans) workers.insert(one.place.thread);
    double sum = 0;
    for (const auto& worker : workers) {
      std::int64_t idle = 0;
      for (std::int64_t t = from; t < to; ++t) {
        bool busy = false;
        for (const auto& one : spans) {
          busy = busy || (one.place.thread == worker && one.category != "wait" &&
                          one.begin <= at(t) && at(t) < one.end);
        }
        idle += busy ? 0 : 1;
      }
      const double wanted = static_cast<double>(idle) / static_cast<double>(to - from);
      EXPECT_NEAR(share.by_worker.at(worker), wanted, 1e-12) << "seed " << seed;
      sum += wanted;
    }
    if (workers.empty())
      EXPECT_EQ(share.mean, 0);
    else
      EXPECT_NEAR(share.mean, sum / static_cast<double>(workers.size()), 1e-12);
  }
}

TEST(IdleShare, EmptyWindowsAndPlaces) {
  const std::vector<TraceSpan> spans{span("a", "r", "n", 0, 10, "compute", 1),
                                     span("b", "r", "n", 10, 20, "compute", 1)};
  EXPECT_EQ(idle_share(spans, at(5), at(5)).mean, 0);
  EXPECT_EQ(idle_share({}, at(0), at(5)).mean, 0);
  EXPECT_EQ(idle_share(spans, at(0), at(20)).mean, 0);
  EXPECT_EQ(idle_share(spans, at(0), at(20), IdleBy::kPlace).mean, 0.5);
  EXPECT_EQ(step_window(spans, 1), (std::pair{at(0), at(20)}));
  EXPECT_EQ(step_window(spans, 2).first, step_window(spans, 2).second);
}

}  // namespace
}  // namespace troupe::runtime
