#pragma once

// Conversations to token ids, without Jinja: three formatters, picked by the tokens present.
//
// ChatML (Qwen, SmolLM2): `<|im_start|>role\n…<|im_end|>\n`; Llama 3: `<|start_header_id|>role
// <|end_header_id|>\n\n…<|eot_id|>`; plain: the texts with role names, for models without chat
// tokens. Control tokens are put in as ids; roles and contents are always encoded untrusted, so no
// message can forge a turn. No default system message is slipped in: say it in the options.
// **Ownership:** a ChatTemplate keeps a reference to its Tokenizer; keep that alive.
// **Threads:** const functions from any thread.

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

enum class ChatStyle { kChatMl, kLlama3, kPlain };
std::string_view chat_style_name(ChatStyle style);

struct ChatOptions {
  /// Put first when the conversation does not start with a system message. Qwen2.5's and SmolLM2's
  /// own templates do that with a text of theirs; pass it here to be like them.
  std::string default_system;
  /// With the generation prompt, add an empty think block (Qwen3 with thinking switched off).
  bool empty_think_block = false;
};

class ChatTemplate {
 public:
  /// ChatML or Llama 3 when all their tokens exist, else plain when the tokenizer's folder has no
  /// template of its own. Errors: kUnsupported, with the reason.
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
  const Tokenizer* tokenizer_;
  ChatStyle style_;
  ChatOptions options_;
  std::optional<std::int32_t> start_id_;       // <|im_start|>, <|start_header_id|>
  std::optional<std::int32_t> header_end_id_;  // <|end_header_id|>
  std::optional<std::int32_t> end_id_;         // <|im_end|>, <|eot_id|>, eos
};

}  // namespace troupe::actors
