// Proves who is told what when a group over Gloo ends: closing payload's connections passes for
// nobody's death, rank 0 may die between two words, and groups split from one that fails are told.
// The dying rank 0 is a fake that speaks the protocol only as far as each test says.

#include "runtime/comm/collective_gloo.hpp"
#include "runtime/comm/group_frame.hpp"
#include "runtime/comm/links_gloo.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace troupe::runtime {
namespace {

Deadline in_ms(int count) { return Deadline::in(std::chrono::milliseconds(count)); }

/// Keeps what links report.
class Heard final : public GlooLinks::Listener {
 public:
  void on_frame(int peer, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(mutex_);
    auto frame = decode_group_frame(bytes);
    EXPECT_TRUE(frame.has_value());
    if (frame) frames_.emplace_back(peer, std::move(*frame));
    changed_.notify_all();
  }
  void on_closed(int peer, const std::string& /*why*/) override {
    const std::lock_guard lock(mutex_);
    closed_.push_back(peer);
    changed_.notify_all();
  }
  /// Waits for `count` frames of `kind`; the ranks that sent them.
  std::vector<int> senders(GroupFrame::Kind kind, std::size_t count) {
    std::unique_lock lock(mutex_);
    std::vector<int> from;
    changed_.wait_until(lock, in_ms(10000).at, [&] {
      from.clear();
      for (const auto& [peer, frame] : frames_) {
        if (frame.kind == kind) from.push_back(peer);
      }
      return from.size() >= count;
    });
    return from;
  }
  std::vector<int> closed() {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

 private:
  std::mutex mutex_;  // guards all
  std::condition_variable changed_;
  std::vector<std::pair<int, GroupFrame>> frames_;
  std::vector<int> closed_;
};

std::vector<std::unique_ptr<GlooLinks>> connect(int size, RendezvousStore& store) {
  std::vector<std::unique_ptr<GlooLinks>> links(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto made = GlooLinks::connect({.name = "links",
                                      .rank = rank,
                                      .size = size,
                                      .host = "127.0.0.1",
                                      .prefix = "links/",
                                      .connect_wait = std::chrono::seconds(5)},
                                     store);
      ASSERT_TRUE(made.has_value()) << made.error().to_string();
      links[static_cast<std::size_t>(rank)] = std::move(*made);
    });
  }
  for (auto& thread : threads) thread.join();
  return links;
}

TEST(GlooLinks, BreakingOffPayloadEndsTransfersLeavesFramesAndIsNobodysDeath) {
  LocalRendezvous store;
  Heard heard[2];
  auto links = connect(2, store);
  for (std::size_t rank = 0; rank < 2; ++rank) links[rank]->start(heard[rank]);
  // Bigger than all socket buffers, and the receiver takes none of it: half through.
  std::vector<std::byte> data(std::size_t{64} << 20);
  TransferEnd lost;
  const auto outgoing = links[1]->start_transfer(
      {{.peer = 0, .slot = 99, .outgoing = true, .data = data.data(), .bytes = data.size()}}, lost);
  ASSERT_TRUE(outgoing);
  std::thread breaker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    links[0]->break_off();
  });
  const TransferEnd end = outgoing->wait(in_ms(10000));
  breaker.join();
  EXPECT_EQ(end.kind, TransferEnd::Kind::kLost);
  EXPECT_EQ(end.peer, 0);
  // Both ends: no new transfer, but words both ways, and nobody is said to be gone.
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const int peer = 1 - static_cast<int>(rank);
    EXPECT_FALSE(links[rank]->start_transfer(
        {{.peer = peer, .slot = 7, .outgoing = true, .data = data.data(), .bytes = 8}}, lost));
    EXPECT_EQ(lost.kind, TransferEnd::Kind::kLost);
    EXPECT_TRUE(links[rank]->send(
        peer, encode_group_frame({.kind = GroupFrame::Kind::kTaken, .call = {}})));
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(heard[rank].senders(GroupFrame::Kind::kTaken, 1).size(), 1U);
    EXPECT_TRUE(heard[rank].closed().empty());
  }
}

TEST(GlooLinks, WhatCameThroughBeforeAConnectionClosedCounts) {
  LocalRendezvous store;
  Heard heard[2];
  auto links = connect(2, store);
  for (std::size_t rank = 0; rank < 2; ++rank) links[rank]->start(heard[rank]);
  std::vector<std::byte> data(100000, std::byte{7});
  std::vector<std::byte> taken(data.size());
  TransferEnd lost;
  const auto incoming = links[0]->start_transfer(
      {{.peer = 1, .slot = 5, .outgoing = false, .data = taken.data(), .bytes = taken.size()}},
      lost);
  const auto outgoing = links[1]->start_transfer(
      {{.peer = 0, .slot = 5, .outgoing = true, .data = data.data(), .bytes = data.size()}}, lost);
  ASSERT_TRUE(incoming && outgoing);
  EXPECT_EQ(outgoing->wait(in_ms(10000)).kind, TransferEnd::Kind::kDone);
  links[1].reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the close is seen, and told
  EXPECT_EQ(heard[0].closed(), std::vector<int>{1});
  EXPECT_EQ(incoming->wait(in_ms(10000)).kind, TransferEnd::Kind::kDone);
  EXPECT_EQ(taken, data);
}

/// Three ranks, of which rank 0 is `links`: the others have it for the first of the group.
class FakeFirst : public ::testing::Test {
 protected:
  FakeFirst() {
    for (const int rank : {1, 2})
      (void)store_->set("policy/answer/" + std::to_string(rank) + "/1", "go 0.1");
    std::thread first([this] {
      auto made = GlooLinks::connect({.name = "policy",
                                      .rank = 0,
                                      .size = 3,
                                      .host = "127.0.0.1",
                                      .prefix = "policy/links/0.1/",
                                      .connect_wait = std::chrono::seconds(5)},
                                     *store_);
      ASSERT_TRUE(made.has_value()) << made.error().to_string();
      first_ = std::move(*made);
    });
    std::vector<std::thread> threads;
    for (const int rank : {1, 2}) {
      threads.emplace_back([this, rank] {
        auto made =
            make_gloo_collective({.name = "policy", .rank = rank, .size = 3}, store_, in_ms(10000));
        ASSERT_TRUE(made.has_value()) << made.error().to_string();
        ranks_[rank] = std::move(*made);
      });
    }
    first.join();
    for (auto& thread : threads) thread.join();
    first_->start(heard_);
  }
  ~FakeFirst() override { first_.reset(); }

  std::shared_ptr<LocalRendezvous> store_ = std::make_shared<LocalRendezvous>();
  Heard heard_;
  std::unique_ptr<GlooLinks> first_;
  std::unique_ptr<Collective> ranks_[3];
};

TEST_F(FakeFirst, DyingBetweenTwoWordsOfGoEndsThoseWhoHeardIt) {
  // Rank 2 waits for nobody but rank 1, which never hears that it should send.
  std::vector<float> data(1000, 1.0F);
  std::optional<Error> ends[3];
  std::vector<std::thread> threads;
  const auto begin = std::chrono::steady_clock::now();
  for (const int rank : {1, 2}) {
    threads.emplace_back([&, rank] {
      std::vector<float> own = data;
      if (auto done = ranks_[rank]->broadcast(own, 1, in_ms(20000)); !done)
        ends[rank] = done.error();
    });
  }
  ASSERT_EQ(heard_.senders(GroupFrame::Kind::kArrive, 2).size(), 2U);
  GroupFrame go{.kind = GroupFrame::Kind::kGo, .call = {}};
  go.group = 1;
  go.operation = 1;
  ASSERT_TRUE(first_->send(2, encode_group_frame(go)));
  first_->flush(in_ms(1000));
  first_.reset();
  for (auto& thread : threads) thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  for (const int rank : {1, 2}) {
    ASSERT_TRUE(ends[rank]) << "rank " << rank;
    EXPECT_EQ(ends[rank]->code, ErrorCode::kRankDead) << ends[rank]->to_string();
    EXPECT_EQ(ends[rank]->origin.rank, RankId{0}) << ends[rank]->to_string();
  }
}

TEST_F(FakeFirst, ItsWordNamesTheCauseThoughAPeerBrokePayloadOffBefore) {
  // Both are in payload; rank 0 names rank 2's fault to rank 1 only after its connections closed.
  std::optional<Error> end;
  std::thread one([&] {
    std::vector<float> own(1000, 1.0F);
    if (auto done = ranks_[1]->broadcast(own, 0, in_ms(20000)); !done) end = done.error();
  });
  ASSERT_EQ(heard_.senders(GroupFrame::Kind::kArrive, 1).size(), 1U);
  GroupFrame word{.kind = GroupFrame::Kind::kGo, .call = {}};
  word.group = 1;
  word.operation = 1;
  ASSERT_TRUE(first_->send(1, encode_group_frame(word)));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  first_->break_off();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  word.kind = GroupFrame::Kind::kFailed;
  word.error = Error{ErrorCode::kRankDead, "policy rank 2 is gone", {}, {}};
  word.error->origin.rank = RankId{2};
  ASSERT_TRUE(first_->send(1, encode_group_frame(word)));
  one.join();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, ErrorCode::kRankDead) << end->to_string();
  EXPECT_EQ(end->origin.rank, RankId{2}) << end->to_string();
}

}  // namespace
}  // namespace troupe::runtime
