#pragma once

// Keys of how long prompts and answers are, `simulation.lengths.*`.
//
// **Threads:** pure, but for the file of an empirical distribution.

#include "runtime/config/config.hpp"
#include "sim/workload/lengths.hpp"

#include <cstdint>
#include <string>

namespace troupe::sim {

/// `section` is `simulation.lengths.prompt` or `….response`, `tokens_max` what the run allows and
/// `bound` the key that says so. kConfig naming the key that is missing or does not fit.
result<LengthOptions> length_options(const runtime::Config& config, const std::string& section,
                                     std::int64_t tokens_max, const std::string& bound);

}  // namespace troupe::sim
