#pragma once

// Prompt and response rows as token ids, and their order over epochs.
//
// **Ownership:** owns the ids.
// **Threads:** immutable after `load`.
// **Invariants:** every row has at least one prompt token and one response token; a batch is a pure
// function of (rows, cursor).

#include "actors/data/prompt_loader.hpp"
#include "apps/training/model_bundle.hpp"
#include "runtime/batch/batch.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe::apps {

struct SupervisedOptions {
  actors::DatasetOptions dataset;
  std::int64_t tokens_max = 1024;                              ///< prompt and response together
  actors::Truncation truncation = actors::Truncation::kError;  ///< kLeft, kRight or kError
  bool loss_on_prompt = false;  ///< the prompt's tokens, but the first, count as response
};

class SupervisedRows {
 public:
  /// Errors name file and row.
  static result<SupervisedRows> load(std::span<const std::string> files, const ModelBundle& model,
                                     SupervisedOptions options);

  std::int64_t size() const { return static_cast<std::int64_t>(rows_.size()); }
  std::int64_t longest() const;  ///< tokens of prompt and response together
  /// `prompts`, `responses` of the rows at `order[first …]`, at most `count`.
  runtime::Batch batch(std::span<const std::int64_t> order, std::int64_t first,
                       std::int64_t count) const;

 private:
  struct Row {
    std::vector<std::int32_t> prompt;
    std::vector<std::int32_t> response;
  };
  std::vector<Row> rows_;
};

}  // namespace troupe::apps
