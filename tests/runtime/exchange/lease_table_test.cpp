// Proves that a column is held exactly while some open holder has a grant of it. Oracle: a naive
// table of every grant ever given, over random events with a printed seed.

#include "runtime/exchange/lease_table.hpp"

#include "tests/runtime/batch/batch_support.hpp"

#include <algorithm>
#include <set>

namespace troupe::runtime {
namespace {

using namespace std::chrono_literals;

/// One entry for each grant; no counting.
class NaiveLeases {
 public:
  struct Grant {
    std::string holder;
    ColumnId column;
  };
  std::set<ColumnId> held() const {
    std::set<ColumnId> all;
    for (const Grant& one : grants) all.insert(one.column);
    return all;
  }
  void release(const std::string& holder, ColumnId column, std::int64_t count) {
    for (; count > 0; --count) {
      const auto place = std::find_if(grants.begin(), grants.end(), [&](const Grant& one) {
        return one.holder == holder && one.column == column;
      });
      if (place == grants.end()) return;
      grants.erase(place);
    }
  }
  void close(const std::string& holder) {
    std::erase_if(grants, [&](const Grant& one) { return one.holder == holder; });
    renewed.erase(holder);
  }
  void expire(TimePoint now, Duration after) {
    for (const auto& [holder, at] : std::map(renewed)) {
      const bool holds = std::any_of(grants.begin(), grants.end(),
                                     [&](const Grant& one) { return one.holder == holder; });
      if (holds && now - at >= after) close(holder);
    }
  }

  std::vector<Grant> grants;
  std::map<std::string, TimePoint> renewed;  ///< the open holders
};

TEST(LeaseTable, HoldsExactlyWhatTheNaiveTableHolds) {
  for_seeds(100, [](Rng& rng) {
    LeaseTable table(100ms);
    NaiveLeases naive;
    std::set<ColumnId> held;  // as told by the table's answers
    TimePoint now{};
    for (int step = 0; step < 300; ++step) {
      now += std::chrono::milliseconds(pick(rng, 12));
      const std::string holder(1, static_cast<char>('a' + pick(rng, 3)));
      const ColumnId column{static_cast<std::uint64_t>(pick(rng, 8))};
      std::vector<ColumnId> freed;
      switch (pick(rng, 7)) {
        case 0:
          table.open(holder, now);
          naive.renewed[holder] = now;
          break;
        case 1:
        case 2:
        case 3: {
          const bool open = naive.renewed.contains(holder);
          EXPECT_EQ(table.grant(holder, column, now).has_value(), open);
          if (!open) break;
          if (table.grants(holder, column) == 1 &&
              std::none_of(naive.grants.begin(), naive.grants.end(),
                           [&](const auto& one) { return one.holder == holder; }))
            naive.renewed[holder] = now;
          naive.grants.push_back({holder, column});
          held.insert(column);
          break;
        }
        case 4: {
          const std::int64_t count = 1 + pick(rng, 2);
          const LeaseRelease release{column, count};
          freed = table.release(holder, {&release, 1}, now);
          if (!naive.renewed.contains(holder)) break;
          naive.renewed[holder] = now;
          naive.release(holder, column, count);
          break;
        }
        case 5:
          freed = table.close(holder);
          naive.close(holder);
          break;
        default:
          freed = table.expire(now).columns;
          naive.expire(now, 100ms);
      }
      for (const ColumnId one : freed) EXPECT_EQ(held.erase(one), 1U) << one.value;
      EXPECT_EQ(held, naive.held());
      EXPECT_EQ(table.columns(), static_cast<std::int64_t>(held.size()));
    }
  });
}

TEST(LeaseTable, ReleaseThatCrossesAFreshGrantDoesNotFree) {
  LeaseTable table(1s);
  table.open("c", TimePoint{});
  ASSERT_TRUE(table.grant("c", ColumnId{7}, TimePoint{}));
  ASSERT_TRUE(table.grant("c", ColumnId{7}, TimePoint{}));  // exported again, still on the way
  const LeaseRelease first{ColumnId{7}, 1};
  EXPECT_TRUE(table.release("c", {&first, 1}, TimePoint{}).empty());
  EXPECT_EQ(table.release("c", {&first, 1}, TimePoint{}), std::vector<ColumnId>{ColumnId{7}});
}

TEST(LeaseTable, RenewedHolderLivesAndSilentOneExpires) {
  LeaseTable table(1s);
  table.open("c", TimePoint{});
  EXPECT_FALSE(table.next_expiry()) << "nothing held, nothing to renew";
  ASSERT_TRUE(table.grant("c", ColumnId{1}, TimePoint{} + 5s));
  EXPECT_EQ(table.next_expiry(), TimePoint{} + 6s);
  table.renew("c", TimePoint{} + 5500ms);
  EXPECT_TRUE(table.expire(TimePoint{} + 6s).holders.empty());
  const auto expired = table.expire(TimePoint{} + 6500ms);
  EXPECT_EQ(expired.holders, std::vector<std::string>{"c"});
  EXPECT_EQ(expired.columns, std::vector<ColumnId>{ColumnId{1}});
  EXPECT_FALSE(table.grant("c", ColumnId{2}, TimePoint{} + 7s)) << "gone until opened again";
}

}  // namespace
}  // namespace troupe::runtime
