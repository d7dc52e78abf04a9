// Proves dispatch: over random meshes, row counts and argument kinds, what every rank received and
// what the caller got back equal a slow, obvious computation. Wrong calls are told apart at compile
// time by call_fault, which the static_asserts of call use.

#include "runtime/group/dispatch.hpp"

#include "runtime/base/rng.hpp"
#include "runtime/group/worker_group.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace troupe::runtime {
namespace {

using Ints = std::vector<int>;

/// A type of the user's own with customised splitting: a range of integers.
struct Range {
  int begin = 0;
  int end = 0;
};

/// What one rank saw.
struct Seen {
  Ints part;
  double factor = 0;
  std::string own;
};

struct Probe {
  explicit Probe(WorkerContext& context) : context_(context) {}

  Seen see(const Ints& part, double factor, std::string own) { return {part, factor, own}; }
  Ints tagged(Ints part) const {
    for (int& value : part) value = value * 100 + context_.rank().value;
    return part;
  }
  Ints padded(const Ints& part) { return part; }
  Ints padded_wrong(const Ints& part) { return Ints(part.size() * 2, 0); }
  std::vector<std::size_t> padded_sizes(const Ints& part) { return {part.size()}; }
  std::int64_t size_of(const Ints& part) noexcept { return static_cast<std::int64_t>(part.size()); }
  result<double> weight(const Ints& part) { return 0.5 * static_cast<double>(part.size()); }
  Metrics measure(const Ints& part) {
    Metrics metrics;
    metrics.add("rows", static_cast<double>(part.size()), Reduction::kSum);
    for (const int value : part) metrics.add("mean", value, Reduction::kMean);
    return metrics;
  }
  void note(int value) { noted_ = value; }
  result<void> check_note(int value) {
    if (noted_ == value) return {};
    return fail(ErrorCode::kConflict, "noted {}, wanted {}", noted_, value);
  }
  int rank() { return context_.rank().value; }
  Ints span(Range&& range) {
    Ints out;
    for (int i = range.begin; i < range.end; ++i) out.push_back(i);
    return out;
  }
  int two(const Ints& a, const Ints& b) { return static_cast<int>(a.size() + b.size()); }
  int unlisted(int value) { return value; }

  static constexpr auto methods() {
    return std::tuple{
        method<&Probe::see>("see", args(scatter, broadcast, per_rank), returns(all)),
        method<&Probe::tagged>("tagged", args(scatter), returns(concat)),
        method<&Probe::padded>("padded", args(scatter_padded.of(3)), returns(concat)),
        method<&Probe::padded_wrong>("padded_wrong", args(scatter_padded), returns(concat)),
        method<&Probe::padded_sizes>("padded_sizes", args(scatter_padded.of(3)), returns(all)),
        method<&Probe::size_of>("size_of", args(scatter), returns(reduce(kSum))),
        method<&Probe::weight>("weight", args(scatter), returns(reduce(kMean))),
        method<&Probe::measure>("measure", args(scatter), returns(reduce(kMerge))),
        method<&Probe::note>("note", args(broadcast), returns(none)),
        method<&Probe::check_note>("check_note", args(broadcast), returns(none)),
        method<&Probe::rank>("rank", args(), returns(first)).collect("tp", -1),
        method<&Probe::span>("span", args(scatter), returns(concat)),
        method<&Probe::two>("two", args(scatter, scatter), returns(reduce(kMax))),
    };
  }
  WorkerContext& context_;
  int noted_ = 0;
};

}  // namespace

template <>
struct DispatchTraits<Range> {
  static std::int64_t rows(const Range& range) { return range.end - range.begin; }
  static std::vector<Range> split(const Range& range, int parts) {
    std::vector<Range> out;
    for (int i = 0; i < parts; ++i) {
      out.push_back({range.begin + static_cast<int>(part_begin(rows(range), parts, i)),
                     range.begin + static_cast<int>(part_begin(rows(range), parts, i + 1))});
    }
    return out;
  }
};

namespace {

// What does not compile as a call, and why.
static_assert(call_fault<Probe, &Probe::tagged, const Ints&>() == CallFault::kNone);
static_assert(call_fault<Probe, &Probe::tagged, Ints>() == CallFault::kNone);
static_assert(call_fault<Probe, &Probe::unlisted, int>() == CallFault::kUnregistered);
static_assert(call_fault<Probe, &Probe::tagged>() == CallFault::kWrongCount);
static_assert(call_fault<Probe, &Probe::tagged, Ints, int>() == CallFault::kWrongCount);
static_assert(call_fault<Probe, &Probe::tagged, std::string>() == CallFault::kWrongType);
static_assert(call_fault<Probe, &Probe::tagged, int>() == CallFault::kWrongType);
static_assert(call_fault<Probe, &Probe::note, double>() == CallFault::kWrongType, "would narrow");
static_assert(call_fault<Probe, &Probe::note, short>() == CallFault::kNone);
static_assert(call_fault<Probe, &Probe::see, Ints, int, std::vector<std::string>>() ==
              CallFault::kNone);
static_assert(call_fault<Probe, &Probe::see, Ints, int, std::string>() == CallFault::kWrongType,
              "per_rank wants a vector");
static_assert(Scatterable<Range> && !Joinable<Range> && !Paddable<Range>);
static_assert(Scatterable<Batch> && Joinable<Batch> && Paddable<Batch> && Strippable<Batch>);

/// The part of data-parallel coordinate `part`: dealt one row at a time to the parts in turn gives
/// the sizes; rows stay in order.
Ints slow_part(const Ints& rows, int parts, int part) {
  std::vector<int> sizes(static_cast<std::size_t>(parts), 0);
  for (std::size_t i = 0; i < rows.size(); ++i) ++sizes[i % static_cast<std::size_t>(parts)];
  const auto begin = std::accumulate(sizes.begin(), sizes.begin() + part, 0);
  return {rows.begin() + begin, rows.begin() + begin + sizes[static_cast<std::size_t>(part)]};
}

struct Case {
  Mesh mesh;
  Ints rows;
};

Case random_case(std::uint64_t seed) {
  Rng rng(seed);
  std::vector<Axis> axes;
  for (const std::int64_t name : rng.permutation(3)) {
    const char* const names[] = {"dp", "tp", "pp"};
    axes.push_back({names[name], 1 + static_cast<int>(rng.below(3))});
  }
  Ints rows(rng.below(12));
  for (int& row : rows) row = static_cast<int>(rng.below(1000));
  return {Mesh::create(axes).value(), rows};
}

result<WorkerGroup<Probe>> make_group(ActorSystem& system, const Mesh& mesh) {
  GroupOptions options;
  options.name = "probe";
  options.mesh = mesh;
  options.collectives = false;
  options.call_deadline = std::chrono::seconds(20);
  return WorkerGroup<Probe>::create(system, options);
}

TEST(Dispatch, RandomMeshesAndRowsAgreeWithTheSlowReference) {
  ActorSystem system;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    const Case one = random_case(seed);
    const int parts = one.mesh.axis_size("dp");
    auto group = make_group(system, one.mesh).value();
    std::vector<std::string> names;
    for (int rank = 0; rank < one.mesh.size(); ++rank) names.push_back("own " + std::to_string(rank));
    auto seen = group.call<&Probe::see>(one.rows, 2.5, names);
    auto tagged = group.call<&Probe::tagged>(one.rows);
    auto sum = group.call<&Probe::size_of>(one.rows);
    auto mean = group.call<&Probe::weight>(one.rows);
    auto metrics = group.call<&Probe::measure>(one.rows);

    const auto all_seen = seen.wait().value();
    ASSERT_EQ(static_cast<int>(all_seen.size()), one.mesh.size());
    for (int rank = 0; rank < one.mesh.size(); ++rank) {
      const auto& here = all_seen[static_cast<std::size_t>(rank)];
      ASSERT_EQ(here.part, slow_part(one.rows, parts, one.mesh.coordinate(RankId{rank}, "dp")));
      ASSERT_EQ(here.factor, 2.5);
      ASSERT_EQ(here.own, names[static_cast<std::size_t>(rank)]);
    }
    // Results come from tp 0 and the last pp stage of each data-parallel coordinate.
    Ints expected;
    for (int part = 0; part < parts; ++part) {
      for (int rank = 0; rank < one.mesh.size(); ++rank) {
        const RankId id{rank};
        if (one.mesh.coordinate(id, "dp") != part || one.mesh.coordinate(id, "tp") != 0 ||
            one.mesh.coordinate(id, "pp") != one.mesh.axis_size("pp") - 1) {
          continue;
        }
        for (const int row : slow_part(one.rows, parts, part)) expected.push_back(row * 100 + rank);
      }
    }
    ASSERT_EQ(tagged.wait().value(), expected);
    ASSERT_EQ(sum.wait().value(), static_cast<std::int64_t>(one.rows.size()));
    ASSERT_DOUBLE_EQ(mean.wait().value(), 0.5 * static_cast<double>(one.rows.size()) / parts);
    const Metrics joined = metrics.wait().value();
    ASSERT_EQ(joined.value("rows").value(), static_cast<double>(one.rows.size()));
    if (!one.rows.empty()) {
      ASSERT_NEAR(joined.value("mean").value(),
                  std::accumulate(one.rows.begin(), one.rows.end(), 0.0) /
                      static_cast<double>(one.rows.size()),
                  1e-9);
    }
  }
}

TEST(Dispatch, PaddedPartsAreEqualMultiplesAndTheRowsComeBackWithoutPadding) {
  ActorSystem system;
  for (const int ranks : {1, 2, 4}) {
    auto group = make_group(system, Mesh::data_parallel(ranks)).value();
    for (int count = 0; count <= 14; ++count) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << count << " rows");
      Ints rows(static_cast<std::size_t>(count));
      std::iota(rows.begin(), rows.end(), 1);
      EXPECT_EQ(group.call<&Probe::padded>(rows).wait().value(), rows);
      const int multiple = 3 * ranks;
      const auto padded = static_cast<std::size_t>((count + multiple - 1) / multiple * multiple);
      const auto per_rank_sizes = group.call<&Probe::padded_sizes>(rows).wait().value();
      for (const auto& sizes : per_rank_sizes)
        EXPECT_EQ(sizes.front(), padded / static_cast<std::size_t>(ranks));
    }
  }
}

TEST(Dispatch, AResultWhosePaddingCannotBeToldApartIsAnError) {
  ActorSystem system;
  auto group = make_group(system, Mesh::data_parallel(2)).value();
  EXPECT_TRUE(group.call<&Probe::padded_wrong>(Ints{1, 2}).wait());
  const auto lost = group.call<&Probe::padded_wrong>(Ints{1, 2, 3}).wait();
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, ErrorCode::kConflict);
  EXPECT_NE(lost.error().message.find("padded_wrong"), std::string::npos);
  EXPECT_NE(lost.error().message.find("8 result rows for 4"), std::string::npos)
      << lost.error().message;
}

TEST(Dispatch, OwnTypesSplitByTheirTraitsAndMayBeTakenByRvalue) {
  ActorSystem system;
  auto group = make_group(system, Mesh::data_parallel(3)).value();
  EXPECT_EQ(group.call<&Probe::span>(Range{5, 12}).wait().value(), (Ints{5, 6, 7, 8, 9, 10, 11}));
}

TEST(Dispatch, VoidMethodsAndErrorResultsOfVoidMethods) {
  ActorSystem system;
  auto group = make_group(system, Mesh::data_parallel(2)).value();
  EXPECT_TRUE(group.call<&Probe::note>(7).wait());
  EXPECT_TRUE(group.call<&Probe::check_note>(7).wait());
  const auto wrong = group.call<&Probe::check_note>(8).wait();
  EXPECT_EQ(wrong.error().code, ErrorCode::kConflict);
  EXPECT_EQ(wrong.error().origin.group, "probe");
  EXPECT_TRUE(wrong.error().origin.rank.has_value());
  EXPECT_NE(wrong.error().message.find("check_note: noted 7, wanted 8"), std::string::npos);
  EXPECT_TRUE(group.call<&Probe::check_note>(7).wait()) << "an error result does not kill";
}

TEST(Dispatch, CollectChoosesTheRank) {
  ActorSystem system;
  const Mesh mesh = Mesh::create({{"dp", 2}, {"tp", 3}}).value();
  auto group = make_group(system, mesh).value();
  EXPECT_EQ(group.call<&Probe::rank>().wait().value(), 2);
}

TEST(Dispatch, RefusesScatteredArgumentsOfDifferentRowsNamingBoth) {
  ActorSystem system;
  auto group = make_group(system, Mesh::data_parallel(2)).value();
  EXPECT_EQ(group.call<&Probe::two>(Ints(5), Ints(5)).wait().value(), 6);
  const auto lost = group.call<&Probe::two>(Ints(5), Ints(4)).wait();
  EXPECT_EQ(lost.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(lost.error().message.find("two: argument 1 has 4 rows"), std::string::npos);
  EXPECT_NE(lost.error().message.find("5"), std::string::npos);
}

TEST(Dispatch, RefusesPerRankVectorsOfTheWrongLengthNamingBoth) {
  ActorSystem system;
  auto group = make_group(system, Mesh::data_parallel(2)).value();
  for (const std::size_t count : {0U, 1U, 3U}) {
    const auto lost =
        group.call<&Probe::see>(Ints{1}, 1, std::vector<std::string>(count, "x")).wait();
    EXPECT_EQ(lost.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(lost.error().message.find(std::to_string(count) + " values"), std::string::npos);
    EXPECT_NE(lost.error().message.find("2 ranks"), std::string::npos);
  }
}

struct BadCollect {
  explicit BadCollect(WorkerContext&) {}
  int one() { return 1; }
  static constexpr auto methods() {
    return std::tuple{method<&BadCollect::one>("one", args(), returns(first)).collect("tp", 2)};
  }
};

TEST(Dispatch, RefusesAGroupWhoseCollectCoordinateIsOutsideTheMesh) {
  ActorSystem system;
  GroupOptions options;
  options.mesh = Mesh::create({{"dp", 1}, {"tp", 2}}).value();
  const auto group = WorkerGroup<BadCollect>::create(system, options);
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(group.error().message.find("one: collect: mesh: index 2 on axis tp of size 2"),
            std::string::npos)
      << group.error().message;
}

// Batches.

struct BatchWorker {
  explicit BatchWorker(WorkerContext& context) : context_(context) {}
  result<Batch> with_rank(Batch batch) {
    seen_references_ = batch.has_references();
    std::vector<std::int64_t> ranks(static_cast<std::size_t>(batch.rows()), context_.rank().value);
    TROUPE_TRY_VOID(batch.set("rank", Column::dense(std::move(ranks))));
    batch.metrics().add("rows", static_cast<double>(batch.valid_rows()), Reduction::kSum);
    return batch;
  }
  result<Batch> without_flag(const Batch& batch) { return batch.select({"id"}); }
  Batch kept(const Batch& batch) { return batch; }
  int saw_references(const Batch& batch) { return batch.has_references() ? 1 : 0; }
  int saw_references_lazily(const Batch& batch) { return batch.has_references() ? 1 : 0; }
  std::int64_t held() { return context_.columns().columns_held(); }

  static constexpr auto methods() {
    return std::tuple{
        method<&BatchWorker::with_rank>("with_rank", args(scatter_padded), returns(concat)),
        method<&BatchWorker::without_flag>("without_flag", args(scatter_padded), returns(concat)),
        method<&BatchWorker::kept>("kept", args(scatter), returns(concat)).keep_columns(),
        method<&BatchWorker::saw_references>("saw_references", args(scatter), returns(reduce(kSum))),
        method<&BatchWorker::saw_references_lazily>("saw_references_lazily", args(scatter),
                                                    returns(reduce(kSum)))
            .lazy_columns(),
        method<&BatchWorker::held>("held", args(), returns(reduce(kSum))),
    };
  }
  WorkerContext& context_;
  bool seen_references_ = false;
};

Batch id_batch(std::int64_t rows) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(rows));
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<std::int64_t> lengths(ids.size(), 100);
  Batch batch;
  EXPECT_TRUE(batch.set("id", Column::dense(ids)));
  EXPECT_TRUE(batch.set("text", Column::jagged(std::vector<float>(ids.size() * 100, 1.0F), lengths)));
  return batch;
}

TEST(Dispatch, PaddedBatchesComeBackWithTheirOwnRowsAndNoFlag) {
  ActorSystem system;
  GroupOptions options;
  options.mesh = Mesh::data_parallel(4);
  auto group = WorkerGroup<BatchWorker>::create(system, options).value();
  for (const std::int64_t rows : {1, 3, 4, 5, 9}) {
    SCOPED_TRACE(rows);
    const Batch sent = id_batch(rows);
    const Batch back = group.call<&BatchWorker::with_rank>(sent).wait().value();
    EXPECT_EQ(back.rows(), rows);
    EXPECT_FALSE(back.has(kValidColumn));
    EXPECT_FALSE(sent.has(kValidColumn)) << "the caller's batch is not changed";
    EXPECT_TRUE(back.column("id").bitwise_equal(sent.column("id")));
    EXPECT_EQ(back.metrics().value("rows"), static_cast<double>(rows)) << "padding counts nowhere";
    EXPECT_EQ(group.call<&BatchWorker::without_flag>(sent).wait().value().rows(), rows);
  }
}

TEST(Dispatch, KeptColumnsStayAtTheirRankAndArePulledWhereTheyAreUsed) {
  ActorSystem system;
  GroupOptions options;
  options.mesh = Mesh::data_parallel(2);
  auto group = WorkerGroup<BatchWorker>::create(system, options).value();
  const Batch sent = id_batch(10);
  const std::int64_t copied = CopyCounter::bytes();
  {
    const Batch references = group.call<&BatchWorker::kept>(sent).wait().value();
    EXPECT_TRUE(references.has_references());
    EXPECT_EQ(held_bytes(references).payload, 0);
    EXPECT_EQ(CopyCounter::bytes(), copied) << "the controller copied payload";
    EXPECT_EQ(group.call<&BatchWorker::held>().wait().value(), 4) << "2 columns on 2 ranks";
    EXPECT_EQ(group.call<&BatchWorker::saw_references>(references).wait().value(), 0);
    EXPECT_EQ(group.call<&BatchWorker::saw_references_lazily>(references).wait().value(), 2);
    EXPECT_TRUE(references.resolve().value().column("id").bitwise_equal(sent.column("id")));
  }
  // The last handle goes with the engines' last use of the arguments.
  for (int i = 0; i < 200 && group.call<&BatchWorker::held>().wait().value() != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(group.call<&BatchWorker::held>().wait().value(), 0) << "dropping the handle frees them";
}

}  // namespace
}  // namespace troupe::runtime
