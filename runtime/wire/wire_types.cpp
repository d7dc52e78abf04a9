#include "runtime/wire/wire_types.hpp"

#include "runtime/batch/envelope_codec.hpp"
#include "runtime/wire/wire.hpp"

#include <algorithm>
#include <utility>

namespace troupe::runtime {
namespace {

/// An error's own fields; causes are written apart, to a bounded depth.
void write_error(WireWriter out, const Error& error, std::size_t depth) {
  WireRecordWriter record = out.record(6);
  record.field(0, "code").text(error_code_name(error.code));
  record.field(1, "message").text(error.message);
  record.field(2, "group").text(error.origin.group);
  WireTraits<std::optional<RankId>>::write(record.field(3, "rank"), error.origin.rank);
  WireTraits<std::optional<NodeId>>::write(record.field(4, "node"), error.origin.node);
  const std::size_t count = depth >= kCauseDepthMax ? 0 : std::min(error.causes.size(), kCausesMax);
  WireListWriter causes = record.field(5, "causes").list(count);
  for (std::size_t i = 0; i < count; ++i) write_error(causes.at(i), error.causes[i], depth + 1);
}

template <class T>
result<T> read_named(WireRecordReader& record, std::string_view name) {
  TROUPE_TRY(const std::optional<WireReader> found, record.find(name));
  if (!found) return fail(ErrorCode::kCorrupt, ".{}: missing", name);
  auto value = WireTraits<T>::read(*found);
  if (!value) return fail(wire_error_at(std::move(value).error(), name, '.'));
  return value;
}

result<Error> read_error(const WireReader& in, std::size_t depth) {
  TROUPE_TRY(WireRecordReader record, in.record());
  TROUPE_TRY(const std::string code, read_named<std::string>(record, "code"));
  const std::optional<ErrorCode> known = error_code_from_name(code);
  if (!known) return fail(ErrorCode::kCorrupt, ".code: error code '{}' is unknown", code);
  Error error{.code = *known, .message = {}, .origin = {}, .causes = {}};
  TROUPE_TRY(error.message, read_named<std::string>(record, "message"));
  TROUPE_TRY(error.origin.group, read_named<std::string>(record, "group"));
  TROUPE_TRY(error.origin.rank, read_named<std::optional<RankId>>(record, "rank"));
  TROUPE_TRY(error.origin.node, read_named<std::optional<NodeId>>(record, "node"));
  TROUPE_TRY(const std::optional<WireReader> causes, record.find("causes"));
  if (!causes) return fail(ErrorCode::kCorrupt, ".causes: missing");
  TROUPE_TRY(const WireListReader list, causes->list());
  const std::size_t most = depth >= kCauseDepthMax ? 0 : kCausesMax;
  if (list.size() > most) {
    return fail(ErrorCode::kCorrupt, ".causes: {} at depth {}, wanted at most {}", list.size(),
                depth, most);
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto cause = read_error(list.at(i), depth + 1);
    if (!cause)
      return fail(wire_error_at(wire_error_in(std::move(cause).error(), i), "causes", '.'));
    error.causes.push_back(std::move(*cause));
  }
  return error;
}

void fail_without_context(WireWriter out, std::string_view what) {
  out.fail(Error{.code = ErrorCode::kUnsupported,
                 .message = fmt::format(": a {} needs a column exchange to travel", what),
                 .origin = {},
                 .causes = {}});
}

/// Metric state as it is kept, with the histogram as two arrays.
struct MetricRecord {
  std::string name;
  Reduction reduction = Reduction::kMean;
  double weight = 0;
  double weighted_sum = 0;
  double min = 0;
  double max = 0;
  double last = 0;
  std::int64_t count = 0;
  std::vector<std::int32_t> bucket_keys;
  std::vector<double> bucket_weights;
  double non_finite_weight = 0;

  static constexpr auto fields() {
    return std::tuple{field("name", &MetricRecord::name),
                      field("reduction", &MetricRecord::reduction),
                      field("weight", &MetricRecord::weight),
                      field("weighted_sum", &MetricRecord::weighted_sum),
                      field("min", &MetricRecord::min),
                      field("max", &MetricRecord::max),
                      field("last", &MetricRecord::last),
                      field("count", &MetricRecord::count),
                      field("bucket_keys", &MetricRecord::bucket_keys),
                      field("bucket_weights", &MetricRecord::bucket_weights),
                      field("non_finite_weight", &MetricRecord::non_finite_weight)};
  }
};

result<MetricEntry> entry_of(const MetricRecord& record) {
  if (record.bucket_keys.size() != record.bucket_weights.size() ||
      record.bucket_keys.size() > static_cast<std::size_t>(kHistogramBucketsMax)) {
    return fail(ErrorCode::kCorrupt, ".{}: {} bucket keys and {} weights", record.name,
                record.bucket_keys.size(), record.bucket_weights.size());
  }
  MetricEntry entry{.reduction = record.reduction,
                    .weight = record.weight,
                    .weighted_sum = record.weighted_sum,
                    .min = record.min,
                    .max = record.max,
                    .last = record.last,
                    .count = record.count};
  for (std::size_t i = 0; i < record.bucket_keys.size(); ++i) {
    if (i > 0 && record.bucket_keys[i - 1] >= record.bucket_keys[i])
      return fail(ErrorCode::kCorrupt, ".{}: bucket keys are not in rising order", record.name);
    entry.histogram.buckets.emplace_hint(entry.histogram.buckets.end(), record.bucket_keys[i],
                                         record.bucket_weights[i]);
  }
  entry.histogram.non_finite_weight = record.non_finite_weight;
  return entry;
}

}  // namespace

void WireTraits<std::vector<bool>>::write(WireWriter out, const std::vector<bool>& values) {
  std::vector<std::byte> flags(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) flags[i] = std::byte{values[i]};
  out.bytes(flags);
}
result<std::vector<bool>> WireTraits<std::vector<bool>>::read(const WireReader& in) {
  TROUPE_TRY(const auto flags, in.bytes());
  std::vector<bool> values(flags.size());
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (flags[i] > std::byte{1})
      return fail(ErrorCode::kCorrupt, "[{}]: {} is no flag", i, static_cast<int>(flags[i]));
    values[i] = flags[i] == std::byte{1};
  }
  return values;
}

void WireTraits<Error>::write(WireWriter out, const Error& error) { write_error(out, error, 0); }
result<Error> WireTraits<Error>::read(const WireReader& in) { return read_error(in, 0); }

void WireTraits<Metrics>::write(WireWriter out, const Metrics& metrics) {
  WireListWriter list = out.list(metrics.size());
  std::size_t i = 0;
  for (const auto& [name, entry] : metrics) {
    MetricRecord record{.name = name,
                        .reduction = entry.reduction,
                        .weight = entry.weight,
                        .weighted_sum = entry.weighted_sum,
                        .min = entry.min,
                        .max = entry.max,
                        .last = entry.last,
                        .count = entry.count,
                        .bucket_keys = {},
                        .bucket_weights = {},
                        .non_finite_weight = entry.histogram.non_finite_weight};
    for (const auto& [key, weight] : entry.histogram.buckets) {
      record.bucket_keys.push_back(key);
      record.bucket_weights.push_back(weight);
    }
    WireTraits<MetricRecord>::write(list.at(i++), record);
  }
}

result<Metrics> WireTraits<Metrics>::read(const WireReader& in) {
  TROUPE_TRY(const WireListReader list, in.list());
  Metrics metrics;
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto record = WireTraits<MetricRecord>::read(list.at(i));
    if (!record) return fail(wire_error_in(std::move(record).error(), i));
    auto entry = entry_of(*record);
    if (!entry) return fail(wire_error_in(std::move(entry).error(), i));
    metrics.put(std::move(record->name), std::move(*entry));
  }
  return metrics;
}

void WireTraits<Column>::write(WireWriter out, const Column& column) {
  if (out.context() == nullptr) return fail_without_context(out, "column");
  auto exported = out.context()->export_column(column);
  if (!exported) return out.fail(std::move(exported).error());
  out.column(*exported);
}
result<Column> WireTraits<Column>::read(const WireReader& in) {
  TROUPE_TRY(const auto bytes, in.column());
  if (in.context() == nullptr)
    return fail(ErrorCode::kUnsupported, ": a column needs a column exchange to arrive");
  return in.context()->import_column(bytes);
}

void WireTraits<Batch>::write(WireWriter out, const Batch& batch) {
  if (out.context() == nullptr) return fail_without_context(out, "batch");
  auto exported = out.context()->export_batch(batch);
  if (!exported) return out.fail(std::move(exported).error());
  out.batch(*exported);
}
result<Batch> WireTraits<Batch>::read(const WireReader& in) {
  TROUPE_TRY(const auto bytes, in.batch());
  if (in.context() == nullptr)
    return fail(ErrorCode::kUnsupported, ": a batch needs a column exchange to arrive");
  return in.context()->import_batch(bytes);
}

}  // namespace troupe::runtime
