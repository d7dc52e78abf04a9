#pragma once

// A resolved configuration: every key of a schema with a checked value, and where it came from.
//
// `Config::load` reads YAML, applies dotted overrides (`trainer.seed=3`), fills in defaults,
// checks types, ranges and cross-key rules, and reports every mistake with the full key, file and
// line, and the nearest known name.
// **Threads:** a value type; reading from several threads is safe.
// **Invariants:** holds exactly the keys of its schema (plus those below open sections), each of
// the declared type; `to_yaml()` parses back to an equal tree.
// **Cost:** look-up is one search in an ordered map; files up to 4 MiB, 100 000 nodes, depth 64.

#include "runtime/base/check.hpp"
#include "runtime/base/result.hpp"
#include "runtime/config/schema.hpp"

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

class Config {
 public:
  /// Reads `file` (empty path: defaults and overrides only). Later overrides win over earlier
  /// ones and over the file. Errors: kNotFound, kIo, kConfig.
  static result<Config> load(const Schema& schema, const std::string& file,
                             std::span<const std::string> overrides = {});
  /// As load, from YAML text; `source` names it in messages.
  static result<Config> parse(const Schema& schema, std::string_view yaml, std::string_view source,
                              std::span<const std::string> overrides = {});

  /// The value of a declared key. T: bool, int, std::int64_t, double, std::string,
  /// std::vector<std::int64_t | double | std::string>, or std::optional of these for nullable
  /// keys. An undeclared key, another type, or null into a plain T is a failed CHECK.
  template <class T>
  T get(std::string_view key) const {
    return ValueReader<T>::read(key, value(key));
  }
  /// As get, but empty when the key is null.
  template <class T>
  std::optional<T> get_optional(std::string_view key) const {
    return ValueReader<std::optional<T>>::read(key, value(key));
  }

  const Value& value(std::string_view key) const;
  bool has(std::string_view key) const;  ///< declared, or given below an open section
  bool is_null(std::string_view key) const;
  bool is_set(std::string_view key) const;  ///< given by file or override, not a default
  /// `config.yaml:12`, `command line`, or `default`.
  std::string place(std::string_view key) const;

  /// All keys below `section` (all keys when empty), with that prefix stripped.
  std::vector<std::string> keys_below(std::string_view section) const;

  /// The whole tree, defaults included, in declaration order, with doc lines as comments.
  std::string to_yaml(bool comments = false) const;

  /// A kConfig error that names the key, its value and its place, for rules.
  template <class... Args>
  [[nodiscard]] tl::unexpected<Error> refuse(std::string_view key,
                                             fmt::format_string<Args...> format,
                                             Args&&... args) const {
    return refuse_text(key, fmt::format(format, std::forward<Args>(args)...));
  }

  /// Equal when every key has an equal value; places do not count.
  bool operator==(const Config& other) const;

 private:
  friend class ConfigBuilder;
  struct Entry {
    Value value;
    std::string place = "default";
    bool set = false;
    std::string doc;
    std::int64_t order = 0;  ///< declaration order
  };

  [[nodiscard]] tl::unexpected<Error> refuse_text(std::string_view key, std::string text) const;

  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace troupe::runtime
