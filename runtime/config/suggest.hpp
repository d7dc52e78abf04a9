#pragma once

// Nearest names for what somebody mistyped.
//
// **Threads:** pure.
// **Cost:** product of the lengths per candidate; names over 200 characters get no suggestion.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b` (optimal
/// string alignment); stops counting above `limit` and returns limit + 1.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit);

/// The candidate with the smallest distance, when that is small for the word's length; the first
/// of equals.
std::optional<std::string> nearest_name(std::string_view wanted,
                                        const std::vector<std::string>& candidates);

/// What to say after `unknown key PATH`: the nearest path, else the same last part elsewhere,
/// else a near last part. Empty when nothing is close. E.g. `did you mean trainer.seed?`.
std::string suggest_path(std::string_view wanted, const std::vector<std::string>& paths);

}  // namespace troupe::runtime
