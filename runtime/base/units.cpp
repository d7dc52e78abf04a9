#include "runtime/base/units.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace troupe {

std::string to_string(Bytes bytes) {
  constexpr std::array<const char*, 5> kNames{"B", "KiB", "MiB", "GiB", "TiB"};
  auto amount = static_cast<double>(bytes.value);
  std::size_t unit = 0;
  while (std::abs(amount) >= 1024.0 && unit + 1 < kNames.size()) {
    amount /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes.value)
                   : fmt::format("{:.1f} {}", amount, kNames[unit]);
}

}  // namespace troupe
