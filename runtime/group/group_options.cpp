#include "runtime/group/group_options.hpp"

#include <fmt/format.h>

namespace troupe::runtime {

std::string RankStatus::to_string() const {
  if (dead) return fmt::format("rank {}: dead: {}", rank.value, cause);
  if (!busy) return fmt::format("rank {}: idle after {} calls", rank.value, calls_done);
  std::string text = fmt::format("rank {}: {} for {:.1f} s", rank.value, method, busy_seconds);
  if (!waits_for.empty())
    text += fmt::format(", waits for {} for {:.1f} s", waits_for, waiting_seconds);
  return text;
}

}  // namespace troupe::runtime
