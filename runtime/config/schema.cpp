#include "runtime/config/schema.hpp"

#include "runtime/config/scalar.hpp"
#include "runtime/config/suggest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace troupe::runtime {
namespace {

std::string number_text(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

template <class T, class Show>
std::string list_text(const std::vector<T>& items, Show show) {
  std::string text = "[";
  for (const auto& item : items) text += (text.size() > 1 ? ", " : "") + show(item);
  return text + "]";
}

std::string range_text(const Range& range) {
  const bool low = std::isfinite(range.min);
  const bool high = std::isfinite(range.max);
  if (low && high) {
    return fmt::format("in {}{:g}, {:g}{}", range.min_open ? '(' : '[', range.min, range.max,
                       range.max_open ? ')' : ']');
  }
  if (low) return fmt::format("{} {:g}", range.min_open ? "above" : "at least", range.min);
  return fmt::format("{} {:g}", range.max_open ? "below" : "at most", range.max);
}

std::optional<std::string> check_number(const KeySpec& spec, double value) {
  if (!std::isfinite(value) && !spec.non_finite) {
    return fmt::format("{} is not finite", number_text(value));
  }
  if (!spec.range || std::isnan(value)) return std::nullopt;
  const Range& range = *spec.range;
  const bool low = range.min_open ? value <= range.min : value < range.min;
  const bool high = range.max_open ? value >= range.max : value > range.max;
  if (!low && !high) return std::nullopt;
  return fmt::format("{:g} is out of range, wanted {}", value, range_text(range));
}

std::optional<std::string> check_choice(const KeySpec& spec, const std::string& value) {
  if (spec.choices.empty() ||
      std::find(spec.choices.begin(), spec.choices.end(), value) != spec.choices.end()) {
    return std::nullopt;
  }
  std::vector<std::string> names = spec.choices;
  for (const auto& [other, choice] : spec.spelled) names.push_back(other);
  const auto near = nearest_name(value, names);
  return fmt::format("{} is not one of {}{}", shown(value), fmt::join(spec.choices, ", "),
                     near ? fmt::format("; did you mean {}?", *near) : "");
}

template <class T, class Check>
std::optional<std::string> check_list(const KeySpec& spec, const std::vector<T>& items,
                                      Check check) {
  if (spec.list_size && items.size() != *spec.list_size) {
    return fmt::format("has {} elements, wanted {}", items.size(), *spec.list_size);
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (auto wrong = check(items[i])) return fmt::format("element {}: {}", i, *wrong);
  }
  return std::nullopt;
}

}  // namespace

std::string_view value_type_name(ValueType type) {
  switch (type) {
    case ValueType::kNull:
      return "null";
    case ValueType::kBool:
      return "boolean";
    case ValueType::kInt:
      return "integer";
    case ValueType::kDouble:
      return "number";
    case ValueType::kString:
      return "text";
    case ValueType::kIntList:
      return "list of integers";
    case ValueType::kDoubleList:
      return "list of numbers";
    case ValueType::kStringList:
      return "list of texts";
  }
  return "?";
}

std::string to_yaml_text(const Value& value) {
  struct Show {
    std::string operator()(Null) const { return "null"; }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(std::int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return number_text(v); }
    std::string operator()(const std::string& v) const { return quoted_yaml(v); }
    std::string operator()(const std::vector<std::int64_t>& v) const {
      return list_text(v, [](std::int64_t x) { return std::to_string(x); });
    }
    std::string operator()(const std::vector<double>& v) const { return list_text(v, number_text); }
    std::string operator()(const std::vector<std::string>& v) const {
      return list_text(v, quoted_yaml);
    }
  };
  return std::visit(Show{}, value);
}

std::optional<std::string> check_value(const KeySpec& spec, const Value& value) {
  const auto number = [&](auto v) { return check_number(spec, static_cast<double>(v)); };
  const auto choice = [&](const std::string& v) { return check_choice(spec, v); };
  if (std::holds_alternative<Null>(value)) {
    if (spec.nullable) return std::nullopt;
    return fmt::format("null is not allowed, wanted {}", value_type_name(spec.type));
  }
  if (const auto* v = std::get_if<std::int64_t>(&value)) return number(*v);
  if (const auto* v = std::get_if<double>(&value)) return number(*v);
  if (const auto* v = std::get_if<std::string>(&value)) return choice(*v);
  if (const auto* v = std::get_if<std::vector<std::int64_t>>(&value)) {
    return check_list(spec, *v, number);
  }
  if (const auto* v = std::get_if<std::vector<double>>(&value)) return check_list(spec, *v, number);
  if (const auto* v = std::get_if<std::vector<std::string>>(&value)) {
    return check_list(spec, *v, choice);
  }
  return std::nullopt;
}

namespace {

void check_default(const KeySpec& spec) {
  const auto wrong = check_value(spec, spec.default_value);
  TROUPE_CHECK(!wrong, "schema: default of {}: {}", spec.path, *wrong);
}

}  // namespace

KeySpec& KeySpec::within(Range wanted) {
  range = wanted;
  check_default(*this);
  return *this;
}
KeySpec& KeySpec::one_of(std::vector<std::string> wanted) {
  choices = std::move(wanted);
  check_default(*this);
  return *this;
}
KeySpec& KeySpec::also_spelled(std::string other, std::string choice) {
  TROUPE_CHECK(std::find(choices.begin(), choices.end(), choice) != choices.end(),
               "schema: {}: {} is spelled for {}, which is not a choice", path, other, choice);
  spelled[std::move(other)] = std::move(choice);
  return *this;
}
KeySpec& KeySpec::or_null() {
  nullable = true;
  return *this;
}
KeySpec& KeySpec::allow_non_finite() {
  non_finite = true;
  return *this;
}
KeySpec& KeySpec::of_size(std::size_t count) {
  list_size = count;
  check_default(*this);
  return *this;
}
KeySpec& KeySpec::or_value_of(std::string other) {
  fallback = std::move(other);
  return *this;
}

KeySpec& Schema::declare(KeySpec spec) {
  const std::string path = spec.path;
  TROUPE_CHECK(!path.empty() && path.front() != '.' && path.back() != '.' &&
                   path.find("..") == std::string::npos,
               "schema: key '{}' is not a dotted path", path);
  TROUPE_CHECK(!keys_.contains(path) && !sections_.contains(path) && !aliases_.contains(path) &&
                   !in_open_section(path),
               "schema: {} is declared twice", path);
  for (auto dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) {
    const std::string section = path.substr(0, dot);
    TROUPE_CHECK(!keys_.contains(section), "schema: {} is a key and a section", section);
    ++sections_[section];
  }
  spec.order = static_cast<std::int64_t>(keys_.size());
  return keys_.emplace(path, std::move(spec)).first->second;
}

KeySpec& Schema::boolean(std::string key, bool default_value, std::string doc) {
  KeySpec spec;
  spec.path = std::move(key);
  spec.type = ValueType::kBool;
  spec.default_value = default_value;
  spec.doc = std::move(doc);
  return declare(std::move(spec));
}
KeySpec& Schema::integer(std::string key, std::int64_t default_value, std::string doc) {
  KeySpec spec;
  spec.path = std::move(key);
  spec.type = ValueType::kInt;
  spec.default_value = default_value;
  spec.doc = std::move(doc);
  return declare(std::move(spec));
}
KeySpec& Schema::number(std::string key, double default_value, std::string doc) {
  KeySpec spec;
  spec.path = std::move(key);
  spec.type = ValueType::kDouble;
  spec.default_value = default_value;
  spec.doc = std::move(doc);
  return declare(std::move(spec));
}
KeySpec& Schema::text(std::string key, std::string default_value, std::string doc) {
  KeySpec spec;
  spec.path = std::move(key);
  spec.type = ValueType::kString;
  spec.default_value = std::move(default_value);
  spec.doc = std::move(doc);
  return declare(std::move(spec));
}
KeySpec& Schema::integers(std::string key, std::vector<std::int64_t> default_value,
                          std::string doc) {
  KeySpec spec;
  spec.path = std::move(key);
  spec.type = ValueType::kIntList;
  spec.default_value = std::move(default_value);
  spec.doc = std::move(doc);
  return declare(std::move(spec));
}
KeySpec& Schema::numbers(std::string key, std::vector<double> default_value, std::string doc) {
  KeySpec spec;
  spec.path = std::move(key);
  spec.type = ValueType::kDoubleList;
  spec.default_value = std::move(default_value);
  spec.doc = std::move(doc);
  return declare(std::move(spec));
}
KeySpec& Schema::texts(std::string key, std::vector<std::string> default_value, std::string doc) {
  KeySpec spec;
  spec.path = std::move(key);
  spec.type = ValueType::kStringList;
  spec.default_value = std::move(default_value);
  spec.doc = std::move(doc);
  return declare(std::move(spec));
}
KeySpec& Schema::optional_key(std::string key, ValueType type, std::string doc) {
  TROUPE_CHECK(type != ValueType::kNull, "schema: {} can only be null", key);
  KeySpec spec;
  spec.path = std::move(key);
  spec.type = type;
  spec.default_value = Null{};
  spec.doc = std::move(doc);
  spec.nullable = true;
  return declare(std::move(spec));
}

void Schema::open_section(std::string section, std::string doc) {
  TROUPE_CHECK(!keys_.contains(section) && !sections_.contains(section),
               "schema: open section {} is declared already", section);
  for (auto dot = section.find('.'); dot != std::string::npos; dot = section.find('.', dot + 1)) {
    ++sections_[section.substr(0, dot)];
  }
  open_[std::move(section)] = std::move(doc);
}
void Schema::refused(std::string key, std::string why) {
  TROUPE_CHECK(!keys_.contains(key), "schema: {} is declared and refused", key);
  refusals_[std::move(key)] = std::move(why);
}
void Schema::alias(std::string other_path, std::string key) {
  TROUPE_CHECK(keys_.contains(key), "schema: {} is another path for {}, which is not declared",
               other_path, key);
  TROUPE_CHECK(!keys_.contains(other_path), "schema: {} is declared twice", other_path);
  for (auto dot = other_path.find('.'); dot != std::string::npos;
       dot = other_path.find('.', dot + 1)) {
    ++sections_[other_path.substr(0, dot)];
  }
  aliases_[std::move(other_path)] = std::move(key);
}
void Schema::rule(Rule check) { rules_.push_back(std::move(check)); }

const KeySpec* Schema::find(std::string_view key) const {
  const auto at = keys_.find(key);
  return at == keys_.end() ? nullptr : &at->second;
}

bool Schema::is_section(std::string_view path) const {
  return sections_.contains(path) || open_.contains(path);
}

bool Schema::in_open_section(std::string_view path) const {
  for (auto dot = path.rfind('.'); dot != std::string_view::npos; dot = path.rfind('.', dot - 1)) {
    if (open_.contains(path.substr(0, dot))) return true;
    if (dot == 0) break;
  }
  return false;
}

std::string Schema::describe() const {
  std::vector<const KeySpec*> ordered;
  for (const auto& [path, spec] : keys_) ordered.push_back(&spec);
  std::sort(ordered.begin(), ordered.end(),
            [](const auto* a, const auto* b) { return a->order < b->order; });
  std::string text;
  for (const auto* spec : ordered) {
    std::string type(value_type_name(spec->type));
    if (!spec->choices.empty()) type = fmt::format("{}", fmt::join(spec->choices, " | "));
    if (spec->nullable) type += " or null";
    if (spec->range) type += " " + range_text(*spec->range);
    text += fmt::format("{} = {}  ({}): {}\n", spec->path, to_yaml_text(spec->default_value), type,
                        spec->doc);
  }
  for (const auto& [section, doc] : open_) text += fmt::format("{}.*  (any): {}\n", section, doc);
  return text;
}

}  // namespace troupe::runtime
