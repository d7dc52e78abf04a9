#pragma once

// JSON from files nobody here wrote: parsed with a bound on nesting and no duplicate keys.
//
// For sources of actors/ only; public headers do not show nlohmann types.
// **Threads:** pure.
// **Cost:** one pass; the document tree is a few times the size of the text.

#include "runtime/base/result.hpp"

#include <nlohmann/json.hpp>

#include <string_view>

namespace troupe::actors {

inline constexpr int kJsonDepthMax = 64;

/// Errors: kCorrupt, `place: not valid JSON: …`, `place: key "a" appears twice`, nesting too deep.
result<nlohmann::json> parse_strict_json(std::string_view text, std::string_view place);

}  // namespace troupe::actors
