#pragma once

// Conversations to token ids, without Jinja: three formatters, picked by the tokens present.
//
// ChatML (Qwen, SmolLM2): `<|im_start|>role\n…<|im_end|>\n`; Llama 3: begin-of-text, then
// `<|start_header_id|>role<|end_header_id|>\n\n…<|eot_id|>` with contents stripped; plain, for
// models without chat tokens: each content and a line break, no role names, an assistant's content
// ended by the end token instead (begin token first where the tokenizer adds one to every text).
// Control tokens are put in as ids; roles and contents are always encoded untrusted, so no message
// can forge a turn. What sets templates of one style apart is read from the template's text
// (chat_layout.hpp): a default system message, Llama 3.1's dates, Qwen3's thoughts, Qwen's turns of
// tool answers. Tools that are offered and calls of them have no layout here; other roles are
// written as they are.
// **Ownership:** a ChatTemplate keeps a reference to its Tokenizer; keep that alive and in place.
// **Threads:** const functions from any thread.
// **Invariants:** the ids of a conversation with its generation prompt begin the ids of the same
// conversation with the answer added, so what a model was trained on is what it is asked with.

#include "actors/text/chat_layout.hpp"
#include "actors/text/tokenizer.hpp"

#include <optional>
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
  /// Put first when the conversation does not start with a system message; "": nothing. Without:
  /// what the tokenizer's template puts there itself (Qwen2.5 and SmolLM2 have such a text).
  std::optional<std::string> default_system = {};
  /// An empty think block after the header of the answer, asked for or given last (Qwen3 with
  /// thinking switched off). ChatML only, and a template must have that switch.
  bool empty_think_block = false;
  /// Today's date in Llama 3.1's system message, as in `26 Jul 2024`. Without: the one that the
  /// template has for such cases, never the clock's, so that prompts stay the same.
  std::optional<std::string> date = {};
};

class ChatTemplate {
 public:
  /// With a Jinja template in the tokenizer's folder: the style whose tokens it writes. Without:
  /// ChatML or Llama 3 when all their tokens exist, else plain.
  /// Errors: kUnsupported, with the reason, when the template is of neither style, or has a part
  /// that is not understood.
  static result<ChatTemplate> pick(const Tokenizer& tokenizer, ChatOptions options = {});
  /// That style, whatever `pick` would say, with what a template of that style in the folder says.
  /// Errors: kUnsupported naming the missing token.
  static result<ChatTemplate> with_style(const Tokenizer& tokenizer, ChatStyle style,
                                         ChatOptions options = {});

  /// The conversation as ids; `add_generation_prompt` appends the assistant's header.
  /// Errors: kInvalidArgument for an empty role or one with a line break; kUnsupported for a tool's
  /// answer where the template would write JSON.
  result<std::vector<std::int32_t>> format(std::span<const Message> messages,
                                           bool add_generation_prompt) const;

  ChatStyle style() const { return style_; }
  /// Ends an assistant turn: stop generating there. Empty for plain without an end token.
  std::optional<std::int32_t> end_of_turn_id() const { return end_id_; }

 private:
  ChatTemplate(const Tokenizer& tokenizer, ChatStyle style, ChatLayout layout, ChatOptions options);
  /// Where a message stands, as far as its layout asks.
  struct Place {
    bool is_last = false;
    bool is_after_question = false;  // no question of the user's follows
  };
  result<void> check_message(const Message& message, std::size_t index) const;
  void append_system(std::string_view content, std::vector<std::int32_t>& ids) const;
  void append_message(const Message& message, const Place& place,
                      std::vector<std::int32_t>& ids) const;
  void append_answer(std::string_view content, const Place& place,
                     std::vector<std::int32_t>& ids) const;
  void append_tool_answers(std::span<const Message> answers, std::vector<std::int32_t>& ids) const;
  void append_plain(const Message& message, std::vector<std::int32_t>& ids) const;
  void append_generation_prompt(std::vector<std::int32_t>& ids) const;
  void append_header(std::string_view role, std::vector<std::int32_t>& ids) const;
  void append_end(std::vector<std::int32_t>& ids) const;
  void append_text(std::string_view text, std::vector<std::int32_t>& ids) const;
  void append_constant(std::string_view text, std::vector<std::int32_t>& ids) const;

  const Tokenizer* tokenizer_;
  ChatStyle style_;
  ChatLayout layout_;  // with the options' texts in it
  bool empty_think_block_;
  std::optional<std::int32_t> begin_id_;       // at the very start
  std::optional<std::int32_t> start_id_;       // <|im_start|>, <|start_header_id|>
  std::optional<std::int32_t> header_end_id_;  // <|end_header_id|>
  std::optional<std::int32_t> end_id_;         // <|im_end|>, <|eot_id|>, eos
};

}  // namespace troupe::actors
