// Proves what a node promises about its reservations: all slots of a prepare or none, idempotence,
// leases, fences against older terms, sessions, numbers and epochs, refusals instead of crashes for
// whatever arrives, and that what it reports is what it holds. Each case is a few passes by hand;
// the simulation covers the interleavings.

#include "placement/node_reservations.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::placement {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr TimePoint kStart{seconds(1000)};

NodeSpec spec_of(int devices) {
  NodeSpec spec;
  spec.name = "gpu-1";
  spec.devices.resize(static_cast<std::size_t>(devices));
  spec.cores = 8;
  spec.memory = gibibytes(32);
  spec.named["license"] = Amount::whole(1);
  return spec;
}

Slot slot_on(std::uint32_t slot, std::int32_t device, Amount share = Amount::whole(1)) {
  Slot one{.slot = slot};
  one.placement.bundle = static_cast<std::int32_t>(slot);
  one.placement.devices = {{device, share}};
  one.placement.cores = {{device, Amount::whole(1)}};
  one.placement.memory = gibibytes(1);
  return one;
}

class Node {
 public:
  explicit Node(int devices = 4) : core(*NodeReservations::create(spec_of(devices), 7)) { greet(); }

  void greet() {
    hello = core.hello().hello;
    ++session;
    number = 0;
  }
  NodePass pass(std::vector<NodeOp> ops, bool truth = false) {
    return {.term = term,
            .session = session,
            .number = ++number,
            .hello = hello,
            .lease = seconds(3),
            .want_truth = truth,
            .ops = std::move(ops)};
  }
  std::optional<NodeReply> send(const NodePass& one) { return core.step(one, now, changes); }
  /// The refusal of a single operation.
  std::optional<Error> does(NodeOp op) {
    const auto reply = send(pass({std::move(op)}));
    EXPECT_TRUE(reply);
    return reply->refusals.at(0);
  }
  std::vector<HeldSlot> truth() { return send(pass({}, true))->truth; }

  NodeReservations core;
  ReservationChanges changes;
  TimePoint now = kStart;
  std::uint64_t term = 1;
  std::uint64_t session = 0;
  std::uint64_t number = 0;
  std::uint64_t hello = 0;
};

NodeOp op_of(NodeOpKind kind, std::uint64_t group, std::uint64_t epoch,
             std::vector<Slot> slots = {}) {
  return {
      .kind = kind, .group = {group}, .epoch = {epoch}, .name = "pool", .slots = std::move(slots)};
}
NodeOp cancel_of(std::uint64_t group, std::uint64_t epoch, std::vector<std::uint32_t> slots) {
  NodeOp op = op_of(NodeOpKind::kCancel, group, epoch);
  for (const std::uint32_t slot : slots) op.bundles.push_back({.slot = slot});
  return op;
}

TEST(NodeReservations, PreparesAllSlotsOrNone) {
  Node node;
  EXPECT_FALSE(node.does(op_of(NodeOpKind::kPrepare, 1, 1, {slot_on(0, 2)})));
  const auto refusal =
      node.does(op_of(NodeOpKind::kPrepare, 2, 2, {slot_on(0, 0), slot_on(1, 1), slot_on(2, 2)}));
  ASSERT_TRUE(refusal);
  EXPECT_THAT(refusal->message, HasSubstr("device 2: wanted 10000, free 0"));
  EXPECT_EQ(node.core.held().size(), 1U) << "the slots that fitted were given back";
  EXPECT_FALSE(node.does(op_of(NodeOpKind::kPrepare, 2, 3, {slot_on(3, 0), slot_on(4, 1)})));
}

TEST(NodeReservations, SharesADeviceUpToTheWhole) {
  Node node;
  const Amount third = *parse_amount(0.3333, "gpu");
  for (std::uint32_t i = 0; i < 3; ++i) {
    Slot slot = slot_on(i, 0, third);
    slot.placement.cores = {{static_cast<std::int32_t>(i), Amount::whole(1)}};
    EXPECT_FALSE(node.does(op_of(NodeOpKind::kReserve, i + 1, i + 1, {slot})));
  }
  Slot slot = slot_on(9, 0, *parse_amount(0.0002, "gpu"));
  slot.placement.cores = {{5, Amount::whole(1)}};
  EXPECT_TRUE(node.does(op_of(NodeOpKind::kReserve, 9, 9, {slot})))
      << "0.9999 are taken, 0.0001 are left";
}

TEST(NodeReservations, RefusesWhatItDoesNotHave) {
  Node node;
  Slot memory = slot_on(0, 0);
  memory.placement.memory = gibibytes(33);
  EXPECT_THAT(node.does(op_of(NodeOpKind::kPrepare, 1, 1, {memory}))->message, HasSubstr("memory"));
  Slot named = slot_on(0, 0);
  named.placement.named["licence"] = Amount::whole(1);
  EXPECT_THAT(node.does(op_of(NodeOpKind::kPrepare, 1, 1, {named}))->message, HasSubstr("licence"));
  EXPECT_EQ(node.does(op_of(NodeOpKind::kPrepare, 1, 1, {slot_on(0, 4)}))->code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(node.does(op_of(NodeOpKind::kPrepare, 1, 1, {slot_on(0, -1)}))->code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(node.does(op_of(NodeOpKind::kPrepare, 1, 1))->code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(node.does(op_of(static_cast<NodeOpKind>(99), 1, 1))->code, ErrorCode::kUnsupported);
  ASSERT_TRUE(node.core.set_device_failed(1, true));
  EXPECT_THAT(node.does(op_of(NodeOpKind::kPrepare, 1, 1, {slot_on(0, 1)}))->message,
              HasSubstr("has failed"));
  EXPECT_EQ(node.changes.notices.size(), 7U) << "each refusal is worth a line";
  EXPECT_TRUE(node.core.held().empty());
}

TEST(NodeReservations, TakesEveryOperationTwice) {
  Node node;
  for (int i = 0; i < 2; ++i)
    EXPECT_FALSE(node.does(op_of(NodeOpKind::kPrepare, 1, 5, {slot_on(0, 0)})));
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(node.does(op_of(NodeOpKind::kCommit, 1, 5)));
  EXPECT_EQ(node.changes.committed.size(), 1U) << "told once";
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(node.does(cancel_of(1, 5, {0})));
  EXPECT_EQ(node.changes.released.size(), 1U);
  EXPECT_TRUE(node.core.held().empty());
}

TEST(NodeReservations, LetsGoOfPreparedSlotsWhenTheLeaseEnds) {
  Node node;
  EXPECT_FALSE(node.does(op_of(NodeOpKind::kPrepare, 1, 1, {slot_on(0, 0)})));
  EXPECT_FALSE(node.does(op_of(NodeOpKind::kReserve, 2, 2, {slot_on(0, 1)})));
  node.now += milliseconds(2900);
  EXPECT_TRUE(node.send(node.pass({}))) << "any pass of the session renews";
  node.now += milliseconds(2900);
  EXPECT_EQ(node.truth().size(), 2U);
  node.now += milliseconds(3001);
  EXPECT_EQ(node.does(op_of(NodeOpKind::kCommit, 1, 1))->code, ErrorCode::kNotFound);
  ASSERT_EQ(node.truth().size(), 1U) << "what is committed stays";
  EXPECT_EQ(node.truth()[0].group.value, 2U);
}

TEST(NodeReservations, DropsWhatIsNotNewer) {
  Node node;
  const NodePass first = node.pass({op_of(NodeOpKind::kPrepare, 1, 1, {slot_on(0, 0)})});
  const NodePass second = node.pass({cancel_of(1, 1, {0})});
  EXPECT_TRUE(node.send(second));
  EXPECT_FALSE(node.send(first)) << "overtaken: it would bring a cancelled slot back";
  EXPECT_FALSE(node.send(second)) << "repeated";
  EXPECT_TRUE(node.core.held().empty());
  NodePass older = node.pass({});
  older.term = 0;
  EXPECT_FALSE(node.send(older)) << "a head that was replaced";
  NodePass other = node.pass({});
  other.session += 1;
  EXPECT_FALSE(node.send(other)) << "no hello was answered by that session";
}

TEST(NodeReservations, StartsASessionOnlyInAnswerToItsLatestHello) {
  Node node;
  EXPECT_FALSE(node.does(op_of(NodeOpKind::kReserve, 1, 1, {slot_on(0, 0)})));
  const NodePass late = node.pass({cancel_of(1, 1, {0})});
  const std::uint64_t before = node.hello;
  node.greet();
  EXPECT_FALSE(node.send(late)) << "of the session before";
  NodePass stale = node.pass({});
  stale.hello = before;
  EXPECT_FALSE(node.send(stale)) << "answers a hello that was taken back";
  EXPECT_EQ(node.truth().size(), 1U);
}

TEST(NodeReservations, FencesOlderEpochs) {
  Node node;
  EXPECT_FALSE(node.does(op_of(NodeOpKind::kReserve, 1, 9, {slot_on(0, 0)})));
  EXPECT_FALSE(node.does(cancel_of(1, 8, {0}))) << "confirmed: nothing of that epoch is held";
  EXPECT_EQ(node.core.held().size(), 1U);
  EXPECT_EQ(node.does(op_of(NodeOpKind::kPrepare, 1, 8, {slot_on(0, 1)}))->code,
            ErrorCode::kConflict);
  EXPECT_EQ(node.does(op_of(NodeOpKind::kCommit, 1, 8))->code, ErrorCode::kNotFound);
  EXPECT_FALSE(node.does(cancel_of(1, 9, {0})));
  EXPECT_TRUE(node.core.held().empty());
}

TEST(NodeReservations, TakesNothingNewWhileDraining) {
  Node node;
  EXPECT_FALSE(node.does(op_of(NodeOpKind::kPrepare, 1, 1, {slot_on(0, 0)})));
  node.core.set_draining(true);
  EXPECT_THAT(node.does(op_of(NodeOpKind::kPrepare, 2, 2, {slot_on(0, 1)}))->message,
              HasSubstr("draining"));
  EXPECT_FALSE(node.does(op_of(NodeOpKind::kCommit, 1, 1))) << "what it has it keeps";
  EXPECT_TRUE(node.core.hello().spec.draining);
}

TEST(NodeReservations, SaysWhichDevicesABundleHas) {
  Node node;
  EXPECT_FALSE(node.does(op_of(NodeOpKind::kPrepare, 1, 1, {slot_on(0, 2), slot_on(1, 3)})));
  EXPECT_FALSE(node.core.find("pool", 1)) << "not before the commit";
  EXPECT_FALSE(node.does(op_of(NodeOpKind::kCommit, 1, 1)));
  ASSERT_TRUE(node.core.find("pool", 1));
  EXPECT_EQ(node.core.find("pool", 1)->placement.devices.at(0).device, 3);
  NodeOp renumber = op_of(NodeOpKind::kRenumber, 1, 1);
  renumber.bundles = {{.slot = 1, .bundle = 0}};
  EXPECT_FALSE(node.does(cancel_of(1, 1, {0})));
  EXPECT_FALSE(node.does(renumber));
  EXPECT_EQ(node.core.find("pool", 0)->placement.devices.at(0).device, 3);
  renumber.bundles = {{.slot = 7, .bundle = 0}};
  EXPECT_EQ(node.does(renumber)->code, ErrorCode::kNotFound);
}

TEST(NodeReservations, BoundsTheLeaseThatAHeadMayAskFor) {
  Node node;
  NodePass pass = node.pass({op_of(NodeOpKind::kPrepare, 1, 1, {slot_on(0, 0)})});
  pass.lease = std::chrono::hours(1000);
  EXPECT_TRUE(node.send(pass));
  node.now += kLeaseMax + seconds(1);
  node.core.expire(node.now);
  EXPECT_TRUE(node.core.held().empty());
}

}  // namespace
}  // namespace troupe::placement
