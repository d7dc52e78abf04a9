#include "actors/text/chat_layout.hpp"

#include <algorithm>
#include <optional>

namespace troupe::actors {
namespace {

constexpr std::string_view kThought = "<think>";
constexpr std::string_view kKnowledgeDate = "Cutting Knowledge Date: ";
constexpr std::string_view kTodayDate = "Today Date: ";

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// The literal that begins at `text[at]`, a quotation mark; `at` moves behind it.
std::string read_literal(std::string_view text, std::size_t& at) {
  const char quote = text[at++];
  std::string literal;
  for (; at < text.size() && text[at] != quote; ++at) {
    char c = text[at];
    if (c == '\\' && at + 1 < text.size()) {
      c = text[++at];
      if (c == 'n') c = '\n';
      if (c == 't') c = '\t';
      if (c == 'r') c = '\r';
    }
    literal += c;
  }
  if (at < text.size()) ++at;
  return literal;
}

/// What follows `before` up to `after` in some part; `after` empty: up to the part's end.
std::optional<std::string> text_between(const std::vector<std::string>& parts,
                                        std::string_view before, std::string_view after) {
  for (const std::string& part : parts) {
    const std::size_t found = part.find(before);
    if (found == std::string::npos) continue;
    const std::size_t begin = found + before.size();
    if (after.empty()) return part.substr(begin);
    if (const std::size_t end = part.find(after, begin); end != std::string::npos)
      return part.substr(begin, end - begin);
  }
  return std::nullopt;
}

/// Llama 3.1: two lines with dates, and a variable between the halves of the second.
result<void> read_preface(std::string_view jinja, const std::vector<std::string>& parts,
                          ChatLayout& layout) {
  const auto knowledge = text_between(parts, kKnowledgeDate, "");
  if (!knowledge) return {};
  constexpr std::string_view kSetDate = "set date_string = ";
  const std::size_t set = jinja.rfind(kSetDate);
  const bool sets_date = set != std::string_view::npos && set + kSetDate.size() < jinja.size();
  const auto today = std::find(parts.begin(), parts.end(), kTodayDate);
  if (!sets_date || today == parts.end() || today + 1 == parts.end())
    return fail(ErrorCode::kUnsupported,
                "chat template: has \"{}\", but not \"{}\", a date_string and what follows it",
                kKnowledgeDate, kTodayDate);
  std::size_t at = set + kSetDate.size();
  if (jinja[at] != '"' && jinja[at] != '\'')
    return fail(ErrorCode::kUnsupported, "chat template: date_string is not set to a text");
  layout.date = read_literal(jinja, at);
  layout.before_date = std::string(kKnowledgeDate) + *knowledge + std::string(kTodayDate);
  layout.after_date = *(today + 1);
  return {};
}

/// What is written after the header of the answer that is asked for.
result<void> read_answer_opening(std::string_view jinja, const ChatMarks& marks,
                                 ChatLayout& layout) {
  const std::size_t begin = jinja.rfind("add_generation_prompt");
  if (begin == std::string_view::npos) return {};
  // From the end of the tag: the variable stands inside it.
  const std::size_t tag_end = jinja.find('}', begin);
  if (tag_end == std::string_view::npos) return {};
  const std::vector<std::string> parts = constant_parts(jinja.substr(tag_end + 1));
  const std::string header = fmt::format("{}assistant{}", marks.start, marks.header_end);
  layout.answer_opening = text_between(parts, header, "").value_or("");
  layout.has_think_switch =
      contains(jinja.substr(begin), "enable_thinking is false") && layout.answer_opening.empty();
  for (const std::string& part : parts) {
    if (!contains(part, kThought) || contains(part, header)) continue;
    // Qwen3: nothing, unless thinking is switched off. ChatOptions::empty_think_block does that.
    if (part == kEmptyThoughts && layout.has_think_switch) continue;
    return fail(ErrorCode::kUnsupported,
                "chat template: \"{}\" after the header of the answer depends on more than "
                "enable_thinking being false",
                part);
  }
  return {};
}

}  // namespace

std::vector<std::string> constant_parts(std::string_view jinja) {
  std::vector<std::string> parts;
  std::size_t at = 0;
  while (at < jinja.size()) {
    const std::size_t tag =
        std::min({jinja.find("{{", at), jinja.find("{%", at), jinja.find("{#", at), jinja.size()});
    if (tag > at) parts.emplace_back(jinja.substr(at, tag - at));
    if (tag == jinja.size()) break;
    const char kind = jinja[tag + 1];
    const char close[] = {kind == '{' ? '}' : kind, '}', '\0'};
    at = tag + 2;
    if (kind == '#') {
      const std::size_t end = jinja.find(close, at);
      at = end == std::string_view::npos ? jinja.size() : end + 2;
      continue;
    }
    while (at < jinja.size() && !jinja.substr(at).starts_with(close)) {
      if (jinja[at] == '"' || jinja[at] == '\'')
        parts.push_back(read_literal(jinja, at));
      else
        ++at;
    }
    at = std::min(at + 2, jinja.size());
  }
  return parts;
}

result<ChatLayout> read_chat_layout(std::string_view jinja, const ChatMarks& marks) {
  ChatLayout layout;
  const std::vector<std::string> parts = constant_parts(jinja);
  layout.default_system =
      text_between(parts, fmt::format("{}system{}", marks.start, marks.header_end), marks.end)
          .value_or("");
  TROUPE_TRY_VOID(read_preface(jinja, parts, layout));
  TROUPE_TRY_VOID(read_answer_opening(jinja, marks, layout));
  layout.drops_old_thoughts = contains(jinja, "last_query_index") && contains(jinja, "</think>");
  layout.wraps_tool_answers = contains(jinja, "<tool_response>");
  layout.encodes_tool_answers = contains(jinja, "ipython");
  return layout;
}

}  // namespace troupe::actors
