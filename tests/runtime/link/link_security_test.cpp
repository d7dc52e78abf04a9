// Strangers and broken peers at a listening hub: each is refused and closed in bounded time, and
// meanwhile the channel of an honest peer works, memory stays where it was, and no descriptor
// leaks.

#include "runtime/base/rng.hpp"
#include "runtime/batch/envelope_codec.hpp"
#include "runtime/link/certificate.hpp"
#include "runtime/link/connection.hpp"
#include "tests/runtime/link/hub_support.hpp"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <fstream>

namespace troupe::runtime {
namespace {

using namespace link_test;  // NOLINT: the support of these tests
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

/// A head under attack, with an honest node whose channel must not notice.
struct Attacked {
  explicit Attacked(LinkOptions head_options = impatient(),
                    LinkOptions node_options = named(PeerRole::kNode, "gpu-1", kToken))
      : two(std::move(head_options), std::move(node_options)) {
    auto channel = two.dial();
    EXPECT_TRUE(channel) << channel.error().to_string();
    honest = *channel;
    memory = resident_bytes();
    descriptors = open_descriptors();
  }
  ~Attacked() {
    check_honest();
    EXPECT_EQ(two.served->downs, 0);
    EXPECT_EQ(two.client->downs, 0);
    EXPECT_TRUE(soon([this] { return open_descriptors() <= descriptors; }));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LT(resident_bytes(), memory + (std::size_t{32} << 20));
#endif
  }
  Attacked(const Attacked&) = delete;
  Attacked& operator=(const Attacked&) = delete;

  static LinkOptions impatient() {
    LinkOptions options = named(PeerRole::kHead, "main", kToken);
    options.handshake_within = milliseconds(400);
    return options;
  }
  void check_honest() const {
    const auto answer = honest->request("echo", bytes_of("still"), Deadline::in(seconds(5))).wait();
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(text_of(*answer), "still");
  }

  Two two;
  Ref<Channel> honest;
  std::size_t memory = 0;
  std::size_t descriptors = 0;
};

/// A peer that went through the handshake on a socket of its own, and can now misbehave.
class Insider final : public ConnectionEvents {
 public:
  explicit Insider(const std::string& address, const std::string& name = "mole")
      : socket_(address), connection_(LinkSide::kDialler, options(name), {}, *this, {}) {
    std::vector<char> out;
    EXPECT_TRUE(connection_.start(out));
    EXPECT_TRUE(socket_.send(out));
    const Deadline deadline = Deadline::in(seconds(5));
    while (!connection_.established() && !deadline.passed()) {
      out.clear();
      const Bytes bytes = socket_.receive(milliseconds(50));
      EXPECT_TRUE(connection_.received(bytes, {}, out));
      EXPECT_TRUE(socket_.send(out));
    }
    EXPECT_TRUE(connection_.established());
  }
  static ConnectionOptions options(const std::string& name) {
    ConnectionOptions made{.handshake = {},
                           .heartbeat = seconds(1),
                           .dead_after = seconds(3),
                           .handshake_within = seconds(5),
                           .frame_bytes_max = std::size_t{1} << 20};
    made.handshake.self = {PeerRole::kNode, name};
    made.handshake.token = kToken;
    made.handshake.nonce.fill(std::byte{7});
    return made;
  }
  result<void> on_peer(const PeerName&) override { return {}; }
  result<void> on_envelope(std::span<const std::byte>) override { return {}; }

  /// The bytes of a good frame, not sent yet.
  std::vector<char> frame(const std::string& method) {
    Envelope envelope;
    envelope.method = method;
    std::vector<char> out;
    connection_.send(encode_envelope(envelope).value(), out);
    return out;
  }
  std::vector<char> frame_of(const Bytes& payload) {
    std::vector<char> out;
    connection_.send(payload, out);
    return out;
  }
  const RawSocket& socket() const { return socket_; }

 private:
  RawSocket socket_;
  Connection connection_;
};

Bytes random_bytes(Rng& rng, std::size_t size) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
  return bytes;
}

TEST(LinkSecurity, ClosesOnGarbageOfAnyKind) {
  Attacked attacked;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Rng rng(seed);
    const RawSocket stranger(attacked.two.address);
    ASSERT_TRUE(stranger.open());
    (void)stranger.send(random_bytes(rng, 2 + rng.below(5000)));
    EXPECT_TRUE(stranger.closes(seconds(3)));
  }
  EXPECT_EQ(attacked.two.peers.size(), 1U);
}

TEST(LinkSecurity, RefusesAnOversizedAnnouncementWithoutWaitingForIt) {
  Attacked attacked;
  for (const std::uint32_t size : {2000U, 0x7fffffffU, 0xffffffffU}) {
    FrameWriter writer;
    std::vector<char> bytes;
    writer.append(FrameKind::kHello, Bytes(8), bytes);
    std::memcpy(bytes.data() + 8, &size, sizeof size);
    const RawSocket stranger(attacked.two.address);
    ASSERT_TRUE(stranger.send(bytes));
    EXPECT_TRUE(stranger.closes(milliseconds(350)));  // not only when the handshake is overdue
  }
}

TEST(LinkSecurity, ClosesASlowOrMuteStrangerWhenTheHandshakeIsOverdue) {
  Attacked attacked;
  const RawSocket mute(attacked.two.address);
  const RawSocket slow(attacked.two.address);
  std::vector<char> bytes;
  FrameWriter writer;
  writer.append(FrameKind::kHello, Bytes(900), bytes);
  const auto begin = SteadyClock().now();
  std::size_t sent = 0;
  while (sent < bytes.size() && !slow.closes(milliseconds(10)))
    (void)slow.send(std::vector<char>{bytes[sent++]});
  EXPECT_TRUE(slow.closes(milliseconds(10)));
  EXPECT_TRUE(mute.closes(seconds(2)));
  const Duration took = SteadyClock().now() - begin;
  EXPECT_GE(took, milliseconds(350));
  EXPECT_LT(took, seconds(3));
  EXPECT_EQ(attacked.two.peers.size(), 1U);
}

TEST(LinkSecurity, LetsHonestPeersInThroughAThousandHalfOpenConnections) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur < 2600) GTEST_SKIP() << "too few descriptors: " << limit.rlim_cur;
  LinkOptions options = Attacked::impatient();
  options.handshake_within = seconds(5);
  Attacked attacked(options);
  std::vector<RawSocket> strangers;
  for (int i = 0; i < 1000; ++i) {
    strangers.emplace_back(attacked.two.address);
    ASSERT_TRUE(strangers.back().open());
    if (i % 100 == 50) {
      const auto begin = SteadyClock().now();
      const auto other =
          open_hub(attacked.two.system, named(PeerRole::kNode, "n" + std::to_string(i), kToken));
      const auto channel =
          other->connect(attacked.two.address, nullptr, Deadline::in(seconds(5))).wait();
      ASSERT_TRUE(channel) << channel.error().to_string();
      EXPECT_LT(SteadyClock().now() - begin, seconds(2));
      (*channel)->close(an_error("seen enough"));
      EXPECT_TRUE(soon([&] { return attacked.two.served->downs > i / 100; }));
    }
  }
  // No more than the bound is kept; the oldest went first.
  EXPECT_TRUE(strangers.front().closes(seconds(2)));
  EXPECT_TRUE(strangers[700].closes(seconds(2)));
  EXPECT_FALSE(strangers.back().closes(milliseconds(30)));
  attacked.two.served->downs = 0;  // of the ten that left
}

TEST(LinkSecurity, RefusesTheRecordedBytesOfAnotherSession) {
  Attacked attacked;
  // A proxy in the middle keeps what an honest node says.
  const RawListener proxy;
  const auto node = open_hub(attacked.two.system, named(PeerRole::kNode, "gpu-2", kToken));
  auto dial = node->connect(proxy.address(), nullptr, Deadline::in(seconds(5)));
  const RawSocket near = proxy.accept();
  Bytes recorded;
  {
    const RawSocket far(attacked.two.address);
    const Deadline deadline = Deadline::in(seconds(5));
    while (!dial.ready() && !deadline.passed()) {
      const Bytes up = near.receive(milliseconds(10));
      recorded.insert(recorded.end(), up.begin(), up.end());
      (void)far.send(up);
      (void)near.send(far.receive(milliseconds(10)));
    }
    const auto channel = dial.wait();
    ASSERT_TRUE(channel) << channel.error().to_string();
    ASSERT_TRUE((*channel)->notify("note", bytes_of("pay me")));
    const Bytes note = near.receive(seconds(1));
    recorded.insert(recorded.end(), note.begin(), note.end());
    (void)far.send(note);
    ASSERT_TRUE(soon([&] { return attacked.two.served->notices == 1; }));
    (*channel)->close(an_error("recorded"));
    ASSERT_TRUE(soon([&] {
      (void)far.send(near.receive(milliseconds(10)));
      return attacked.two.served->downs == 1;
    }));
  }
  attacked.two.served->downs = 0;
  const RawSocket replayer(attacked.two.address);
  ASSERT_TRUE(replayer.send(recorded));
  EXPECT_TRUE(replayer.closes(seconds(3)));
  EXPECT_EQ(attacked.two.served->notices, 1);
  EXPECT_EQ(attacked.two.peers.size(), 2U);
}

TEST(LinkSecurity, TakesDownTheChannelOfAPeerThatForgesRepeatsTearsOrOverstates) {
  Attacked attacked;
  int downs = 0;
  const auto expect_down = [&](const Insider& insider, ErrorCode code, const std::string& why) {
    EXPECT_TRUE(insider.socket().closes(seconds(3)));
    ASSERT_TRUE(soon([&] { return attacked.two.served->downs == downs + 1; })) << why;
    ++downs;
    EXPECT_EQ(attacked.two.served->cause().code, code);
    EXPECT_THAT(attacked.two.served->cause().message, HasSubstr(why));
    EXPECT_THAT(attacked.two.served->cause().message, HasSubstr("node mole"));
    attacked.check_honest();
  };
  {
    Insider forger(attacked.two.address);
    auto bytes = forger.frame("note");
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    ASSERT_TRUE(forger.socket().send(bytes));
    expect_down(forger, ErrorCode::kCorrupt, "its MAC does not fit");
  }
  {
    Insider repeater(attacked.two.address);
    const auto bytes = repeater.frame("note");
    ASSERT_TRUE(repeater.socket().send(bytes));
    (void)repeater.socket().send(bytes);
    expect_down(repeater, ErrorCode::kCorrupt, "sequence number");
  }
  {
    Insider overstater(attacked.two.address);
    auto bytes = overstater.frame("note");
    const std::uint32_t size = (1U << 20) + 1;
    std::memcpy(bytes.data() + 8, &size, sizeof size);
    ASSERT_TRUE(overstater.socket().send(bytes));
    expect_down(overstater, ErrorCode::kCorrupt, "1048577 bytes, wanted at most 1048576");
  }
  {
    Insider babbler(attacked.two.address);  // well sealed, but no envelope
    ASSERT_TRUE(babbler.socket().send(babbler.frame_of(Bytes(64, std::byte{0xff}))));
    expect_down(babbler, ErrorCode::kCorrupt, "envelope");
  }
  {
    auto insider = std::make_unique<Insider>(attacked.two.address);
    auto bytes = insider->frame("note");
    bytes.resize(bytes.size() / 2);
    ASSERT_TRUE(insider->socket().send(bytes));
    insider.reset();  // torn
    ASSERT_TRUE(soon([&] { return attacked.two.served->downs == downs + 1; }));
    EXPECT_EQ(attacked.two.served->cause().code, ErrorCode::kRankDead);
  }
  EXPECT_EQ(attacked.two.served->notices, 1);  // the first of the repeated ones
  attacked.two.served->downs = 0;
}

TEST(LinkSecurity, KeepsPlainAndTlsEndsApart) {
  const Folder folder;
  ASSERT_TRUE(make_authority(folder.path));
  const auto files = make_certificate(folder.path, "main", {"127.0.0.1"});
  ASSERT_TRUE(files);
  LinkOptions with_tls = Attacked::impatient();
  with_tls.tls = *files;
  LinkOptions node_with_tls = named(PeerRole::kNode, "gpu-1", kToken);
  node_with_tls.tls = *files;
  {
    Attacked attacked(with_tls, node_with_tls);
    const auto plain = open_hub(attacked.two.system, named(PeerRole::kNode, "gpu-2", kToken));
    const auto refused =
        plain->connect(attacked.two.address, nullptr, Deadline::in(seconds(5))).wait();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
    EXPECT_THAT(refused.error().message, HasSubstr("does not speak TLS"));
  }
  {
    Attacked attacked;
    const auto sealed = open_hub(attacked.two.system, node_with_tls);
    const auto refused =
        sealed->connect(attacked.two.address, nullptr, Deadline::in(seconds(5))).wait();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
    EXPECT_THAT(refused.error().message, HasSubstr(attacked.two.address));
  }
}

TEST(LinkSecurity, WantsACertificateOfItsOwnAuthorityThatIsValidNow) {
  const Folder folder;
  const Folder foreign;
  ASSERT_TRUE(make_authority(folder.path) && make_authority(foreign.path));
  const auto good = make_certificate(folder.path, "main", {"127.0.0.1"});
  const auto old = make_certificate(folder.path, "old", {"127.0.0.1"}, -1);
  const auto nameless = make_certificate(folder.path, "nameless", {"elsewhere.example"});
  auto other = make_certificate(foreign.path, "other", {"127.0.0.1"});
  ASSERT_TRUE(good && old && nameless && other);
  other->authority = good->authority;  // trusts us, and is not trusted
  LinkOptions head = Attacked::impatient();
  head.tls = *good;
  LinkOptions honest = named(PeerRole::kNode, "gpu-1", kToken);
  honest.tls = *good;
  Attacked attacked(head, honest);
  const auto dial = [&](const TlsFiles& files, const std::string& address) {
    LinkOptions options = named(PeerRole::kNode, "gpu-2", kToken);
    options.tls = files;
    const auto hub = open_hub(attacked.two.system, options);
    const auto channel = hub->connect(address, nullptr, Deadline::in(seconds(5))).wait();
    EXPECT_FALSE(channel);
    return channel ? std::string() : channel.error().message;
  };
  EXPECT_THAT(dial(*old, attacked.two.address), HasSubstr("expired"));
  EXPECT_THAT(dial(*other, attacked.two.address), HasSubstr("tls:"));
  EXPECT_EQ(attacked.two.peers.size(), 1U);
  // And the other way round: a head whose certificate is old, or names another host.
  for (const auto* files : {&*old, &*nameless}) {
    LinkOptions options = named(PeerRole::kHead, "false", kToken);
    options.tls = *files;
    const auto hub = open_hub(attacked.two.system, options);
    const auto at = hub->listen("127.0.0.1", 0, nullptr);
    ASSERT_TRUE(at);
    EXPECT_THAT(dial(*good, at->to_string()), HasSubstr("the peer's certificate is refused"));
  }
  // No certificate at all: a TLS 1.3 greeting of no known client is answered, never admitted.
  const RawSocket stranger(attacked.two.address);
  ASSERT_TRUE(stranger.send(Bytes{std::byte{22}, std::byte{3}, std::byte{1}, std::byte{0xff}}));
  EXPECT_TRUE(stranger.closes(seconds(3)));
}

}  // namespace
}  // namespace troupe::runtime
