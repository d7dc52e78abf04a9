#pragma once

// A list of prompt rows in memory, read from files of JSON lines.
//
// Ownership: a value; copies share the rows. **Threads:** immutable after loading; any thread.
// **Invariants:** `row(i).prompt_id == i` straight after loading; a row keeps its id when later
// steps filter, shuffle or repeat, so a sample's random numbers do not depend on them.

#include "actors/data/jsonl.hpp"
#include "actors/data/row.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe::actors {

struct DatasetOptions {
  RowOptions row = {};
  JsonLinesOptions lines = {};
  /// Stop with kResourceExhausted beyond this many rows.
  std::int64_t rows_max = 20'000'000;
  /// Use only the first rows; 0 means all (verl's `data.train_max_samples`).
  std::int64_t rows_wanted = 0;
};

class Dataset {
 public:
  Dataset() : rows_(std::make_shared<const std::vector<PromptRow>>()) {}

  /// Reads the files one after the other. Ids are positions in their concatenation. Errors name
  /// file, line and field; files without any row are kCorrupt.
  static result<Dataset> load(std::span<const std::string> paths,
                              const DatasetOptions& options = {});

  /// Rows made by the program. `prompt_id`s are set to positions.
  static Dataset from_rows(std::vector<PromptRow> rows);

  std::int64_t size() const { return static_cast<std::int64_t>(rows_->size()); }
  const PromptRow& row(std::int64_t index) const;  ///< CHECKs the range
  std::span<const PromptRow> rows() const { return *rows_; }

  /// Writes verl-schema JSON lines, atomically.
  result<void> save(const std::string& path) const;

 private:
  explicit Dataset(std::vector<PromptRow> rows)
      : rows_(std::make_shared<const std::vector<PromptRow>>(std::move(rows))) {}

  std::shared_ptr<const std::vector<PromptRow>> rows_;
};

}  // namespace troupe::actors
