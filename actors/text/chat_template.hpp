#pragma once

// Conversations to token ids, without Jinja: three formatters, picked by the tokens present.
//
// ChatML (Qwen, SmolLM2): `<|im_start|>role\n…<|im_end|>\n`; Llama 3: begin-of-text, then
// `<|start_header_id|>role<|end_header_id|>\n\n…<|eot_id|>` with contents stripped; plain, for
// models without chat tokens: each content and a line break, no role names, an assistant's content
// ended by the end token instead (begin token first where the tokenizer adds one to every text).
// Control tokens are put in as ids; roles and contents are always encoded untrusted, so no message
// can forge a turn. No default system message is slipped in: say it in the options. Tool calls have
// no layout here; a role is written as it is.
// **Ownership:** a ChatTemplate keeps a reference to its Tokenizer; keep that alive and in place.
// **Threads:** const functions from any thread.
// **Invariants:** the ids of a conversation with its generation prompt begin the ids of the same
// conversation with the answer added, so what a model was trained on is what it is asked with.

#include "actors/text/tokenizer.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

struct Message {
  std::string role;  ///< system, user, assistant, tool
  std::string content;
  bool operator==(const Message&) const = default;
};

/// The ChatML layout as the Jinja text that tokenizer_config.json wants.
inline constexpr std::string_view kChatMlJinja =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\n' }}{% endif %}";

enum class ChatStyle { kChatMl, kLlama3, kPlain };
std::string_view chat_style_name(ChatStyle style);

struct ChatOptions {
  /// Put first when the conversation does not start with a system message. Qwen2.5's and SmolLM2's
  /// own templates do that with a text of theirs; pass it here to be like them.
  std::string default_system = {};
  /// An empty think block after the header of the answer, asked for or given last (Qwen3 with
  /// thinking switched off). ChatML only.
  bool empty_think_block = false;
};

class ChatTemplate {
 public:
  /// With a Jinja template in the tokenizer's folder: the style whose tokens it writes. Without:
  /// ChatML or Llama 3 when all their tokens exist, else plain.
  /// Errors: kUnsupported, with the reason, when the template is of neither style.
  static result<ChatTemplate> pick(const Tokenizer& tokenizer, ChatOptions options = {});
  /// That style, whatever `pick` would say. Errors: kUnsupported naming the missing token.
  static result<ChatTemplate> with_style(const Tokenizer& tokenizer, ChatStyle style,
                                         ChatOptions options = {});

  /// The conversation as ids; `add_generation_prompt` appends the assistant's header.
  /// Errors: kInvalidArgument for an empty role or one with a line break.
  result<std::vector<std::int32_t>> format(std::span<const Message> messages,
                                           bool add_generation_prompt) const;

  ChatStyle style() const { return style_; }
  /// Ends an assistant turn: stop generating there. Empty for plain without an end token.
  std::optional<std::int32_t> end_of_turn_id() const { return end_id_; }

 private:
  ChatTemplate(const Tokenizer& tokenizer, ChatStyle style, ChatOptions options);
  void append_message(const Message& message, bool is_last, std::vector<std::int32_t>& ids) const;
  void append_think_block(std::vector<std::int32_t>& ids) const;
  void append_generation_prompt(std::vector<std::int32_t>& ids) const;
  void append_header(std::string_view role, std::vector<std::int32_t>& ids) const;
  void append_text(std::string_view text, std::vector<std::int32_t>& ids) const;

  const Tokenizer* tokenizer_;
  ChatStyle style_;
  ChatOptions options_;
  std::optional<std::int32_t> begin_id_;       // at the very start
  std::optional<std::int32_t> start_id_;       // <|im_start|>, <|start_header_id|>
  std::optional<std::int32_t> header_end_id_;  // <|end_header_id|>
  std::optional<std::int32_t> end_id_;         // <|im_end|>, <|eot_id|>, eos
};

}  // namespace troupe::actors
