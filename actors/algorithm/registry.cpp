#include "actors/algorithm/registry.hpp"

#include <numeric>

namespace troupe::actors {
namespace {

/// Levenshtein distance of two short names.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string unknown_name_message(std::string_view kind, std::string_view name,
                                 std::span<const std::string> known) {
  const std::string* nearest = nullptr;
  std::size_t nearest_distance = 0;
  std::string list;
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(name, candidate);
    if (nearest == nullptr || distance < nearest_distance) {
      nearest = &candidate;
      nearest_distance = distance;
    }
    list += (list.empty() ? "" : ", ") + candidate;
  }
  if (nearest == nullptr)
    return fmt::format("{}: unknown name '{}', none is registered", kind, name);
  // Farther than half of its letters is no typing error.
  const bool near = 2 * nearest_distance <= std::max<std::size_t>(nearest->size(), 2);
  if (near)
    return fmt::format("{}: unknown name '{}', did you mean '{}' (known: {})", kind, name, *nearest,
                       list);
  return fmt::format("{}: unknown name '{}' (known: {})", kind, name, list);
}

}  // namespace troupe::actors
