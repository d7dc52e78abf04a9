#pragma once

// The pending events of a simulation: a 4-ary heap of (time, class, sequence) with lazy
// cancellation.
//
// An entry is 16 bytes: when, and a key that orders equal times by class and then by order of
// scheduling, and names the slot that holds the event itself. Cancelling frees the slot; its entry
// stays in the heap and is thrown away when it surfaces, because the slot no longer has its key.
// **Ownership:** owns events, which are plain values; processes are the caller's.
// **Threads:** one.
// **Invariants:** events leave in rising (time, class, order of scheduling), whatever was cancelled
// in between; an `EventId` names one event for ever.
// **Cost:** O(log n) amortised; bench/sim_events prints events per second by number pending.

#include "runtime/base/check.hpp"
#include "runtime/base/clock.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace troupe::sim {

/// What happens first at one instant: what frees something, then what takes it, then observers.
enum class EventClass : std::uint8_t { kRelease = 0, kDefault = 1, kAcquire = 2, kObserve = 3 };

/// Names a scheduled event. 0: none.
struct EventId {
  std::uint64_t key = 0;
  bool operator==(const EventId&) const = default;
  explicit operator bool() const { return key != 0; }
};

template <class Event>
class EventQueue {
 public:
  struct Popped {
    TimePoint at{};
    EventClass event_class = EventClass::kDefault;
    Event event{};
  };

  /// At most 2²⁴ − 1 events may be pending, and 2³⁷ scheduled in all: CHECKed.
  EventId push(TimePoint at, EventClass event_class, Event event) {
    const std::uint32_t slot = take_slot();
    TROUPE_CHECK(++sequence_ < (std::uint64_t{1} << kSequenceBits),
                 "event queue: more than 2^37 events");
    const std::uint64_t key = (static_cast<std::uint64_t>(event_class) << (64 - kClassBits)) |
                              (sequence_ << kSlotBits) | slot;
    slots_[slot] = Slot{key, std::move(event)};
    heap_.push_back(Entry{at.time_since_epoch().count(), key});
    rise(heap_.size() - 1);
    ++size_;
    return {key};
  }

  /// False when it has happened, or was cancelled.
  bool cancel(EventId id) {
    const auto slot = static_cast<std::uint32_t>(id.key & kSlotMask);
    if (id.key == 0 || slot >= slots_.size() || slots_[slot].key != id.key) return false;
    free_slot(slot);
    --size_;
    // Entries of cancelled events must not pile up under a long-lived one.
    if (heap_.size() > 64 && heap_.size() > 4 * size_) compact();
    return true;
  }

  bool pending(EventId id) const {
    const auto slot = static_cast<std::uint32_t>(id.key & kSlotMask);
    return id.key != 0 && slot < slots_.size() && slots_[slot].key == id.key;
  }

  /// Time of the next event.
  std::optional<TimePoint> next_time() {
    drop_cancelled();
    if (heap_.empty()) return std::nullopt;
    return TimePoint(Duration(heap_.front().at));
  }

  /// Takes the next event; nothing when none is pending.
  std::optional<Popped> pop() {
    drop_cancelled();
    if (heap_.empty()) return std::nullopt;
    const Entry top = heap_.front();
    const auto slot = static_cast<std::uint32_t>(top.key & kSlotMask);
    Popped out{TimePoint(Duration(top.at)), static_cast<EventClass>(top.key >> (64 - kClassBits)),
               std::move(slots_[slot].event)};
    free_slot(slot);
    --size_;
    remove_top();
    return out;
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  static constexpr int kClassBits = 3;
  static constexpr int kSlotBits = 24;
  static constexpr int kSequenceBits = 64 - kClassBits - kSlotBits;
  static constexpr std::uint64_t kSlotMask = (std::uint64_t{1} << kSlotBits) - 1;
  static constexpr std::size_t kArity = 4;

  struct Entry {
    std::int64_t at;
    std::uint64_t key;
    bool operator<(const Entry& other) const {
      return at != other.at ? at < other.at : key < other.key;
    }
  };
  struct Slot {
    std::uint64_t key = 0;  ///< of the event that it holds; 0: free
    Event event{};
  };

  std::uint32_t take_slot() {
    if (!free_.empty()) {
      const std::uint32_t slot = free_.back();
      free_.pop_back();
      return slot;
    }
    TROUPE_CHECK(slots_.size() < kSlotMask, "event queue: more than 2^24 events pending");
    slots_.emplace_back();
    return static_cast<std::uint32_t>(slots_.size() - 1);
  }
  void free_slot(std::uint32_t slot) {
    slots_[slot].key = 0;
    free_.push_back(slot);
  }
  bool alive(const Entry& entry) const { return slots_[entry.key & kSlotMask].key == entry.key; }
  void drop_cancelled() {
    while (!heap_.empty() && !alive(heap_.front())) remove_top();
  }
  void remove_top() {
    heap_.front() = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(0);
  }
  void rise(std::size_t at) {
    const Entry moving = heap_[at];
    while (at > 0) {
      const std::size_t parent = (at - 1) / kArity;
      if (!(moving < heap_[parent])) break;
      heap_[at] = heap_[parent];
      at = parent;
    }
    heap_[at] = moving;
  }
  void sink(std::size_t at) {
    const Entry moving = heap_[at];
    while (true) {
      const std::size_t first = at * kArity + 1;
      if (first >= heap_.size()) break;
      std::size_t least = first;
      const std::size_t end = first + kArity < heap_.size() ? first + kArity : heap_.size();
      for (std::size_t child = first + 1; child < end; ++child) {
        if (heap_[child] < heap_[least]) least = child;
      }
      if (!(heap_[least] < moving)) break;
      heap_[at] = heap_[least];
      at = least;
    }
    heap_[at] = moving;
  }
  void compact() {
    std::erase_if(heap_, [this](const Entry& entry) { return !alive(entry); });
    for (std::size_t at = heap_.size() / kArity + 1; at-- > 0;) {
      if (at < heap_.size()) sink(at);
    }
  }

  std::vector<Entry> heap_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::uint64_t sequence_ = 0;
  std::size_t size_ = 0;
};

}  // namespace troupe::sim
