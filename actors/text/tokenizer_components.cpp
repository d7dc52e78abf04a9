#include "actors/text/tokenizer_components.hpp"

#include <map>
#include <utility>

namespace troupe::actors {

using nlohmann::json;

const json* Component::find(std::string_view key) const {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

tl::unexpected<Error> Component::wrong(std::string_view key, std::string_view wanted) const {
  const json* value = find(key);
  return fail(ErrorCode::kCorrupt, "{}: {} is {}, wanted {}", place, key,
              value == nullptr ? "missing" : value->dump().substr(0, 80), wanted);
}

result<std::string> Component::text(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr || !value->is_string()) return wrong(key, "a string");
  return value->get<std::string>();
}

result<std::string> Component::text_or(std::string_view key, std::string fallback) const {
  if (find(key) == nullptr) return fallback;
  return text(key);
}

result<bool> Component::flag_or(std::string_view key, bool fallback) const {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return wrong(key, "true or false");
  return value->get<bool>();
}

result<json> Component::list(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return json::array();
  if (!value->is_array()) return wrong(key, "a list");
  return *value;
}

result<Component> component_of(const json& value, std::string place) {
  if (!value.is_object())
    return fail(ErrorCode::kCorrupt, "{}: is a JSON {}, wanted an object", place,
                value.type_name());
  return Component{value, std::move(place)};
}

namespace {

/// Calls `read` for each part of a Sequence.
template <class Read>
result<void> read_sequence(const Component& component, std::string_view key, Read read) {
  TROUPE_TRY(const json parts, component.list(key));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    TROUPE_TRY(const Component part,
               component_of(parts[i], fmt::format("{}: {} {}", component.place, key, i)));
    TROUPE_TRY_VOID(read(part));
  }
  return {};
}

tl::unexpected<Error> unsupported(const Component& component, std::string_view what) {
  return fail(ErrorCode::kUnsupported, "{}: {} is not supported", component.place, what);
}

/// {"String": "x"} or {"Regex": "x"}.
result<std::variant<std::string, Pattern>> read_pattern(const Component& component) {
  const json* value = component.find("pattern");
  if (value == nullptr) return component.wrong("pattern", "an object");
  TROUPE_TRY(const Component pattern, component_of(*value, component.place + ": pattern"));
  if (pattern.find("String") != nullptr) {
    TROUPE_TRY(std::string literal, pattern.text("String"));
    if (literal.empty()) return unsupported(pattern, "an empty string");
    return literal;
  }
  TROUPE_TRY(const std::string expression, pattern.text("Regex"));
  auto compiled = Pattern::compile(expression);
  if (!compiled)
    return fail(compiled.error().code, "{}: {}", pattern.place, compiled.error().message);
  return std::move(*compiled);
}

}  // namespace

result<void> read_normalizer(const Component& component, Normalizer& normalizer) {
  TROUPE_TRY(const std::string type, component.text("type"));
  if (type == "Sequence")
    return read_sequence(component, "normalizers",
                         [&](const Component& part) { return read_normalizer(part, normalizer); });
  static const std::map<std::string_view, UnicodeForm> kForms = {{"NFC", UnicodeForm::kNfc},
                                                                 {"NFD", UnicodeForm::kNfd},
                                                                 {"NFKC", UnicodeForm::kNfkc},
                                                                 {"NFKD", UnicodeForm::kNfkd}};
  if (const auto form = kForms.find(type); form != kForms.end()) {
    normalizer.add(form->second);
    return {};
  }
  if (type == "Prepend") {
    TROUPE_TRY(std::string text, component.text("prepend"));
    normalizer.add(PrependStep{std::move(text)});
    return {};
  }
  if (type == "Replace") {
    TROUPE_TRY(auto pattern, read_pattern(component));
    TROUPE_TRY(std::string content, component.text("content"));
    normalizer.add(ReplaceStep{std::move(pattern), std::move(content)});
    return {};
  }
  return unsupported(component, fmt::format("normalizer {}", type));
}

namespace {

result<PreTokenizerStep> read_split(const Component& component) {
  static const std::map<std::string_view, SplitBehavior> kBehaviors = {
      {"Isolated", SplitBehavior::kIsolated},
      {"Removed", SplitBehavior::kRemoved},
      {"Contiguous", SplitBehavior::kContiguous},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext}};
  TROUPE_TRY(auto pattern, read_pattern(component));
  TROUPE_TRY(const std::string name, component.text("behavior"));
  const auto behavior = kBehaviors.find(name);
  if (behavior == kBehaviors.end()) return unsupported(component, fmt::format("behavior {}", name));
  TROUPE_TRY(const bool invert, component.flag_or("invert", false));
  return SplitStep{std::move(pattern), behavior->second, invert};
}

result<PreTokenizerStep> read_byte_level(const Component& component) {
  ByteLevelStep step;
  TROUPE_TRY(step.add_prefix_space, component.flag_or("add_prefix_space", true));
  TROUPE_TRY(const bool uses_pattern, component.flag_or("use_regex", true));
  if (uses_pattern) {
    TROUPE_TRY(step.pattern, Pattern::compile(kGpt2Pattern));
  }
  return step;
}

result<PrependScheme> read_prepend_scheme(const Component& component) {
  TROUPE_TRY(const bool old_flag, component.flag_or("add_prefix_space", true));
  TROUPE_TRY(const std::string scheme,
             component.text_or("prepend_scheme", old_flag ? "always" : "never"));
  if (scheme == "always") return PrependScheme::kAlways;
  if (scheme == "first") return PrependScheme::kFirst;
  if (scheme == "never") return PrependScheme::kNever;
  return unsupported(component, fmt::format("prepend_scheme {}", scheme));
}

result<PreTokenizerStep> read_metaspace(const Component& component) {
  MetaspaceStep step;
  TROUPE_TRY(step.marker, component.text("replacement"));
  if (step.marker.empty()) return component.wrong("replacement", "a character");
  TROUPE_TRY(step.prepend, read_prepend_scheme(component));
  TROUPE_TRY(step.split, component.flag_or("split", true));
  return step;
}

}  // namespace

result<void> read_pre_tokenizer(const Component& component, PreTokenizer& pre_tokenizer) {
  TROUPE_TRY(const std::string type, component.text("type"));
  if (type == "Sequence")
    return read_sequence(component, "pretokenizers", [&](const Component& part) {
      return read_pre_tokenizer(part, pre_tokenizer);
    });
  // Behind it the text would be in the byte alphabet, where patterns mean something else.
  if (pre_tokenizer.is_byte_level())
    return unsupported(component, fmt::format("pre-tokenizer {} after ByteLevel", type));
  const auto add = [&](result<PreTokenizerStep> step) -> result<void> {
    TROUPE_TRY(PreTokenizerStep good, std::move(step));
    pre_tokenizer.add(std::move(good));
    return {};
  };
  if (type == "Split") return add(read_split(component));
  if (type == "ByteLevel") return add(read_byte_level(component));
  if (type == "Metaspace") return add(read_metaspace(component));
  if (type == "Digits") {
    TROUPE_TRY(const bool individual, component.flag_or("individual_digits", false));
    return add(DigitsStep{individual});
  }
  return unsupported(component, fmt::format("pre-tokenizer {}", type));
}

namespace {

result<void> read_decoder_part(const Component& component, bool& is_fused, DecoderRules& rules) {
  TROUPE_TRY(const std::string type, component.text("type"));
  if (type == "Sequence")
    return read_sequence(component, "decoders", [&](const Component& part) {
      return read_decoder_part(part, is_fused, rules);
    });
  if (type == "ByteLevel") {
    rules.is_byte_level = true;
    return {};
  }
  if (type == "ByteFallback") {
    rules.has_byte_fallback = true;
    return {};
  }
  if (type == "Fuse") {
    is_fused = true;
    return {};
  }
  if (type == "Replace") {
    if (is_fused || rules.has_byte_fallback)
      return unsupported(component, "Replace after ByteFallback or Fuse");
    TROUPE_TRY(auto pattern, read_pattern(component));
    auto* literal = std::get_if<std::string>(&pattern);
    if (literal == nullptr) return unsupported(component, "Replace with an expression");
    TROUPE_TRY(std::string content, component.text("content"));
    rules.replacements.emplace_back(std::move(*literal), std::move(content));
    return {};
  }
  if (type == "Strip") {
    TROUPE_TRY(const std::string content, component.text("content"));
    const auto count_of = [&](std::string_view key) -> result<int> {
      const json* value = component.find(key);
      if (value == nullptr || !value->is_number_unsigned() || value->get<std::uint64_t>() > 1000)
        return component.wrong(key, "a small count");
      return value->get<int>();
    };
    TROUPE_TRY(const int start, count_of("start"));
    TROUPE_TRY(const int stop, count_of("stop"));
    if (content != " " || stop != 0 || !is_fused)
      return unsupported(component, "Strip of anything but spaces at the start of the fused text");
    rules.leading_rule = LeadingRule::kStripSpaces;
    rules.leading_spaces += start;
    return {};
  }
  if (type == "Metaspace") {
    TROUPE_TRY(rules.marker, component.text("replacement"));
    if (rules.marker.empty()) return component.wrong("replacement", "a character");
    TROUPE_TRY(const PrependScheme scheme, read_prepend_scheme(component));
    if (scheme != PrependScheme::kNever) rules.leading_rule = LeadingRule::kDropMarkers;
    rules.replacements.emplace_back(rules.marker, " ");
    return {};
  }
  return unsupported(component, fmt::format("decoder {}", type));
}

}  // namespace

result<DecoderRules> read_decoder(const Component& component) {
  DecoderRules rules;
  bool is_fused = false;
  TROUPE_TRY_VOID(read_decoder_part(component, is_fused, rules));
  return rules;
}

namespace {

/// The ids that a template's special token stands for.
result<std::vector<std::int32_t>> template_ids(const Component& component,
                                               const std::string& name) {
  const json* table = component.find("special_tokens");
  if (table == nullptr || !table->is_object() || !table->contains(name))
    return fail(ErrorCode::kCorrupt, "{}: special_tokens does not list {}", component.place, name);
  TROUPE_TRY(const Component token,
             component_of(table->at(name), component.place + ": special_tokens: " + name));
  TROUPE_TRY(const json list, token.list("ids"));
  std::vector<std::int32_t> ids;
  for (const json& id : list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > 0x7fffffffU)
      return token.wrong("ids", "token ids");
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

result<void> read_template(const Component& component, std::vector<std::int32_t>& prefix,
                           std::vector<std::int32_t>& suffix) {
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> after;
  bool seen_text = false;
  const auto read_part = [&](const Component& part) -> result<void> {
    if (const json* sequence = part.find("Sequence"); sequence != nullptr) {
      const bool is_a = sequence->is_object() && sequence->contains("id") &&
                        sequence->at("id") == "A" && !seen_text;
      if (!is_a) return unsupported(part, "a template with more than sequence A");
      seen_text = true;
      return {};
    }
    const json* special = part.find("SpecialToken");
    if (special == nullptr) return part.wrong("SpecialToken", "an object");
    TROUPE_TRY(const Component token, component_of(*special, part.place + ": SpecialToken"));
    TROUPE_TRY(const std::string name, token.text("id"));
    TROUPE_TRY(const std::vector<std::int32_t> ids, template_ids(component, name));
    auto& side = seen_text ? after : before;
    side.insert(side.end(), ids.begin(), ids.end());
    return {};
  };
  TROUPE_TRY_VOID(read_sequence(component, "single", read_part));
  if (!seen_text) return unsupported(component, "a template without sequence A");
  // A later template goes around what earlier ones made.
  prefix.insert(prefix.begin(), before.begin(), before.end());
  suffix.insert(suffix.end(), after.begin(), after.end());
  return {};
}

}  // namespace

result<void> read_post_processor(const Component& component, std::vector<std::int32_t>& prefix,
                                 std::vector<std::int32_t>& suffix) {
  TROUPE_TRY(const std::string type, component.text("type"));
  if (type == "Sequence")
    return read_sequence(component, "processors", [&](const Component& part) {
      return read_post_processor(part, prefix, suffix);
    });
  if (type == "ByteLevel") return {};  // trims offsets only
  if (type == "TemplateProcessing") return read_template(component, prefix, suffix);
  return unsupported(component, fmt::format("post-processor {}", type));
}

}  // namespace troupe::actors
