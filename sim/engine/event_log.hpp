#pragma once

// What happened in a simulation, event by event: a digest always, text where it is wanted.
//
// **Threads:** one.
// **Invariants:** the digest is a function of the sequence of records only, the same on every
// machine; two runs with equal digests had the same events at the same times in the same order
// (but for collisions of 64 bits).

#include "runtime/base/clock.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace troupe::sim {

class EventLog {
 public:
  EventLog() = default;
  /// `write` gets a line per record, without a line feed.
  explicit EventLog(std::function<void(std::string_view)> write) : write_(std::move(write)) {}

  /// `what` names the kind of record, `who` what it happened to.
  void record(TimePoint at, std::string_view what, std::uint64_t who, std::uint64_t argument);

  std::uint64_t digest() const { return digest_; }
  std::uint64_t records() const { return records_; }

 private:
  std::function<void(std::string_view)> write_;
  std::uint64_t digest_ = 0x9e3779b97f4a7c15ULL;
  std::uint64_t records_ = 0;
};

}  // namespace troupe::sim
