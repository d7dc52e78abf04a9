#pragma once

// What the Jinja text of a chat template says about the layout of a conversation, without running
// it: the few things in which templates of one style differ.
//
// The text is taken apart into its constant parts (text between tags, string literals inside them),
// and those are compared with what the published templates of Qwen2.5, Qwen3, SmolLM2 and Llama 3.x
// have. A part that belongs to one of these matters and is not understood is refused; other
// differences (tools that are offered, images) are not looked for.
// **Threads:** pure functions.

#include "runtime/base/result.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// What an answer begins with when thinking is switched off.
inline constexpr std::string_view kEmptyThoughts = "<think>\n\n</think>\n\n";

/// The tokens that begin a turn and end it, and what stands between a role and its content.
struct ChatMarks {
  std::string_view start;       ///< `<|im_start|>`
  std::string_view header_end;  ///< `\n`, or `<|end_header_id|>\n\n`
  std::string_view end;         ///< `<|im_end|>`
};

struct ChatLayout {
  /// The system message of a conversation that has none (Qwen2.5, SmolLM2).
  std::string default_system = {};
  /// What stands before the system message, which then is always there (Llama 3.1 and later), in
  /// two halves: the date comes between them.
  std::string before_date = {};
  std::string after_date = {};
  std::string date = {};  ///< what the template itself puts there when it is not told one
  /// What an answer that is asked for begins with (models that always think).
  std::string answer_opening = {};
  /// Thinking may be switched off (Qwen3): then an answer begins with an empty block of thoughts.
  bool has_think_switch = false;
  /// Thoughts of answers before the last question are left out; the last answer has a block of them
  /// in any case (Qwen3).
  bool drops_old_thoughts = false;
  /// Messages of role `tool` stand between `<tool_response>` marks in a turn of the user's (Qwen).
  bool wraps_tool_answers = false;
  /// Messages of role `tool` become JSON (Llama 3.1): not written here.
  bool encodes_tool_answers = false;

  bool has_preface() const { return !before_date.empty(); }
};

/// The constant parts of a template, in order: text between tags, and string literals inside tags
/// with their escapes resolved.
std::vector<std::string> constant_parts(std::string_view jinja);

/// Errors: kUnsupported naming the part that is not understood.
result<ChatLayout> read_chat_layout(std::string_view jinja, const ChatMarks& marks);

}  // namespace troupe::actors
