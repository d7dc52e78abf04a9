#pragma once

// Batches of tokenised prompts: seeded shuffle per epoch, a cursor that is a plain value, and the
// rule for prompts that are too long.
//
// The loader is a pure function of (dataset, options, cursor): the same cursor gives the same
// batch, so saving the cursor in a checkpoint is all that resuming takes.
//
// Epoch e visits the rows in the order of `epoch_order(size, seed, e)`. With `drop_last` (training)
// the rows left over at the end of an epoch, fewer than a batch, are skipped and the next epoch
// begins; without it (validation) they form a smaller last batch.
//
// Ownership: owns the token ids, shares the rows. **Threads:** immutable after `create`; any
// thread may call `next`, each with its own cursor.
// **Invariants:** every batch has at least one row; ids of rows do not change by filtering.
// **Cost:** prompts are encoded once, at creation: O(tokens). `next` copies no payload, and draws
// the epoch's order: O(rows), about 30 ms for a million.

#include "actors/data/dataset.hpp"
#include "runtime/base/result.hpp"
#include "runtime/batch/batch.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::actors {

/// Names of the columns of a prompt batch. Rows of one batch are in visiting order.
namespace column {
inline constexpr std::string_view kPromptIds = "prompt_ids";      ///< i64: PromptRow::prompt_id
inline constexpr std::string_view kPrompts = "prompts";           ///< jagged i32 token ids
inline constexpr std::string_view kRawPrompt = "raw_prompt";      ///< JSON: list of messages
inline constexpr std::string_view kDataSource = "data_source";    ///< text
inline constexpr std::string_view kGroundTruth = "ground_truth";  ///< text
inline constexpr std::string_view kExtraInfo = "extra_info";      ///< JSON object
}  // namespace column

/// Where the next batch begins. Plain numbers: store them anywhere.
struct DataCursor {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t position = 0;  ///< rows of this epoch already handed out
  bool operator==(const DataCursor&) const = default;

  std::string to_json() const;
  /// kCorrupt names the field.
  static result<DataCursor> from_json(std::string_view text);
};

/// The order of epoch `epoch` over `count` rows: a permutation that depends on (seed, epoch) only.
std::vector<std::int64_t> epoch_order(std::int64_t count, std::uint64_t seed, std::int64_t epoch);

/// What to do with a prompt of more than `prompt_tokens_max` tokens.
enum class Truncation {
  kError,   ///< refuse to start; the error names the first such row
  kLeft,    ///< keep the last tokens
  kRight,   ///< keep the first tokens
  kMiddle,  ///< keep both ends, the first half rounded down
};

/// `error`, `left`, `right`, `middle`; kConfig for anything else.
result<Truncation> truncation_from_name(std::string_view name);

/// Turns a prompt into token ids, generation prompt included.
using PromptEncoder = std::function<result<std::vector<std::int32_t>>(std::span<const Message>)>;

struct PromptLoaderOptions {
  std::int64_t batch_size = 1024;  ///< prompts
  std::int64_t prompt_tokens_max = 512;
  bool shuffle = true;
  bool drop_last = true;
  bool filter_overlong = false;  ///< drop prompts that are too long, before truncation applies
  Truncation truncation = Truncation::kError;
};

class PromptLoader {
 public:
  /// Encodes every prompt. kInvalidArgument when options are out of range, when nothing is left
  /// after filtering, when `drop_last` and there are fewer rows than a batch, or when a prompt is
  /// empty or too long and must be refused.
  static result<PromptLoader> create(Dataset dataset, const PromptEncoder& encode,
                                     const PromptLoaderOptions& options);

  struct Step {
    runtime::Batch batch;
    DataCursor next;  ///< pass to the next call; its epoch is larger once this one is used up
  };

  /// The batch at `cursor`. kInvalidArgument when the cursor lies outside the epoch (a checkpoint
  /// of another dataset).
  result<Step> next(const DataCursor& cursor) const;

  /// The whole dataset once, in file order, in batches of at most `batch_size`: for validation.
  std::vector<runtime::Batch> all() const;

  std::int64_t rows() const { return kept_.rows(); }
  std::int64_t rows_filtered() const { return dataset_.size() - rows(); }
  std::int64_t rows_truncated() const { return rows_truncated_; }
  std::int64_t batches_per_epoch() const;
  std::int64_t longest_prompt() const;  ///< tokens, after truncation
  const Dataset& dataset() const { return dataset_; }

 private:
  PromptLoader(Dataset dataset, const PromptLoaderOptions& options)
      : dataset_(std::move(dataset)), options_(options) {}
  DataCursor roll(DataCursor cursor) const;

  Dataset dataset_;
  PromptLoaderOptions options_;
  runtime::Batch kept_;  ///< every row that the filter left, in file order
  std::int64_t rows_truncated_ = 0;
};

}  // namespace troupe::actors
