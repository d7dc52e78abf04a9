#include "actors/data/prompt_loader.hpp"

#include "actors/text/strict_json.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>

namespace troupe::actors {
namespace {

using runtime::Batch;
using runtime::Column;

std::string messages_json(const std::vector<Message>& messages) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Message& message : messages)
    list.push_back({{"role", message.role}, {"content", message.content}});
  return list.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void truncate(std::vector<std::int32_t>& tokens, std::int64_t tokens_max, Truncation how) {
  const std::int64_t excess = std::ssize(tokens) - tokens_max;
  const std::int64_t kept_before = how == Truncation::kLeft    ? 0
                                   : how == Truncation::kRight ? tokens_max
                                                               : tokens_max / 2;
  const auto begin = tokens.begin() + kept_before;
  tokens.erase(begin, begin + excess);
}

result<void> check_options(const PromptLoaderOptions& options) {
  if (options.batch_size < 1)
    return fail(ErrorCode::kInvalidArgument, "prompt loader: batch size {}, wanted at least 1",
                options.batch_size);
  if (options.prompt_tokens_max < 1)
    return fail(ErrorCode::kInvalidArgument,
                "prompt loader: at most {} tokens a prompt, wanted at least 1",
                options.prompt_tokens_max);
  return {};
}

/// Columns of the kept rows, collected one row at a time.
struct RowColumns {
  std::vector<std::int64_t> ids;
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<std::string> raw_prompts;
  std::vector<std::string> data_sources;
  std::vector<std::string> ground_truths;
  std::vector<std::string> extra_infos;

  void push(const PromptRow& row, std::vector<std::int32_t> row_tokens) {
    ids.push_back(static_cast<std::int64_t>(row.prompt_id));
    tokens.push_back(std::move(row_tokens));
    raw_prompts.push_back(messages_json(row.prompt));
    data_sources.push_back(row.data_source);
    ground_truths.push_back(row.ground_truth);
    extra_infos.push_back(row.extra_info);
  }

  Batch to_batch() && {
    Batch batch;
    const auto set = [&batch](std::string_view name, Column column) {
      const auto done = batch.set(std::string(name), std::move(column));
      TROUPE_CHECK(done.has_value(), "prompt loader: column {}: {}", name, done.error().message);
    };
    set(column::kPromptIds, Column::dense(std::move(ids)));
    set(column::kPrompts, Column::jagged(tokens));
    set(column::kRawPrompt, Column::json(raw_prompts));
    set(column::kDataSource, Column::strings(data_sources));
    set(column::kGroundTruth, Column::strings(ground_truths));
    set(column::kExtraInfo, Column::json(extra_infos));
    return batch;
  }
};

}  // namespace

std::string DataCursor::to_json() const {
  return nlohmann::ordered_json{{"seed", seed}, {"epoch", epoch}, {"position", position}}.dump();
}

result<DataCursor> DataCursor::from_json(std::string_view text) {
  TROUPE_TRY(const nlohmann::json json, parse_strict_json(text, "data cursor"));
  const auto is_whole = [&json](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_number_unsigned();
  };
  for (const char* key : {"seed", "epoch", "position"}) {
    if (!is_whole(key))
      return fail(
          ErrorCode::kCorrupt, "data cursor: {}: wanted a whole number from 0, found {}", key,
          json.is_object() && json.contains(key) ? json[key].dump().substr(0, 60) : "nothing");
  }
  for (const char* key : {"epoch", "position"}) {
    if (json[key].get<std::uint64_t>() > std::uint64_t{1} << 62)
      return fail(ErrorCode::kCorrupt, "data cursor: {}: {} is out of range", key,
                  json[key].dump());
  }
  return DataCursor{.seed = json["seed"].get<std::uint64_t>(),
                    .epoch = json["epoch"].get<std::int64_t>(),
                    .position = json["position"].get<std::int64_t>()};
}

std::vector<std::int64_t> epoch_order(std::int64_t count, std::uint64_t seed, std::int64_t epoch) {
  return Rng(mix_seed(seed, static_cast<std::uint64_t>(epoch))).permutation(count);
}

result<Truncation> truncation_from_name(std::string_view name) {
  if (name == "error") return Truncation::kError;
  if (name == "left") return Truncation::kLeft;
  if (name == "right") return Truncation::kRight;
  if (name == "middle") return Truncation::kMiddle;
  return fail(ErrorCode::kConfig, "data.truncation: '{}', wanted error, left, right or middle",
              name);
}

result<PromptLoader> PromptLoader::create(Dataset dataset, const PromptEncoder& encode,
                                          const PromptLoaderOptions& options) {
  TROUPE_TRY_VOID(check_options(options));
  PromptLoader loader(std::move(dataset), options);
  RowColumns columns;
  for (const PromptRow& row : loader.dataset_.rows()) {
    TROUPE_TRY(std::vector<std::int32_t> tokens, encode(row.prompt));
    if (tokens.empty())
      return fail(ErrorCode::kInvalidArgument, "prompt {}: no tokens, wanted at least 1",
                  row.prompt_id);
    if (std::ssize(tokens) > options.prompt_tokens_max) {
      if (options.filter_overlong) continue;
      if (options.truncation == Truncation::kError)
        return fail(ErrorCode::kInvalidArgument,
                    "prompt {}: {} tokens, at most {} allowed (set data.truncation, "
                    "data.filter_overlong_prompts or data.max_prompt_length)",
                    row.prompt_id, tokens.size(), options.prompt_tokens_max);
      truncate(tokens, options.prompt_tokens_max, options.truncation);
      ++loader.rows_truncated_;
    }
    columns.push(row, std::move(tokens));
  }
  loader.kept_ = std::move(columns).to_batch();
  const std::int64_t wanted = options.drop_last ? options.batch_size : 1;
  if (loader.rows() < wanted)
    return fail(ErrorCode::kInvalidArgument,
                "prompt loader: {} rows ({} of {} filtered as too long), wanted at least {}",
                loader.rows(), loader.rows_filtered(), loader.dataset_.size(), wanted);
  return loader;
}

DataCursor PromptLoader::roll(DataCursor cursor) const {
  const std::int64_t left = rows() - cursor.position;
  if (left < (options_.drop_last ? options_.batch_size : 1)) {
    ++cursor.epoch;
    cursor.position = 0;
  }
  return cursor;
}

result<PromptLoader::Step> PromptLoader::next(const DataCursor& cursor) const {
  if (cursor.epoch < 0 || cursor.position < 0 || cursor.position > rows())
    return fail(ErrorCode::kInvalidArgument,
                "data cursor: epoch {}, position {}, but an epoch has rows 0..{}; is this another "
                "dataset?",
                cursor.epoch, cursor.position, rows());
  const DataCursor here = roll(cursor);
  std::vector<std::int64_t> order;
  if (options_.shuffle) {
    order = epoch_order(rows(), here.seed, here.epoch);
  } else {
    order.resize(static_cast<std::size_t>(rows()));
    std::iota(order.begin(), order.end(), 0);
  }
  const std::int64_t count = std::min(options_.batch_size, rows() - here.position);
  const auto picked = std::span<const std::int64_t>(order).subspan(
      static_cast<std::size_t>(here.position), static_cast<std::size_t>(count));
  TROUPE_TRY(Batch batch, kept_.index(picked));
  DataCursor after = here;
  after.position += count;
  return Step{.batch = std::move(batch), .next = roll(after)};
}

std::vector<Batch> PromptLoader::all() const { return kept_.split_by(options_.batch_size); }

std::int64_t PromptLoader::batches_per_epoch() const {
  const std::int64_t extra = options_.drop_last ? 0 : options_.batch_size - 1;
  return (rows() + extra) / options_.batch_size;
}

std::int64_t PromptLoader::longest_prompt() const {
  std::int64_t longest = 0;
  for (const std::int64_t length : kept_.column(column::kPrompts).row_lengths())
    longest = std::max(longest, length);
  return longest;
}

}  // namespace troupe::actors
