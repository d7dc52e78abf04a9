#pragma once

// Readers of the components of a tokenizer.json, for tokenizer_json.cpp only.
//
// **Threads:** pure.
// **Invariants:** a component, or an option of one, that is not implemented is kUnsupported with
// its name; nothing is skipped in silence.

#include "actors/text/tokenizer_tables.hpp"
#include "runtime/base/result.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace troupe::actors {

/// One JSON object of the file with its name for messages, e.g. `tokenizer.json: decoder`.
struct Component {
  const nlohmann::json& object;
  std::string place;

  /// Null when absent or null.
  const nlohmann::json* find(std::string_view key) const;
  result<std::string> text(std::string_view key) const;
  result<std::string> text_or(std::string_view key, std::string fallback) const;
  result<bool> flag_or(std::string_view key, bool fallback) const;
  /// A list; empty when absent.
  result<nlohmann::json> list(std::string_view key) const;
  tl::unexpected<Error> wrong(std::string_view key, std::string_view wanted) const;
};

/// Errors when `value` is no object.
result<Component> component_of(const nlohmann::json& value, std::string place);

result<void> read_normalizer(const Component& component, Normalizer& normalizer);
result<void> read_pre_tokenizer(const Component& component, PreTokenizer& pre_tokenizer);

/// Replacements applied to every token, and the rule for the start of a text.
struct DecoderRules {
  bool is_byte_level = false;
  bool has_byte_fallback = false;
  std::vector<std::pair<std::string, std::string>> replacements;
  LeadingRule leading_rule = LeadingRule::kKeep;
  int leading_spaces = 0;
  std::string marker;  ///< kDropMarkers
};
result<DecoderRules> read_decoder(const Component& component);

/// Ids that the post-processor puts around a text.
result<void> read_post_processor(const Component& component, std::vector<std::int32_t>& prefix,
                                 std::vector<std::int32_t>& suffix);

}  // namespace troupe::actors
