#pragma once

// Byte counts with a unit, and how they are printed.
//
// **Threads:** value types.

#include <compare>
#include <cstdint>
#include <string>

namespace troupe {

struct Bytes {
  std::int64_t value = 0;
  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes& operator+=(Bytes other) {
    value += other.value;
    return *this;
  }
  constexpr Bytes& operator-=(Bytes other) {
    value -= other.value;
    return *this;
  }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes{a.value + b.value}; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes{a.value - b.value}; }
};

constexpr Bytes kibibytes(std::int64_t n) { return Bytes{n << 10}; }
constexpr Bytes mebibytes(std::int64_t n) { return Bytes{n << 20}; }
constexpr Bytes gibibytes(std::int64_t n) { return Bytes{n << 30}; }

/// `512 B`, `1.5 KiB`, `3.2 GiB`.
std::string to_string(Bytes bytes);

}  // namespace troupe
