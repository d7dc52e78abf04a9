// Proves the services over real channels (pairs in one process): groups are made, waited for,
// resized and removed; each bad request has its own error; nodes that die are repaired by each
// policy; owners that go take their groups with them; a restarted head finds everything as it was;
// requests outlive lost lines and are answered once. Timing bounds are wide; the interleavings are
// the simulation's.

#include "tests/placement/protocol/placement_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>

namespace troupe::placement {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

Deadline soon() { return Deadline::in(seconds(20)); }

/// A group that must be taken on.
PlacementGroup made(PlacementClient& client, GroupRequest request, GroupTerms terms = {}) {
  auto group = client.create_group({std::move(request), terms}, soon()).wait(soon());
  EXPECT_TRUE(group) << group.error().to_string();
  return group ? std::move(*group) : PlacementGroup();
}

GroupNews active(const PlacementGroup& group) {
  auto news = group.wait_active(soon()).wait(soon());
  EXPECT_TRUE(news) << news.error().to_string();
  return news ? *news : GroupNews{};
}

Error refused(PlacementClient& client, GroupRequest request) {
  auto group = client.create_group({std::move(request), {}}, soon()).wait(soon());
  EXPECT_FALSE(group);
  return group ? Error{} : group.error();
}

TEST(PlacementService, MakesAGroupAndSaysWhichDevicesItHas) {
  World world(World::quick());
  world.add_node(node_spec("gpu-1"));
  world.add_node(node_spec("gpu-2"));
  const auto client = world.add_client("job");
  PlacementGroup pool = made(*client, gpu_group("pool", 8));
  const GroupNews news = active(pool);
  ASSERT_EQ(news.placements.size(), 8U);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(news.placements[i].bundle, static_cast<std::int32_t>(i));
    EXPECT_EQ(news.placements[i].node_name, i < 4 ? "gpu-1" : "gpu-2") << "rank r+1 is next to r";
    EXPECT_EQ(news.placements[i].devices.at(0).device, static_cast<std::int32_t>(i % 4));
    const auto held =
        world.nodes.at(news.placements[i].node_name)->find("pool", static_cast<std::int32_t>(i));
    ASSERT_TRUE(held);
    EXPECT_EQ(held->placement.devices, news.placements[i].devices)
        << "the node holds what was told";
  }
  EXPECT_EQ(world.listener.committed, 8);
  ASSERT_TRUE(pool.remove(soon()).wait(soon()));
  EXPECT_EQ(world.held(), 0U) << "nothing is left when a remove has ended";
  EXPECT_EQ(world.listener.released, 8);
}

TEST(PlacementService, GivesEachBadRequestAnErrorOfItsOwn) {
  World world(World::quick());
  world.add_node(node_spec("gpu-1"));
  const auto client = world.add_client("job");
  EXPECT_THAT(refused(*client, gpu_group("none", 0)).message, HasSubstr("bundles"));
  EXPECT_EQ(refused(*client, gpu_group("none", 0)).code, ErrorCode::kInvalidArgument);
  const Error strategy = refused(*client, gpu_group("odd", 1, 1, static_cast<Strategy>(9)));
  EXPECT_EQ(strategy.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(strategy.message, HasSubstr("strategy"));
  const Error large = refused(*client, gpu_group("large", 1, 5));
  EXPECT_EQ(large.code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(large.message, HasSubstr("gpu"));
  EXPECT_EQ(refused(*client, gpu_group("wide", 5)).code, ErrorCode::kResourceExhausted)
      << "five of four";
  PlacementGroup pool = made(*client, gpu_group("pool", 1));
  const Error twice = refused(*client, gpu_group("pool", 1));
  EXPECT_EQ(twice.code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(twice.message, HasSubstr("'pool'"));
  const GroupId id = pool.id();
  ASSERT_TRUE(pool.remove(soon()).wait(soon()));
  const auto gone = client->view({.id = id}, soon()).wait(soon());
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(gone.error().message, HasSubstr("was removed"));
  const auto never = client->view({.id = {id.value + 100}}, soon()).wait(soon());
  EXPECT_THAT(never.error().message, HasSubstr("does not exist"));
  const auto outcomes =
      client->remove_groups({{.name = "nobody"}, {.id = id}}, soon()).wait(soon());
  ASSERT_TRUE(outcomes);
  EXPECT_THAT((*outcomes)[0].error().message, HasSubstr("'nobody' does not exist"));
  EXPECT_THAT((*outcomes)[1].error().message, HasSubstr("was removed"));
}

TEST(PlacementService, QueuesWhatFitsLaterAndExplainsWhy) {
  World world(World::quick());
  world.add_node(node_spec("gpu-1"));
  const auto client = world.add_client("job");
  PlacementGroup first = made(*client, gpu_group("first", 3));
  active(first);
  PlacementGroup second = made(*client, gpu_group("second", 2));
  auto waits = second.wait_active(Deadline::in(std::chrono::milliseconds(50))).wait(soon());
  ASSERT_FALSE(waits);
  EXPECT_EQ(waits.error().code, ErrorCode::kDeadline);
  const auto why = second.explain(soon()).wait(soon());
  ASSERT_TRUE(why);
  EXPECT_THAT(*why, HasSubstr("'second'"));
  EXPECT_THAT(*why, HasSubstr("PENDING"));
  EXPECT_THAT(*why, HasSubstr("first")) << "whose end would let it run";
  ASSERT_TRUE(first.remove(soon()).wait(soon()));
  EXPECT_EQ(active(second).placements.size(), 2U);
}

TEST(PlacementService, ListsGroupsInPages) {
  World world(World::quick());
  world.add_node(node_spec("gpu-1", 8));
  const auto client = world.add_client("job");
  std::vector<PlacementGroup> groups;
  for (int i = 0; i < 5; ++i) groups.push_back(made(*client, gpu_group(fmt::format("g{}", i), 1)));
  for (const PlacementGroup& group : groups) active(group);
  std::vector<std::string> names;
  ListGroups ask{.limit = 2};
  for (bool more = true; more;) {
    const auto page = client->list(ask, soon()).wait(soon());
    ASSERT_TRUE(page);
    EXPECT_LE(page->groups.size(), 2U);
    for (const GroupView& view : page->groups) {
      names.push_back(view.name);
      EXPECT_EQ(view.status, GroupStatus::kActive);
      EXPECT_EQ(view.owner.name, "job");
      ask.after = view.id;
    }
    more = page->more;
  }
  EXPECT_THAT(names, testing::ElementsAre("g0", "g1", "g2", "g3", "g4"));
  EXPECT_EQ(world.head->list({}, soon())->groups.size(), 5U);
}

TEST(PlacementService, GrowsAndShrinksAGroupWhileItRuns) {
  World world(World::quick());
  world.add_node(node_spec("gpu-1"));
  world.add_node(node_spec("gpu-2"));
  const auto client = world.add_client("job");
  PlacementGroup pool = made(*client, gpu_group("pool", 2));
  const GroupNews before = active(pool);
  const auto grown = pool.grow(gpu_group("", 3).bundles, soon()).wait(soon());
  ASSERT_TRUE(grown) << grown.error().to_string();
  ASSERT_EQ(grown->placements.size(), 5U);
  EXPECT_EQ(grown->placements[0], before.placements[0]) << "what ran goes on where it was";
  EXPECT_EQ(world.held(), 5U);
  const auto shrunk = pool.shrink({0, 3}, soon()).wait(soon());
  ASSERT_TRUE(shrunk) << shrunk.error().to_string();
  ASSERT_EQ(shrunk->placements.size(), 3U);
  EXPECT_EQ(shrunk->placements[0].devices, before.placements[1].devices)
      << "bundle 1 is bundle 0 now";
  World::eventually([&] { return world.held() == 3; });
  World::eventually([&] {
    const auto held = world.nodes.at("gpu-1")->find("pool", 0);
    return held && held->placement.devices == before.placements[1].devices;
  });
  const auto large = pool.grow(gpu_group("", 9).bundles, soon()).wait(soon());
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code, ErrorCode::kResourceExhausted) << "nine more never fit";
  PlacementGroup other = made(*client, gpu_group("other", 5));
  active(other);
  const auto waits =
      pool.grow(gpu_group("", 1).bundles, Deadline::in(std::chrono::milliseconds(200)))
          .wait(soon());
  ASSERT_FALSE(waits);
  EXPECT_EQ(waits.error().code, ErrorCode::kDeadline);
  EXPECT_EQ(client->view({.id = pool.id()}, soon()).wait(soon())->placements.size(), 3U);
  const auto none = pool.shrink({0, 1, 2}, soon()).wait(soon());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument) << "a group keeps a bundle";
}

TEST(PlacementService, MovesOnlyTheLostBundlesWhenAskedTo) {
  World world(World::quick());
  for (const char* name : {"gpu-1", "gpu-2", "gpu-3"}) world.add_node(node_spec(name, 2));
  const auto client = world.add_client("job");
  PlacementGroup pool =
      made(*client, gpu_group("pool", 4), {.repair = RepairPolicy::kRestartBundle});
  const GroupNews before = active(pool);
  std::mutex mutex;
  std::vector<GroupChange> told;
  pool.watch([&](const GroupChange& change) {
    const std::lock_guard lock(mutex);
    told.push_back(change);
  });
  world.kill_node("gpu-2");
  World::eventually([&] {
    const std::lock_guard lock(mutex);
    return told.size() >= 2;
  });
  const std::lock_guard lock(mutex);
  EXPECT_EQ(told[0].kind, ChangeKind::kLost);
  EXPECT_THAT(told[0].bundles, testing::ElementsAre(2, 3));
  ASSERT_TRUE(told[0].cause);
  EXPECT_THAT(told[0].cause->message, HasSubstr("gpu-2"));
  EXPECT_EQ(told[1].kind, ChangeKind::kMoved);
  EXPECT_THAT(told[1].bundles, testing::ElementsAre(2, 3));
  EXPECT_EQ(told[1].placements[0], before.placements[0]);
  EXPECT_EQ(told[1].placements[3].node_name, "gpu-3");
  EXPECT_GT(told[1].epoch, before.epoch);
}

TEST(PlacementService, PlacesTheWholeGroupAnewWhenAskedTo) {
  World world(World::quick());
  for (const char* name : {"gpu-1", "gpu-2", "gpu-3"}) world.add_node(node_spec(name, 2));
  const auto client = world.add_client("job");
  PlacementGroup pool =
      made(*client, gpu_group("pool", 4), {.repair = RepairPolicy::kRestartGroup});
  const GroupNews before = active(pool);
  world.kill_node("gpu-1");
  World::eventually([&] {
    const GroupNews news = pool.news();
    return news.status == GroupStatus::kActive && news.epoch > before.epoch;
  });
  const GroupNews after = pool.news();
  for (const BundlePlacement& placement : after.placements) EXPECT_NE(placement.node_name, "gpu-1");
  EXPECT_EQ(world.held(), 4U);
}

TEST(PlacementService, FailsTheGroupWhenAskedTo) {
  World world(World::quick());
  for (const char* name : {"gpu-1", "gpu-2"}) world.add_node(node_spec(name, 2));
  const auto client = world.add_client("job");
  PlacementGroup pool = made(*client, gpu_group("pool", 4), {.repair = RepairPolicy::kFailGroup});
  active(pool);
  world.kill_node("gpu-1");
  World::eventually([&] { return pool.news().status == GroupStatus::kRemoved; });
  const auto waits = pool.wait_active(soon()).wait(soon());
  ASSERT_FALSE(waits);
  EXPECT_THAT(waits.error().to_string(), HasSubstr("gpu-1"));
  World::eventually([&] { return world.held() == 0; });
}

TEST(PlacementService, TellsWhenTheClusterBecameTooSmall) {
  World world(World::quick());
  for (const char* name : {"gpu-1", "gpu-2"}) world.add_node(node_spec(name, 2));
  const auto client = world.add_client("job");
  PlacementGroup pool = made(*client, gpu_group("pool", 4));
  active(pool);
  world.kill_node("gpu-2");
  World::eventually([&] { return pool.news().status == GroupStatus::kInfeasible; });
  const auto waits = pool.wait_active(soon()).wait(soon());
  ASSERT_FALSE(waits) << "no wait hangs on a group that cannot be placed";
  EXPECT_THAT(waits.error().to_string(), HasSubstr("gpu"));
  world.add_node(node_spec("gpu-9", 2));
  World::eventually([&] { return pool.news().status == GroupStatus::kActive; });
}

TEST(PlacementService, RemovesTheGroupsOfAnOwnerThatIsGone) {
  World world(World::quick());
  world.add_node(node_spec("gpu-1"));
  const auto client = world.add_client("job");
  PlacementGroup pool = made(*client, gpu_group("pool", 2));
  PlacementGroup kept = made(*client, gpu_group("kept", 1), {.detached = true});
  active(pool);
  active(kept);
  world.cut("client job");
  World::eventually([&] { return world.held() == 1; });
  const auto page = world.head->list({}, soon());
  ASSERT_TRUE(page);
  ASSERT_EQ(page->groups.size(), 1U);
  EXPECT_EQ(page->groups[0].name, "kept");
  world.attach_client("job");
  World::eventually([&] { return pool.news().status == GroupStatus::kRemoved; });
}

TEST(PlacementService, KeepsTheGroupsOfAnOwnerThatComesBackInTime) {
  CoreOptions core = World::quick();
  core.owner_lease = seconds(5);
  World world(core);
  world.add_node(node_spec("gpu-1"));
  const auto client = world.add_client("job");
  PlacementGroup pool = made(*client, gpu_group("pool", 2));
  active(pool);
  world.cut("client job");
  auto asked = pool.grow(gpu_group("", 1).bundles, soon());
  world.attach_client("job");
  EXPECT_TRUE(asked.wait(soon())) << "asked while the head was away";
  EXPECT_EQ(pool.news().status, GroupStatus::kActive);
  EXPECT_EQ(world.held(), 3U);
}

TEST(PlacementService, RemovesAGroupWhoseHandleIsDropped) {
  World world(World::quick());
  world.add_node(node_spec("gpu-1"));
  const auto client = world.add_client("job");
  {
    PlacementGroup pool = made(*client, gpu_group("pool", 2));
    active(pool);
    PlacementGroup kept = made(*client, gpu_group("kept", 1), {.detached = true});
    active(kept);
  }
  World::eventually([&] { return world.held() == 1; });
}

TEST(PlacementService, RemovesAGroupWhoseAnswerCameTooLate) {
  World world(World::quick());
  world.add_node(node_spec("gpu-1"));
  const auto client = world.add_client("job");
  // Over before the head can answer; it makes the group nevertheless.
  const auto late =
      client->create_group({gpu_group("late", 2), {}}, Deadline::in(Duration{1000})).wait(soon());
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kDeadline);
  PlacementGroup pool = made(*client, gpu_group("pool", 1));
  active(pool);
  World::eventually([&] {
    const auto page = world.head->list({}, soon());
    return page && page->groups.size() == 1;
  });
  EXPECT_EQ(world.head->list({}, soon())->groups.at(0).name, "pool");
}

TEST(PlacementService, FindsEverythingAgainAfterARestart) {
  CoreOptions core = World::quick();
  core.settle = seconds(5);
  core.owner_lease = seconds(5);
  World world(core);
  world.add_node(node_spec("gpu-1"));
  world.add_node(node_spec("gpu-2"));
  const auto client = world.add_client("job");
  PlacementGroup pool = made(*client, gpu_group("pool", 6));
  const GroupNews before = active(pool);
  PlacementGroup waits = made(*client, gpu_group("waits", 3));
  const GroupId gone = made(*client, gpu_group("gone", 1)).id();
  World::eventually([&] { return world.held() == 6; });
  world.restart_head();
  World::eventually([&] {
    const auto nodes = world.head->nodes(soon());
    return nodes && nodes->size() == 2 && (*nodes)[0].attached && (*nodes)[1].attached;
  });
  const auto view = world.head->view({.name = "pool"}, soon());
  ASSERT_TRUE(view) << view.error().to_string();
  EXPECT_EQ(view->status, GroupStatus::kActive);
  EXPECT_EQ(view->placements, before.placements) << "nothing moved";
  EXPECT_EQ(view->epoch, before.epoch);
  EXPECT_EQ(world.head->view({.name = "waits"}, soon())->status, GroupStatus::kPending);
  EXPECT_THAT(world.head->view({.id = gone}, soon()).error().message, HasSubstr("was removed"));
  EXPECT_EQ(world.held(), 6U);
  ASSERT_TRUE(pool.remove(soon()).wait(soon()));
  EXPECT_EQ(active(waits).placements.size(), 3U) << "the queue outlived the head";
}

TEST(PlacementService, RefusesNodesThatAreNotWhoTheySayTheyAre) {
  World world(World::quick());
  world.add_node(node_spec("gpu-1"));
  const auto impostor =
      NodeReservationService::create({.spec = node_spec("gpu-1"), .incarnation = 99});
  ASSERT_TRUE(impostor);
  const Line other = runtime::make_channel_pair(
      *impostor, world.head,
      {.first = {runtime::PeerRole::kNode, "gpu-7"}, .second = {runtime::PeerRole::kHead, "head"}});
  const auto wrong_name = other.first->request("placement.hello", {}, soon()).wait(soon());
  EXPECT_EQ(wrong_name.error().code, ErrorCode::kCorrupt) << "no bytes";
  (*impostor)->attach(other.first);
  World::eventually([&] { return world.head->nodes(soon())->size() == 1; });
  const Line same = runtime::make_channel_pair(
      *impostor, world.head,
      {.first = {runtime::PeerRole::kNode, "gpu-1"}, .second = {runtime::PeerRole::kHead, "head"}});
  (*impostor)->attach(same.first);
  World::eventually([&] { return same.first->failure().has_value(); });
  EXPECT_THAT(same.first->failure()->to_string(), HasSubstr("another agent"))
      << "it must dial again";
  other.first->close({});
}

TEST(PlacementService, AnswersNonsenseWithErrors) {
  World world(World::quick());
  const auto client = world.add_client("job");
  const auto channel = world.line("client job").first;
  for (const char* method :
       {"placement.session", "placement.create", "placement.remove", "placement.resize",
        "placement.view", "placement.explain", "placement.list", "placement.hello"}) {
    std::vector<std::byte> rubbish(64, std::byte{0xA7});
    const auto answer = channel->request(method, rubbish, soon()).wait(soon());
    ASSERT_FALSE(answer) << method;
    EXPECT_EQ(answer.error().code, ErrorCode::kCorrupt) << method;
  }
  EXPECT_EQ(channel->request("placement.dance", {}, soon()).wait(soon()).error().code,
            ErrorCode::kNotFound);
  EXPECT_TRUE(client->list({}, soon()).wait(soon())) << "and nothing else is harmed";
}

TEST(PlacementService, TakesManyGroupsAtOnceAndEachHasItsOutcome) {
  World world(World::quick());
  for (int i = 0; i < 4; ++i) world.add_node(node_spec(fmt::format("n{}", i), 8));
  const auto client = world.add_client("job");
  for (int round = 0; round < 3; ++round) {
    std::vector<GroupWish> wishes;
    for (int i = 0; i < 100; ++i)
      wishes.push_back({gpu_group(fmt::format("g{}-{}", round, i), i == 50 ? 0 : 1, 0.25), {}});
    auto groups = client->create_groups(std::move(wishes), soon()).wait(soon());
    ASSERT_TRUE(groups) << groups.error().to_string();
    ASSERT_EQ(groups->size(), 100U);
    for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ((*groups)[i].has_value(), i != 50) << i;
    EXPECT_EQ((*groups)[50].error().code, ErrorCode::kInvalidArgument);
    for (const auto& group : *groups) {
      if (group) active(*group);
    }
    EXPECT_EQ(world.held(), 99U);
    groups->clear();
    World::eventually([&] { return world.held() == 0; });
  }
}

}  // namespace
}  // namespace troupe::placement
