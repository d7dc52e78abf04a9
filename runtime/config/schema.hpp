#pragma once

// What a configuration may contain: one declaration per key with type, default, doc line and
// checks, and rules that look at several keys.
//
// A program declares its schema once in code (see apps/training/train_schema.hpp) and hands it to
// `Config`.
// **Threads:** built by one thread, then read-only.
// **Invariants:** keys are dotted paths; no key is also a section; a default passes its own
// checks (a failed CHECK otherwise).

#include "runtime/base/check.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace troupe::runtime {

class Config;

struct Null {
  bool operator==(const Null&) const = default;
};

/// Alternatives are in the order of ValueType.
using Value = std::variant<Null, bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                           std::vector<double>, std::vector<std::string>>;

enum class ValueType { kNull, kBool, kInt, kDouble, kString, kIntList, kDoubleList, kStringList };

std::string_view value_type_name(ValueType type);  ///< `integer`, `list of numbers`, …
std::string to_yaml_text(const Value& value);      ///< one line of flow YAML that parses back

/// Bounds of a number; both ends belong to it unless opened. Lists check each element.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;
  bool max_open = false;
};
inline Range at_least(double min) { return {.min = min}; }
inline Range above(double min) { return {.min = min, .min_open = true}; }
inline Range between(double min, double max) { return {.min = min, .max = max}; }
inline Range positive() { return above(0); }

/// One declared key. Build with the functions of Schema, refine with the chained setters.
struct KeySpec {
  std::string path;
  ValueType type = ValueType::kString;
  Value default_value;
  std::string doc;
  bool nullable = false;
  std::optional<Range> range;
  bool non_finite = false;                     ///< inf and nan are allowed
  std::vector<std::string> choices;            ///< for strings; empty: any
  std::map<std::string, std::string> spelled;  ///< other spelling of a choice → the choice
  std::optional<std::size_t> list_size;        ///< exact length of a list
  std::string fallback;                        ///< key whose value this one takes when not set
  std::int64_t order = 0;

  KeySpec& within(Range wanted);
  KeySpec& one_of(std::vector<std::string> wanted);
  /// Another spelling of a choice, e.g. verl's `low_var_kl` for `k3`.
  KeySpec& also_spelled(std::string other, std::string choice);
  KeySpec& or_null();
  KeySpec& allow_non_finite();
  KeySpec& of_size(std::size_t count);
  /// Takes the value of `other` when that key was given (or is not null) and this one was not.
  KeySpec& or_value_of(std::string other);
};

/// A check over several keys; return `config.refuse(key, …)` to reject.
using Rule = std::function<result<void>(const Config&)>;

class Schema {
 public:
  KeySpec& boolean(std::string key, bool default_value, std::string doc);
  KeySpec& integer(std::string key, std::int64_t default_value, std::string doc);
  KeySpec& number(std::string key, double default_value, std::string doc);
  KeySpec& text(std::string key, std::string default_value, std::string doc);
  KeySpec& integers(std::string key, std::vector<std::int64_t> default_value, std::string doc);
  KeySpec& numbers(std::string key, std::vector<double> default_value, std::string doc);
  KeySpec& texts(std::string key, std::vector<std::string> default_value, std::string doc);
  /// Nullable keys whose default is null.
  KeySpec& optional_key(std::string key, ValueType type, std::string doc);

  /// Keys below `section` are not declared here: any scalar or list is kept as it is written.
  void open_section(std::string section, std::string doc);
  /// A key that some users will try and that this build does not take; `why` says what to write.
  void refused(std::string key, std::string why);
  /// Another full path for a key; giving both is an error.
  void alias(std::string other_path, std::string key);
  void rule(Rule check);

  const KeySpec* find(std::string_view key) const;
  bool is_section(std::string_view path) const;
  bool in_open_section(std::string_view path) const;
  const std::map<std::string, KeySpec, std::less<>>& keys() const { return keys_; }
  const std::map<std::string, std::string, std::less<>>& refusals() const { return refusals_; }
  const std::map<std::string, std::string, std::less<>>& aliases() const { return aliases_; }
  const std::map<std::string, std::string, std::less<>>& open_sections() const { return open_; }
  const std::vector<Rule>& rules() const { return rules_; }

  /// One line per key: path, type, default, doc; for `--help-config` and the docs.
  std::string describe() const;

 private:
  KeySpec& declare(KeySpec spec);

  std::map<std::string, KeySpec, std::less<>> keys_;
  std::map<std::string, std::string, std::less<>> refusals_;
  std::map<std::string, std::string, std::less<>> aliases_;
  std::map<std::string, std::string, std::less<>> open_;
  std::map<std::string, int, std::less<>> sections_;
  std::vector<Rule> rules_;
};

/// Null when `value` passes the checks of `spec`, otherwise what is wrong with it.
std::optional<std::string> check_value(const KeySpec& spec, const Value& value);

/// How `Config::get<T>` turns a Value into a T.
template <class T>
struct ValueReader {
  static T read(std::string_view key, const Value& value) {
    if constexpr (std::is_same_v<T, int>) {
      const auto wide = ValueReader<std::int64_t>::read(key, value);
      TROUPE_CHECK(std::in_range<int>(wide), "config key {}: {} does not fit an int", key, wide);
      return static_cast<int>(wide);
    } else {
      const T* found = std::get_if<T>(&value);
      TROUPE_CHECK(found != nullptr, "config key {} is a {}, asked for as another type", key,
                   value_type_name(static_cast<ValueType>(value.index())));
      return *found;
    }
  }
};
template <class T>
struct ValueReader<std::optional<T>> {
  static std::optional<T> read(std::string_view key, const Value& value) {
    if (std::holds_alternative<Null>(value)) return std::nullopt;
    return ValueReader<T>::read(key, value);
  }
};

}  // namespace troupe::runtime
