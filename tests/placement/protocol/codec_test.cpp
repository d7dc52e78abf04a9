// Proves that placement messages survive the wire: random values come back equal, over many seeds;
// and that no bytes do harm: every truncation, and random flips, end in a value or in one kCorrupt
// error. A failure prints its seed.

#include "placement/protocol_codec.hpp"
#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <array>

namespace troupe::placement {
namespace {

class Maker {
 public:
  explicit Maker(std::uint64_t seed) : rng_(seed) {}

  std::uint64_t any() { return rng_.next(); }
  std::int32_t small(std::int32_t most) {
    return static_cast<std::int32_t>(rng_.below(static_cast<std::uint64_t>(most) + 1));
  }
  bool coin() { return rng_.below(2) == 0; }
  std::string text() {
    std::string value;
    for (std::int32_t i = small(12); i > 0; --i) value += static_cast<char>('a' + small(25));
    return value;
  }
  std::map<std::string, Amount> named() {
    std::map<std::string, Amount> values;
    for (std::int32_t i = small(3); i > 0; --i) values[text()] = Amount{small(90'000)};
    return values;
  }
  Bundle bundle() {
    Bundle value;
    value.resources = {.gpu = Amount{small(80'000)},
                       .cpu = Amount{small(80'000)},
                       .memory = Bytes{small(1 << 30)},
                       .named = named()};
    for (std::int32_t i = small(2); i > 0; --i)
      value.selectors.push_back(
          {.label = text(), .op = static_cast<SelectorOp>(small(5)), .values = {text(), text()}});
    return value;
  }
  GroupRequest request() {
    GroupRequest value;
    value.name = text();
    const Bundle same = bundle();
    for (std::int32_t i = small(6); i > 0; --i) value.bundles.push_back(coin() ? same : bundle());
    value.strategy = static_cast<Strategy>(small(255));
    value.level = static_cast<Level>(small(255));
    value.per_domain_max = small(9);
    value.per_domain_exact = small(9);
    value.priority = small(100) - 50;
    value.reserve_per_gpu = {.cpu = Amount{small(9)}, .memory = Bytes{small(9)}};
    value.movable = coin();
    for (std::int32_t i = small(2); i > 0; --i)
      value.affinities.push_back({.group = text(),
                                  .apart = coin(),
                                  .level = static_cast<Level>(small(4)),
                                  .strict = coin()});
    return value;
  }
  GroupTerms terms() {
    return {.repair = static_cast<RepairPolicy>(small(2)),
            .detached = coin(),
            .feasible_within = Duration{small(1 << 30)}};
  }
  BundlePlacement placement(bool with_node) {
    BundlePlacement value;
    value.bundle = small(1000);
    if (with_node) value.node = NodeId{small(100)}, value.node_name = coin() ? "gpu-1" : text();
    value.socket = small(3);
    for (std::int32_t i = 0, device = 0; i < small(4); ++i)
      value.devices.push_back({device += 1 + small(2), Amount{1 + small(9999)}});
    const Amount share{1 + small(9999)};
    for (std::int32_t i = 0, core = 0; i < small(9); ++i)
      value.cores.push_back(
          {core += 1 + (coin() ? 0 : small(3)), coin() ? share : Amount::whole(1)});
    value.nic = coin() ? "mlx5_0" : "";
    value.memory = Bytes{small(1 << 30)};
    value.named = named();
    return value;
  }
  std::vector<BundlePlacement> placements() {
    std::vector<BundlePlacement> values;
    for (std::int32_t i = small(5); i > 0; --i) values.push_back(placement(true));
    return values;
  }
  std::optional<Error> error() {
    if (coin()) return std::nullopt;
    Error value{.code = ErrorCode::kRankDead, .message = text(), .origin = {}, .causes = {}};
    if (coin()) value.origin.node = NodeId{small(5)};
    if (coin()) value = std::move(value).wrap(ErrorCode::kAborted, text());
    return value;
  }
  GroupView view() {
    return {.id = {any()},
            .name = text(),
            .owner = {text(), any()},
            .status = static_cast<GroupStatus>(small(6)),
            .terms = terms(),
            .epoch = {any()},
            .bundles = 7,
            .placements = placements(),
            .age = Duration{small(1 << 30)},
            .why = text()};
  }
  GroupChange change() {
    return {.kind = static_cast<ChangeKind>(small(5)),
            .group = {any()},
            .status = static_cast<GroupStatus>(small(6)),
            .epoch = {any()},
            .bundles = {small(9), small(9)},
            .placements = placements(),
            .cause = error()};
  }
  NodePass pass() {
    NodePass value{.term = any(),
                   .session = any(),
                   .number = any(),
                   .hello = any(),
                   .lease = Duration{small(1 << 30)},
                   .want_truth = coin()};
    for (std::int32_t i = small(4); i > 0; --i) {
      NodeOp op{.kind = static_cast<NodeOpKind>(small(4)),
                .group = {any()},
                .epoch = {any()},
                .name = text()};
      for (std::int32_t j = small(3); j > 0; --j)
        op.slots.push_back({static_cast<std::uint32_t>(small(99)), placement(false)});
      for (std::int32_t j = small(3); j > 0; --j)
        op.bundles.push_back({static_cast<std::uint32_t>(small(99)), small(99)});
      value.ops.push_back(std::move(op));
    }
    return value;
  }
  NodeReply reply() {
    NodeReply value{.term = any(), .session = any(), .number = any(), .draining = coin()};
    for (std::int32_t i = small(4); i > 0; --i) value.refusals.push_back(error());
    value.has_truth = coin();
    for (std::int32_t i = small(4); i > 0; --i)
      value.truth.push_back(
          {{any()}, static_cast<std::uint32_t>(small(9)), small(9), {any()}, coin()});
    return value;
  }
  NodeHello hello() {
    NodeHello value{.spec = {}, .incarnation = any(), .hello = any()};
    value.spec.name = text();
    value.spec.rack = text();
    value.spec.domain = text();
    value.spec.sockets = small(4);
    for (std::int32_t i = small(4); i > 0; --i)
      value.spec.devices.push_back({.socket = small(3), .nic = text(), .failed = coin()});
    value.spec.cores = small(128);
    value.spec.memory = Bytes{small(1 << 30)};
    value.spec.named = named();
    value.spec.labels["zone"] = text();
    value.spec.draining = coin();
    return value;
  }

 private:
  Rng rng_;
};

/// Comes back equal; no truncation and no flip does worse than a kCorrupt error.
template <class T, class Encode, class Decode>
void survives(const T& value, Encode encode, Decode decode, Maker& maker, std::uint64_t seed) {
  MessageBytes bytes = encode(value);
  const auto back = decode(bytes);
  ASSERT_TRUE(back) << "seed " << seed << ": " << back.error().to_string();
  ASSERT_TRUE(*back == value) << "seed " << seed;
  for (int i = 0; i < 20; ++i) {
    const std::size_t cut = maker.any() % bytes.size();
    const auto shorter = decode(std::span(bytes).first(cut));
    if (!shorter) {
      EXPECT_EQ(shorter.error().code, ErrorCode::kCorrupt) << "seed " << seed;
    }
    MessageBytes flipped = bytes;
    for (int bit = 0; bit < 3; ++bit)
      flipped[maker.any() % flipped.size()] ^= std::byte{1} << static_cast<int>(maker.any() % 8);
    const auto other = decode(flipped);
    if (!other) {
      EXPECT_EQ(other.error().code, ErrorCode::kCorrupt) << "seed " << seed;
    }
  }
}

TEST(PlacementCodec, GivesEveryMessageBackEqualAndSurvivesDamage) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    Maker make(seed);
    const std::vector<CreateGroup> creates{{make.any(), make.request(), make.terms()},
                                           {make.any(), make.request(), make.terms()}};
    survives(creates, encode_creates, decode_creates, make, seed);
    survives(OpenSession{{make.text(), make.any()}, {{make.any()}, {make.any()}}}, encode_session,
             decode_session, make, seed);
    survives(std::vector<GroupKey>{{{make.any()}, ""}, {{}, make.text()}}, encode_keys, decode_keys,
             make, seed);
    survives(ResizeGroup{make.any(), {{make.any()}, {}}, {1, 2}, {make.bundle()}}, encode_resize,
             decode_resize, make, seed);
    survives(ListGroups{{make.any()}, 7}, encode_list, decode_list, make, seed);
    survives(make.view(), encode_view, decode_view, make, seed);
    survives(GroupPage{{make.view(), make.view()}, make.coin()}, encode_page, decode_page, make,
             seed);
    survives(std::vector<GroupChange>{make.change(), make.change()}, encode_changes, decode_changes,
             make, seed);
    survives(make.hello(), encode_hello, decode_hello, make, seed);
    survives(make.pass(), encode_pass, decode_pass, make, seed);
    survives(make.reply(), encode_reply, decode_reply, make, seed);
    const GroupOutcomes outcomes{GroupId{make.any()},
                                 fail(ErrorCode::kNotFound, "{}", make.text())};
    survives(outcomes, encode_outcomes, decode_outcomes, make, seed);
    if (HasFatalFailure()) return;
  }
}

TEST(PlacementCodec, KeepsALargeGroupWithinAFrame) {
  GroupChange change;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(kGroupBundlesMax); ++i) {
    BundlePlacement placement{
        .bundle = i, .node = {i / 8}, .node_name = fmt::format("gpu-{}", i / 8)};
    placement.devices = {{i % 8, Amount::whole(1)}};
    for (std::int32_t core = 0; core < 16; ++core)
      placement.cores.push_back({i % 8 * 16 + core, Amount::whole(1)});
    placement.nic = fmt::format("mlx5_{}", i % 8);
    change.placements.push_back(std::move(placement));
  }
  const auto bytes = encode_changes(std::span(&change, 1));
  EXPECT_LT(bytes.size(), std::size_t{1000} << 10) << "4,096 bundles with 16 cores each";
  const auto back = decode_changes(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->front(), change);
}

TEST(PlacementCodec, RefusesShortRunsThatWouldBecomeLongLists) {
  NodePass pass;
  for (std::uint32_t i = 0; i < 200; ++i) {
    NodeOp op{.kind = NodeOpKind::kPrepare};
    Slot slot{.slot = i};
    for (std::int32_t core = 0; core < kCoresMax; ++core)
      slot.placement.cores.push_back({core, Amount::whole(1)});
    op.slots.assign(1, slot);
    pass.ops.push_back(op);
    if (i == 0) continue;
    // One operation with many slots of 16,384 cores each is 100 bytes a slot on the wire.
    pass.ops.back().slots.assign(70, slot);
    break;
  }
  const auto decoded = decode_pass(encode_pass(pass));
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace troupe::placement
