#include "sim/engine/event_log.hpp"

#include "runtime/base/rng.hpp"

#include <fmt/format.h>

namespace troupe::sim {
namespace {

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const char letter : text)
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3ULL;
  return hash;
}

}  // namespace

void EventLog::record(TimePoint at, std::string_view what, std::uint64_t who,
                      std::uint64_t argument) {
  const auto when = static_cast<std::uint64_t>(at.time_since_epoch().count());
  digest_ = mix_seed(digest_, when);
  digest_ = mix_seed(digest_, hash_of(what));
  digest_ = mix_seed(digest_, who);
  digest_ = mix_seed(digest_, argument);
  ++records_;
  if (write_)
    write_(fmt::format("{} {} {} {}", at.time_since_epoch().count(), what, who, argument));
}

}  // namespace troupe::sim
