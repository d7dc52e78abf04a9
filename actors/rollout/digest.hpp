#pragma once

// A running 64-bit digest of values in order: what ranks compare to know that they agree.
//
// Not cryptographic: it finds differences by mistake, not by intent.
// **Threads:** a value type.

#include "runtime/base/rng.hpp"

#include <bit>
#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace troupe::actors {

class Digest {
 public:
  void add(std::integral auto value) {
    state_ = mix_seed(state_, static_cast<std::uint64_t>(value));
  }
  void add(double value) { add(std::bit_cast<std::uint64_t>(value)); }
  void add(float value) { add(std::bit_cast<std::uint32_t>(value)); }
  void add(std::string_view text) {
    add(text.size());
    for (const char c : text) add(static_cast<unsigned char>(c));
  }
  template <class T>
  void add_all(const std::vector<T>& values) {
    add(values.size());
    for (const T& value : values) add(value);
  }
  /// As a number that collectives carry.
  std::int64_t value() const { return std::bit_cast<std::int64_t>(state_); }

 private:
  std::uint64_t state_ = 0;
};

}  // namespace troupe::actors
