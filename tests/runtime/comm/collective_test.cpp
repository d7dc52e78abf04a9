// Proves that collectives, in a process and over Gloo, give what a serial loop over ranks gives,
// bit for bit and whoever comes first, and that every misuse ends in an error on all ranks. Oracle:
// the obvious serial reduction in rank order; random operations with the seed printed.

#include "runtime/comm/collective.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"
#include "tests/runtime/comm/group_maker.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

namespace troupe::runtime {
namespace {

Deadline soon() { return Deadline::in(std::chrono::seconds(20)); }
Deadline in_ms(int count) { return Deadline::in(std::chrono::milliseconds(count)); }

/// Runs `body(handle)` on one thread per rank and joins.
void on_all(Handles& handles, const std::function<void(Collective&)>& body) {
  std::vector<std::thread> threads;
  for (auto& handle : handles) threads.emplace_back([&body, &handle] { body(*handle); });
  for (auto& thread : threads) thread.join();
}

class CollectiveTest : public GroupTest {};
INSTANTIATE_TEST_SUITE_P(Groups, CollectiveTest,
                         ::testing::Values(GroupKind::kLocal, GroupKind::kGloo), group_kind_name);

template <class T>
T combine(ReduceOp op, T a, T b) {
  if constexpr (std::is_same_v<T, std::int64_t>) {  // wraps, which only unsigned numbers may
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    if (op == ReduceOp::kSum) return static_cast<T>(x + y);
    if (op == ReduceOp::kProduct) return static_cast<T>(x * y);
  }
  switch (op) {
    case ReduceOp::kSum:
      return a + b;
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return (std::isnan(static_cast<double>(b)) || b < a) ? b : a;
    case ReduceOp::kMax:
      return (std::isnan(static_cast<double>(b)) || b > a) ? b : a;
  }
  return a;
}

template <class T>
std::vector<T> serial(const std::vector<std::vector<T>>& inputs, ReduceOp op) {
  std::vector<T> total = inputs[0];
  for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
    for (std::size_t i = 0; i < total.size(); ++i)
      total[i] = combine(op, total[i], inputs[rank][i]);
  }
  return total;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class T>
std::vector<std::vector<T>> random_inputs(Rng& rng, int ranks, std::size_t count) {
  std::vector<std::vector<T>> inputs(static_cast<std::size_t>(ranks), std::vector<T>(count));
  for (auto& input : inputs) {
    for (auto& x : input) {
      if constexpr (std::is_same_v<T, std::int64_t>)
        x = static_cast<T>(rng.below(2000)) - 1000;
      else
        x = static_cast<T>(rng.normal() * std::pow(10.0, static_cast<double>(rng.below(9)) - 4));
    }
  }
  return inputs;
}

template <class T>
void check_reductions(GroupTest& test, std::uint64_t seed) {
  Rng rng(seed);
  const int ranks = 1 + static_cast<int>(rng.below(8));
  const std::size_t part = rng.below(4) == 0 ? rng.below(20000) : rng.below(40);
  const auto op = static_cast<ReduceOp>(rng.below(4));
  auto handles = test.make_group(ranks);
  const auto inputs = random_inputs<T>(rng, ranks, part * static_cast<std::size_t>(ranks));
  const auto wanted = serial(inputs, op);
  auto buffers = inputs;
  std::vector<std::vector<T>> scattered(inputs.size(), std::vector<T>(part));
  std::vector<std::vector<T>> gathered(inputs.size(), std::vector<T>(wanted.size()));
  on_all(handles, [&](Collective& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    Rng pause(seed + rank);
    std::this_thread::sleep_for(std::chrono::microseconds(pause.below(300)));
    ASSERT_TRUE(group.reduce_scatter(inputs[rank], scattered[rank], op, soon()));
    ASSERT_TRUE(group.all_gather(scattered[rank], gathered[rank], soon()));
    ASSERT_TRUE(group.all_reduce(buffers[rank], op, soon()));
  });
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    EXPECT_TRUE(same_bits(buffers[rank], wanted)) << "all_reduce rank " << rank << " seed " << seed;
    EXPECT_TRUE(same_bits(gathered[rank], wanted))
        << "scatter+gather rank " << rank << " seed " << seed;
  }
}

TEST_P(CollectiveTest, ReductionsEqualTheSerialLoopBitForBit) {
  const std::uint64_t seeds = over_gloo() ? 6 : 40;  // connecting takes its time
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    check_reductions<float>(*this, seed);
    check_reductions<double>(*this, seed);
    check_reductions<std::int64_t>(*this, seed);
  }
}

TEST_P(CollectiveTest, SumDoesNotDependOnWhoComesFirst) {
  const std::vector<float> parts{1e8F, 1.0F, -1e8F, 0.5F};  // any other order gives other bits
  for (int last = 0; last < 4; ++last) {
    auto handles = make_group(4);
    on_all(handles, [&](Collective& group) {
      if (group.rank() == last) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      const auto sum = all_reduce_value(group, parts[static_cast<std::size_t>(group.rank())],
                                        ReduceOp::kSum, soon());
      ASSERT_TRUE(sum);
      EXPECT_EQ(*sum, ((1e8F + 1.0F) + -1e8F) + 0.5F);
    });
  }
}

TEST_P(CollectiveTest, NanWinsInMinAndMaxAndIntegersWrap) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int nan_rank = 0; nan_rank < 3; ++nan_rank) {
    auto handles = make_group(3);
    on_all(handles, [&](Collective& group) {
      const double mine = group.rank() == nan_rank ? nan : group.rank();
      EXPECT_TRUE(std::isnan(*all_reduce_value(group, mine, ReduceOp::kMin, soon())));
      EXPECT_TRUE(std::isnan(*all_reduce_value(group, mine, ReduceOp::kMax, soon())));
      const std::int64_t most = std::numeric_limits<std::int64_t>::max();
      const auto wrapped = all_reduce_value(group, group.rank() == 0 ? most : std::int64_t{1},
                                            ReduceOp::kSum, soon());
      EXPECT_EQ(*wrapped, std::numeric_limits<std::int64_t>::min() + 1);
    });
  }
}

TEST_P(CollectiveTest, GathersPartsOfAnyLengthInRankOrder) {
  auto handles = make_group(5);
  on_all(handles, [&](Collective& group) {
    std::vector<std::int64_t> mine(static_cast<std::size_t>(group.rank()) * 3 % 5, group.rank());
    const auto all = group.all_gather_variable(std::span<const std::int64_t>(mine), soon());
    ASSERT_TRUE(all);
    ASSERT_EQ(all->size(), 5U);
    for (std::int64_t rank = 0; rank < 5; ++rank) {
      const auto& part = (*all)[static_cast<std::size_t>(rank)];
      EXPECT_EQ(part, std::vector<std::int64_t>(static_cast<std::size_t>(rank * 3 % 5), rank));
    }
    const auto at_root = group.gather_bytes(std::as_bytes(std::span(mine)), 3, soon());
    ASSERT_TRUE(at_root);
    EXPECT_EQ(at_root->size(), group.rank() == 3 ? 5U : 0U);
  });
}

TEST_P(CollectiveTest, BroadcastGivesEveryRankTheRootsBytes) {
  auto handles = make_group(4);
  on_all(handles, [&](Collective& group) {
    for (int root = 0; root < 4; ++root) {
      std::vector<double> data(100, group.rank());
      ASSERT_TRUE(group.broadcast(data, root, soon()));
      EXPECT_EQ(data, std::vector<double>(100, root));
    }
  });
}

TEST_P(CollectiveTest, ReduceScatterAndGatherWorkInPlace) {
  auto handles = make_group(3);
  on_all(handles, [&](Collective& group) {
    std::vector<float> whole{1, 2, 3, 4, 5, 6};
    const std::span<float> own(whole.data() + 2 * group.rank(), 2);
    ASSERT_TRUE(group.reduce_scatter(whole, own, ReduceOp::kSum, soon()));
    ASSERT_TRUE(group.all_gather(own, whole, soon()));
    EXPECT_EQ(whole, (std::vector<float>{3, 6, 9, 12, 15, 18}));
  });
}

TEST_P(CollectiveTest, SendAndReceiveKeepOrderPerTagAndAreBuffered) {
  auto handles = make_group(3);
  on_all(handles, [&](Collective& group) {
    const int next = (group.rank() + 1) % 3;
    const int before = (group.rank() + 2) % 3;
    for (std::int64_t i = 0; i < 50; ++i) {  // everybody sends first: needs buffering
      ASSERT_TRUE(group.send(std::vector<std::int64_t>{i, group.rank()}, next, i % 2 == 0, soon()));
    }
    for (int tag : {1, 0}) {
      for (std::int64_t i = tag == 1 ? 0 : 1; i < 50; i += 2) {
        std::vector<std::int64_t> got(2);
        ASSERT_TRUE(group.recv(got, before, tag, soon()));
        EXPECT_EQ(got, (std::vector<std::int64_t>{i, before}));
      }
    }
  });
}

TEST_P(CollectiveTest, SendWaitsForRoomInAFullMailbox) {
  auto handles = make_group(2, {.name = "small", .mailbox_bytes = 64});
  const std::vector<double> data(8, 1.0);
  ASSERT_TRUE(handles[0]->send(data, 1, 0, soon()));
  const auto full = handles[0]->send(data, 1, 0, in_ms(20));
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, ErrorCode::kDeadline);
  EXPECT_NE(full.error().message.find("64 unread bytes"), std::string::npos)
      << full.error().message;
  std::thread reader([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::vector<double> got(8);
    EXPECT_TRUE(handles[1]->recv(got, 0, 0, soon()));
  });
  EXPECT_TRUE(handles[0]->send(data, 1, 0, soon()));
  reader.join();
}

TEST_P(CollectiveTest, SplitFormsGroupsByColourOrderedByKey) {
  auto handles = make_group(6, {.name = "policy"});
  on_all(handles, [&](Collective& group) {
    const int colour = group.rank() == 5 ? -1 : group.rank() % 2;
    auto sub = group.split(colour, -group.rank(), soon());
    ASSERT_TRUE(sub);
    if (group.rank() == 5) {
      EXPECT_EQ(*sub, nullptr);
      return;
    }
    const int size = colour == 0 ? 3 : 2;
    EXPECT_EQ((*sub)->size(), size);
    EXPECT_EQ((*sub)->rank(), size - 1 - group.rank() / 2);  // keys run backwards
    EXPECT_EQ((*sub)->name(), colour == 0 ? "policy/0" : "policy/1");
    EXPECT_EQ(*all_reduce_value(**sub, std::int64_t{group.rank()}, ReduceOp::kSum, soon()),
              colour == 0 ? 0 + 2 + 4 : 1 + 3);
    ASSERT_TRUE((*sub)->barrier(soon()));
  });
}

TEST_P(CollectiveTest, DifferentCallsAreAConflictNamingBothOnEveryRank) {
  struct Case {
    std::string_view text;
    std::function<result<void>(Collective&)> call;
  };
  std::vector<float> two(2), three(3);
  std::vector<double> doubles(2);
  const std::vector<Case> cases{
      {"barrier()", [](Collective& g) { return g.barrier(in_ms(5000)); }},
      {"all_reduce(sum, f32 × 3)",
       [&](Collective& g) { return g.all_reduce(three, ReduceOp::kSum, in_ms(5000)); }},
      {"all_reduce(sum, f64 × 2)",
       [&](Collective& g) { return g.all_reduce(doubles, ReduceOp::kSum, in_ms(5000)); }},
      {"all_reduce(max, f32 × 2)",
       [&](Collective& g) { return g.all_reduce(two, ReduceOp::kMax, in_ms(5000)); }},
      {"broadcast(f32 × 2, root 0)",
       [&](Collective& g) { return g.broadcast(two, 0, in_ms(5000)); }},
  };
  for (const auto& odd : cases) {
    auto handles = make_group(3, {.name = "policy"});
    on_all(handles, [&](Collective& group) {
      std::vector<float> mine(2);
      const auto done =
          group.rank() == 2 ? odd.call(group) : group.all_reduce(mine, ReduceOp::kSum, in_ms(5000));
      ASSERT_FALSE(done);
      EXPECT_EQ(done.error().code, ErrorCode::kConflict);
      const std::string& message = done.error().message;
      EXPECT_NE(message.find("rank 0 called all_reduce(sum, f32 × 2)"), std::string::npos)
          << message;
      EXPECT_NE(message.find("rank 2 called " + std::string(odd.text)), std::string::npos)
          << message;
    });
  }
}

TEST_P(CollectiveTest, DifferentRootsAreAConflict) {
  auto handles = make_group(2);
  on_all(handles, [&](Collective& group) {
    std::vector<float> data(2);
    const auto done = group.broadcast(data, group.rank(), in_ms(5000));
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::kConflict);
  });
}

TEST_P(CollectiveTest, WrongArgumentsOfOneRankAreToldToAll) {
  struct Case {
    std::string_view wanted;
    std::function<result<void>(Collective&)> call;
  };
  std::vector<float> whole(8);
  std::vector<std::byte> raw(4);
  const std::vector<Case> cases{
      {"part is f32 × 3",
       [&](Collective& g) { return g.all_gather(std::vector<float>(3), whole, in_ms(5000)); }},
      {"bytes cannot be reduced",
       [&](Collective& g) { return g.all_reduce(raw, ReduceOp::kSum, in_ms(5000)); }},
      {"overlaps whole",
       [&](Collective& g) {
         return g.all_gather(std::span<const float>(whole).subspan(1, 4), whole, in_ms(5000));
       }},
      {"root 9", [&](Collective& g) { return g.broadcast(whole, 9, in_ms(5000)); }},
      {"root -1", [&](Collective& g) { return g.broadcast(whole, -1, in_ms(5000)); }},
      {"whole is f32 × 8",
       [&](Collective& g) {
         std::vector<float> part(3);
         return g.reduce_scatter(whole, part, ReduceOp::kSum, in_ms(5000));
       }},
  };
  for (const auto& wrong : cases) {
    auto handles = make_group(2);
    on_all(handles, [&](Collective& group) {
      const auto done = group.rank() == 1 ? wrong.call(group) : group.barrier(in_ms(5000));
      ASSERT_FALSE(done);
      EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument);
      EXPECT_EQ(done.error().origin.rank, RankId{1});
      EXPECT_NE(done.error().message.find(wrong.wanted), std::string::npos) << done.error().message;
    });
  }
  auto handles = make_group(2);
  EXPECT_EQ(handles[0]->send(whole, 2, 0, soon()).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(handles[0]->recv(whole, -1, 0, soon()).error().code, ErrorCode::kInvalidArgument);
}

TEST_P(CollectiveTest, MessageOfAnotherShapeIsAConflictForBothSides) {
  auto handles = make_group(2);
  ASSERT_TRUE(handles[0]->send(std::vector<float>(3), 1, 7, soon()));
  std::vector<double> got(3);
  const auto done = handles[1]->recv(got, 0, 7, soon());
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kConflict);
  EXPECT_NE(done.error().message.find("rank 0 sent f32 × 3 but rank 1 receives f64 × 3"),
            std::string::npos)
      << done.error().message;
  EXPECT_EQ(handles[0]->barrier(soon()).error(), done.error());
}

TEST_P(CollectiveTest, AHandleUsedByTwoThreadsAtOnceIsACheckFailure) {
  auto handles = make_group(2);
  std::thread waiting([&] {
    std::vector<float> got(1);
    for (bool done = false; !done;) {
      try {
        done = handles[0]->recv(got, 1, 0, soon()).has_value();
      } catch (const CheckFailure&) {  // the other thread was inside just then
      }
    }
  });
  bool refused = false;
  for (const Deadline limit = soon(); !refused && !limit.passed();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // lets the other thread in
    try {
      std::vector<float> got(1);
      (void)handles[0]->recv(got, 1, 1, in_ms(0));
    } catch (const CheckFailure&) {
      refused = true;
    }
  }
  EXPECT_TRUE(refused);
  EXPECT_TRUE(handles[1]->send(std::vector<float>{1}, 0, 0, soon()));
  waiting.join();
}

TEST_P(CollectiveTest, EmptyBuffersAndGroupsOfOneAreLegal) {
  auto one = make_group(1);
  std::vector<float> data{4, 5};
  ASSERT_TRUE(one[0]->all_reduce(data, ReduceOp::kSum, soon()));
  EXPECT_EQ(data, (std::vector<float>{4, 5}));
  ASSERT_TRUE(one[0]->send(data, 0, 0, soon()));
  ASSERT_TRUE(one[0]->recv(data, 0, 0, soon()));
  auto handles = make_group(4);
  on_all(handles, [](Collective& group) {
    std::vector<float> none;
    std::vector<float> whole;
    EXPECT_TRUE(group.all_reduce(none, ReduceOp::kSum, soon()));
    EXPECT_TRUE(group.all_gather(none, whole, soon()));
    EXPECT_TRUE(group.reduce_scatter(whole, none, ReduceOp::kMax, soon()));
    EXPECT_TRUE(group.broadcast(none, 2, soon()));
  });
  EXPECT_THROW((void)make_group(0), CheckFailure);
}

}  // namespace
}  // namespace troupe::runtime
