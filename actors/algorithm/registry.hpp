#pragma once

// A table of functions by name: what the configuration names, a program may add to.
//
// A value: a program builds one (`default_advantages()`), adds its own entries, and hands it to the
// entry point. Nothing registers itself and nothing is global.
// **Threads:** a value type; constant use from any thread.
// **Invariants:** a name is added once; a lookup that fails says which known name is nearest.

#include "runtime/base/result.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::actors {

/// "advantage: unknown name 'grop', did you mean 'grpo'", or the list where nothing is near.
std::string unknown_name_message(std::string_view kind, std::string_view name,
                                 std::span<const std::string> known);

template <class Entry>
class Registry {
 public:
  /// `kind` is what messages call an entry, e.g. `advantage`.
  explicit Registry(std::string kind) : kind_(std::move(kind)) {}

  /// kAlreadyExists when the name is taken, kInvalidArgument when it is empty.
  result<void> add(std::string name, Entry entry) {
    if (name.empty()) return fail(ErrorCode::kInvalidArgument, "{}: a name is empty", kind_);
    const auto [position, is_new] = entries_.try_emplace(std::move(name), std::move(entry));
    if (!is_new)
      return fail(ErrorCode::kAlreadyExists, "{}: '{}' is registered already", kind_,
                  position->first);
    return {};
  }

  /// A copy of the entry; kConfig naming the nearest known name otherwise.
  result<Entry> find(std::string_view name) const {
    if (const auto position = entries_.find(name); position != entries_.end())
      return position->second;
    const std::vector<std::string> known = names();
    return fail(ErrorCode::kConfig, "{}", unknown_name_message(kind_, name, known));
  }

  bool contains(std::string_view name) const { return entries_.contains(name); }

  /// In order.
  std::vector<std::string> names() const {
    std::vector<std::string> known;
    known.reserve(entries_.size());
    for (const auto& [name, entry] : entries_) known.push_back(name);
    return known;
  }

 private:
  std::string kind_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace troupe::actors
