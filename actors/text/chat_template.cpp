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
  return ChatTemplate(tokenizer, style, std::move(options));
}

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer, ChatStyle style, ChatOptions options)
    : tokenizer_(&tokenizer), style_(style), options_(std::move(options)) {
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

void ChatTemplate::append_header(std::string_view role, std::vector<std::int32_t>& ids) const {
  ids.push_back(*start_id_);
  append_text(role, ids);
  if (header_end_id_) ids.push_back(*header_end_id_);
}

void ChatTemplate::append_think_block(std::vector<std::int32_t>& ids) const {
  const auto block = tokenizer_->encode("<think>\n\n</think>\n\n", {.trusted = true});
  ids.insert(ids.end(), block.begin(), block.end());
}

void ChatTemplate::append_message(const Message& message, bool is_last,
                                  std::vector<std::int32_t>& ids) const {
  // An answer is encoded apart from the text before it, as that text was when the model was asked;
  // other contents in one go with it, as the Hugging Face library does.
  const bool is_answer = message.role == "assistant";
  std::string before;
  std::string_view content = message.content;
  switch (style_) {
    case ChatStyle::kChatMl:
      ids.push_back(*start_id_);
      before = message.role + "\n";
      break;
    case ChatStyle::kLlama3:
      append_header(message.role, ids);
      before = "\n\n";
      content = strip_white_space(content);
      break;
    case ChatStyle::kPlain:
      break;
  }
  if (is_answer) {
    append_text(before, ids);
    if (is_last && options_.empty_think_block) append_think_block(ids);
    append_text(content, ids);
  } else {
    append_text(before + std::string(content) + (style_ == ChatStyle::kPlain ? "\n" : ""), ids);
  }
  if (style_ == ChatStyle::kPlain) {
    if (!is_answer) return;
    if (end_id_)
      ids.push_back(*end_id_);
    else
      append_text("\n", ids);
    return;
  }
  ids.push_back(*end_id_);
  if (style_ == ChatStyle::kChatMl) append_text("\n", ids);
}

void ChatTemplate::append_generation_prompt(std::vector<std::int32_t>& ids) const {
  switch (style_) {
    case ChatStyle::kChatMl:
      ids.push_back(*start_id_);
      append_text("assistant\n", ids);
      if (options_.empty_think_block) append_think_block(ids);
      return;
    case ChatStyle::kLlama3:
      append_header("assistant", ids);
      append_text("\n\n", ids);
      return;
    case ChatStyle::kPlain:
      return;
  }
}

result<std::vector<std::int32_t>> ChatTemplate::format(std::span<const Message> messages,
                                                       bool add_generation_prompt) const {
  std::vector<std::int32_t> ids;
  if (begin_id_) ids.push_back(*begin_id_);
  const bool has_system = !messages.empty() && messages.front().role == "system";
  if (!has_system && !options_.default_system.empty())
    append_message({"system", options_.default_system}, false, ids);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role.empty() || role.find_first_of("\r\n") != std::string::npos)
      return fail(ErrorCode::kInvalidArgument,
                  "message {}: role \"{}\" is empty or has a line break", i, role);
    append_message(messages[i], i + 1 == messages.size(), ids);
  }
  if (add_generation_prompt) append_generation_prompt(ids);
  return ids;
}

}  // namespace troupe::actors
