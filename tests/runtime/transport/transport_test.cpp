// Proves that pulls between processes bring exactly the bytes asked for over every lane, and that a
// death, a stop, a wrong key, an old epoch or a foreign version ends in a typed error in time, with
// nothing left behind. The owner is a real child process (peer_program.cpp).

#include "runtime/comm/transport.hpp"

#include "runtime/base/rng.hpp"
#include "runtime/comm/transport_wire.hpp"
#include "tests/runtime/transport/forger_ucx.hpp"
#include "tests/runtime/transport/peer_support.hpp"
#include "tests/support/line_child.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <sstream>
#include <thread>

namespace troupe::runtime {
namespace {

using namespace std::chrono_literals;
using test::LineChild;
using test::to_hex;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// MiB that may stay; ASan keeps freed memory in quarantine.
#if defined(__SANITIZE_ADDRESS__)
constexpr double kKept = 400;
#else
constexpr double kKept = 16;
#endif
constexpr std::int64_t kBig = std::int64_t{24} << 20;

SessionKey job_key() {
  SessionKey key{};
  key[0] = std::byte{42};
  return key;
}

struct Owner {
  explicit Owner(const std::string& mode, std::int64_t big = kBig, SessionKey key = job_key())
      : child({TROUPE_PEER_PROGRAM, mode, to_hex(key), std::to_string(big)}),
        address(test::from_hex(child.hear())) {}
  LineChild child;
  std::vector<std::byte> address;
};

using Buffer = std::shared_ptr<std::vector<std::byte>>;

class TransportTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { transport_ = open(GetParam()); }

  static std::unique_ptr<Transport> open(const std::string& mode) {
    TransportOptions options = transport_options(mode, job_key());
    options.name = "reader rank 0";
    options.drain = 500ms;
    auto columns = std::make_shared<PatternColumns>(kBig);
    options.source = [columns](ColumnId column, std::int64_t first, std::int64_t rows) {
      return columns->read(column, first, rows);
    };
    auto transport = open_ucx_transport(std::move(options));
    EXPECT_TRUE(transport) << transport.error().to_string();
    return *std::move(transport);
  }
  result<void> pull(const std::vector<std::byte>& owner, std::uint64_t column, std::int64_t first,
                    std::int64_t rows, Duration within = 20s) {
    auto buffer = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(rows));
    PullRequest request{
        .owner = owner, .parts = {{ColumnId{column}, first, rows, *buffer}}, .keep = buffer};
    TROUPE_TRY_VOID(pull_and_wait(*transport_, std::move(request), Deadline::in(within)));
    const std::int64_t wrong = first_wrong(column, first, *buffer);
    EXPECT_EQ(wrong, -1) << "column " << column << " rows " << first << "+" << rows;
    return {};
  }
  void expect_nothing_left() {
    const TransportStatistics all = transport_->statistics();
    EXPECT_EQ(all.pulls_open, 0);
    EXPECT_EQ(all.pins_held, 0);
    EXPECT_EQ(all.buffers_orphaned, 0);
    EXPECT_EQ(all.refused, 0);
  }

  std::unique_ptr<Transport> transport_;
};

/// Without shared memory of UCX, which a death in the middle of a message may block for all.
class TransportFailureTest : public TransportTest {};

INSTANTIATE_TEST_SUITE_P(Lanes, TransportFailureTest, ::testing::Values("direct", "tcp"),
                         [](const auto& one) { return one.param; });
INSTANTIATE_TEST_SUITE_P(Lanes, TransportTest, ::testing::Values("direct", "shm", "tcp"),
                         [](const auto& one) { return one.param; });

TEST_P(TransportTest, BringsExactlyTheRowsAskedFor) {
  Owner owner(GetParam());
  Rng rng(3);
  for (const std::int64_t rows : {0L, 1L, 100L, 8192L, 8193L, 70000L, 1L << 20, kBig}) {
    for (const std::uint64_t column : {1, 100}) {
      const auto room = static_cast<std::uint64_t>(kBig - rows + 1);
      const auto first = static_cast<std::int64_t>(rng.below(room));
      const result<void> done = pull(owner.address, column, first, rows);
      ASSERT_TRUE(done) << rows << ": " << done.error().to_string();
    }
  }
  expect_nothing_left();
}

TEST_P(TransportTest, BringsThousandsOfTinyColumnsInFewRequests) {
  Owner owner(GetParam());
  constexpr std::size_t kColumns = 4000;
  auto buffer = std::make_shared<std::vector<std::byte>>(kColumns * 72);
  PullRequest request{.owner = owner.address, .parts = {}, .keep = buffer};
  for (std::size_t i = 0; i < kColumns; ++i)  // with gaps, as columns of a batch have
    request.parts.push_back({ColumnId{1000 + i}, 0, 64, std::span(*buffer).subspan(i * 72, 64)});
  ASSERT_TRUE(pull_and_wait(*transport_, std::move(request), Deadline::in(20s)));
  for (std::size_t i = 0; i < kColumns; ++i)
    ASSERT_EQ(first_wrong(1000 + i, 0, std::span(*buffer).subspan(i * 72, 64)), -1) << i;
  EXPECT_LE(transport_->statistics().requests, 9);
  expect_nothing_left();
}

/// Counts how often each byte of a buffer was told of, and looks whether it was there.
class CountingWatch final : public LandingWatch {
 public:
  CountingWatch(std::uint64_t column, std::int64_t first, std::span<const std::byte> buffer)
      : column_(column), first_(first), buffer_(buffer), times_(buffer.size()) {}
  void landed(std::span<const std::byte> bytes) override {
    const std::int64_t at = bytes.data() - buffer_.data();
    if (first_wrong(column_, first_ + at, bytes) != -1) ++wrong_;
    for (std::size_t i = 0; i < bytes.size(); ++i) ++times_[static_cast<std::size_t>(at) + i];
  }
  bool each_once() const {
    return wrong_ == 0 && std::all_of(times_.begin(), times_.end(),
                                      [](const auto& times) { return times.load() == 1; });
  }

 private:
  std::uint64_t column_;
  std::int64_t first_;
  std::span<const std::byte> buffer_;
  std::vector<std::atomic<std::uint8_t>> times_;
  std::atomic<int> wrong_{0};
};

TEST_P(TransportTest, TellsAWatchOfEachByteOnceWhenItIsThere) {
  Owner owner(GetParam());
  for (const std::int64_t rows : {100L, 70'000L, 300'000L, 3L << 19}) {
    for (const std::uint64_t column : {1, 100}) {
      const auto buffer = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(rows));
      const auto watch = std::make_shared<CountingWatch>(column, 77, *buffer);
      PullRequest request{.owner = owner.address,
                          .parts = {{ColumnId{column}, 77, rows, *buffer}},
                          .keep = buffer,
                          .watch = watch};
      ASSERT_TRUE(pull_and_wait(*transport_, std::move(request), Deadline::in(20s)));
      EXPECT_EQ(first_wrong(column, 77, *buffer), -1) << "column " << column << ", " << rows;
      EXPECT_TRUE(watch->each_once()) << "column " << column << ", " << rows;
    }
  }
  expect_nothing_left();
}

TEST_P(TransportTest, CarriesPullsBothWaysAtOnce) {
  Owner owner(GetParam());
  owner.child.say("pull " + to_hex(transport_->address()) + " 2 0 3000000 12");
  std::vector<std::thread> engines;
  std::atomic<int> failures{0};
  for (std::uint64_t t = 0; t < 4; ++t) {
    engines.emplace_back([&, t] {
      for (int i = 0; i < 8; ++i) {
        if (!pull(owner.address, 1 + t, 1000 * i, 1'000'000)) ++failures;
        if (!pull(owner.address, 100, 1000 * i, 50'000)) ++failures;
      }
    });
  }
  for (std::thread& engine : engines) engine.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(owner.child.hear(), "ok");
  expect_nothing_left();
}

TEST_P(TransportTest, HandsOnTheOwnersRefusal) {
  Owner owner(GetParam());
  const result<void> unknown = pull(owner.address, 99, 0, 10);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(unknown.error().message, HasSubstr("column 99"));
  EXPECT_EQ(pull(owner.address, 1, kBig - 5, 10).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(pull(owner.address, 1, 0, 10)) << "a refusal harms nothing";
  expect_nothing_left();
}

TEST_P(TransportFailureTest, EndsInRankDeadWhenTheOwnerIsKilledIdle) {
  Owner owner(GetParam());
  ASSERT_TRUE(pull(owner.address, 1, 0, 100));
  owner.child.signal(SIGKILL);  // and not reaped: a zombie must not hide it
  const auto start = std::chrono::steady_clock::now();
  const result<void> done = pull(owner.address, 1, 0, 1 << 20, 20s);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kRankDead) << done.error().to_string();
  EXPECT_THAT(done.error().message, HasSubstr("child rank 1"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 3s);
  expect_nothing_left();
}

TEST_P(TransportFailureTest, EndsInRankDeadWhenTheOwnerIsKilledMidTransfer) {
  for (int round = 0; round < 3; ++round) {
    Owner owner(GetParam());
    ASSERT_TRUE(pull(owner.address, 1, 0, 100));
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(3 + 9 * round));
      owner.child.signal(SIGKILL);
    });
    const auto start = std::chrono::steady_clock::now();
    result<void> done;
    while ((done = pull(owner.address, 1, 0, kBig))) {
      ASSERT_LT(std::chrono::steady_clock::now() - start, 10s) << "pulls from the dead go on";
    }
    killer.join();
    EXPECT_EQ(done.error().code, ErrorCode::kRankDead) << done.error().to_string();
    EXPECT_LT(std::chrono::steady_clock::now() - start, 4s);
  }
  expect_nothing_left();
}

TEST_P(TransportTest, EndsAtTheDeadlineWhenTheOwnerIsStopped) {
  Owner owner(GetParam());
  ASSERT_TRUE(pull(owner.address, 1, 0, 100));
  owner.child.stop();
  const auto start = std::chrono::steady_clock::now();
  const result<void> done = pull(owner.address, 1, 0, 1 << 20, 400ms);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kDeadline) << done.error().to_string();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
  owner.child.signal(SIGCONT);
  EXPECT_TRUE(pull(owner.address, 1, 0, 1 << 20)) << "it goes on when the owner does";
  expect_nothing_left();
}

TEST_P(TransportTest, FencesOffAPeerThatIsDeclaredLost) {
  Owner owner(GetParam());
  ASSERT_TRUE(pull(owner.address, 1, 0, 100));
  owner.child.stop();
  auto buffer = std::make_shared<std::vector<std::byte>>(1000);
  pending<void> waiting = transport_->pull(
      {.owner = owner.address, .parts = {{ColumnId{1}, 0, 1000, *buffer}}, .keep = buffer},
      Deadline::in(20s));
  transport_->peer_lost(
      owner.address,
      Error{.code = ErrorCode::kRankDead, .message = "signal 9", .origin = {}, .causes = {}});
  const result<void> done = waiting.wait(Deadline::in(3s));
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kRankDead);
  EXPECT_EQ(done.error().root_cause().message, "signal 9");
  owner.child.signal(SIGCONT);
  EXPECT_EQ(pull(owner.address, 1, 0, 100).error().code, ErrorCode::kRankDead);
  buffer.reset();
}

TEST_P(TransportTest, AddressOfADeadEpochIsAnErrorNotAHang) {
  std::vector<std::byte> address;
  {
    Owner owner(GetParam());
    address = owner.address;
  }
  Owner next(GetParam());
  const auto start = std::chrono::steady_clock::now();
  const result<void> done = pull(address, 1, 0, 1000, 5s);
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().code, ::testing::AnyOf(ErrorCode::kRankDead, ErrorCode::kDeadline));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 6s);
  EXPECT_TRUE(pull(next.address, 1, 0, 1000));
}

TEST_P(TransportTest, RefusesAndCountsMessagesUnderAnotherKey) {
  SessionKey other{};
  Owner owner(GetParam(), kBig, other);
  const result<void> done = pull(owner.address, 1, 0, 1000, 300ms);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kDeadline);
  const Deadline until = Deadline::in(10s);  // its transport may be slower than its input
  std::int64_t refused = 0;
  while (refused == 0 && !until.passed()) {
    std::istringstream statistics(owner.child.ask("statistics"));
    statistics >> refused;
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_GE(refused, 1);
}

TEST_P(TransportFailureTest, RefusesForgedTornReplayedAndOversizedMessages) {
  Owner owner(GetParam());
  ASSERT_TRUE(pull(owner.address, 1, 0, 100));
  const auto refused = [&] {
    std::istringstream statistics(owner.child.ask("statistics"));
    std::int64_t count = 0;
    statistics >> count;
    return count;
  };
  const auto wait_for = [&](std::int64_t wanted) {
    const Deadline until = Deadline::in(20s);
    while (refused() < wanted && !until.passed()) std::this_thread::sleep_for(5ms);
    EXPECT_EQ(refused(), wanted);
  };
  constexpr auto kLanes = TransportLanes::kTcp;
  Forger forger(kLanes, owner.address);
  Rng rng(8);
  std::vector<std::byte> noise(kMessageHeaderBytes);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(rng.below(256));
  forger.send(noise, {});
  forger.send(std::span(noise).first(7), noise);
  forger.send(noise, std::vector<std::byte>(1 << 20));  // comes as a rendezvous
  wait_for(3);
  // Somebody who knows the key: what is well-formed is answered once, what lies is refused.
  TransportAddress self;
  self.name = "forger";
  self.epoch = 77;
  self.lane_version = decode_address(owner.address)->lane_version;
  self.host = decode_address(transport_->address())->host;
  self.lanes = decode_address(transport_->address())->lanes;
  MessageHeader header{.type = MessageType::kRequest,
                       .from = self.epoch,
                       .to = decode_address(owner.address)->epoch,
                       .sequence = 1,
                       .pull = 1,
                       .flags = kFlagIntroduced,
                       .connection = 1};
  Request request{.reader = encode_address(self),
                  .parts = {{.column = 1, .first = 0, .rows = 1, .bytes = 1, .take = 1}}};
  auto payload = encode_request(request);
  header.bytes = payload.size();
  const MessageBytes sealed = seal_message(job_key(), header, payload);
  forger.send(sealed, payload);
  forger.send(sealed, payload);  // replayed
  wait_for(4);
  request.parts[0].take = request.parts[0].bytes = kChunkBytesMax + 1;  // oversized
  payload = encode_request(request);
  header.sequence = 2;
  forger.send(seal_message(job_key(), header, payload), payload);
  wait_for(5);
  header.sequence = 3;
  header.to += 1;  // to an epoch that is not this one
  forger.send(seal_message(job_key(), header, payload), payload);
  wait_for(6);
  EXPECT_TRUE(pull(owner.address, 1, 0, 100'000)) << "nothing was harmed";
}

TEST_P(TransportTest, RefusesAnotherVersionBeforeConnecting) {
  Owner owner(GetParam());
  TransportAddress address = *decode_address(owner.address);
  address.lane_version = "0.9";
  const result<void> done = pull(encode_address(address), 1, 0, 10);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kConflict);
  EXPECT_THAT(done.error().message, AllOf(HasSubstr("0.9"), HasSubstr("child rank 1")));
  EXPECT_EQ(pull({std::byte{1}}, 1, 0, 10).error().code, ErrorCode::kCorrupt);
}

TEST_P(TransportTest, MemoryStaysBoundedOverManyPulls) {
  Owner owner(GetParam());
  const auto resident_of_owner = [&] {
    std::istringstream statistics(owner.child.ask("statistics"));
    double skip = 0;
    double resident = 0;
    statistics >> skip >> skip >> skip >> skip >> resident;
    return resident;
  };
  std::weak_ptr<std::vector<std::byte>> last;
  const auto once = [&] {
    auto buffer = std::make_shared<std::vector<std::byte>>(1 << 18);
    last = buffer;
    PullRequest request{
        .owner = owner.address, .parts = {{ColumnId{100}, 0, 1 << 18, *buffer}}, .keep = buffer};
    ASSERT_TRUE(pull_and_wait(*transport_, std::move(request), Deadline::in(20s)));
  };
  for (int i = 0; i < 100; ++i) once();
  const double here = test::resident_mib();
  const double there = resident_of_owner();
  for (int i = 0; i < 1000; ++i) once();
  EXPECT_LT(test::resident_mib() - here, kKept);
  EXPECT_LT(resident_of_owner() - there, kKept);
  // The transport's threads let go of it just after they have told.
  const Deadline until = Deadline::in(5s);
  while (!last.expired() && !until.passed()) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(last.expired()) << "the buffer is let go with the pull";
  expect_nothing_left();
}

TEST_P(TransportTest, ClosingEndsPullsUnderWay) {
  Owner owner(GetParam());
  ASSERT_TRUE(pull(owner.address, 1, 0, 100));
  owner.child.stop();
  auto buffer = std::make_shared<std::vector<std::byte>>(1000);
  pending<void> waiting = transport_->pull(
      {.owner = owner.address, .parts = {{ColumnId{1}, 0, 1000, *buffer}}, .keep = buffer},
      Deadline::in(20s));
  transport_.reset();
  EXPECT_EQ(waiting.wait(Deadline::in(1s)).error().code, ErrorCode::kAborted);
}

TEST_P(TransportTest, LearnsAtOnceThatAPeerHasClosed) {
  Owner owner(GetParam());
  ASSERT_TRUE(pull(owner.address, 1, 0, 100));
  owner.child.say("quit");
  owner.child.reap();
  const result<void> done = pull(owner.address, 1, 0, 100, 10s);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kRankDead);
}

TEST(Transport, RefusesOptionsThatCannotWork) {
  TransportOptions options;
  options.chunk_bytes = 1;
  EXPECT_EQ(open_ucx_transport(options).error().code, ErrorCode::kConfig);
  options = {};
  options.keepalive = 5s;
  EXPECT_THAT(open_ucx_transport(options).error().message, HasSubstr("keepalive"));
  options = {};
  options.chunks_in_flight = 0;
  EXPECT_EQ(open_ucx_transport(options).error().code, ErrorCode::kConfig);
}

TEST(Transport, KeysAreFresh) { EXPECT_NE(*make_session_key(), *make_session_key()); }

}  // namespace
}  // namespace troupe::runtime
