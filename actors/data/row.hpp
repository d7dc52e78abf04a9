#pragma once

// One row of a prompt file in verl's schema, as a value, and its JSON form.
//
//     {"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "…"}],
//      "ability": "math", "reward_model": {"style": "rule", "ground_truth": "72"},
//      "extra_info": {"split": "train", "index": 0}}
//
// Two shorter forms are read too: `prompt` as plain text is one user message, and GSM8K's own rows
// `{"question": …, "answer": "… #### 72"}` become rows of `openai/gsm8k`. An optional `response`
// is the answer to learn in supervised fine-tuning. Other keys are ignored, as verl does.
// **Threads:** value types and pure functions.
// **Invariants:** `row_from_json(row_to_json(row))` is the same row.

#include "actors/text/chat_template.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

struct PromptRow {
  std::uint64_t prompt_id = 0;  ///< position in the concatenation of the files; seeds sampling
  std::string data_source;      ///< picks the reward rule
  std::vector<Message> prompt;  ///< at least one message
  std::string ability;
  std::string reward_style = "rule";
  std::string ground_truth;  ///< text; JSON text where the file has a number, list or object
  bool ground_truth_is_json = false;
  std::string extra_info = "{}";  ///< JSON object, keys sorted
  std::string response;           ///< reference answer for supervised fine-tuning; may be empty

  bool operator==(const PromptRow&) const = default;
};

struct RowOptions {
  /// Keys under which files keep the prompt, the data source and the response.
  std::string prompt_key = "prompt";
  std::string source_key = "data_source";
  std::string response_key = "response";
  /// Appended to the question of a plain GSM8K row, after a space.
  std::string gsm8k_instruction =
      "Let's think step by step and output the final answer after \"####\".";
  /// Rewards need a ground truth; supervised rows do not.
  bool require_ground_truth = true;
  /// Supervised rows need a response.
  bool require_response = false;
};

/// Reads one JSON object. Errors (kCorrupt) start with `place` and name the field, what was
/// wanted and what was found: `train.jsonl:17: reward_model.ground_truth: wanted a value, found
/// nothing`. `prompt_id` is left 0.
result<PromptRow> row_from_json(std::string_view text, std::string_view place,
                                const RowOptions& options = {});

/// One line of JSON without a line end, keys in the schema's order.
std::string row_to_json(const PromptRow& row);

}  // namespace troupe::actors
