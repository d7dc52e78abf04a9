// Proves that batches keep their meaning when their columns stay at other processes: every row
// operation, passing on, leases that end with the last view, and errors that name owner and cause.
// Oracle: the same operations over in-process stores, seeds printed. Processes are exchanges over a
// LocalNetwork; exchange_process_test.cpp has real ones.

#include "runtime/exchange/column_exchange.hpp"
#include "runtime/exchange/exchange_codec.hpp"
#include "tests/runtime/batch/batch_support.hpp"
#include "tests/runtime/exchange/exchange_world.hpp"

#include <gmock/gmock.h>

#include <thread>

namespace troupe::runtime {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

Batch one_column(Column column) {
  Batch batch;
  EXPECT_TRUE(batch.set("x", std::move(column)));
  return batch;
}

Column floats(std::int64_t rows) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < rows; ++i) values.push_back(static_cast<float>(i));
  return Column::dense<float>(std::move(values));
}

TEST(ColumnExchange, EveryRowOperationComposesAsInOneProcess) {
  ExchangeWorld world(3);
  for_seeds(60, [&](Rng& rng) {
    const std::int64_t rows = 1 + pick(rng, 12);
    const Batch local = random_batch(rng, rows);
    ColumnStore first({"policy", RankId{0}});
    ColumnStore second({"policy", RankId{1}});
    const std::vector<Batch> parts = local.split(2);
    const std::vector<Batch> here{*first.put(parts[0]), *second.put(parts[1])};
    const std::vector<Batch> there{world.result_of(0, parts[0]), world.result_of(1, parts[1])};
    const Batch near = *Batch::concat(here);
    const Batch far = *Batch::concat(there);
    const std::vector<std::int64_t> order = rng.permutation(rows);
    std::vector<std::int64_t> chosen;
    for (std::int64_t i = pick(rng, 15); i > 0; --i) chosen.push_back(pick(rng, rows));
    const std::int64_t multiple = 1 + pick(rng, 5);
    const auto agree = [&](const Batch& a, const Batch& b) {
      EXPECT_EQ(a.bytes(), b.bytes());
      PullMeter far_meter;
      PullMeter near_meter;
      const result<Batch> resolved = a.resolve(&far_meter);
      ASSERT_TRUE(resolved) << resolved.error().to_string();
      EXPECT_EQ(*resolved, *b.resolve(&near_meter));
      // Less where the batch repeated rows before it was exported: those stay one row at the owner.
      EXPECT_LE(far_meter.bytes(), near_meter.bytes());
      // And through a third process, which borrows it.
      const Lent lent = *world.controller->lend_batch(a);
      const result<Batch> borrowed = world.ranks[2]->import_batch(lent.bytes);
      ASSERT_TRUE(borrowed) << borrowed.error().to_string();
      const result<Batch> read = borrowed->resolve();
      ASSERT_TRUE(read) << read.error().to_string();
      EXPECT_EQ(*read, *resolved);
    };
    agree(far, near);
    agree(*far.reorder(order), *near.reorder(order));
    agree(*far.index(chosen), *near.index(chosen));
    agree(far.repeat(3), near.repeat(3));
    agree(far.pad_to_multiple(multiple).strip_padding(), near);
    agree(far.minibatches({.rows = 3, .seed = 7})[0], near.minibatches({.rows = 3, .seed = 7})[0]);
    const std::vector<Batch> far_parts = far.split(3);
    for (std::size_t i = 0; i < 3; ++i) agree(far_parts[i], near.split(3)[i]);
    agree(*Batch::concat(far_parts), near);
  });
  world.expect_nothing_held();
}

TEST(ColumnExchange, MovesEachByteOnceHoweverManyRanksShareIt) {
  ExchangeWorld world(4);
  std::vector<Batch> produced;
  for (std::size_t i = 0; i < 3; ++i)
    produced.push_back(world.result_of(i, one_column(floats(25))));
  const std::vector<Batch> shares = Batch::concat(produced)->split(4);
  for (std::size_t i = 0; i < 4; ++i) {
    const Lent lent = *world.controller->lend_batch(shares[i]);
    ASSERT_TRUE(world.ranks[i]->import_batch(lent.bytes)->resolve());
  }
  std::int64_t served = 0;
  std::int64_t requests = 0;
  for (const auto& rank : world.ranks) {
    served += rank->statistics().transport.bytes_served;
    requests += rank->statistics().transport.requests;
  }
  // Of 75 rows of 4 bytes, rank 0 reads 19 of its own, rank 1 12 or so: those never travel.
  EXPECT_LE(served, 75 * 4);
  EXPECT_GT(served, 0);
  EXPECT_LE(requests, 5);
  EXPECT_EQ(world.controller->statistics().transport.requests, 0);
}

TEST(ColumnExchange, AsksEachOwnerOnceForAWholeBatch) {
  ExchangeWorld world(2);
  Batch wide;
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(wide.set(fmt::format("c{}", i), floats(10)));
  const std::vector<Batch> both{world.result_of(0, wide), world.result_of(1, wide)};
  ASSERT_TRUE(Batch::concat(both)->resolve());
  EXPECT_EQ(world.controller->statistics().transport.pulls, 2);
}

TEST(ColumnExchange, SmallColumnsTravelInside) {
  ExchangeWorld world(1, 1024);
  Batch batch;
  ASSERT_TRUE(batch.set("scores", Column::zeros({ColumnKind::kDense, DType::kF32, {}}, 100)));
  ASSERT_TRUE(batch.set("tokens", Column::zeros({ColumnKind::kDense, DType::kF32, {99}}, 100)));
  batch.metrics().add("loss", 0.5, Reduction::kMean, 3);
  ASSERT_TRUE(batch.set_metadata("step", "7"));
  const Batch far = world.result_of(0, batch);
  EXPECT_FALSE(far.column("scores").is_reference());
  EXPECT_TRUE(far.column("tokens").is_reference());
  EXPECT_EQ(far.metadata(), batch.metadata());
  EXPECT_EQ(*far.resolve(), batch);
  EXPECT_EQ(world.ranks[0]->statistics().columns_held, 1);
  const Batch empty = world.result_of(0, *batch.slice(0, 0));
  EXPECT_EQ(empty.rows(), 0);
  EXPECT_FALSE(empty.has_references());
  EXPECT_EQ(empty.column("tokens").type(), batch.column("tokens").type());
}

TEST(ColumnExchange, LastViewAtTheControllerFreesTheColumnAtItsOwner) {
  ExchangeWorld world(1);
  std::optional<Batch> far = world.result_of(0, one_column(floats(100)));
  std::optional<Column> part = far->column("x").slice(3, 2);
  EXPECT_EQ(world.ranks[0]->statistics().columns_granted, 1);
  far.reset();
  world.controller->flush_releases();
  EXPECT_EQ(world.ranks[0]->statistics().columns_held, 1);
  part.reset();
  world.eventually([&] { return world.ranks[0]->statistics().columns_held == 0; },
                   "released without being flushed");
  world.expect_nothing_held();
}

TEST(ColumnExchange, ReleasesOfOneMomentTravelTogether) {
  ExchangeWorld world(1);
  std::vector<Batch> held;
  for (int i = 0; i < 500; ++i) held.push_back(world.result_of(0, one_column(floats(10))));
  EXPECT_EQ(world.ranks[0]->statistics().columns_held, 500);
  held.clear();
  world.eventually([&] { return world.ranks[0]->statistics().columns_held == 0; }, "all released");
  EXPECT_LE(world.notices, 20);
}

TEST(ColumnExchange, PassingAColumnOnKeepsExactlyOneLease) {
  ExchangeWorld world(2);
  Batch far = world.result_of(0, one_column(floats(100)));
  std::optional<Lent> lent = *world.controller->lend_batch(far);
  {
    // Rank 1 borrows the column of rank 0 and returns it with one of its own.
    Batch borrowed = *world.ranks[1]->import_batch(lent->bytes);
    ASSERT_TRUE(borrowed.set("y", floats(100)));
    const Batch back = world.result_of(1, borrowed);
    lent.reset();
    EXPECT_EQ(world.controller->statistics().leases, 2);
    EXPECT_EQ(world.ranks[0]->statistics().columns_granted, 1);
    EXPECT_EQ(world.ranks[1]->statistics().columns_granted, 1);
    // The column is the one that the controller knows: merging moves nothing.
    ASSERT_TRUE(far.merge(back));
    EXPECT_EQ(world.controller->statistics().transport.bytes_pulled, 0);
  }
  EXPECT_EQ(far.resolve()->column("x").values<float>(), floats(100).values<float>());
  far = Batch();
  world.expect_nothing_held();
}

TEST(ColumnExchange, ColumnThatComesHomeIsHandedOverWithoutTransport) {
  ExchangeWorld world(1);
  const Column original = floats(100);
  Batch far = world.result_of(0, one_column(original));
  const Lent lent = *world.controller->lend_batch(*far.slice(10, 50));
  const Batch home = *world.ranks[0]->import_batch(lent.bytes);
  EXPECT_EQ(home.resolve()->column("x").row<float>(0).data(), original.row<float>(10).data());
  EXPECT_EQ(world.ranks[0]->statistics().transport.requests, 0);
  // Returned again it is the same column, under the same lease with one more grant.
  Batch again = world.result_of(0, home);
  EXPECT_EQ(world.ranks[0]->statistics().columns_held, 1);
  EXPECT_TRUE(again.column("x").same_view(far.column("x").slice(10, 50)));
  far = Batch();
  world.controller->flush_releases();
  EXPECT_EQ(world.ranks[0]->statistics().columns_held, 1);
  again = Batch();
}

TEST(ColumnExchange, RanksReadColumnsThatTheControllerLends) {
  ExchangeWorld world(2);
  ColumnStore other({"reward", RankId{0}});  // of a group whose ranks are threads of the controller
  std::optional<Batch> mixed =
      *Batch::concat(std::vector<Batch>{one_column(floats(20)), *other.put(one_column(floats(30))),
                                        world.result_of(0, one_column(floats(40)))});
  std::vector<std::int64_t> shuffled = Rng(3).permutation(90);
  mixed = *mixed->reorder(shuffled);
  std::optional<Lent> lent = *world.controller->lend_batch(*mixed);
  EXPECT_EQ(world.controller->statistics().columns_held, 2);
  const Batch borrowed = *world.ranks[1]->import_batch(lent->bytes);
  EXPECT_EQ(*borrowed.resolve(), *mixed->resolve());
  mixed.reset();
  EXPECT_TRUE(borrowed.resolve()) << "lent while the keep lives";
  lent.reset();
  const result<Batch> late = borrowed.resolve();
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(late.error().message, AllOf(HasSubstr("column x"), HasSubstr("lease is over")));
  EXPECT_EQ(world.controller->statistics().columns_held, 0);
}

TEST(ColumnExchange, BigFramesAreHeldAndPulled) {
  ExchangeWorld world(1, 64);
  Rng rng(9);
  constexpr std::int64_t kRows = 200'000;
  std::vector<std::int64_t> lengths;
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < kRows; ++i) total += lengths.emplace_back(pick(rng, 300));
  const Column column = Column::jagged<std::uint8_t>(
      std::vector<std::uint8_t>(static_cast<std::size_t>(total), 3), lengths);
  const auto bytes = world.ranks[0]->export_batch(one_column(column));
  ASSERT_TRUE(bytes);
  EXPECT_LT(bytes->size(), 1024U);
  Batch far = *world.controller->import_batch(*bytes);
  EXPECT_EQ(far.column("x").row_lengths(), lengths);
  world.controller->flush_releases();
  EXPECT_EQ(world.ranks[0]->statistics().columns_held, 1) << "the frame itself is gone";
  EXPECT_TRUE(far.resolve()->column("x").bitwise_equal(column));
  far = Batch();
  world.expect_nothing_held();
}

TEST(ColumnExchange, StepSizedFramesStayFarBelowTheirBound) {
  ExchangeWorld world(1);
  Rng rng(4);
  Batch step;
  std::vector<std::int64_t> lengths;
  std::int64_t tokens = 0;
  for (int i = 0; i < 1024; ++i) tokens += lengths.emplace_back(100 + pick(rng, 200));
  for (int i = 0; i < 10; ++i) {
    const Column column =
        Column::jagged<float>(std::vector<float>(static_cast<std::size_t>(tokens)), lengths);
    ASSERT_TRUE(step.set(fmt::format("c{}", i), column));
  }
  const Batch far = world.result_of(0, step);
  const auto whole = world.controller->lend_batch(*far.reorder(rng.permutation(1024)));
  EXPECT_LT(whole->bytes.size(), 12'000U) << "ten columns share one table of lengths and of runs";
  // A copy each of the length table would be 80 KiB.
  EXPECT_LT(held_bytes(far).metadata, 12'000);
}

TEST(ColumnExchange, SingleColumnsTravelToo) {
  ExchangeWorld world(2);
  const Column weights = floats(5000);
  Column far = *world.controller->import_column(*world.ranks[0]->export_column(weights));
  EXPECT_TRUE(far.is_reference());
  {
    const Lent lent = *world.controller->lend_column(far);
    const Column borrowed = *world.ranks[1]->import_column(lent.bytes);
    EXPECT_TRUE(borrowed.resolve()->bitwise_equal(weights));
  }
  far = floats(1);
  world.expect_nothing_held();
}

TEST(ColumnExchange, LostOwnerIsRankDeadThatNamesOwnerColumnAndCause) {
  ExchangeWorld world(2);
  const Batch far = world.result_of(1, one_column(floats(10)));
  ASSERT_TRUE(far.resolve());
  world.controller->peer_lost(
      {"policy", RankId{1}},
      Error{.code = ErrorCode::kRankDead, .message = "signal 9", .origin = {}, .causes = {}});
  const result<Batch> back = far.resolve();
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, ErrorCode::kRankDead);
  EXPECT_THAT(back.error().message, AllOf(HasSubstr("column x"), HasSubstr("policy rank 1")));
  EXPECT_EQ(back.error().origin.rank, RankId{1});
  EXPECT_EQ(back.error().root_cause().message, "signal 9");
}

TEST(ColumnExchange, OwnerThatCloseFailsPullsWithRankDead) {
  ExchangeWorld world(2);
  const Batch far = world.result_of(1, one_column(floats(10)));
  world.ranks[1].reset();
  EXPECT_EQ(far.resolve().error().code, ErrorCode::kRankDead);
  // Another process under the old name does not pass for it.
  world.ranks[1] = world.open({"policy", RankId{1}}, -1);
  EXPECT_EQ(far.resolve().error().code, ErrorCode::kRankDead);
}

TEST(ColumnExchange, StoppedOwnerEndsAtTheDeadline) {
  ExchangeWorld world(1);
  const Batch far = world.result_of(0, one_column(floats(10)));
  world.network.stop(world.ranks[0]->address());
  const auto start = std::chrono::steady_clock::now();
  const result<Batch> back = far.resolve(nullptr, Deadline::in(200ms));
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(back.error().message, HasSubstr("policy rank 0"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
  world.network.go_on(world.ranks[0]->address());
  EXPECT_TRUE(far.resolve());
}

TEST(ColumnExchange, HolderThatIsGoneOrSilentHoldsNothing) {
  ExchangeWorld world(1);
  const Batch far = world.result_of(0, one_column(floats(10)));
  world.ranks[0]->close_holder("controller/1");
  EXPECT_EQ(world.ranks[0]->statistics().columns_held, 0);
  EXPECT_EQ(far.resolve().error().code, ErrorCode::kNotFound);
  EXPECT_EQ(world.ranks[0]->export_batch(one_column(floats(9))).error().code, ErrorCode::kAborted);
  EXPECT_EQ(world.ranks[0]->statistics().columns_held, 0) << "nothing is left of what failed";
  ExchangeWorld silent(1, -1, 60ms);
  silent.ranks[0]->open_holder("nobody");  // and nobody renews
  ASSERT_TRUE(silent.ranks[0]->export_batch(one_column(floats(10))));
  silent.eventually([&] { return silent.ranks[0]->statistics().columns_held == 0; }, "expired");
  EXPECT_EQ(silent.ranks[0]->statistics().holders_expired, 1);
}

TEST(ColumnExchange, LivingControllerRenewsItsLeases) {
  ExchangeWorld world(1, -1, 2500ms);  // the controller renews every second
  const Batch far = world.result_of(0, one_column(floats(10)));
  std::this_thread::sleep_for(3200ms);
  EXPECT_TRUE(far.resolve());
}

TEST(ColumnExchange, RefusesLyingFramesAndForeignNotices) {
  ExchangeWorld world(1);
  EXPECT_EQ(world.controller->import_batch({}).error().code, ErrorCode::kCorrupt);
  const std::vector<std::byte> noise(100, std::byte{7});
  EXPECT_EQ(world.controller->import_batch(noise).error().code, ErrorCode::kCorrupt);
  auto& rank = *world.ranks[0];
  EXPECT_EQ(rank.on_lease_notice("c", "columns.else", noise).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(rank.on_lease_notice("c", kColumnsRelease, noise).error().code, ErrorCode::kCorrupt);
  const auto old = encode_lease_notice({.epoch = 1234, .releases = {}});
  EXPECT_EQ(rank.on_lease_notice("c", kColumnsRenew, old).error().code, ErrorCode::kConflict);
}

TEST(ColumnExchange, ResolveAfterTheExchangeIsGoneIsAnError) {
  ExchangeWorld world(1);
  const Batch far = world.result_of(0, one_column(floats(10)));
  world.controller.reset();
  EXPECT_EQ(far.resolve().error().code, ErrorCode::kAborted);
  world.controller = world.open({"controller", RankId{0}}, -1);
}

TEST(ColumnExchange, ManyThreadsResolveLendAndReleaseAtOnce) {
  ExchangeWorld world(3);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&world, t] {
      Rng rng(t + 1);
      for (int i = 0; i < 60; ++i) {
        const std::int64_t rows = 1 + pick(rng, 50);
        const Batch far =
            world.result_of(static_cast<std::size_t>(pick(rng, 3)), one_column(floats(rows)));
        const Lent lent = *world.controller->lend_batch(far);
        auto& reader = *world.ranks[static_cast<std::size_t>(pick(rng, 3))];
        const Batch read = *reader.import_batch(lent.bytes)->resolve();
        EXPECT_EQ(read.column("x").values<float>(), floats(rows).values<float>());
        ASSERT_TRUE(far.resolve());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  world.expect_nothing_held();
}

}  // namespace
}  // namespace troupe::runtime
