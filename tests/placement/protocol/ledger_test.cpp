// Proves what the ledger promises: records come back equal, a snapshot gives the same state, a torn
// tail at any byte is cut off with a warning and nothing before it is lost, damage with a whole
// frame behind it is refused naming the place, and a ledger has one owner. Files are real; tears
// are made by hand at every byte.

#include "placement/ledger_file.hpp"
#include "placement/ledger_frame.hpp"
#include "placement/ledger_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

namespace troupe::placement {
namespace {

using testing::HasSubstr;
using Payload = std::vector<std::byte>;

class LedgerTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              fmt::format("troupe-ledger-{}-{}", ::getpid(),
                          testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path path() const { return folder_ / "placement.ledger"; }

  static Payload bytes(std::string_view text) {
    const auto view = std::as_bytes(std::span(text));
    return {view.begin(), view.end()};
  }
  void write(std::vector<std::string> texts) {
    auto opened = LedgerFile::open(path());
    ASSERT_TRUE(opened) << opened.error().to_string();
    for (const std::string& text : texts) {
      ASSERT_TRUE(opened->file.append(bytes(text)));
      ASSERT_TRUE(opened->file.sync());
    }
  }
  std::string slurp() const {
    std::ifstream in(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void spill(const std::string& content) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << content;
  }

  std::filesystem::path folder_;
};

LedgerGroup group_of(std::uint64_t id) {
  LedgerGroup group{.id = {id}, .owner = {"job", 3}, .number = id};
  group.request.name = fmt::format("pool{}", id);
  group.request.bundles.resize(3);
  for (Bundle& bundle : group.request.bundles)
    bundle.resources = {.gpu = Amount::whole(1), .cpu = Amount::whole(2)};
  group.request.bundles[2].selectors = {
      {.label = "zone", .op = SelectorOp::kIn, .values = {"a", "b"}}};
  group.request.affinities = {{.group = "other", .apart = true}};
  group.terms = {.repair = RepairPolicy::kFailGroup,
                 .detached = true,
                 .feasible_within = std::chrono::seconds(2)};
  group.next_slot = 4;
  group.was_active = true;
  group.epoch = {77};
  for (std::int32_t i = 0; i < 3; ++i) {
    CommittedSlot slot{.epoch = {77}, .slot = {.slot = static_cast<std::uint32_t>(i)}};
    slot.slot.placement = {.bundle = i, .node = {5}, .node_name = "gpu-5", .socket = 1};
    slot.slot.placement.devices = {{i, Amount::whole(1)}};
    slot.slot.placement.cores = {{2 * i, Amount::whole(1)}, {2 * i + 1, Amount::whole(1)}};
    slot.slot.placement.named["license"] = Amount{5000};
    group.slots.emplace(i, slot);
  }
  return group;
}

TEST_F(LedgerTest, GivesRecordsBackEqual) {
  const std::vector<LedgerRecord> records{
      LedgerCounters{.term = 9, .next_group = {12}, .next_node = {3}}, GroupPut{group_of(4)},
      GroupPlaced{
          .id = {4}, .next_slot = 8, .was_active = true, .epoch = {78}, .slots = group_of(4).slots},
      GroupErased{.id = {4}}};
  const auto encoded = encode_records(records);
  ASSERT_TRUE(encoded);
  const auto decoded = decode_records(*encoded);
  ASSERT_TRUE(decoded) << decoded.error().to_string();
  EXPECT_EQ(*decoded, records);
}

TEST_F(LedgerTest, ReplaysToTheSameStateAsASnapshotOfIt) {
  LedgerState state;
  for (std::uint64_t id = 1; id <= 20; ++id) ASSERT_TRUE(state.apply(GroupPut{group_of(id)}));
  for (std::uint64_t id = 2; id <= 20; id += 2) ASSERT_TRUE(state.apply(GroupErased{{id}}));
  EXPECT_EQ(state.counters.next_group.value, 21U);
  EXPECT_EQ(state.counters.next_node.value, 6);
  const auto payload = encode_records(state.snapshot());
  ASSERT_TRUE(payload);
  const std::vector<std::span<const std::byte>> payloads{*payload};
  const auto again = replay(payloads);
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, state);
}

TEST_F(LedgerTest, RefusesRecordsThatMakeNoSense) {
  const std::vector<LedgerRecord> records{GroupErased{.id = {4}}};
  const auto payload = encode_records(records);
  const std::vector<std::span<const std::byte>> payloads{*payload};
  const auto state = replay(payloads);
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(state.error().message, HasSubstr("frame 0 of 1"));
  EXPECT_THAT(state.error().message, HasSubstr("group 4 does not exist"));
  EXPECT_FALSE(decode_records(std::as_bytes(std::span("0123456789abcdef"))));
}

TEST_F(LedgerTest, KeepsWhatWasSynced) {
  write({"one", "two"});
  write({"three"});
  const auto opened = LedgerFile::open(path());
  ASSERT_TRUE(opened);
  EXPECT_FALSE(opened->warning);
  EXPECT_THAT(opened->payloads, testing::ElementsAre(bytes("one"), bytes("two"), bytes("three")));
}

TEST_F(LedgerTest, CutsATornTailOffAtAnyByte) {
  write({"one", "two"});
  const std::string two = slurp();
  write({"three, which is torn"});
  const std::string three = slurp();
  for (std::size_t cut = two.size() + 1; cut < three.size(); ++cut) {
    spill(three.substr(0, cut));
    auto opened = LedgerFile::open(path());
    ASSERT_TRUE(opened) << cut << ": " << opened.error().to_string();
    ASSERT_TRUE(opened->warning) << cut;
    EXPECT_THAT(*opened->warning, HasSubstr("frame 2"));
    EXPECT_EQ(opened->payloads.size(), 2U) << cut;
    ASSERT_TRUE(opened->file.append(bytes("four")));
    ASSERT_TRUE(opened->file.sync());
  }
  const auto opened = LedgerFile::open(path());
  ASSERT_TRUE(opened);
  EXPECT_THAT(opened->payloads, testing::ElementsAre(bytes("one"), bytes("two"), bytes("four")));
}

TEST_F(LedgerTest, TakesAFlippedBitInTheLastFrameForATear) {
  write({"one", "two"});
  std::string content = slurp();
  content.back() ^= 1;
  spill(content);
  const auto opened = LedgerFile::open(path());
  ASSERT_TRUE(opened);
  EXPECT_TRUE(opened->warning);
  EXPECT_EQ(opened->payloads.size(), 1U);
}

TEST_F(LedgerTest, RefusesDamageInTheMiddleAndNamesThePlace) {
  write({"one", "two", "three"});
  const std::string whole = slurp();
  const std::size_t frame = kFrameHeaderBytes + 8;
  for (std::size_t at = kLedgerHeaderBytes + frame; at < kLedgerHeaderBytes + 2 * frame; ++at) {
    std::string content = whole;
    content[at] = static_cast<char>(content[at] ^ 0x10);
    spill(content);
    const auto opened = LedgerFile::open(path());
    ASSERT_FALSE(opened) << at;
    EXPECT_EQ(opened.error().code, ErrorCode::kCorrupt) << at;
    EXPECT_THAT(opened.error().message, HasSubstr("placement.ledger"));
    EXPECT_THAT(opened.error().message, HasSubstr("frame 1 at byte 56")) << at;
  }
  EXPECT_EQ(slurp().size(), whole.size()) << "a refused ledger is left as it is";
}

TEST_F(LedgerTest, RefusesAnotherFile) {
  write({});
  std::string content = slurp();
  content[0] = 'X';
  spill(content);
  EXPECT_THAT(LedgerFile::open(path()).error().message, HasSubstr("not a placement ledger"));
  spill("short");
  EXPECT_EQ(LedgerFile::open(path()).error().code, ErrorCode::kCorrupt);
}

TEST_F(LedgerTest, HasOneOwnerAtATime) {
  const auto first = LedgerFile::open(path());
  ASSERT_TRUE(first);
  const auto second = LedgerFile::open(path());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kAlreadyExists);
}

TEST_F(LedgerTest, IsReplacedByASnapshotAtOnce) {
  write({"one", "two"});
  {
    auto opened = LedgerFile::open(path());
    ASSERT_TRUE(opened->file.replace({bytes("both")}));
    ASSERT_TRUE(opened->file.append(bytes("three")));
    ASSERT_TRUE(opened->file.sync());
  }
  const auto opened = LedgerFile::open(path());
  ASSERT_TRUE(opened);
  EXPECT_THAT(opened->payloads, testing::ElementsAre(bytes("both"), bytes("three")));
}

TEST_F(LedgerTest, WritesWhatCameMeanwhileWithOneFlush) {
  auto opened = LedgerFile::open(path());
  ASSERT_TRUE(opened);
  std::atomic<std::uint64_t> durable{0};
  std::atomic<int> flushes{0};
  {
    LedgerWriter writer(std::move(opened->file),
                        {.durable = [&](std::uint64_t n) { durable = n, ++flushes; },
                         .failed = [](const Error& error) { ADD_FAILURE() << error.to_string(); }},
                        Duration(0));
    for (std::uint64_t n = 1; n <= 500; ++n) writer.append({GroupPut{group_of(n)}}, n);
    writer.replace({GroupPut{group_of(1)}}, 500);
    writer.append({GroupPut{group_of(2)}}, 501);
  }
  EXPECT_EQ(durable, 501U) << "the destructor writes the rest";
  EXPECT_LT(flushes, 500);
  const auto again = LedgerFile::open(path());
  ASSERT_TRUE(again);
  const std::vector<std::span<const std::byte>> payloads(again->payloads.begin(),
                                                         again->payloads.end());
  const auto state = replay(payloads);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->groups.size(), 2U);
}

TEST_F(LedgerTest, TellsInOrderWhoeverFlushes) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 random(seed);
  // Some flushes are quick and some are not, so that thread and caller take turns.
  for (const Duration quick :
       {Duration(std::chrono::microseconds(20)), Duration(std::chrono::microseconds(200)),
        Duration(std::chrono::hours(1))}) {
    const std::filesystem::path file = folder_ / fmt::format("{}", quick.count());
    std::atomic<std::uint64_t> durable{0};
    LedgerState wanted;
    {
      auto opened = LedgerFile::open(file);
      ASSERT_TRUE(opened) << opened.error().to_string();
      LedgerWriter writer(
          std::move(opened->file),
          {.durable =
               [&](std::uint64_t n) {
                 EXPECT_GT(n, durable.load());
                 durable = n;
               },
           .failed = [](const Error& error) { ADD_FAILURE() << error.to_string(); }},
          quick);
      for (std::uint64_t n = 1; n <= 300; ++n) {
        ASSERT_TRUE(wanted.apply(GroupPut{group_of(n)}));
        if (random() % 20 == 0) {
          writer.replace(wanted.snapshot(), n);
        } else {
          writer.append({GroupPut{group_of(n)}}, n);
        }
        EXPECT_LE(durable.load(), n);
        if (random() % 10 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
      }
    }
    EXPECT_EQ(durable, 300U);
    const auto again = LedgerFile::open(file);
    ASSERT_TRUE(again) << again.error().to_string();
    const std::vector<std::span<const std::byte>> payloads(again->payloads.begin(),
                                                           again->payloads.end());
    const auto state = replay(payloads);
    ASSERT_TRUE(state);
    EXPECT_EQ(*state, wanted);
  }
}

TEST_F(LedgerTest, ACallerThatFlushesIsDoneWhenItComesBack) {
  auto opened = LedgerFile::open(path());
  ASSERT_TRUE(opened);
  std::atomic<std::uint64_t> durable{0};
  LedgerWriter writer(std::move(opened->file),
                      {.durable = [&](std::uint64_t n) { durable = n; },
                       .failed = [](const Error& error) { ADD_FAILURE() << error.to_string(); }},
                      std::chrono::hours(1));
  std::uint64_t n = 0;
  // The thread does the first; it tells, and lets go of the file a moment later.
  do {
    ++n;
    writer.append({GroupPut{group_of(n)}}, n);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  } while (durable < n && n < 10'000);
  for (int i = 0; i < 50; ++i) {
    ++n;
    writer.append({GroupPut{group_of(n)}}, n);
    EXPECT_EQ(durable, n);
  }
}

}  // namespace
}  // namespace troupe::placement
