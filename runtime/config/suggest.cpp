#include "runtime/config/suggest.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::runtime {
namespace {

constexpr std::size_t kLongestName = 200;

std::string_view last_part(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit) {
  const std::size_t gap = a.size() > b.size() ? a.size() - b.size() : b.size() - a.size();
  if (gap > limit) return limit + 1;
  std::vector<std::size_t> before_last(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    std::size_t best = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
      best = std::min(best, row[j]);
    }
    if (best > limit) return limit + 1;
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return std::min(last[b.size()], limit + 1);
}

std::optional<std::string> nearest_name(std::string_view wanted,
                                        const std::vector<std::string>& candidates) {
  if (wanted.empty() || wanted.size() > kLongestName) return std::nullopt;
  std::size_t limit = std::max<std::size_t>(wanted.size() <= 3 ? 1 : 2, wanted.size() / 5);
  std::optional<std::string> best;
  for (const auto& candidate : candidates) {
    const std::size_t distance = edit_distance(wanted, candidate, limit);
    if (distance > limit) continue;
    best = candidate;
    if (distance == 0) break;
    limit = distance - 1;
  }
  return best;
}

std::string suggest_path(std::string_view wanted, const std::vector<std::string>& paths) {
  if (wanted.empty() || wanted.size() > kLongestName) return {};
  if (auto near = nearest_name(wanted, paths)) return fmt::format("did you mean {}?", *near);
  std::vector<std::string> same_leaf;
  for (const auto& path : paths) {
    if (last_part(path) == last_part(wanted)) same_leaf.push_back(path);
  }
  if (!same_leaf.empty()) {
    std::stable_sort(same_leaf.begin(), same_leaf.end(), [&](const auto& a, const auto& b) {
      return edit_distance(wanted, a, kLongestName) < edit_distance(wanted, b, kLongestName);
    });
    if (same_leaf.size() > 3) same_leaf.resize(3);
    return fmt::format("did you mean {}?", fmt::join(same_leaf, " or "));
  }
  std::vector<std::string> leaves;
  for (const auto& path : paths) leaves.emplace_back(last_part(path));
  if (auto near = nearest_name(last_part(wanted), leaves)) {
    const auto at = std::find(leaves.begin(), leaves.end(), *near) - leaves.begin();
    return fmt::format("did you mean {}?", paths[static_cast<std::size_t>(at)]);
  }
  return {};
}

}  // namespace troupe::runtime
