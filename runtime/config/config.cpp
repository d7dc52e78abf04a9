#include "runtime/config/config.hpp"

#include "runtime/config/scalar.hpp"

#include <algorithm>
#include <limits>

namespace troupe::runtime {
namespace {

/// One level of the printed tree.
struct Node {
  const Value* value = nullptr;
  const std::string* doc = nullptr;
  std::int64_t order = std::numeric_limits<std::int64_t>::max();
  std::map<std::string, Node, std::less<>> children;
};

void print(const Node& node, int indent, bool comments, std::string& out) {
  std::vector<std::pair<const std::string*, const Node*>> ordered;
  for (const auto& [name, child] : node.children) ordered.emplace_back(&name, &child);
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return a.second->order < b.second->order; });
  for (const auto& [name, child] : ordered) {
    out.append(static_cast<std::size_t>(indent) * 2, ' ');
    out += quoted_yaml(*name) + ":";
    if (child->value != nullptr) {
      out += " " + to_yaml_text(*child->value);
      if (comments && !child->doc->empty()) out += "  # " + *child->doc;
    }
    out += '\n';
    print(*child, indent + 1, comments, out);
  }
}

}  // namespace

const Value& Config::value(std::string_view key) const {
  const auto at = entries_.find(key);
  TROUPE_CHECK(at != entries_.end(), "config key {} is not declared", key);
  return at->second.value;
}

bool Config::has(std::string_view key) const { return entries_.contains(key); }

bool Config::is_null(std::string_view key) const {
  return std::holds_alternative<Null>(value(key));
}

bool Config::is_set(std::string_view key) const {
  const auto at = entries_.find(key);
  TROUPE_CHECK(at != entries_.end(), "config key {} is not declared", key);
  return at->second.set;
}

std::string Config::place(std::string_view key) const {
  const auto at = entries_.find(key);
  TROUPE_CHECK(at != entries_.end(), "config key {} is not declared", key);
  return at->second.place;
}

std::vector<std::string> Config::keys_below(std::string_view section) const {
  const std::string prefix = section.empty() ? std::string() : std::string(section) + ".";
  std::vector<std::string> keys;
  for (auto at = entries_.lower_bound(prefix); at != entries_.end(); ++at) {
    if (!at->first.starts_with(prefix)) break;
    keys.push_back(at->first.substr(prefix.size()));
  }
  return keys;
}

std::string Config::to_yaml(bool comments) const {
  Node root;
  for (const auto& [path, entry] : entries_) {
    Node* node = &root;
    std::size_t begin = 0;
    while (true) {
      const auto dot = path.find('.', begin);
      node = &node->children[path.substr(begin, dot - begin)];
      node->order = std::min(node->order, entry.order);
      if (dot == std::string::npos) break;
      begin = dot + 1;
    }
    node->value = &entry.value;
    node->doc = &entry.doc;
  }
  std::string out;
  print(root, 0, comments, out);
  return out;
}

tl::unexpected<Error> Config::refuse_text(std::string_view key, std::string text) const {
  return fail(ErrorCode::kConfig, "{}: {} = {}: {}", place(key), key,
              shown(to_yaml_text(value(key))), text);
}

bool Config::operator==(const Config& other) const {
  return std::equal(entries_.begin(), entries_.end(), other.entries_.begin(), other.entries_.end(),
                    [](const auto& a, const auto& b) {
                      // The text, so that NaN equals NaN.
                      return a.first == b.first &&
                             a.second.value.index() == b.second.value.index() &&
                             to_yaml_text(a.second.value) == to_yaml_text(b.second.value);
                    });
}

}  // namespace troupe::runtime
