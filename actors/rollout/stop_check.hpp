#pragma once

// Whether a token that was just appended ends its sequence.
//
// **Threads:** pure functions.

#include "actors/rollout/generate_request.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace troupe::actors {

/// Bytes of one token id; see EngineOptions::token_bytes.
using TokenBytes = std::function<std::string(std::int32_t)>;

/// Call after each token in order, with the output so far (`output_tokens` counts `token`).
/// Appends the token's bytes to `text` when stop strings are set. At a stop string, `text` is cut
/// before its first occurrence. Order: stop string, stop id, length.
std::optional<StopReason> stop_after(const SamplingOptions& options, const TokenBytes& token_bytes,
                                     std::int32_t token, std::int64_t output_tokens,
                                     std::string& text);

}  // namespace troupe::actors
