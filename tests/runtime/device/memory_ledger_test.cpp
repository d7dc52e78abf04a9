// Proves that no sequence of phases ever exceeds a device's capacity, that a phase is refused
// exactly when it cannot fit, and that evictions are the fewest in the documented order.
// Oracle: a slow reference that counts bytes anew for every question; random phases, seed printed.

#include "runtime/device/memory_ledger.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/device/device_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

namespace troupe::runtime {
namespace {

Deadline soon() { return Deadline::in(std::chrono::seconds(20)); }

MemoryEntry entry(std::string what, std::int64_t bytes, Eviction eviction,
                  Residency residency = Residency::kResident) {
  return {.key = {"policy", std::move(what)},
          .bytes = Bytes{bytes},
          .eviction = eviction,
          .residency = residency};
}

MemoryKey key(std::string what) { return {"policy", std::move(what)}; }

/// The rule in its plainest form: recount everything at every candidate.
struct Reference {
  struct Item {
    std::string what;
    std::int64_t bytes;
    Eviction eviction;
    bool resident;
    int last = 0;
  };
  std::int64_t capacity = 0;
  std::vector<Item> items;
  int phases = 0;

  std::int64_t resident_bytes() const {
    std::int64_t total = 0;
    for (const auto& item : items) total += item.resident ? item.bytes : 0;
    return total;
  }
  static bool needs(const Phase& phase, const std::string& what) {
    return std::find(phase.resident.begin(), phase.resident.end(), key(what)) !=
           phase.resident.end();
  }
  /// Names evicted in order, or nothing when the phase cannot fit.
  std::optional<std::vector<std::string>> evictions(const Phase& phase) const {
    Reference copy = *this;
    std::vector<std::string> order;
    const auto total_if_entered = [&] {
      std::int64_t total = phase.scratch.value;
      for (const auto& item : copy.items) {
        if (item.resident || needs(phase, item.what)) total += item.bytes;
      }
      return total;
    };
    while (total_if_entered() > capacity) {
      Item* best = nullptr;
      for (auto& item : copy.items) {
        if (!item.resident || needs(phase, item.what) || item.eviction == Eviction::kNever ||
            item.bytes == 0) {
          continue;
        }
        const auto rank = [](const Item& i) {
          return std::pair(i.eviction == Eviction::kDrop ? 0 : 1, i.last);
        };
        if (best == nullptr || rank(item) < rank(*best)) best = &item;
      }
      if (best == nullptr) return std::nullopt;
      best->resident = false;
      order.push_back(best->what);
    }
    return order;
  }
};

void check_random_program(std::uint64_t seed) {
  Rng rng(seed);
  Reference reference;
  reference.capacity = 50 + static_cast<std::int64_t>(rng.below(100));
  MemoryLedger ledger(DeviceId{0}, Bytes{reference.capacity});
  for (int i = 0; i < 6; ++i) {
    const auto eviction = static_cast<Eviction>(rng.below(3));
    const auto bytes = static_cast<std::int64_t>(rng.below(50));
    const bool resident = rng.below(2) == 0;
    const std::string what(1, static_cast<char>('a' + i));
    const bool fits = !resident || reference.resident_bytes() + bytes <= reference.capacity;
    const auto added = ledger.add(
        entry(what, bytes, eviction, resident ? Residency::kResident : Residency::kOffloaded));
    ASSERT_EQ(added.has_value(), fits) << "seed " << seed;
    if (fits) reference.items.push_back({what, bytes, eviction, resident});
  }
  for (int step = 0; step < 30; ++step) {
    Phase phase{
        .name = "p", .resident = {}, .scratch = Bytes{static_cast<std::int64_t>(rng.below(40))}};
    for (const auto& item : reference.items) {
      if (rng.below(3) == 0) phase.resident.push_back(key(item.what));
    }
    const auto wanted = reference.evictions(phase);
    const auto moves = ledger.plan(phase);
    ASSERT_EQ(moves.has_value(), wanted.has_value()) << "seed " << seed << " step " << step;
    if (!moves) {
      EXPECT_EQ(moves.error().code, ErrorCode::kResourceExhausted);
      EXPECT_FALSE(ledger.enter(phase));
      continue;
    }
    std::vector<std::string> evicted;
    bool loading = false;
    for (const auto& move : *moves) {
      loading = loading || move.kind == MoveKind::kLoad;
      ASSERT_EQ(loading, move.kind == MoveKind::kLoad) << "an eviction after a load, seed " << seed;
      if (!loading) evicted.push_back(move.key.what);
      ASSERT_TRUE(ledger.apply(move));
      ASSERT_LE(ledger.used(), ledger.capacity()) << "seed " << seed;
    }
    ASSERT_EQ(evicted, *wanted) << "seed " << seed << " step " << step;
    ASSERT_TRUE(ledger.enter(phase));
    ASSERT_LE(ledger.used(), ledger.capacity()) << "seed " << seed;
    ++reference.phases;
    for (auto& item : reference.items) {
      if (Reference::needs(phase, item.what)) {
        item.resident = true;
        item.last = reference.phases;
      } else if (std::find(evicted.begin(), evicted.end(), item.what) != evicted.end()) {
        item.resident = false;
      }
      ASSERT_EQ(ledger.find(key(item.what))->residency == Residency::kResident, item.resident);
    }
    ASSERT_EQ(ledger.used().value, reference.resident_bytes() + phase.scratch.value);
    ledger.leave();
  }
}

TEST(MemoryLedger, RandomPhasesEqualTheReferenceAndNeverExceedCapacity) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) check_random_program(seed);
}

TEST(MemoryLedger, RefusalShowsWhoHoldsWhat) {
  MemoryLedger ledger(DeviceId{1}, gibibytes(8));
  ASSERT_TRUE(ledger.add(entry("weights", gibibytes(4).value, Eviction::kNever)));
  ASSERT_TRUE(ledger.add(entry("kv cache", gibibytes(2).value, Eviction::kDrop)));
  const auto refused = ledger.plan({"train", {key("weights")}, gibibytes(5)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  for (const char* part : {"phase train cannot start", "device 1", "policy/weights", "4.0 GiB",
                           "policy/kv cache", "can be dropped", "5.0 GiB scratch"}) {
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
}

TEST(MemoryLedger, DropsBeforeItOffloadsAndTakesTheLeastRecentlyNeeded) {
  MemoryLedger ledger(DeviceId{0}, Bytes{100});
  ASSERT_TRUE(ledger.add(entry("optimizer", 30, Eviction::kOffload)));
  ASSERT_TRUE(ledger.add(entry("critic", 30, Eviction::kOffload)));
  ASSERT_TRUE(ledger.add(entry("kv", 30, Eviction::kDrop)));
  ASSERT_TRUE(ledger.enter({"train", {key("optimizer")}, Bytes{0}}));
  ledger.leave();
  const auto moves = ledger.plan({"eval", {}, Bytes{60}});
  ASSERT_TRUE(moves);
  EXPECT_EQ(*moves, (std::vector<MemoryMove>{{MoveKind::kDrop, key("kv"), Bytes{30}},
                                             {MoveKind::kOffload, key("critic"), Bytes{30}}}));
}

TEST(MemoryLedger, BadRequestsAreErrorsAndChangeNothing) {
  MemoryLedger ledger(DeviceId{0}, Bytes{100});
  ASSERT_TRUE(ledger.add(entry("w", 60, Eviction::kNever)));
  EXPECT_EQ(ledger.add(entry("w", 1, Eviction::kNever)).error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(ledger.add(entry("x", -1, Eviction::kNever)).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ledger.add(entry("x", 41, Eviction::kDrop)).error().code,
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(ledger.remove(key("x")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(ledger.resize(key("x"), Bytes{1}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(ledger.resize(key("w"), Bytes{101}).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(ledger.resize(key("w"), Bytes{-1}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ledger.plan({"p", {key("x")}, Bytes{0}}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(ledger.plan({"p", {}, Bytes{-5}}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ledger.apply({MoveKind::kLoad, key("w"), Bytes{60}}).error().code,
            ErrorCode::kConflict);
  EXPECT_EQ(ledger.apply({MoveKind::kDrop, key("x"), Bytes{1}}).error().code, ErrorCode::kNotFound);
  EXPECT_THROW(MemoryLedger(DeviceId{0}, Bytes{-1}), CheckFailure);
  EXPECT_EQ(ledger.used(), Bytes{60});
  ASSERT_TRUE(ledger.enter({"p", {}, Bytes{40}}));
  EXPECT_EQ(ledger.plan({"q", {}, Bytes{0}}).error().code, ErrorCode::kConflict);
  EXPECT_EQ(ledger.resize(key("w"), Bytes{61}).error().code, ErrorCode::kResourceExhausted);
  ledger.leave();
  EXPECT_TRUE(ledger.resize(key("w"), Bytes{100}));
}

TEST(MemoryLedger, HugeSizesDoNotWrapAround) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kCapacity = std::int64_t{1} << 62;
  MemoryLedger ledger(DeviceId{0}, Bytes{kCapacity});
  ASSERT_TRUE(ledger.add(entry("huge", kMost, Eviction::kOffload, Residency::kOffloaded)));
  ASSERT_TRUE(ledger.add(entry("a", kCapacity, Eviction::kOffload, Residency::kOffloaded)));
  ASSERT_TRUE(ledger.add(entry("b", kCapacity - 1, Eviction::kOffload)));
  EXPECT_EQ(ledger.add(entry("c", 2, Eviction::kNever)).error().code,
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(ledger.add(entry("c", kMost, Eviction::kNever)).error().code,
            ErrorCode::kResourceExhausted);
  EXPECT_FALSE(ledger.plan({"p", {key("huge"), key("a")}, Bytes{kMost}}));
  EXPECT_FALSE(ledger.plan({"p", {key("a"), key("b")}, Bytes{0}}));
  const auto moves = ledger.plan({"p", {key("a")}, Bytes{0}});
  ASSERT_TRUE(moves);
  EXPECT_EQ(moves->size(), 2U);
  EXPECT_THROW(MemoryLedger(DeviceId{0}, Bytes{kMost}), CheckFailure);
}

TEST(MemoryLedger, RoomIsWhatThePhaseLeaves) {
  MemoryLedger ledger(DeviceId{0}, Bytes{100});
  ASSERT_TRUE(ledger.add(entry("weights", 30, Eviction::kNever)));
  ASSERT_TRUE(ledger.add(entry("optimizer", 40, Eviction::kOffload)));
  ASSERT_TRUE(ledger.add(entry("kv", 0, Eviction::kDrop)));
  const Phase rollout{"rollout", {key("kv")}, Bytes{10}};
  EXPECT_EQ(*ledger.room_in(rollout), Bytes{60});  // the optimiser can go
  EXPECT_EQ(*ledger.room_in({"both", {key("kv"), key("optimizer")}, Bytes{10}}), Bytes{20});
  EXPECT_EQ(*ledger.room_in({"big", {}, Bytes{200}}), Bytes{0});
  EXPECT_EQ(ledger.room_in({"x", {key("none")}, Bytes{0}}).error().code, ErrorCode::kNotFound);
}

TEST(DeviceMemory, RunsTheCallbacksOfThePlanInOrderAndRefusesBeforeAnyRuns) {
  DeviceMemory memory(DeviceId{0}, Bytes{100});
  std::vector<std::string> log;
  const auto note = [&log](std::string text) {
    return [&log, text]() -> result<void> {
      log.push_back(text);
      return {};
    };
  };
  ASSERT_TRUE(
      memory.add(entry("train", 70, Eviction::kOffload),
                 {.load = note("load train"), .offload = note("offload train"), .drop = {}}));
  ASSERT_TRUE(memory.add(entry("kv", 60, Eviction::kDrop, Residency::kDropped),
                         {.load = note("load kv"), .offload = {}, .drop = note("drop kv")}));
  EXPECT_FALSE(memory.begin({"both", {key("kv"), key("train")}, Bytes{0}}));
  EXPECT_TRUE(log.empty());
  {
    auto rollout = memory.begin({"rollout", {key("kv")}, Bytes{5}});
    ASSERT_TRUE(rollout);
    EXPECT_EQ(memory.snapshot().phase()->name, "rollout");
    EXPECT_EQ(memory.begin({"train", {key("train")}, Bytes{0}}).error().code, ErrorCode::kConflict);
  }
  EXPECT_FALSE(memory.snapshot().phase());
  auto train = memory.begin({"train", {key("train")}, Bytes{0}});
  ASSERT_TRUE(train);
  EXPECT_EQ(log, (std::vector<std::string>{"offload train", "load kv", "drop kv", "load train"}));
}

TEST(DeviceMemory, AFailedCallbackLeavesTheTruthInTheLedger) {
  DeviceMemory memory(DeviceId{0}, Bytes{100});
  ASSERT_TRUE(memory.add(entry("a", 50, Eviction::kOffload)));
  ASSERT_TRUE(
      memory.add(entry("b", 50, Eviction::kOffload),
                 {.load = {},
                  .offload = [] { return result<void>(fail(ErrorCode::kIo, "host is full")); },
                  .drop = {}}));
  const auto refused = memory.begin({"eval", {}, Bytes{100}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kIo);
  EXPECT_NE(refused.error().message.find("phase eval: cannot offload policy/b"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(refused.error().root_cause().message, "host is full");
  const MemoryLedger ledger = memory.snapshot();
  EXPECT_EQ(ledger.find(key("a"))->residency, Residency::kOffloaded);
  EXPECT_EQ(ledger.find(key("b"))->residency, Residency::kResident);
  EXPECT_FALSE(ledger.phase());
}

TEST(BeginPhase, FreesTheLaneWhenThePhaseIsRefused) {
  Device device(DeviceId{0}, Bytes{10});
  EXPECT_EQ(begin_phase(device, {"train", {}, Bytes{11}}, "policy", soon()).error().code,
            ErrorCode::kResourceExhausted);
  EXPECT_FALSE(device.lane.status().holder);
  {
    auto phase = begin_phase(device, {"train", {}, Bytes{10}}, "policy", soon());
    ASSERT_TRUE(phase);
    EXPECT_EQ(device.lane.status().holder->request.owner, "policy");
  }
  EXPECT_FALSE(device.lane.status().holder);
  EXPECT_EQ(device.memory.snapshot().used(), Bytes{0});
}

}  // namespace
}  // namespace troupe::runtime
