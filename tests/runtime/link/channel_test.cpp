// The promises of every channel, shown on a pair in one process: each request has one outcome, in
// the words of whoever failed; order; bounds; what happens when the channel goes down.

#include "runtime/link/channel_pair.hpp"
#include "runtime/link/service_table.hpp"
#include "tests/runtime/link/link_support.hpp"

#include <gmock/gmock.h>

namespace troupe::runtime {
namespace {

using namespace link_test;  // NOLINT: the support of these tests
using ::testing::HasSubstr;

struct Pair {
  explicit Pair(const ChannelPairOptions& options = {})
      : ends(make_channel_pair(left, right, options)) {}
  ~Pair() {
    ends.first->close(an_error("test over"));
    EXPECT_TRUE(soon([this] { return left->downs == 1 && right->downs == 1; }));
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  pending<std::vector<std::byte>> ask(std::string_view method, std::string_view text,
                                      Duration within = seconds(10)) {
    return ends.first->request(method, bytes_of(text), Deadline::in(within));
  }

  std::shared_ptr<EchoService> left = std::make_shared<EchoService>();
  std::shared_ptr<EchoService> right = std::make_shared<EchoService>();
  std::pair<Ref<Channel>, Ref<Channel>> ends;
};

TEST(Channel, AnswersWithTheBytesOfTheHandler) {
  Pair pair;
  const auto answer = pair.ask("echo", "hello").wait();
  ASSERT_TRUE(answer) << answer.error().to_string();
  EXPECT_EQ(text_of(*answer), "hello");
  EXPECT_EQ(
      pair.ends.second->request("echo", bytes_of("back"), Deadline::in(seconds(5))).wait().value(),
      bytes_of("back"));
}

TEST(Channel, CarriesTheErrorOfTheHandlerWithItsCode) {
  Pair pair;
  const auto answer = pair.ask("fail", "x").wait();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(answer.error().message, "no such thing: x");
}

TEST(Channel, AnswersForHandlersThatThrowOrDropTheirResponder) {
  Pair pair;
  const auto thrown = pair.ask("throw", "").wait();
  ASSERT_FALSE(thrown);
  EXPECT_EQ(thrown.error().code, ErrorCode::kInternal);
  EXPECT_THAT(thrown.error().message, HasSubstr("the handler broke"));
  const auto dropped = pair.ask("drop", "").wait();
  ASSERT_FALSE(dropped);
  EXPECT_EQ(dropped.error().code, ErrorCode::kInternal);
  EXPECT_THAT(dropped.error().message, HasSubstr("dropped"));
  EXPECT_TRUE(pair.ask("echo", "still there").wait());
}

TEST(Channel, AnswersWhoWaitsAlthoughTheReplyFitsNoFrame) {
  Pair pair;
  const auto answer = pair.ask("big", "").wait();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(answer.error().message, HasSubstr("2097152 bytes"));
}

TEST(Channel, EndsARequestAtItsDeadlineAndIgnoresTheLateAnswer) {
  Pair pair;
  auto held = pair.ask("hold", "", milliseconds(30));
  const auto answer = held.wait(Deadline::in(seconds(5)));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(answer.error().message, HasSubstr("no answer to 'hold'"));
  pair.right->release("late");
  EXPECT_TRUE(pair.ask("echo", "on time").wait());
  const auto past = pair.ask("echo", "", -milliseconds(1)).wait();
  ASSERT_FALSE(past);
  EXPECT_EQ(past.error().code, ErrorCode::kDeadline);
}

TEST(Channel, WakesForAnEarlierDeadlineThanTheOneItSleepsFor) {
  Pair pair;
  auto slow = pair.ask("hold", "", seconds(30));
  auto fast = pair.ask("hold", "", milliseconds(20));
  EXPECT_EQ(fast.wait(Deadline::in(seconds(5))).error().code, ErrorCode::kDeadline);
  EXPECT_FALSE(slow.ready());
  pair.right->release("done");
  EXPECT_TRUE(slow.wait(Deadline::in(seconds(5))));
}

TEST(Channel, KeepsTheOrderOfRequestsAndNotices) {
  Pair pair;
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(pair.ends.first->notify("note", bytes_of(std::to_string(i))));
  }
  ASSERT_TRUE(pair.ask("echo", "").wait());
  const auto seen = pair.right->seen();
  ASSERT_EQ(seen.size(), 500U);
  for (std::size_t i = 0; i < 500; ++i) ASSERT_EQ(seen[i], std::to_string(i));
}

TEST(Channel, RefusesWhatFitsNoFrameAndNamesTheSizes) {
  Pair pair;
  const auto answer =
      pair.ends.first
          ->request("echo", std::vector<std::byte>(std::size_t{1} << 20), Deadline::in(seconds(5)))
          .wait();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(answer.error().message, HasSubstr("1048576 bytes"));
  EXPECT_TRUE(pair.ends.first
                  ->request("echo", std::vector<std::byte>((std::size_t{1} << 20) - 512),
                            Deadline::in(seconds(5)))
                  .wait());
}

TEST(Channel, RefusesMoreOpenRequestsThanItsBoundAndFreesTheSlotsOfCancelledOnes) {
  ChannelPairOptions options;
  options.requests_max = 4;
  Pair pair(options);
  std::vector<pending<std::vector<std::byte>>> open;
  for (int i = 0; i < 4; ++i) open.push_back(pair.ask("hold", ""));
  const auto refused = pair.ask("hold", "").wait();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("at most 4"));
  open.back().cancel();
  EXPECT_EQ(open.back().wait().error().code, ErrorCode::kCancelled);
  open.pop_back();
  // The slot is free here; the peer still holds the cancelled one and says so itself.
  const auto at_peer = pair.ask("hold", "").wait();
  ASSERT_FALSE(at_peer);
  EXPECT_EQ(at_peer.error().code, ErrorCode::kResourceExhausted);
  pair.right->release("go");
  for (auto& one : open) EXPECT_TRUE(one.wait());
}

TEST(Channel, FailsEverythingOpenWithTheCauseWhenItGoesDown) {
  Pair pair;
  auto one = pair.ask("hold", "");
  auto two = pair.ends.second->request("hold", {}, Deadline::in(seconds(10)));
  ASSERT_TRUE(soon([&] { return pair.right->held() == 1 && pair.left->held() == 1; }));
  pair.ends.first->close(an_error("enough"));
  const auto first = one.wait();
  ASSERT_FALSE(first);
  EXPECT_EQ(first.error().message, "enough");
  const auto second = two.wait();
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kRankDead);
  EXPECT_EQ(second.error().root_cause().message, "enough");
  ASSERT_TRUE(soon([&] { return pair.left->downs == 1 && pair.right->downs == 1; }));
  pair.left->release("into the void");
  pair.right->release("into the void");
  EXPECT_EQ(pair.ask("echo", "").wait().error().message, "enough");
  EXPECT_FALSE(pair.ends.second->notify("note", {}));
  ASSERT_TRUE(pair.ends.first->failure());
  pair.ends.first->close(an_error("again"));
  EXPECT_EQ(pair.ends.first->failure()->message, "enough");
}

TEST(Channel, RefusesToQueueMoreBytesThanItsBound) {
  ChannelPairOptions options;
  options.queue_bytes_max = 4096;
  std::atomic<bool> go{false};
  struct Slow : EchoService {
    std::atomic<bool>* gate = nullptr;
    void on_notify(Channel& channel, std::string_view method,
                   std::span<const std::byte> payload) override {
      soon([this] { return gate->load(); });
      EchoService::on_notify(channel, method, payload);
    }
  };
  const auto left = std::make_shared<EchoService>();
  const auto right = std::make_shared<Slow>();
  right->gate = &go;
  const auto ends = make_channel_pair(left, right, options);
  int taken = 0;
  result<void> last;
  while (taken < 100) {
    last = ends.first->notify("note", std::vector<std::byte>(1000));
    if (!last) break;
    ++taken;
  }
  ASSERT_FALSE(last);
  EXPECT_EQ(last.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(last.error().message, HasSubstr("at most 4096"));
  EXPECT_GT(ends.first->bytes_queued(), 2000U);
  go = true;
  EXPECT_TRUE(soon([&] { return right->notices == taken; }));
  EXPECT_EQ(ends.first->bytes_queued(), 0U);
  ends.second->close(an_error("test over"));
  EXPECT_TRUE(soon([&] { return left->downs == 1 && right->downs == 1; }));
}

TEST(ServiceTable, SendsEachMethodToTheLongestPrefixAndRefusesTheUnknown) {
  const auto table = std::make_shared<ServiceTable>();
  const auto shorter = std::make_shared<EchoService>();
  const auto longer = std::make_shared<EchoService>();
  ASSERT_TRUE(table->add("ec", shorter));
  ASSERT_TRUE(table->add("echo", longer));
  ASSERT_TRUE(table->add("again.", shorter));
  EXPECT_EQ(table->add("ec", longer).error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(table->add("x", nullptr).error().code, ErrorCode::kInvalidArgument);
  const auto client = std::make_shared<EchoService>();
  const auto ends = make_channel_pair(client, table);
  EXPECT_TRUE(ends.first->request("echo", {}, Deadline::in(seconds(5))).wait());
  EXPECT_EQ(longer->requests, 1);
  const auto unknown = ends.first->request("nothing", {}, Deadline::in(seconds(5))).wait();
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(unknown.error().message, HasSubstr("'nothing'"));
  ends.first->close(an_error("test over"));
  EXPECT_TRUE(soon([&] { return longer->downs == 1 && shorter->downs == 1; }));
  EXPECT_TRUE(soon([&] { return client->downs == 1; }));
  EXPECT_EQ(shorter->downs, 1);
}

}  // namespace
}  // namespace troupe::runtime
