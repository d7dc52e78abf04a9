#include "actors/data/dataset.hpp"

#include "runtime/base/check.hpp"

#include <utility>

namespace troupe::actors {

result<Dataset> Dataset::load(std::span<const std::string> paths, const DatasetOptions& options) {
  if (paths.empty())
    return fail(ErrorCode::kInvalidArgument, "dataset: no files named, wanted at least one");
  std::vector<PromptRow> rows;
  for (const std::string& path : paths) {
    TROUPE_TRY(JsonLinesReader reader, JsonLinesReader::open(path, options.lines));
    for (bool any = false;; any = true) {
      if (options.rows_wanted > 0 && std::ssize(rows) >= options.rows_wanted)
        return Dataset(std::move(rows));
      TROUPE_TRY(const std::optional<JsonLine> line, reader.next());
      if (!line && any) break;
      if (!line) return fail(ErrorCode::kCorrupt, "{}: no rows, wanted JSON lines", path);
      if (std::ssize(rows) >= options.rows_max)
        return fail(ErrorCode::kResourceExhausted, "{}: more than {} rows, the bound", line->place,
                    options.rows_max);
      TROUPE_TRY(PromptRow row, row_from_json(line->text, line->place, options.row));
      row.prompt_id = rows.size();
      rows.push_back(std::move(row));
    }
  }
  return Dataset(std::move(rows));
}

Dataset Dataset::from_rows(std::vector<PromptRow> rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].prompt_id = i;
  return Dataset(std::move(rows));
}

const PromptRow& Dataset::row(std::int64_t index) const {
  TROUPE_CHECK(index >= 0 && index < size(), "dataset: row {} of {}", index, size());
  return (*rows_)[static_cast<std::size_t>(index)];
}

result<void> Dataset::save(const std::string& path) const {
  std::vector<std::string> lines;
  lines.reserve(rows_->size());
  for (const PromptRow& row : *rows_) lines.push_back(row_to_json(row));
  return write_lines(path, lines);
}

}  // namespace troupe::actors
