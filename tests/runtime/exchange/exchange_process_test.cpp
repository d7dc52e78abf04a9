// Proves with real rank processes over UCX what exchange_test shows in one: columns of every kind
// and of 256 MiB, thousands of tiny ones, passing on from rank to rank, nothing held and no memory
// kept afterwards, and a death or a stop of the owner as a typed error in time.

#include "runtime/base/rng.hpp"
#include "runtime/exchange/column_exchange.hpp"
#include "tests/runtime/exchange/process_support.hpp"
#include "tests/support/line_child.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <mutex>
#include <sstream>
#include <thread>

namespace troupe::runtime {
namespace {

using namespace std::chrono_literals;
using test::from_hex;
using test::LineChild;
using test::to_hex;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// MiB that may stay; ASan keeps freed memory in quarantine.
#if defined(__SANITIZE_ADDRESS__)
constexpr double kKept = 400;
#else
constexpr double kKept = 24;
#endif

struct RankFigures {
  std::int64_t columns = 0, bytes = 0, leases = 0, served = 0, pins = 0;
  double resident = 0;
};

/// The controller of two rank processes.
class ExchangeProcessTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const SessionKey key = *make_session_key();
    const std::vector<std::byte> bytes(key.begin(), key.end());
    for (std::int32_t i = 0; i < 2; ++i) {
      ranks_.push_back(std::make_unique<LineChild>(std::vector<std::string>{
          TROUPE_PEER_PROGRAM, to_hex(bytes), std::to_string(i), GetParam()}));
      addresses_.push_back(ranks_.back()->hear());
    }
    controller_ = *open_process_exchange({"controller", RankId{0}}, bytes, GetParam());
    for (std::size_t i = 0; i < 2; ++i) {
      controller_->set_peer({"policy", RankId{static_cast<std::int32_t>(i)}},
                            from_hex(addresses_[i]));
      ask(i, "peer controller/0 " + to_hex(controller_->address()));
      ask(i, "peer policy/0 " + addresses_[0]);
      ask(i, "peer policy/1 " + addresses_[1]);
    }
    controller_->set_lease_sender([this](const ColumnOwner& owner, std::string_view method,
                                         std::vector<std::byte> payload) -> result<void> {
      const auto rank = static_cast<std::size_t>(owner.rank.value);
      const std::string told = ask(rank, fmt::format("notice {} {}", method, to_hex(payload)));
      if (told != "ok") return fail(ErrorCode::kIo, "{}", told);
      return {};
    });
  }
  void TearDown() override { controller_.reset(); }

  std::string ask(std::size_t rank, const std::string& line) {
    const std::lock_guard lock(mutex_);  // the exchange's own thread sends notices
    try {
      return ranks_[rank]->ask(line);
    } catch (const std::runtime_error& error) {
      return std::string("error ") + error.what();
    }
  }
  Batch make(std::size_t rank, std::int64_t rows, std::int64_t row_bytes) {
    auto batch =
        controller_->import_batch(from_hex(ask(rank, fmt::format("make {} {}", rows, row_bytes))));
    EXPECT_TRUE(batch) << batch.error().to_string();
    return batch ? *std::move(batch) : Batch();
  }
  RankFigures figures(std::size_t rank) {
    std::istringstream words(ask(rank, "statistics"));
    RankFigures all;
    words >> all.columns >> all.bytes >> all.leases >> all.served >> all.pins >> all.resident;
    return all;
  }
  void expect_nothing_held() {
    controller_->flush_releases();
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const RankFigures all = figures(rank);
      EXPECT_EQ(all.columns, 0);
      EXPECT_EQ(all.bytes, 0);
      EXPECT_EQ(all.leases, 0);
      EXPECT_EQ(all.pins, 0);
    }
    EXPECT_EQ(controller_->statistics().leases, 0);
    EXPECT_EQ(controller_->statistics().columns_held, 0);
    EXPECT_EQ(controller_->statistics().transport.pulls_open, 0);
    EXPECT_EQ(controller_->statistics().transport.pins_held, 0);
  }

  std::vector<std::unique_ptr<LineChild>> ranks_;
  std::vector<std::string> addresses_;
  std::unique_ptr<ColumnExchange> controller_;
  std::mutex mutex_;  ///< guards the children's lines
};

INSTANTIATE_TEST_SUITE_P(Lanes, ExchangeProcessTest, ::testing::Values("direct", "tcp"),
                         [](const auto& one) { return one.param; });

TEST_P(ExchangeProcessTest, ColumnsOfEveryKindArriveAsTheyWere) {
  for (const std::int64_t rows : {0, 1, 40, 1000}) {
    const Batch far = make(0, rows, 400);
    const auto back = far.resolve();
    ASSERT_TRUE(back) << back.error().to_string();
    EXPECT_EQ(*back, step_batch(0, rows, 400));
    const auto part = far.slice(rows / 4, rows / 2)->resolve();
    ASSERT_TRUE(part) << part.error().to_string();
    EXPECT_EQ(*part, *step_batch(0, rows, 400).slice(rows / 4, rows / 2));
  }
  expect_nothing_held();
}

TEST_P(ExchangeProcessTest, RanksReadEachOtherAndTheController) {
  {
    const std::vector<Batch> parts{make(0, 300, 4000), make(1, 300, 4000)};
    const Batch all = *Batch::concat(parts);
    const Batch mixed = *all.reorder(Rng(5).permutation(all.rows()));
    std::vector<Batch> returned;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const Lent lent = *controller_->lend_batch(mixed.split(2)[rank]);
      const std::string answer = ask(rank, "pass " + to_hex(lent.bytes));
      ASSERT_THAT(answer, ::testing::Not(HasSubstr("error")));
      returned.push_back(*controller_->import_batch(from_hex(answer)));
    }
    // What they passed on is what they got: the merge compares views and moves no payload.
    Batch whole = mixed;
    const std::int64_t before = controller_->statistics().transport.bytes_pulled;
    ASSERT_TRUE(whole.merge(*Batch::concat(returned)));
    EXPECT_EQ(controller_->statistics().transport.bytes_pulled, before);
    const Batch local = *whole.resolve();
    EXPECT_TRUE(local.column("sum").bitwise_equal(row_sums(local)));
    EXPECT_GT(figures(0).served, 0);
    EXPECT_GT(figures(1).served, 0);
    // Columns that only the controller has are lent just the same.
    const Lent lent = *controller_->lend_batch(step_batch(9, 50, 4000));
    const std::string answer = ask(0, "pass " + to_hex(lent.bytes));
    const Batch back = *controller_->import_batch(from_hex(answer))->resolve();
    EXPECT_TRUE(back.column("sum").bitwise_equal(row_sums(step_batch(9, 50, 4000))));
  }
  expect_nothing_held();
}

TEST_P(ExchangeProcessTest, BigColumnsAndThousandsOfTinyOnes) {
  {
    const Batch big = make(0, 256, std::int64_t{1} << 20);  // 256 MiB
    EXPECT_GE(big.bytes(), std::int64_t{256} << 20);
    const auto back = big.select({"dense"})->resolve();
    ASSERT_TRUE(back) << back.error().to_string();
    for (const std::int64_t row : {0, 100, 255}) {
      EXPECT_EQ(back->column("dense").row<float>(row)[77],
                static_cast<float>((row * 31 + 77 * 7) % 4096));
    }
  }
  expect_nothing_held();
  std::vector<Batch> tiny;
  for (int i = 0; i < 1000; ++i) tiny.push_back(make(1, 30, 16));  // 4 columns each
  const Batch all = *Batch::concat(tiny);
  const auto back = all.resolve();
  ASSERT_TRUE(back) << back.error().to_string();
  EXPECT_EQ(*back->slice(29'970, 30), step_batch(1, 30, 16));
  tiny.clear();
}

TEST_P(ExchangeProcessTest, NothingIsHeldAndNoMemoryKeptAfterAThousandPulls) {
  const auto once = [&] {
    const Batch far = make(0, 16, 16'384);
    ASSERT_TRUE(far.resolve());
  };
  for (int i = 0; i < 50; ++i) once();
  // Buffers of the transport grow to what the busiest moment so far has asked for, which may come
  // late on a loaded machine. What is kept of every pull grows in every round.
  double here_grown = kKept;
  double there_grown = kKept;
  for (int round = 0; round < 4 && std::max(here_grown, there_grown) >= kKept; ++round) {
    controller_->flush_releases();
    const double here = test::resident_mib();
    const double there = figures(0).resident;
    for (int i = 0; i < 1000; ++i) once();
    expect_nothing_held();
    here_grown = test::resident_mib() - here;
    there_grown = figures(0).resident - there;
  }
  EXPECT_LT(here_grown, kKept);
  EXPECT_LT(there_grown, kKept);
}

TEST_P(ExchangeProcessTest, KilledOwnerIsRankDeadThatNamesOwnerAndColumn) {
  const Batch far = make(1, 64, std::int64_t{1} << 20);
  const Batch other = make(0, 64, 4096);
  ASSERT_TRUE(far.slice(0, 1)->resolve());
  std::thread killer([&] {
    std::this_thread::sleep_for(5ms);
    ranks_[1]->signal(SIGKILL);
  });
  const auto start = std::chrono::steady_clock::now();
  result<Batch> back = far.resolve();
  while (back && std::chrono::steady_clock::now() - start < 10s) back = far.resolve();
  killer.join();
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, ErrorCode::kRankDead) << back.error().to_string();
  EXPECT_THAT(back.error().message, AllOf(HasSubstr("column dense"), HasSubstr("policy rank 1")));
  EXPECT_EQ(back.error().origin.rank, RankId{1});
  EXPECT_LT(std::chrono::steady_clock::now() - start, 4s);
  EXPECT_TRUE(other.resolve()) << "others go on";
}

TEST_P(ExchangeProcessTest, StoppedOwnerIsADeadlineInTime) {
  const Batch far = make(0, 64, 65'536);
  ASSERT_TRUE(far.slice(0, 1)->resolve());
  ranks_[0]->stop();
  const auto start = std::chrono::steady_clock::now();
  const result<Batch> back = far.resolve(nullptr, Deadline::in(300ms));
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, ErrorCode::kDeadline) << back.error().to_string();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
  ranks_[0]->signal(SIGCONT);
  EXPECT_TRUE(far.resolve());
}

TEST_P(ExchangeProcessTest, HolderThatIsGoneFreesEverythingAtTheOwner) {
  const Batch far = make(0, 64, 65'536);
  EXPECT_GT(figures(0).bytes, 0);
  ask(0, "gone");
  EXPECT_EQ(figures(0).bytes, 0);
  const result<Batch> back = far.resolve();
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, ErrorCode::kNotFound) << back.error().to_string();
}

}  // namespace
}  // namespace troupe::runtime
