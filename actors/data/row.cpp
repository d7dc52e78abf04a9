#include "actors/data/row.hpp"

#include "actors/text/strict_json.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace troupe::actors {
namespace {

using nlohmann::json;

constexpr std::size_t kBytesShown = 60;

/// What stands in the file, in words: `nothing`, `text "abc"`, `number 5`, `a list of 3`.
std::string describe(const json* value) {
  if (value == nullptr) return "nothing";
  switch (value->type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return fmt::format("an object of {}", value->size());
    case json::value_t::array:
      return fmt::format("a list of {}", value->size());
    case json::value_t::string: {
      const auto& text = value->get_ref<const std::string&>();
      return fmt::format("text \"{}\"{}", text.substr(0, kBytesShown),
                         text.size() > kBytesShown ? "…" : "");
    }
    case json::value_t::boolean:
      return value->get<bool>() ? "true" : "false";
    default:
      return "number " + value->dump();
  }
}

const json* member(const json& object, const std::string& key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

/// Reads fields of one row; every error names place, field, what was wanted and what was found.
class RowReader {
 public:
  RowReader(const json& row, std::string_view place, const RowOptions& options)
      : row_(row), place_(place), options_(options) {}

  result<PromptRow> read() const {
    const bool plain_gsm8k = member(row_, options_.prompt_key) == nullptr &&
                             member(row_, "question") != nullptr &&
                             member(row_, "answer") != nullptr;
    return plain_gsm8k ? read_gsm8k() : read_schema();
  }

 private:
  tl::unexpected<Error> wrong(std::string_view field, std::string_view wanted,
                              const json* found) const {
    return fail(ErrorCode::kCorrupt, "{}: {}: wanted {}, found {}{}", place_, field, wanted,
                describe(found), found == nullptr ? keys() : "");
  }

  /// The keys that the row does have, for messages about one that it lacks.
  std::string keys() const {
    std::string text;
    for (const auto& entry : row_.items()) {
      if (text.size() > kBytesShown) return " (keys: " + text + ", …)";
      text += (text.empty() ? "" : ", ") + entry.key().substr(0, kBytesShown);
    }
    return " (keys: " + text + ")";
  }

  result<std::string> text(const std::string& key, bool required) const {
    const json* value = member(row_, key);
    if ((value == nullptr || value->is_null()) && !required) return std::string();
    if (value == nullptr || !value->is_string() ||
        (required && value->get_ref<const std::string&>().empty()))
      return wrong(key, required ? "text that is not empty" : "text", value);
    return value->get<std::string>();
  }

  result<PromptRow> read_schema() const {
    PromptRow row;
    TROUPE_TRY(row.prompt, prompt());
    TROUPE_TRY(row.data_source, text(options_.source_key, options_.require_ground_truth));
    TROUPE_TRY(row.ability, text("ability", false));
    TROUPE_TRY(row.response, text(options_.response_key, options_.require_response));
    TROUPE_TRY_VOID(read_reward_model(row));
    const json* extra = member(row_, "extra_info");
    if (extra != nullptr && !extra->is_null()) {
      if (!extra->is_object()) return wrong("extra_info", "an object", extra);
      row.extra_info = extra->dump();
    }
    return row;
  }

  result<std::vector<Message>> prompt() const {
    const std::string& key = options_.prompt_key;
    const json* value = member(row_, key);
    if (value != nullptr && value->is_string() && !value->get_ref<const std::string&>().empty())
      return std::vector<Message>{{.role = "user", .content = value->get<std::string>()}};
    if (value == nullptr || !value->is_array() || value->empty())
      return wrong(key, "a list of messages or text that is not empty", value);
    std::vector<Message> messages;
    for (std::size_t i = 0; i < value->size(); ++i) {
      const json& entry = (*value)[i];
      const std::string field = fmt::format("{}[{}]", key, i);
      if (!entry.is_object()) return wrong(field, "an object of role and content", &entry);
      const json* role = member(entry, "role");
      const json* content = member(entry, "content");
      if (role == nullptr || !role->is_string() || role->get_ref<const std::string&>().empty())
        return wrong(field + ".role", "text that is not empty", role);
      if (content == nullptr || !content->is_string())
        return wrong(field + ".content", "text", content);
      messages.push_back(
          {.role = role->get<std::string>(), .content = content->get<std::string>()});
    }
    return messages;
  }

  result<void> read_reward_model(PromptRow& row) const {
    const json* model = member(row_, "reward_model");
    if (model == nullptr || model->is_null()) {
      if (options_.require_ground_truth) return wrong("reward_model", "an object", model);
      return {};
    }
    if (!model->is_object()) return wrong("reward_model", "an object", model);
    const json* style = member(*model, "style");
    if (style != nullptr && !style->is_string()) return wrong("reward_model.style", "text", style);
    if (style != nullptr) row.reward_style = style->get<std::string>();
    const json* truth = member(*model, "ground_truth");
    const bool absent = truth == nullptr || truth->is_null();
    if (absent && options_.require_ground_truth)
      return wrong("reward_model.ground_truth", "a value", truth);
    if (absent) return {};
    row.ground_truth_is_json = !truth->is_string();
    row.ground_truth = truth->is_string() ? truth->get<std::string>() : truth->dump();
    return {};
  }

  result<PromptRow> read_gsm8k() const {
    TROUPE_TRY(const std::string question, text("question", true));
    TROUPE_TRY(const std::string answer, text("answer", true));
    const std::size_t marker = answer.rfind("####");
    std::string truth = marker == std::string::npos ? "" : answer.substr(marker + 4);
    std::erase_if(truth, [](char c) { return c == ',' || c == ' ' || c == '\n' || c == '\r'; });
    if (truth.empty())
      return wrong("answer", "text that ends on `#### number`", member(row_, "answer"));
    const std::string suffix =
        options_.gsm8k_instruction.empty() ? "" : " " + options_.gsm8k_instruction;
    return PromptRow{.prompt_id = 0,
                     .data_source = "openai/gsm8k",
                     .prompt = {{.role = "user", .content = question + suffix}},
                     .ability = "math",
                     .reward_style = "rule",
                     .ground_truth = truth,
                     .ground_truth_is_json = false,
                     .extra_info = json{{"question", question}, {"answer", answer}}.dump(),
                     .response = answer};
  }

  const json& row_;
  std::string_view place_;
  const RowOptions& options_;
};

}  // namespace

result<PromptRow> row_from_json(std::string_view text, std::string_view place,
                                const RowOptions& options) {
  TROUPE_TRY(const json row, parse_strict_json(text, place));
  if (!row.is_object())
    return fail(ErrorCode::kCorrupt, "{}: wanted an object, found {}", place, describe(&row));
  return RowReader(row, place, options).read();
}

std::string row_to_json(const PromptRow& row) {
  nlohmann::ordered_json out;
  out["data_source"] = row.data_source;
  out["prompt"] = nlohmann::ordered_json::array();
  for (const Message& message : row.prompt)
    out["prompt"].push_back({{"role", message.role}, {"content", message.content}});
  out["ability"] = row.ability;
  out["reward_model"]["style"] = row.reward_style;
  if (row.ground_truth_is_json) {
    out["reward_model"]["ground_truth"] = nlohmann::ordered_json::parse(row.ground_truth);
  } else {
    out["reward_model"]["ground_truth"] = row.ground_truth;
  }
  out["extra_info"] = nlohmann::ordered_json::parse(row.extra_info);
  if (!row.response.empty()) out["response"] = row.response;
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace troupe::actors
