#include "runtime/config/config_builder.hpp"

#include "runtime/base/file.hpp"
#include "runtime/base/utf8.hpp"
#include "runtime/config/scalar.hpp"
#include "runtime/config/suggest.hpp"

#include <yaml-cpp/yaml.h>

#include <algorithm>

namespace troupe::runtime {
namespace {

constexpr std::size_t kFileBytesMax = std::size_t{4} << 20;
constexpr int kNodesMax = 100'000;
constexpr int kDepthMax = 64;
constexpr std::size_t kMistakesShown = 20;

bool is_quoted(const YAML::Node& node) {
  return node.Tag() == "!" || node.Tag() == "tag:yaml.org,2002:str";
}

/// The value of a scalar or list of scalars for `spec`, or what is wrong with it.
struct Reading {
  Value value;
  std::string wrong;
};

Reading wrong_type(const KeySpec& spec, std::string_view found) {
  return {Null{}, fmt::format("{} is not a value of type {}", found, value_type_name(spec.type))};
}

std::string spelled_choice(const KeySpec& spec, const std::string& text) {
  const auto at = spec.spelled.find(text);
  return at == spec.spelled.end() ? text : at->second;
}

Reading read_scalar(const KeySpec& spec, ValueType type, std::string_view text, bool quoted) {
  if (type == ValueType::kString) return {spelled_choice(spec, std::string(text)), {}};
  const std::string found = (quoted ? "the quoted text " : "") + shown(text);
  if (quoted) return wrong_type(spec, found);
  if (type == ValueType::kBool) {
    if (auto value = parse_boolean(text)) return {*value, {}};
  } else if (type == ValueType::kInt) {
    if (auto value = parse_integer(text)) return {*value, {}};
  } else if (auto value = parse_number(text)) {
    return {*value, {}};
  }
  return wrong_type(spec, found);
}

template <class T>
Reading read_list(const KeySpec& spec, ValueType element, const YAML::Node& node) {
  std::vector<T> items;
  const auto add = [&](const YAML::Node& item) -> std::string {
    if (!item.IsScalar()) {
      return fmt::format("element {} is {}, wanted {}", items.size(),
                         item.IsNull() ? "null" : "not a scalar", value_type_name(element));
    }
    Reading reading = read_scalar(spec, element, item.Scalar(), is_quoted(item));
    if (!reading.wrong.empty()) return fmt::format("element {}: {}", items.size(), reading.wrong);
    items.push_back(std::get<T>(std::move(reading.value)));
    return {};
  };
  if (node.IsScalar()) {  // one value stands for a list of one, as verl's data.train_files may
    if (auto wrong = add(node); !wrong.empty()) return wrong_type(spec, shown(node.Scalar()));
    return {std::move(items), {}};
  }
  for (const auto& item : node) {
    if (auto wrong = add(item); !wrong.empty()) return {Null{}, std::move(wrong)};
  }
  return {std::move(items), {}};
}

Reading read_node(const KeySpec& spec, const YAML::Node& node) {
  if (node.IsNull()) return {Null{}, {}};
  if (node.IsMap()) return wrong_type(spec, "a section (mapping)");
  switch (spec.type) {
    case ValueType::kIntList:
      return read_list<std::int64_t>(spec, ValueType::kInt, node);
    case ValueType::kDoubleList:
      return read_list<double>(spec, ValueType::kDouble, node);
    case ValueType::kStringList:
      return read_list<std::string>(spec, ValueType::kString, node);
    default:
      break;
  }
  if (!node.IsScalar()) return wrong_type(spec, "a list");
  return read_scalar(spec, spec.type, node.Scalar(), is_quoted(node));
}

/// A list below an open section: all integers, all numbers, or texts.
Reading infer_list(const YAML::Node& node) {
  std::vector<std::int64_t> whole;
  std::vector<double> numbers;
  std::vector<std::string> texts;
  for (const auto& item : node) {
    if (!item.IsScalar()) return {Null{}, "a list here may hold scalars only"};
    const Value value = infer_scalar(item.Scalar(), is_quoted(item));
    if (const auto* v = std::get_if<std::int64_t>(&value)) {
      whole.push_back(*v);
      numbers.push_back(static_cast<double>(*v));
    } else if (const auto* w = std::get_if<double>(&value)) {
      numbers.push_back(*w);
    }
    texts.push_back(item.Scalar());
  }
  if (texts.empty() || numbers.size() != texts.size()) return {std::move(texts), {}};
  if (whole.size() == texts.size()) return {std::move(whole), {}};
  return {std::move(numbers), {}};
}

std::string parse_problem(const YAML::Exception& error) {
  if (error.mark.is_null()) return error.msg;
  return fmt::format("line {}, column {}: {}", error.mark.line + 1, error.mark.column + 1,
                     error.msg == "bad file" ? "nested too deep, or not YAML" : error.msg);
}

}  // namespace

struct ConfigBuilder::Walk {
  YAML::Node node;
  std::string path;
  std::string place;   ///< of this node's key
  std::string source;  ///< file name; empty for an override
  int depth = 0;
  bool from_override = false;
};

void ConfigBuilder::note(const std::string& place, std::string text) {
  if (mistakes_.size() < kMistakesShown)
    mistakes_.push_back(place + ": " + std::move(text));
  else
    ++mistakes_unshown_;
}

void ConfigBuilder::add_yaml(std::string_view text, const std::string& source) {
  if (text.size() > kFileBytesMax) {
    note(source, fmt::format("{} bytes, limit {}", text.size(), kFileBytesMax));
    return;
  }
  if (!is_valid_utf8(text)) {
    note(source, "not valid UTF-8");
    return;
  }
  try {
    const auto documents = YAML::LoadAll(std::string(text));
    if (documents.size() > 1) {
      note(source, fmt::format("{} YAML documents, wanted one", documents.size()));
      return;
    }
    if (documents.empty() || documents[0].IsNull()) return;
    if (!documents[0].IsMap()) {
      note(source, "the top level must be a mapping of keys to values");
      return;
    }
    walk_map({.node = documents[0], .path = {}, .place = source, .source = source});
  } catch (const YAML::Exception& error) {
    note(source, parse_problem(error));
  }
}

void ConfigBuilder::walk_map(const Walk& at) {
  for (const auto& item : at.node) {
    if (++nodes_visited_ > kNodesMax) {
      // Noted once: everything above returns without a word.
      if (!overflowed_) {
        note(at.place, fmt::format("more than {} values (aliases count each time)", kNodesMax));
      }
      overflowed_ = true;
      return;
    }
    std::string place = at.place;
    if (!at.from_override && !item.first.Mark().is_null()) {
      place = fmt::format("{}:{}", at.source, item.first.Mark().line + 1);
    }
    const std::string section = at.path.empty() ? "the top level" : at.path;
    if (!item.first.IsScalar() || item.first.Scalar().empty()) {
      note(place, fmt::format("in {}: a key must be a plain name", section));
      continue;
    }
    const std::string& name = item.first.Scalar();
    if (name == "<<") {
      note(place,
           fmt::format("in {}: merge keys (<<) are not supported, repeat the keys", section));
      continue;
    }
    if (name.front() == '.' || name.back() == '.' || name.find("..") != std::string::npos) {
      note(place, fmt::format("in {}: {} is not a name or a dotted path", section, shown(name)));
      continue;
    }
    walk({.node = item.second,
          .path = at.path.empty() ? name : at.path + "." + name,
          .place = std::move(place),
          .source = at.source,
          .depth = at.depth + 1,
          .from_override = at.from_override});
  }
}

void ConfigBuilder::walk(const Walk& at) {
  if (at.depth > kDepthMax) {
    note(at.place,
         fmt::format("nested deeper than {} levels (does an anchor refer to itself?)", kDepthMax));
    return;
  }
  if (at.node.IsSequence()) {
    nodes_visited_ += static_cast<int>(std::min<std::size_t>(at.node.size(), kNodesMax + 1));
    if (nodes_visited_ > kNodesMax) {
      note(at.place,
           fmt::format("{}: more than {} values (aliases count each time)", at.path, kNodesMax));
      return;
    }
  }
  const auto alias = schema_.aliases().find(at.path);
  const std::string& key = alias == schema_.aliases().end() ? at.path : alias->second;
  if (const KeySpec* spec = schema_.find(key)) {
    read_leaf(*spec, at);
    return;
  }
  const bool inside_open =
      schema_.in_open_section(at.path) || schema_.open_sections().contains(at.path);
  if (schema_.is_section(at.path) || (inside_open && at.node.IsMap())) {
    if (at.node.IsMap())
      walk_map(at);
    else if (!at.node.IsNull())
      note(at.place, fmt::format("{} is a section, not a value", at.path));
    return;
  }
  if (inside_open)
    read_open_leaf(at);
  else
    note_unknown(at);
}

void ConfigBuilder::read_leaf(const KeySpec& spec, const Walk& at) {
  if (!at.from_override && !seen_in_file_.insert(spec.path).second) {
    note(at.place, fmt::format("{} is given twice, first at {}", spec.path,
                               config_.entries_[spec.path].place));
    return;
  }
  Reading reading = read_node(spec, at.node);
  if (reading.wrong.empty()) {
    if (auto wrong = check_value(spec, reading.value)) reading.wrong = std::move(*wrong);
  }
  if (!reading.wrong.empty()) note(at.place, fmt::format("{}: {}", spec.path, reading.wrong));
  // Stored even when wrong, so that a second mention is noticed and rules are not misled.
  store(spec.path, reading.wrong.empty() ? std::move(reading.value) : spec.default_value, at.place,
        at.from_override);
}

bool ConfigBuilder::open_path_is_free(const std::string& path, const std::string& place) {
  const auto below = config_.entries_.lower_bound(path + ".");
  if (below != config_.entries_.end() && below->first.starts_with(path + ".")) {
    note(place, fmt::format("{} is a value here and a section at {}", path, below->second.place));
    return false;
  }
  for (auto dot = path.rfind('.'); dot != std::string::npos; dot = path.rfind('.', dot - 1)) {
    const auto above = config_.entries_.find(path.substr(0, dot));
    if (above == config_.entries_.end()) continue;
    note(place, fmt::format("{}: {} is a value at {}", path, above->first, above->second.place));
    return false;
  }
  return true;
}

void ConfigBuilder::read_open_leaf(const Walk& at) {
  if (!at.from_override && !seen_in_file_.insert(at.path).second) {
    note(at.place, fmt::format("{} is given twice", at.path));
    return;
  }
  if (!open_path_is_free(at.path, at.place)) return;
  Reading reading;
  if (at.node.IsSequence())
    reading = infer_list(at.node);
  else if (at.node.IsScalar())
    reading.value = infer_scalar(at.node.Scalar(), is_quoted(at.node));
  if (!reading.wrong.empty())
    note(at.place, fmt::format("{}: {}", at.path, reading.wrong));
  else
    store(at.path, std::move(reading.value), at.place, at.from_override);
}

void ConfigBuilder::note_unknown(const Walk& at) {
  const auto refusal = schema_.refusals().find(at.path);
  if (refusal != schema_.refusals().end()) {
    note(at.place, fmt::format("{} is not taken: {}", at.path, refusal->second));
    return;
  }
  if (mistakes_.size() >= kMistakesShown) {
    ++mistakes_unshown_;
    return;
  }
  std::vector<std::string> known;
  for (const auto& [path, spec] : schema_.keys()) known.push_back(path);
  if (at.node.IsMap()) {  // a mistyped section: name the section, not a key
    std::set<std::string> sections;
    for (const auto& path : known) {
      for (auto dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) {
        sections.insert(path.substr(0, dot));
      }
    }
    known.assign(sections.begin(), sections.end());
  }
  const std::string hint = suggest_path(at.path, known);
  note(at.place, fmt::format("unknown {} {}{}", at.node.IsMap() ? "section" : "key", shown(at.path),
                             hint.empty() ? "" : "; " + hint));
}

void ConfigBuilder::store(const std::string& path, Value value, const std::string& place,
                          bool from_override) {
  auto& entry = config_.entries_[path];
  entry.value = std::move(value);
  entry.place = from_override ? "command line" : place;
  entry.set = true;
  if (const KeySpec* spec = schema_.find(path)) {
    entry.doc = spec->doc;
    entry.order = spec->order;
  } else if (entry.order == 0) {
    entry.order = (std::int64_t{1} << 40) + open_order_++;
  }
}

void ConfigBuilder::add_override(const std::string& text) {
  const std::string place = "command line";
  const auto equals = text.find('=');
  const std::string path = text.substr(0, equals);
  if (!is_valid_utf8(text)) {
    note(place, fmt::format("{}: not valid UTF-8", shown(path)));
    return;
  }
  if (!path.empty() && (path[0] == '+' || path[0] == '~')) {
    note(place,
         fmt::format("{}: keys are neither added nor removed here; write {}=value", shown(text),
                     path.substr(path.find_first_not_of("+~") == std::string::npos
                                     ? path.size()
                                     : path.find_first_not_of("+~"))));
    return;
  }
  if (equals == std::string::npos) {
    note(place, fmt::format("{} is not key.path=value", shown(text)));
    return;
  }
  if (path.empty() || path.front() == '.' || path.back() == '.' ||
      path.find("..") != std::string::npos) {
    note(place, fmt::format("{}: {} is not a dotted key", shown(text), shown(path)));
    return;
  }
  const std::string value = text.substr(equals + 1);
  const auto alias = schema_.aliases().find(path);
  const KeySpec* spec = schema_.find(alias == schema_.aliases().end() ? path : alias->second);
  try {
    YAML::Node node;
    const bool quoted = !value.empty() && (value[0] == '"' || value[0] == '\'');
    // Text needs no YAML quoting on a command line: `stop=#`, `name=a: b` mean what they say.
    if (spec != nullptr && spec->type == ValueType::kString && !quoted && value != "null" &&
        value != "~") {
      node = YAML::Node(value);
    } else if (value.empty()) {
      note(place, fmt::format("{}: no value; write null for none", shown(text)));
      return;
    } else {
      node = YAML::Load(value);
    }
    walk({.node = node,
          .path = path,
          .place = place,
          .source = {},
          .depth = 0,
          .from_override = true});
  } catch (const YAML::Exception& error) {
    note(place, fmt::format("{}: {}", shown(text), parse_problem(error)));
  }
}

void ConfigBuilder::fill_defaults() {
  for (const auto& [path, spec] : schema_.keys()) {
    auto& entry = config_.entries_[path];
    if (entry.set) continue;
    entry.value = spec.default_value;
    entry.doc = spec.doc;
    entry.order = spec.order;
  }
}

void ConfigBuilder::follow_fallbacks() {
  for (const auto& [path, spec] : schema_.keys()) {
    auto& entry = config_.entries_[path];
    const KeySpec* at = &spec;
    std::size_t steps = 0;
    while (!entry.set && !at->fallback.empty()) {
      const KeySpec* other = schema_.find(at->fallback);
      TROUPE_CHECK(other != nullptr && other->type == spec.type && ++steps <= schema_.keys().size(),
                   "schema: {} falls back to {}", path, at->fallback);
      const auto& source = config_.entries_[other->path];
      if (source.set && !std::holds_alternative<Null>(source.value)) {
        entry.value = source.value;
        entry.place = source.place;
        break;
      }
      at = other;
    }
  }
}

result<Config> ConfigBuilder::finish() {
  fill_defaults();
  follow_fallbacks();
  if (mistakes_.empty()) {
    for (const auto& rule : schema_.rules()) {
      if (auto done = rule(config_); !done) mistakes_.push_back(done.error().message);
    }
  }
  if (mistakes_.empty()) return std::move(config_);
  if (mistakes_.size() == 1) return fail(ErrorCode::kConfig, "{}", mistakes_[0]);
  const auto count = mistakes_.size() + static_cast<std::size_t>(mistakes_unshown_);
  return fail(ErrorCode::kConfig, "{} mistakes:\n  {}{}", count, fmt::join(mistakes_, "\n  "),
              mistakes_unshown_ > 0 ? fmt::format("\n  … and {} more", mistakes_unshown_) : "");
}

result<Config> Config::parse(const Schema& schema, std::string_view yaml, std::string_view source,
                             std::span<const std::string> overrides) {
  ConfigBuilder builder(schema);
  builder.add_yaml(yaml, std::string(source));
  for (const auto& text : overrides) builder.add_override(text);
  return builder.finish();
}

result<Config> Config::load(const Schema& schema, const std::string& file,
                            std::span<const std::string> overrides) {
  if (file.empty()) return parse(schema, "", "defaults", overrides);
  const auto text = read_text_file(file, kFileBytesMax);
  if (!text)  // the command line named it: a mistake of the configuration, like what stands in it
    return fail(ErrorCode::kConfig, "configuration file {}", text.error().message);
  return parse(schema, *text, file, overrides);
}

}  // namespace troupe::runtime
