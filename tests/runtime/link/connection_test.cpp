// A connection without sockets or clock: both ends in memory, with and without TLS, on virtual
// time. Who is let in, what recorded bytes are worth, and when a silent peer is dead.

#include "runtime/link/connection.hpp"

#include "runtime/base/rng.hpp"
#include "runtime/batch/envelope_codec.hpp"
#include "runtime/link/certificate.hpp"
#include "tests/runtime/link/link_support.hpp"

#include <gmock/gmock.h>

namespace troupe::runtime {
namespace {

using namespace link_test;  // NOLINT: the support of these tests
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

struct Recorder final : ConnectionEvents {
  result<void> on_peer(const PeerName& name) override {
    peer = name;
    if (refusal) return fail(*refusal);
    return {};
  }
  result<void> on_envelope(std::span<const std::byte> envelope) override {
    const auto decoded = decode_envelope(envelope);
    if (!decoded) return fail(decoded.error());
    if (decoded->kind == MessageKind::kHeartbeat) {
      ++heartbeats;
    } else if (decoded->kind == MessageKind::kAbort) {
      goodbye = *decoded->error;
    } else {
      methods.push_back(decoded->method);
    }
    return {};
  }
  std::optional<PeerName> peer;
  std::optional<Error> refusal;
  std::optional<Error> goodbye;
  std::vector<std::string> methods;
  int heartbeats = 0;
};

Bytes call_named(const std::string& method) {
  Envelope envelope;
  envelope.method = method;
  return encode_envelope(envelope).value();
}

struct End {
  End(LinkSide side, const std::string& token, std::uint64_t seed, std::optional<TlsStream> tls,
      TimePoint now)
      : connection(side, options(side, token, seed), std::move(tls), events, now) {}
  static ConnectionOptions options(LinkSide side, const std::string& token, std::uint64_t seed) {
    ConnectionOptions made{.handshake = {},
                           .heartbeat = milliseconds(500),
                           .dead_after = seconds(3),
                           .handshake_within = seconds(5),
                           .frame_bytes_max = 4096};
    const bool dialler = side == LinkSide::kDialler;
    made.handshake.self = {dialler ? PeerRole::kNode : PeerRole::kHead, dialler ? "gpu-1" : "main"};
    made.handshake.token = token;
    Rng rng(seed);
    for (std::byte& byte : made.handshake.nonce) byte = static_cast<std::byte>(rng.below(256));
    return made;
  }
  void note(const result<void>& outcome) {
    if (!outcome && !error) {
      error = outcome.error();
      connection.last_words(*error, out);
    }
  }

  Recorder events;
  Connection connection;
  std::vector<char> out;  // for the other end
  Bytes sent;             // all of it
  std::optional<Error> error;
};

/// Two ends and the bytes between.
struct Line {
  Line(const std::string& dialler_token, const std::string& acceptor_token,
       std::optional<TlsStream> dialler_tls = {}, std::optional<TlsStream> acceptor_tls = {},
       std::uint64_t seed = 1)
      : dialler(LinkSide::kDialler, dialler_token, 2 * seed, std::move(dialler_tls), now),
        acceptor(LinkSide::kAcceptor, acceptor_token, 2 * seed + 1, std::move(acceptor_tls), now),
        rng(seed) {
    acceptor.note(acceptor.connection.start(acceptor.out));
    dialler.note(dialler.connection.start(dialler.out));
  }

  /// Carries bytes both ways, in pieces, until neither has any.
  void run() {
    while (!dialler.out.empty() || !acceptor.out.empty()) {
      carry(dialler, acceptor);
      carry(acceptor, dialler);
    }
  }
  void carry(End& from, End& to) {
    if (from.out.empty()) return;
    const std::size_t size = std::min<std::size_t>(from.out.size(), 1 + rng.below(700));
    const auto bytes = std::as_bytes(std::span(from.out)).first(size);
    const Bytes piece(bytes.begin(), bytes.end());
    from.out.erase(from.out.begin(), from.out.begin() + static_cast<std::ptrdiff_t>(size));
    from.sent.insert(from.sent.end(), piece.begin(), piece.end());
    if (!to.error) to.note(to.connection.received(piece, now, to.out));
  }
  void send(End& from, const std::string& method) {
    from.connection.send(call_named(method), from.out);
    from.note(from.connection.flush(now, from.out));
  }
  bool up() const { return dialler.connection.established() && acceptor.connection.established(); }

  TimePoint now{};
  End dialler;
  End acceptor;
  Rng rng;
};

/// A private authority with certificates, made once: keys take time.
struct Authority {
  Authority() {
    EXPECT_TRUE(make_authority(folder.path));
    EXPECT_TRUE(make_certificate(folder.path, "main", {"head.example", "10.0.0.1"}));
    EXPECT_TRUE(make_certificate(folder.path, "gpu-1", {}));
    EXPECT_TRUE(make_certificate(folder.path, "old", {"head.example"}, -1));
    EXPECT_TRUE(make_authority(foreign.path));
    EXPECT_TRUE(make_certificate(foreign.path, "gpu-1", {"head.example"}));
  }
  std::unique_ptr<TlsContext> context(const std::string& name) const {
    return std::move(*TlsContext::open(TlsFiles::in_folder(folder.path, name)));
  }
  std::unique_ptr<TlsContext> foreign_context() const {
    return std::move(*TlsContext::open(TlsFiles::in_folder(foreign.path, "gpu-1")));
  }
  Folder folder;
  Folder foreign;
};

const Authority& authority() {
  static const Authority made;
  return made;
}

/// A line whose dialler shows `client` and whose acceptor shows `server`, dialled as `host`.
std::unique_ptr<Line> tls_line(const TlsContext& client, const TlsContext& server,
                               const std::string& host = "head.example") {
  auto line = std::make_unique<Line>("secret", "secret", client.stream(LinkSide::kDialler, host),
                                     server.stream(LinkSide::kAcceptor, ""));
  line->run();
  return line;
}

TEST(Connection, CarriesEnvelopesOnceBothEndsAreSure) {
  for (const std::string token : {"", "secret"}) {
    Line line(token, token);
    line.run();
    ASSERT_TRUE(line.up());
    EXPECT_EQ(line.dialler.events.peer, (PeerName{PeerRole::kHead, "main"}));
    EXPECT_EQ(line.acceptor.events.peer, (PeerName{PeerRole::kNode, "gpu-1"}));
    for (int i = 0; i < 50; ++i) {
      line.send(line.dialler, "there" + std::to_string(i));
      line.send(line.acceptor, "back" + std::to_string(i));
    }
    line.run();
    EXPECT_FALSE(line.dialler.error);
    EXPECT_FALSE(line.acceptor.error);
    ASSERT_EQ(line.acceptor.events.methods.size(), 50U);
    EXPECT_EQ(line.acceptor.events.methods[49], "there49");
    EXPECT_EQ(line.dialler.events.methods[0], "back0");
  }
}

TEST(Connection, HandsNoEnvelopeOnToAnEndThatIsNotUp) {
  Line line("secret", "secret");
  FrameWriter forger;  // skips the handshake
  forger.append(FrameKind::kEnvelope, call_named("open"), line.acceptor.out);
  line.acceptor.out.swap(line.dialler.out);
  line.acceptor.out.clear();
  line.run();
  EXPECT_FALSE(line.acceptor.connection.established());
  EXPECT_TRUE(line.acceptor.events.methods.empty());
  ASSERT_TRUE(line.acceptor.error);
  EXPECT_EQ(line.acceptor.error->code, ErrorCode::kCorrupt);
}

TEST(Connection, TellsBothEndsOfAWrongToken) {
  Line line("mine", "yours");
  line.run();
  EXPECT_FALSE(line.up());
  ASSERT_TRUE(line.dialler.error);
  EXPECT_THAT(line.dialler.error->message, HasSubstr("refused by the peer"));
  ASSERT_TRUE(line.acceptor.error);
  EXPECT_FALSE(line.acceptor.events.peer);
}

TEST(Connection, TellsTheDiallerWhyTheAcceptorDoesNotWantIt) {
  Line line("secret", "secret");
  line.acceptor.events.refusal = Error{.code = ErrorCode::kAlreadyExists,
                                       .message = "node gpu-1 is connected already",
                                       .origin = {},
                                       .causes = {}};
  line.run();
  EXPECT_FALSE(line.up());
  ASSERT_TRUE(line.dialler.error);
  EXPECT_EQ(line.dialler.error->code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(line.dialler.error->message, HasSubstr("is connected already"));
  EXPECT_FALSE(line.dialler.events.peer);
}

TEST(Connection, RefusesABytewiseReplayOfAnEarlierSession) {
  Line recorded("secret", "secret", {}, {}, 1);
  recorded.run();
  recorded.send(recorded.dialler, "stop everything");
  recorded.run();
  ASSERT_EQ(recorded.acceptor.events.methods.size(), 1U);
  // The acceptor's nonce is another one in the next session.
  Line victim("secret", "secret", {}, {}, 2);
  victim.acceptor.note(
      victim.acceptor.connection.received(recorded.dialler.sent, victim.now, victim.acceptor.out));
  EXPECT_FALSE(victim.acceptor.connection.established());
  EXPECT_TRUE(victim.acceptor.events.methods.empty());
  ASSERT_TRUE(victim.acceptor.error);
  EXPECT_EQ(victim.acceptor.error->code, ErrorCode::kConflict);
}

TEST(Connection, SaysGoodbyeWithItsReason) {
  Line line("secret", "secret");
  line.run();
  line.dialler.connection.last_words(an_error("the job is over"), line.dialler.out);
  line.run();
  ASSERT_TRUE(line.acceptor.events.goodbye);
  EXPECT_EQ(line.acceptor.events.goodbye->message, "the job is over");
}

TEST(Connection, EndsAMuteHandshakeAfterItsBound) {
  Line line("secret", "secret");
  line.dialler.out.clear();  // it never speaks
  std::vector<char> out;
  EXPECT_TRUE(line.acceptor.connection.tick(line.now + milliseconds(4999), true, out));
  const auto late = line.acceptor.connection.tick(line.now + seconds(5), true, out);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kDeadline);
}

/// Both ends tick for a minute of virtual time, then the dialler is stopped.
void expect_life_and_death(Line& line) {
  line.run();
  ASSERT_TRUE(line.up());
  for (int tick = 0; tick < 600; ++tick) {
    line.now += milliseconds(100);
    line.dialler.note(line.dialler.connection.tick(line.now, true, line.dialler.out));
    line.acceptor.note(line.acceptor.connection.tick(line.now, true, line.acceptor.out));
    line.run();
  }
  EXPECT_FALSE(line.dialler.error);
  EXPECT_FALSE(line.acceptor.error);
  for (const End* end : {&line.dialler, &line.acceptor}) {
    EXPECT_GE(end->events.heartbeats, 118);
    EXPECT_LE(end->events.heartbeats, 121);
  }
  const TimePoint stopped = line.now;
  while (!line.acceptor.error && line.now - stopped < seconds(10)) {
    line.now += milliseconds(100);
    line.acceptor.note(line.acceptor.connection.tick(line.now, true, line.acceptor.out));
  }
  ASSERT_TRUE(line.acceptor.error);
  EXPECT_EQ(line.acceptor.error->code, ErrorCode::kRankDead);
  EXPECT_THAT(line.acceptor.error->message, HasSubstr("silent for 3.1 s"));
  EXPECT_LE(line.now - stopped, milliseconds(3200));
}

TEST(Connection, BeatsWhenIdleAndFindsASilentPeerDeadAfterThreeSeconds) {
  Line line("secret", "secret");
  expect_life_and_death(line);
}

TEST(Liveness, DoesNotBlameThePeerForTimeInWhichNobodyLooked) {
  TimePoint now{};
  Liveness liveness(milliseconds(500), seconds(3), now);
  for (int i = 0; i < 20; ++i) {
    now += milliseconds(100);
    EXPECT_NE(liveness.tick(now), Liveness::Verdict::kDead);
  }
  now += seconds(60);  // this process was stopped
  EXPECT_NE(liveness.tick(now), Liveness::Verdict::kDead);
  int ticks = 0;
  while (liveness.tick(now) != Liveness::Verdict::kDead) {
    now += milliseconds(100);
    ASSERT_LT(++ticks, 40);
  }
  EXPECT_LE(ticks, 11);  // two of the three seconds were silent before
}

TEST(Tls, CarriesASessionBetweenCertificatesOfOneAuthority) {
  const auto server = authority().context("main");
  const auto client = authority().context("gpu-1");
  for (const std::string host : {"head.example", "10.0.0.1"}) {
    const auto line = tls_line(*client, *server, host);
    ASSERT_TRUE(line->up()) << (line->dialler.error ? line->dialler.error->message : "");
    for (int i = 0; i < 50; ++i) line->send(line->dialler, "m" + std::to_string(i));
    line->run();
    EXPECT_EQ(line->acceptor.events.methods.size(), 50U);
    const std::string all(reinterpret_cast<const char*>(line->dialler.sent.data()),
                          line->dialler.sent.size());
    EXPECT_EQ(all.find("TrLk"), std::string::npos);  // nothing in the clear
  }
}

TEST(Tls, BeatsWhenIdleAndFindsASilentPeerDeadAfterThreeSeconds) {
  const auto server = authority().context("main");
  const auto client = authority().context("gpu-1");
  expect_life_and_death(*tls_line(*client, *server));
}

TEST(Tls, RefusesAHostThatTheCertificateDoesNotName) {
  const auto server = authority().context("main");
  const auto client = authority().context("gpu-1");
  for (const std::string host : {"other.example", "10.0.0.2"}) {
    const auto line = tls_line(*client, *server, host);
    EXPECT_FALSE(line->up());
    ASSERT_TRUE(line->dialler.error);
    EXPECT_EQ(line->dialler.error->code, ErrorCode::kConflict);
    EXPECT_THAT(line->dialler.error->message, HasSubstr("mismatch"));
    ASSERT_TRUE(line->acceptor.error);
  }
}

TEST(Tls, RefusesExpiredAndForeignCertificatesOnEitherSide) {
  const auto server = authority().context("main");
  const auto client = authority().context("gpu-1");
  const auto expired = authority().context("old");
  const auto foreign = authority().foreign_context();
  const auto old_client = tls_line(*expired, *server);
  EXPECT_FALSE(old_client->up());
  ASSERT_TRUE(old_client->acceptor.error);
  EXPECT_THAT(old_client->acceptor.error->message, HasSubstr("expired"));
  ASSERT_TRUE(old_client->dialler.error);
  EXPECT_THAT(old_client->dialler.error->message, HasSubstr("expired"));
  const auto old_server = tls_line(*client, *expired);
  ASSERT_TRUE(old_server->dialler.error);
  EXPECT_THAT(old_server->dialler.error->message, HasSubstr("expired"));
  const auto foreign_client = tls_line(*foreign, *server);
  EXPECT_FALSE(foreign_client->acceptor.connection.established());
  ASSERT_TRUE(foreign_client->acceptor.error);
  const auto foreign_server = tls_line(*client, *foreign);
  ASSERT_TRUE(foreign_server->dialler.error);
  EXPECT_EQ(foreign_server->dialler.error->code, ErrorCode::kConflict);
  for (const auto* line : {&old_client, &old_server, &foreign_client, &foreign_server}) {
    EXPECT_FALSE((*line)->acceptor.events.peer);
    EXPECT_FALSE((*line)->dialler.events.peer);
  }
}

TEST(Tls, AndAPlainEndRefuseEachOther) {
  const auto server = authority().context("main");
  const auto client = authority().context("gpu-1");
  Line plain_client("secret", "secret", {}, server->stream(LinkSide::kAcceptor, ""));
  plain_client.run();
  EXPECT_FALSE(plain_client.up());
  ASSERT_TRUE(plain_client.acceptor.error);
  ASSERT_TRUE(plain_client.dialler.error);
  EXPECT_THAT(plain_client.dialler.error->message, HasSubstr("does not speak TLS"));
  Line plain_server("secret", "secret", client->stream(LinkSide::kDialler, "head.example"), {});
  plain_server.run();
  ASSERT_TRUE(plain_server.acceptor.error);
  EXPECT_THAT(plain_server.acceptor.error->message, HasSubstr("speaks TLS"));
  ASSERT_TRUE(plain_server.dialler.error);
  EXPECT_EQ(plain_server.dialler.error->code, ErrorCode::kConflict);
}

TEST(Connection, SurvivesRandomBytesInPlaceOfAnyPiece) {
  const auto server = authority().context("main");
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Rng rng(seed);
    std::optional<TlsStream> tls;
    if (seed % 2 == 0) tls = server->stream(LinkSide::kAcceptor, "");
    Line line("secret", "secret", {}, std::move(tls), seed);
    if (seed % 2 == 1) line.run();
    Bytes garbage(1 + rng.below(3000));
    for (std::byte& byte : garbage) byte = static_cast<std::byte>(rng.below(256));
    if (!line.acceptor.error)
      line.acceptor.note(line.acceptor.connection.received(garbage, line.now, line.acceptor.out));
    EXPECT_TRUE(line.acceptor.events.methods.empty());
    EXPECT_LE(line.acceptor.out.size(), 8192U);
  }
}

}  // namespace
}  // namespace troupe::runtime
