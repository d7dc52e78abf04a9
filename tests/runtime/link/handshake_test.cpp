// The handshake as a pure machine: who passes, who does not and what each end is told; recorded,
// reflected and relayed proofs do not pass; sessions have keys of their own.

#include "runtime/link/handshake.hpp"

#include "runtime/base/rng.hpp"

#include <gmock/gmock.h>

namespace troupe::runtime {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Nonce nonce_of(std::uint64_t seed) {
  Rng rng(seed);
  Nonce nonce{};
  for (std::byte& byte : nonce) byte = static_cast<std::byte>(rng.below(256));
  return nonce;
}

HandshakeOptions end(PeerRole role, std::string name, std::string token, std::uint64_t seed) {
  HandshakeOptions options;
  options.self = {role, std::move(name)};
  options.token = std::move(token);
  options.nonce = nonce_of(seed);
  return options;
}

HandshakeOptions node(const std::string& token = "secret", std::uint64_t seed = 1) {
  return end(PeerRole::kNode, "gpu-1", token, seed);
}
HandshakeOptions head(const std::string& token = "secret", std::uint64_t seed = 2) {
  return end(PeerRole::kHead, "main", token, seed);
}

/// What both ends came to.
struct Outcome {
  std::optional<Error> at_dialler;
  std::optional<Error> at_acceptor;
  std::vector<HandshakeMessage> sent;  // by either side, in order
};

/// Runs both ends to their end; a refusal reaches the other one.
Outcome shake(Handshake& dialler, Handshake& acceptor) {
  Outcome outcome;
  outcome.sent.push_back(dialler.hello());
  const auto tell = [&](Handshake& to, std::optional<Error>& slot,
                        const HandshakeMessage& message) -> std::optional<HandshakeMessage> {
    const auto step = to.step(message.kind, message.payload);
    if (!step) {
      slot = step.error();
      if (to.refused_by_peer()) return std::nullopt;
      return Handshake::refusal(step.error());
    }
    if (step->verified) return to.welcome();
    return step->send;
  };
  bool to_acceptor = true;
  while (true) {
    const HandshakeMessage message = outcome.sent.back();
    auto answer = to_acceptor ? tell(acceptor, outcome.at_acceptor, message)
                              : tell(dialler, outcome.at_dialler, message);
    if (!answer) return outcome;
    outcome.sent.push_back(std::move(*answer));
    to_acceptor = !to_acceptor;
  }
}

TEST(Handshake, LetsTheHoldersOfOneTokenIn) {
  for (const std::string token : {"secret", ""}) {
    Handshake dialler(LinkSide::kDialler, node(token));
    Handshake acceptor(LinkSide::kAcceptor, head(token));
    const Outcome outcome = shake(dialler, acceptor);
    EXPECT_FALSE(outcome.at_dialler);
    EXPECT_FALSE(outcome.at_acceptor);
    EXPECT_EQ(dialler.peer(), (PeerName{PeerRole::kHead, "main"}));
    EXPECT_EQ(acceptor.peer(), (PeerName{PeerRole::kNode, "gpu-1"}));
    for (const auto& message : outcome.sent) {
      const std::string text(reinterpret_cast<const char*>(message.payload.data()),
                             message.payload.size());
      if (!token.empty()) {
        EXPECT_EQ(text.find(token), std::string::npos);
      }
      EXPECT_LE(message.payload.size(), kHandshakeFrameBytesMax);
    }
  }
}

TEST(Handshake, GivesBothEndsTheSameKeysAndEachDirectionItsOwn) {
  Handshake dialler(LinkSide::kDialler, node());
  Handshake acceptor(LinkSide::kAcceptor, head());
  (void)shake(dialler, acceptor);
  SessionKeys here = dialler.session_keys();
  SessionKeys there = acceptor.session_keys();
  const Bytes prefix(24);
  const Bytes payload(8);
  EXPECT_EQ(here.send.make(0, prefix, payload), there.receive.make(0, prefix, payload));
  EXPECT_EQ(there.send.make(0, prefix, payload), here.receive.make(0, prefix, payload));
  EXPECT_NE(here.send.make(0, prefix, payload), here.receive.make(0, prefix, payload));
  Handshake again(LinkSide::kDialler, node("secret", 3));
  Handshake acceptor_again(LinkSide::kAcceptor, head("secret", 4));
  (void)shake(again, acceptor_again);
  EXPECT_NE(again.session_keys().send.make(0, prefix, payload), here.send.make(0, prefix, payload));
}

TEST(Handshake, RefusesAnotherTokenAndTellsTheDialler) {
  Handshake dialler(LinkSide::kDialler, node("other"));
  Handshake acceptor(LinkSide::kAcceptor, head("secret"));
  const Outcome outcome = shake(dialler, acceptor);
  ASSERT_TRUE(outcome.at_acceptor);
  EXPECT_EQ(outcome.at_acceptor->code, ErrorCode::kConflict);
  EXPECT_THAT(outcome.at_acceptor->message, HasSubstr("join token of node gpu-1"));
  ASSERT_TRUE(outcome.at_dialler);
  EXPECT_EQ(outcome.at_dialler->code, ErrorCode::kConflict);
  EXPECT_THAT(outcome.at_dialler->message, HasSubstr("refused by the peer"));
  EXPECT_TRUE(dialler.refused_by_peer());
}

TEST(Handshake, DoesNotLetOneEndGoWithoutAToken) {
  for (const bool at_dialler : {true, false}) {
    Handshake dialler(LinkSide::kDialler, node(at_dialler ? "secret" : ""));
    Handshake acceptor(LinkSide::kAcceptor, head(at_dialler ? "" : "secret"));
    const Outcome outcome = shake(dialler, acceptor);
    ASSERT_TRUE(outcome.at_acceptor);
    EXPECT_THAT(outcome.at_acceptor->message, HasSubstr("join token"));
    ASSERT_TRUE(outcome.at_dialler);
    EXPECT_EQ(outcome.at_dialler->code, ErrorCode::kConflict);
  }
}

TEST(Handshake, DiallerRefusesAnAcceptorThatTakesAnyProof) {
  Handshake dialler(LinkSide::kDialler, node());
  Handshake impostor(LinkSide::kAcceptor, head("guess"));
  (void)impostor.step(FrameKind::kHello, dialler.hello().payload);
  // It skips the check and welcomes with what it has.
  const HandshakeMessage hello = dialler.hello();
  Handshake fresh(LinkSide::kAcceptor, head("guess"));
  const auto challenge = fresh.step(hello.kind, hello.payload);
  ASSERT_TRUE(challenge);
  ASSERT_TRUE(dialler.step(challenge->send->kind, challenge->send->payload));
  const HandshakeMessage welcome = fresh.welcome();
  const auto last = dialler.step(welcome.kind, welcome.payload);
  ASSERT_FALSE(last);
  EXPECT_EQ(last.error().code, ErrorCode::kConflict);
}

TEST(Handshake, RefusesARecordedProofInANewSession) {
  Handshake dialler(LinkSide::kDialler, node());
  Handshake acceptor(LinkSide::kAcceptor, head());
  const Outcome recorded = shake(dialler, acceptor);
  ASSERT_FALSE(recorded.at_acceptor);
  // The same bytes of the dialler to an acceptor whose nonce is new.
  Handshake fresh(LinkSide::kAcceptor, head("secret", 77));
  ASSERT_TRUE(fresh.step(recorded.sent[0].kind, recorded.sent[0].payload));
  const auto replayed = fresh.step(recorded.sent[2].kind, recorded.sent[2].payload);
  ASSERT_FALSE(replayed);
  EXPECT_EQ(replayed.error().code, ErrorCode::kConflict);
}

TEST(Handshake, RefusesAProofThatWasReflectedOrRelayed) {
  // Reflected: the dialler's own proof as the acceptor's welcome.
  Handshake dialler(LinkSide::kDialler, node());
  Handshake acceptor(LinkSide::kAcceptor, head());
  const auto challenge = acceptor.step(FrameKind::kHello, dialler.hello().payload);
  const auto proof = dialler.step(FrameKind::kChallenge, challenge->send->payload);
  ASSERT_TRUE(proof);
  EXPECT_FALSE(dialler.step(FrameKind::kWelcome, proof->send->payload));
  // Relayed: the proof of one TLS session in another one.
  HandshakeOptions through_one = node();
  through_one.binding = Bytes(32, std::byte{1});
  HandshakeOptions through_other = head();
  through_other.binding = Bytes(32, std::byte{2});
  Handshake near(LinkSide::kDialler, through_one);
  Handshake far(LinkSide::kAcceptor, through_other);
  EXPECT_TRUE(shake(near, far).at_acceptor);
}

TEST(Handshake, DiallerWantsThePeerItAskedFor) {
  HandshakeOptions options = node();
  options.peer = PeerName{PeerRole::kNode, "gpu-2"};
  Handshake dialler(LinkSide::kDialler, options);
  Handshake acceptor(LinkSide::kAcceptor, head());
  const Outcome outcome = shake(dialler, acceptor);
  ASSERT_TRUE(outcome.at_dialler);
  EXPECT_THAT(outcome.at_dialler->message, HasSubstr("head main answered, wanted node gpu-2"));
  ASSERT_TRUE(outcome.at_acceptor);
  EXPECT_TRUE(acceptor.refused_by_peer());
}

TEST(Handshake, RefusesMessagesOutOfTurnAndAfterTheEnd) {
  for (const FrameKind kind :
       {FrameKind::kChallenge, FrameKind::kProof, FrameKind::kWelcome, FrameKind::kEnvelope}) {
    Handshake acceptor(LinkSide::kAcceptor, head());
    EXPECT_EQ(acceptor.step(kind, {}).error().code, ErrorCode::kCorrupt);
    EXPECT_FALSE(
        acceptor.step(FrameKind::kHello, Handshake(LinkSide::kDialler, node()).hello().payload));
  }
  Handshake dialler(LinkSide::kDialler, node());
  Handshake acceptor(LinkSide::kAcceptor, head());
  (void)shake(dialler, acceptor);
  EXPECT_THAT(dialler.step(FrameKind::kWelcome, {}).error().message, HasSubstr("after its end"));
}

TEST(Handshake, RefusesTornAndRandomMessagesWithoutHarm) {
  const Bytes hello = Handshake(LinkSide::kDialler, node()).hello().payload;
  for (std::size_t size = 0; size < hello.size(); ++size) {
    Handshake acceptor(LinkSide::kAcceptor, head());
    const auto step = acceptor.step(FrameKind::kHello, std::span(hello).first(size));
    ASSERT_FALSE(step) << size;
    ASSERT_THAT(step.error().code, testing::AnyOf(ErrorCode::kCorrupt, ErrorCode::kConflict));
  }
  Rng rng(11);
  for (int round = 0; round < 2000; ++round) {
    Bytes bytes(rng.below(120));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
    if (rng.below(2) == 0 && bytes.size() > 4) bytes[0] = std::byte{1}, bytes[1] = std::byte{0};
    Handshake dialler(LinkSide::kDialler, node());
    ASSERT_FALSE(dialler.step(static_cast<FrameKind>(1 + rng.below(6)), bytes));
  }
}

TEST(Handshake, AcceptsPlainNamesOnly) {
  EXPECT_TRUE(check_peer_name({PeerRole::kRank, "job7/policy/3"}));
  for (const std::string& name : {std::string(), std::string(257, 'a'), std::string("a b"),
                                  std::string("a\nb"), std::string("\x7f"), std::string("ö")}) {
    EXPECT_EQ(check_peer_name({PeerRole::kRank, name}).error().code, ErrorCode::kConfig) << name;
  }
  EXPECT_FALSE(check_peer_name({static_cast<PeerRole>(9), "x"}));
}

TEST(Handshake, ShowsARefusalOfAStrangerWithoutItsControlCharacters) {
  Handshake dialler(LinkSide::kDialler, node());
  const auto refusal = Handshake::refusal(
      Error{.code = ErrorCode::kAborted, .message = "no\n\x1b[31mred", .origin = {}, .causes = {}});
  const auto step = dialler.step(refusal.kind, refusal.payload);
  ASSERT_FALSE(step);
  EXPECT_EQ(step.error().code, ErrorCode::kAborted);
  EXPECT_EQ(step.error().message, "refused by the peer: no??[31mred");
}

}  // namespace
}  // namespace troupe::runtime
