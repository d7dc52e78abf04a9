#include "actors/rollout/stop_check.hpp"

#include <algorithm>

namespace troupe::actors {
namespace {

/// Cuts `text` before the first stop string that ends in its last `fresh` bytes.
bool cut_at_stop(const std::vector<std::string>& stops, std::size_t fresh, std::string& text) {
  std::size_t cut = std::string::npos;
  for (const std::string& stop : stops) {
    const std::size_t old = text.size() - fresh;
    const std::size_t begin = old >= stop.size() ? old - stop.size() + 1 : 0;
    cut = std::min(cut, text.find(stop, begin));
  }
  if (cut == std::string::npos) return false;
  text.resize(cut);
  return true;
}

}  // namespace

std::optional<StopReason> stop_after(const SamplingOptions& options, const TokenBytes& token_bytes,
                                     std::int32_t token, std::int64_t output_tokens,
                                     std::string& text) {
  if (!options.stop_strings.empty()) {
    const std::string bytes = token_bytes(token);
    text += bytes;
    if (cut_at_stop(options.stop_strings, bytes.size(), text)) return StopReason::kStopString;
  }
  if (!options.ignore_eos && std::ranges::find(options.stop_ids, token) != options.stop_ids.end())
    return StopReason::kStopId;
  if (output_tokens >= options.max_new_tokens) return StopReason::kLength;
  return std::nullopt;
}

}  // namespace troupe::actors
