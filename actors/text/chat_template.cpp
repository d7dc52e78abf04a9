#include "actors/text/chat_template.hpp"

#include "actors/text/utf8.hpp"

#include <utility>

namespace troupe::actors {
namespace {

constexpr std::string_view kImStart = "<|im_start|>";
constexpr std::string_view kImEnd = "<|im_end|>";
constexpr std::string_view kBeginOfText = "<|begin_of_text|>";
constexpr std::string_view kStartHeader = "<|start_header_id|>";
constexpr std::string_view kEndHeader = "<|end_header_id|>";
constexpr std::string_view kEndOfTurn = "<|eot_id|>";

std::vector<std::string_view> tokens_of(ChatStyle style) {
  switch (style) {
    case ChatStyle::kChatMl:
      return {kImStart, kImEnd};
    case ChatStyle::kLlama3:
      return {kBeginOfText, kStartHeader, kEndHeader, kEndOfTurn};
    case ChatStyle::kPlain:
      break;
  }
  return {};
}

/// The first token of the style that the tokenizer does not have as a special one.
std::optional<std::string_view> missing_token(const Tokenizer& tokenizer, ChatStyle style) {
  for (const std::string_view token : tokens_of(style))
    if (!tokenizer.special_id(token)) return token;
  return std::nullopt;
}

/// Whether the post-processor puts the begin token in front of every text.
std::optional<std::int32_t> usual_begin(const Tokenizer& tokenizer) {
  const std::vector<std::int32_t> ids = tokenizer.encode("", {.add_special = true});
  const bool has_begin = !ids.empty() && tokenizer.bos_id() == ids.front();
  return has_begin ? tokenizer.bos_id() : std::nullopt;
}

constexpr std::string_view kToolBegin = "<tool_response>";
constexpr std::string_view kToolEnd = "</tool_response>";

ChatMarks marks_of(ChatStyle style) {
  if (style == ChatStyle::kLlama3)
    return {.start = kStartHeader, .header_end = "<|end_header_id|>\n\n", .end = kEndOfTurn};
  return {.start = kImStart, .header_end = "\n", .end = kImEnd};
}

std::string_view without_leading_breaks(std::string_view text) {
  while (text.starts_with('\n')) text.remove_prefix(1);
  return text;
}

struct ThoughtAndText {
  std::string_view thought;
  std::string_view text;
};

/// As Qwen3's template parts them: the thought lies before the first end mark, the text after the
/// last one.
ThoughtAndText split_thought(std::string_view content) {
  constexpr std::string_view kBegin = "<think>";
  constexpr std::string_view kEnd = "</think>";
  const std::size_t first_end = content.find(kEnd);
  ThoughtAndText parts{.thought = {}, .text = content};
  if (first_end != std::string_view::npos) {
    parts.thought = content.substr(0, first_end);
    if (const std::size_t begin = parts.thought.rfind(kBegin); begin != std::string_view::npos)
      parts.thought.remove_prefix(begin + kBegin.size());
    parts.thought = without_leading_breaks(parts.thought);
    while (parts.thought.ends_with('\n')) parts.thought.remove_suffix(1);
    parts.text = without_leading_breaks(content.substr(content.rfind(kEnd) + kEnd.size()));
  }
  return parts;
}

/// The last message of the user's that is no tool's answer; where there is none, the last of all.
std::size_t last_question_of(std::span<const Message> messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    const std::string& content = messages[i].content;
    const bool is_tool_answer = content.starts_with(kToolBegin) && content.ends_with(kToolEnd);
    if (messages[i].role == "user" && !is_tool_answer) return i;
  }
  return messages.empty() ? 0 : messages.size() - 1;
}

}  // namespace

std::string_view chat_style_name(ChatStyle style) {
  switch (style) {
    case ChatStyle::kChatMl:
      return "chatml";
    case ChatStyle::kLlama3:
      return "llama3";
    case ChatStyle::kPlain:
      return "plain";
  }
  return "unknown";
}

result<ChatTemplate> ChatTemplate::pick(const Tokenizer& tokenizer, ChatOptions options) {
  const std::string& jinja = tokenizer.chat_template_text();
  if (jinja.empty()) {
    for (const ChatStyle style : {ChatStyle::kChatMl, ChatStyle::kLlama3})
      if (!missing_token(tokenizer, style)) return with_style(tokenizer, style, std::move(options));
    return with_style(tokenizer, ChatStyle::kPlain, std::move(options));
  }
  const bool is_chat_ml = jinja.find(kImStart) != std::string::npos;
  const bool is_llama3 = jinja.find(kStartHeader) != std::string::npos;
  if (is_chat_ml == is_llama3)
    return fail(ErrorCode::kUnsupported,
                "chat template writes {} of {} and {}; only templates "
                "with exactly one of them are understood, or name a style",
                is_chat_ml ? "both" : "neither", kImStart, kStartHeader);
  return with_style(tokenizer, is_chat_ml ? ChatStyle::kChatMl : ChatStyle::kLlama3,
                    std::move(options));
}

result<ChatTemplate> ChatTemplate::with_style(const Tokenizer& tokenizer, ChatStyle style,
                                              ChatOptions options) {
  if (const auto missing = missing_token(tokenizer, style); missing)
    return fail(ErrorCode::kUnsupported, "chat style {}: the tokenizer has no special token {}",
                chat_style_name(style), *missing);
  if (options.empty_think_block && style != ChatStyle::kChatMl)
    return fail(ErrorCode::kUnsupported, "chat style {}: empty_think_block belongs to chatml",
                chat_style_name(style));
  ChatLayout layout;
  const std::string& jinja = tokenizer.chat_template_text();
  if (const ChatMarks marks = marks_of(style);
      style != ChatStyle::kPlain && jinja.find(marks.start) != std::string::npos) {
    TROUPE_TRY(layout, read_chat_layout(jinja, marks));
    if (options.empty_think_block && !layout.has_think_switch)
      return fail(ErrorCode::kUnsupported,
                  "chat style {}: the template has no enable_thinking to switch off",
                  chat_style_name(style));
  }
  if (options.date && !layout.has_preface())
    return fail(ErrorCode::kUnsupported, "chat style {}: the template has no place for a date, {}",
                chat_style_name(style), *options.date);
  return ChatTemplate(tokenizer, style, std::move(layout), std::move(options));
}

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer, ChatStyle style, ChatLayout layout,
                           ChatOptions options)
    : tokenizer_(&tokenizer),
      style_(style),
      layout_(std::move(layout)),
      empty_think_block_(options.empty_think_block) {
  if (options.default_system) layout_.default_system = std::move(*options.default_system);
  if (options.date) layout_.date = std::move(*options.date);
  switch (style) {
    case ChatStyle::kChatMl:
      start_id_ = tokenizer.special_id(kImStart);
      end_id_ = tokenizer.special_id(kImEnd);
      break;
    case ChatStyle::kLlama3:
      begin_id_ = tokenizer.special_id(kBeginOfText);
      start_id_ = tokenizer.special_id(kStartHeader);
      header_end_id_ = tokenizer.special_id(kEndHeader);
      end_id_ = tokenizer.special_id(kEndOfTurn);
      break;
    case ChatStyle::kPlain:
      begin_id_ = usual_begin(tokenizer);
      end_id_ = tokenizer.eos_id();
      break;
  }
}

void ChatTemplate::append_text(std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::vector<std::int32_t> more = tokenizer_->encode(text);
  ids.insert(ids.end(), more.begin(), more.end());
}

/// Text of the template's own, in which `<think>` and its like are tokens where they exist.
void ChatTemplate::append_constant(std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::vector<std::int32_t> more = tokenizer_->encode(text, {.trusted = true});
  ids.insert(ids.end(), more.begin(), more.end());
}

/// Up to where a role's name ends; the line break of ChatML belongs to what follows.
void ChatTemplate::append_header(std::string_view role, std::vector<std::int32_t>& ids) const {
  ids.push_back(*start_id_);
  append_text(role, ids);
  if (header_end_id_) ids.push_back(*header_end_id_);
}

void ChatTemplate::append_end(std::vector<std::int32_t>& ids) const {
  ids.push_back(*end_id_);
  if (style_ == ChatStyle::kChatMl) append_text("\n", ids);
}

void ChatTemplate::append_plain(const Message& message, std::vector<std::int32_t>& ids) const {
  if (message.role != "assistant") return append_text(message.content + "\n", ids);
  append_text(message.content, ids);
  if (end_id_)
    ids.push_back(*end_id_);
  else
    append_text("\n", ids);
}

void ChatTemplate::append_system(std::string_view content, std::vector<std::int32_t>& ids) const {
  if (!layout_.has_preface()) return append_message({"system", std::string(content)}, {}, ids);
  append_header("system", ids);
  append_text(fmt::format("\n\n{}{}{}{}", layout_.before_date, layout_.date, layout_.after_date,
                          strip_white_space(content)),
              ids);
  append_end(ids);
}

/// An answer is encoded apart from the text before it, as that text was when the model was asked.
void ChatTemplate::append_answer(std::string_view content, const Place& place,
                                 std::vector<std::int32_t>& ids) const {
  if (style_ == ChatStyle::kLlama3) return append_text(content, ids);
  if (!layout_.drops_old_thoughts) {
    if (place.is_last && empty_think_block_) append_constant(kEmptyThoughts, ids);
    return append_text(content, ids);
  }
  const ThoughtAndText parts = split_thought(content);
  const bool shows = place.is_after_question && (place.is_last || !parts.thought.empty());
  if (!shows) return append_text(parts.text, ids);
  if (parts.thought.empty()) {
    append_constant(kEmptyThoughts, ids);
  } else {
    append_constant("<think>\n", ids);
    append_text(std::string(parts.thought) + "\n", ids);
    append_constant("</think>\n\n", ids);
  }
  append_text(without_leading_breaks(parts.text), ids);
}

/// Answers of tools that follow each other share a turn of the user's.
void ChatTemplate::append_tool_answers(std::span<const Message> answers,
                                       std::vector<std::int32_t>& ids) const {
  ids.push_back(*start_id_);
  // The marks are tokens of Qwen3's and mere text of Qwen2.5's; then all is encoded in one go.
  const bool are_tokens = tokenizer_->encode(kToolBegin, {.trusted = true}).size() == 1;
  std::string text = "user";
  for (const Message& answer : answers) {
    if (are_tokens) {
      append_constant(fmt::format("{}\n{}", text, kToolBegin), ids);
      append_text(fmt::format("\n{}\n", answer.content), ids);
      append_constant(kToolEnd, ids);
      text.clear();
    } else {
      text += fmt::format("\n{}\n{}\n{}", kToolBegin, answer.content, kToolEnd);
    }
  }
  append_text(text, ids);
  append_end(ids);
}

void ChatTemplate::append_message(const Message& message, const Place& place,
                                  std::vector<std::int32_t>& ids) const {
  if (style_ == ChatStyle::kPlain) return append_plain(message, ids);
  std::string before = message.role + "\n";
  std::string_view content = message.content;
  if (style_ == ChatStyle::kLlama3) {
    append_header(message.role, ids);
    before = "\n\n";
    content = strip_white_space(content);
  } else {
    ids.push_back(*start_id_);
  }
  if (message.role == "assistant") {
    append_text(before, ids);
    append_answer(content, place, ids);
  } else {
    append_text(before + std::string(content), ids);
  }
  append_end(ids);
}

void ChatTemplate::append_generation_prompt(std::vector<std::int32_t>& ids) const {
  if (style_ == ChatStyle::kPlain) return;
  if (style_ == ChatStyle::kLlama3) {
    append_header("assistant", ids);
    append_text("\n\n", ids);
  } else {
    ids.push_back(*start_id_);
    append_text("assistant\n", ids);
  }
  append_constant(empty_think_block_ ? kEmptyThoughts : layout_.answer_opening, ids);
}

result<void> ChatTemplate::check_message(const Message& message, std::size_t index) const {
  const std::string& role = message.role;
  if (role.empty() || role.find_first_of("\r\n") != std::string::npos)
    return fail(ErrorCode::kInvalidArgument, "message {}: role \"{}\" is empty or has a line break",
                index, role);
  if (layout_.encodes_tool_answers && (role == "tool" || role == "ipython"))
    return fail(ErrorCode::kUnsupported,
                "message {}: role {} becomes JSON in this template, which is not supported", index,
                role);
  return {};
}

result<std::vector<std::int32_t>> ChatTemplate::format(std::span<const Message> messages,
                                                       bool add_generation_prompt) const {
  std::vector<std::int32_t> ids;
  if (begin_id_) ids.push_back(*begin_id_);
  const bool has_system = !messages.empty() && messages.front().role == "system";
  if (has_system || layout_.has_preface() || !layout_.default_system.empty())
    append_system(has_system ? messages.front().content : layout_.default_system, ids);
  const std::size_t last_question = last_question_of(messages);
  for (std::size_t i = 0; i < messages.size(); ++i) TROUPE_TRY_VOID(check_message(messages[i], i));
  for (std::size_t i = has_system ? 1 : 0; i < messages.size(); ++i) {
    const std::size_t first = i;
    if (layout_.wraps_tool_answers)
      while (i < messages.size() && messages[i].role == "tool") ++i;
    if (i > first) append_tool_answers(messages.subspan(first, i - first), ids);
    if (i == messages.size()) break;
    append_message(messages[i],
                   {.is_last = i + 1 == messages.size(), .is_after_question = i > last_question},
                   ids);
  }
  if (add_generation_prompt) append_generation_prompt(ids);
  return ids;
}

}  // namespace troupe::actors
