#include "runtime/batch/batch_codec.hpp"

#include "runtime/batch/checksum.hpp"
#include "runtime/batch/codec_support.hpp"
#include "runtime/batch/column_check.hpp"
#include "runtime/batch/column_storage.hpp"
#include "runtime/batch/frame.hpp"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <schemas/batch.capnp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>

namespace troupe::runtime {
namespace {

constexpr FrameFormat kFormat{.place = "batch", .magic = "TRPBATCH", .version = 1};
constexpr std::size_t kRowShapeMax = 16;

/// One section to write: where it goes and the pieces it is made of.
struct Section {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  std::vector<std::span<const std::byte>> pieces;
};

/// Gives sections their places, one after another.
class Layout {
 public:
  Section& add(std::vector<std::span<const std::byte>> pieces) {
    Section section{.offset = end_, .bytes = 0, .pieces = std::move(pieces)};
    for (const auto& piece : section.pieces)
      section.bytes += static_cast<std::int64_t>(piece.size());
    end_ = aligned(end_ + section.bytes);
    return sections_.emplace_back(std::move(section));
  }
  /// End of the payload; the zeros after the last section belong to it.
  std::int64_t bytes() const { return end_; }
  const std::deque<Section>& sections() const { return sections_; }

 private:
  std::deque<Section> sections_;
  std::int64_t end_ = 0;
};

void describe(const Section& section, schemas::Section::Builder out) {
  std::uint32_t checksum = 0;
  for (const auto& piece : section.pieces) checksum = crc32c(piece, checksum);
  out.setOffset(static_cast<std::uint64_t>(section.offset));
  out.setBytes(static_cast<std::uint64_t>(section.bytes));
  out.setChecksum(checksum);
}

void write_metrics(const Metrics& metrics, schemas::BatchHeader::Builder header) {
  auto list = header.initMetrics(list_size(metrics.size()));
  unsigned at = 0;
  for (const auto& [name, entry] : metrics) {
    auto out = list[at++];
    out.setName(whole_text(name));
    out.setReduction(static_cast<schemas::Reduction>(entry.reduction));
    out.setWeight(entry.weight);
    out.setWeightedSum(entry.weighted_sum);
    out.setMin(entry.min);
    out.setMax(entry.max);
    out.setLast(entry.last);
    out.setCount(entry.count);
    out.setNonFiniteWeight(entry.histogram.non_finite_weight);
    auto keys = out.initBucketKeys(list_size(entry.histogram.buckets.size()));
    auto weights = out.initBucketWeights(list_size(entry.histogram.buckets.size()));
    unsigned bucket = 0;
    for (const auto& [key, weight] : entry.histogram.buckets) {
      keys.set(bucket, key);
      weights.set(bucket++, weight);
    }
  }
}

/// Puts one column into the header and its sections into the layout. `lengths` stay alive there.
void write_column(const std::string& name, const Column& column, Layout& layout,
                  std::deque<std::vector<std::int64_t>>& lengths,
                  schemas::ColumnHeader::Builder out) {
  const ColumnType& type = column.type();
  out.setName(whole_text(name));
  out.setKind(static_cast<schemas::ColumnKind>(type.kind));
  out.setElementType(static_cast<schemas::ElementType>(type.dtype));
  auto shape = out.initRowShape(list_size(type.row_shape.size()));
  for (std::size_t i = 0; i < type.row_shape.size(); ++i)
    shape.set(static_cast<unsigned>(i), type.row_shape[i]);
  if (type.kind != ColumnKind::kDense) {
    lengths.push_back(column.row_lengths());
    describe(layout.add({std::as_bytes(std::span(lengths.back()))}), out.initLengths());
  }
  std::vector<std::span<const std::byte>> pieces;
  for (const Run& run : ColumnAccess::runs(column))
    pieces.push_back((*run.storage)->bytes(run.first, run.count));
  describe(layout.add(std::move(pieces)), out.initValues());
}

std::vector<std::byte> write_frame(std::span<const std::byte> header, const Layout& layout) {
  const auto header_bytes = static_cast<std::int64_t>(header.size());
  const std::int64_t payload = aligned(kFramePrefixBytes + header_bytes);
  const std::int64_t frame_bytes = payload + layout.bytes();
  std::vector<std::byte> frame(static_cast<std::size_t>(frame_bytes));
  write_frame_prefix(kFormat, header, frame_bytes, frame);
  std::memcpy(frame.data() + kFramePrefixBytes, header.data(), header.size());
  for (const Section& section : layout.sections()) {
    std::byte* target = frame.data() + payload + section.offset;
    for (const auto& piece : section.pieces) {
      if (!piece.empty()) std::memcpy(target, piece.data(), piece.size());
      target += piece.size();
    }
    CopyCounter::add(section.bytes);
  }
  return frame;
}

/// Walks a frame's payload section by section; every byte must be accounted for.
class PayloadReader {
 public:
  PayloadReader(std::span<const std::byte> payload, bool checksums)
      : payload_(payload), checksums_(checksums) {}

  /// The next section, which `header` describes and which must have `wanted` bytes.
  result<std::span<const std::byte>> next(schemas::Section::Reader header, std::int64_t wanted,
                                          std::string_view place) {
    if (header.getBytes() != static_cast<std::uint64_t>(wanted))
      return fail(ErrorCode::kCorrupt, "{}: {} bytes, wanted {}", place, header.getBytes(), wanted);
    return any(header, place);
  }

  /// The next section, of whatever size `header` says.
  result<std::span<const std::byte>> any(schemas::Section::Reader header, std::string_view place) {
    if (header.getOffset() != end_)
      return fail(ErrorCode::kCorrupt, "{}: starts at {}, wanted {}", place, header.getOffset(),
                  end_);
    if (header.getBytes() > payload_.size() - end_)
      return fail(ErrorCode::kCorrupt, "{}: bytes {}..{} of a payload of {}", place, end_,
                  static_cast<double>(end_) + static_cast<double>(header.getBytes()),
                  payload_.size());
    const auto section = payload_.subspan(end_, header.getBytes());
    if (checksums_) {
      const std::uint32_t found = crc32c(section);
      if (found != header.getChecksum())
        return fail(ErrorCode::kCorrupt, "{}: checksum {:08x}, wanted {:08x}", place, found,
                    header.getChecksum());
    }
    const std::size_t after = end_ + section.size();
    end_ = static_cast<std::size_t>(aligned(static_cast<std::int64_t>(after)));
    if (end_ > payload_.size())
      return fail(ErrorCode::kCorrupt, "{}: padded to {} of a payload of {}", place, end_,
                  payload_.size());
    TROUPE_TRY_VOID(check_zeros(payload_.subspan(after, end_ - after), place));
    return section;
  }

  result<void> finish() const {
    if (end_ != payload_.size())
      return fail(ErrorCode::kCorrupt, "batch: sections end at {}, the payload at {}", end_,
                  payload_.size());
    return {};
  }

 private:
  std::span<const std::byte> payload_;
  bool checksums_;
  std::size_t end_ = 0;
};

/// a × b, or an error when it is over `most`; both are ≥ 0.
result<std::int64_t> product(std::int64_t a, std::int64_t b, std::int64_t most,
                             std::string_view place) {
  if (a != 0 && b > most / a)
    return fail(ErrorCode::kCorrupt, "{}: {} × {} is over {}", place, a, b, most);
  return a * b;
}

result<ColumnType> read_type(schemas::ColumnHeader::Reader header, std::string_view place) {
  const auto kind = static_cast<unsigned>(header.getKind());
  const auto dtype = static_cast<unsigned>(header.getElementType());
  if (kind > static_cast<unsigned>(ColumnKind::kJson))
    return fail(ErrorCode::kCorrupt, "{}: kind {}, wanted 0..3", place, kind);
  if (dtype > static_cast<unsigned>(DType::kBool))
    return fail(ErrorCode::kCorrupt, "{}: element type {}, wanted 0..5", place, dtype);
  ColumnType type{static_cast<ColumnKind>(kind), static_cast<DType>(dtype), {}};
  const bool is_text = type.kind == ColumnKind::kText || type.kind == ColumnKind::kJson;
  if (is_text && type.dtype != DType::kU8)
    return fail(ErrorCode::kCorrupt, "{}: {} of {}, wanted u8", place, column_kind_name(type.kind),
                dtype_name(type.dtype));
  const auto shape = header.getRowShape();
  if (shape.size() > (type.kind == ColumnKind::kDense ? kRowShapeMax : 0))
    return fail(ErrorCode::kCorrupt, "{}: {} row shape of {} sides, wanted at most {}", place,
                column_kind_name(type.kind), shape.size(),
                type.kind == ColumnKind::kDense ? kRowShapeMax : 0);
  for (const std::int64_t side : shape) {
    if (side < 0) return fail(ErrorCode::kCorrupt, "{}: row shape has side {}", place, side);
    type.row_shape.push_back(side);
  }
  return type;
}

result<OffsetTable> read_lengths(std::span<const std::byte> section, std::int64_t elements_max,
                                 std::string_view place) {
  auto offsets = std::make_shared<std::vector<std::int64_t>>(section.size() / 8 + 1);
  std::int64_t total = 0;
  for (std::size_t i = 0; i + 1 < offsets->size(); ++i) {
    std::int64_t length = 0;
    std::memcpy(&length, section.data() + i * 8, 8);
    if (length < 0 || length > elements_max - total)
      return fail(ErrorCode::kCorrupt, "{}: row {} has length {}, wanted 0..{}", place, i, length,
                  elements_max - total);
    total += length;
    (*offsets)[i + 1] = total;
  }
  return OffsetTable(std::move(offsets));
}

result<Column> read_column(schemas::ColumnHeader::Reader header, std::int64_t rows,
                           const AlignedBytes& frame, PayloadReader& payload,
                           const std::string& place) {
  TROUPE_TRY(const ColumnType type, read_type(header, place));
  const std::int64_t element = dtype_bytes(type.dtype);
  const auto most = static_cast<std::int64_t>(frame.bytes().size());
  OffsetTable offsets;
  std::span<const std::byte> values;
  if (type.kind == ColumnKind::kDense) {
    if (header.hasLengths())
      return fail(ErrorCode::kCorrupt, "{}: dense, yet has a section of lengths", place);
    // A side of 0 makes the row empty whatever the others are.
    const bool no_elements =
        std::find(type.row_shape.begin(), type.row_shape.end(), 0) != type.row_shape.end();
    std::int64_t bytes = element;
    for (const std::int64_t side : type.row_shape) {
      TROUPE_TRY(bytes, product(bytes, side, std::int64_t{1} << 40, place));
    }
    TROUPE_TRY(bytes, product(no_elements ? 0 : bytes, rows, most, place));
    TROUPE_TRY(values, payload.next(header.getValues(), bytes, place + ": values"));
  } else {
    TROUPE_TRY(const std::int64_t bytes, product(rows, 8, most, place));
    TROUPE_TRY(const auto lengths, payload.next(header.getLengths(), bytes, place + ": lengths"));
    TROUPE_TRY(offsets, read_lengths(lengths, most / element, place));
    TROUPE_TRY(values,
               payload.next(header.getValues(), offsets->back() * element, place + ": values"));
  }
  Column column = ColumnAccess::view(type, rows, frame.owner(), values.data(), std::move(offsets));
  TROUPE_TRY_VOID(check_values(column, values, place));
  return column;
}

result<MetricEntry> read_metric(schemas::Metric::Reader in, std::string_view place) {
  const auto reduction = static_cast<unsigned>(in.getReduction());
  if (reduction > static_cast<unsigned>(Reduction::kHistogram))
    return fail(ErrorCode::kCorrupt, "{}: reduction {}, wanted 0..5", place, reduction);
  const auto is_weight = [](double w) { return std::isfinite(w) && w >= 0; };
  if (!is_weight(in.getWeight()) || !is_weight(in.getNonFiniteWeight()) || in.getCount() < 0)
    return fail(ErrorCode::kCorrupt, "{}: weights {} and {}, count {}, wanted finite and ≥ 0",
                place, in.getWeight(), in.getNonFiniteWeight(), in.getCount());
  MetricEntry entry{.reduction = static_cast<Reduction>(reduction),
                    .weight = in.getWeight(),
                    .weighted_sum = in.getWeightedSum(),
                    .min = in.getMin(),
                    .max = in.getMax(),
                    .last = in.getLast(),
                    .count = in.getCount(),
                    .histogram = {}};
  entry.histogram.non_finite_weight = in.getNonFiniteWeight();
  const auto keys = in.getBucketKeys();
  const auto weights = in.getBucketWeights();
  if (keys.size() != weights.size() || keys.size() > unsigned{kHistogramBucketsMax})
    return fail(ErrorCode::kCorrupt, "{}: {} bucket keys, {} weights, wanted as many and ≤ {}",
                place, keys.size(), weights.size(), kHistogramBucketsMax);
  for (unsigned i = 0; i < keys.size(); ++i) {
    const bool rises = i == 0 || keys[i] > keys[i - 1];
    if (!rises || std::abs(std::int64_t{keys[i]}) > kHistogramBucketsMax / 2 ||
        !is_weight(weights[i]))
      return fail(ErrorCode::kCorrupt, "{}: bucket {}: key {}, weight {}", place, i, keys[i],
                  weights[i]);
    entry.histogram.buckets.emplace_hint(entry.histogram.buckets.end(), keys[i], weights[i]);
  }
  return entry;
}

result<Batch> read_header(schemas::BatchHeader::Reader header, const AlignedBytes& frame,
                          std::int64_t payload_start, const DecodeLimits& limits) {
  const std::int64_t rows = header.getRows();
  const std::int64_t rows_max = std::min(limits.rows_max, kRowsMax);
  if (rows < 0 || rows > rows_max)
    return fail(ErrorCode::kCorrupt, "batch: {} rows, wanted 0..{}", rows, rows_max);
  const auto columns = header.getColumns();
  if (columns.size() > static_cast<std::uint64_t>(std::max<std::int64_t>(limits.columns_max, 0)))
    return fail(ErrorCode::kCorrupt, "batch: {} columns, wanted at most {}", columns.size(),
                limits.columns_max);
  if (!header.getRowsFixed() && (rows != 0 || columns.size() != 0))
    return fail(ErrorCode::kCorrupt, "batch: rows not fixed, yet {} rows and {} columns", rows,
                columns.size());
  Batch batch = header.getRowsFixed() ? Batch(rows) : Batch();
  PayloadReader payload(frame.bytes().subspan(static_cast<std::size_t>(payload_start)),
                        limits.checksums);
  for (const auto column : columns) {
    std::string name = text_of(column.getName());
    const std::string place = fmt::format("batch: column {}", name);
    if (batch.has(name)) return fail(ErrorCode::kCorrupt, "{}: comes twice", place);
    TROUPE_TRY(Column decoded, read_column(column, rows, frame, payload, place));
    TROUPE_TRY_VOID(as_corrupt(batch.set(std::move(name), std::move(decoded))));
  }
  TROUPE_TRY_VOID(payload.finish());
  for (const auto entry : header.getMetadata()) {
    std::string key = text_of(entry.getKey());
    if (batch.metadata().contains(key))
      return fail(ErrorCode::kCorrupt, "batch: metadata {}: comes twice", key);
    TROUPE_TRY_VOID(as_corrupt(batch.set_metadata(std::move(key), text_of(entry.getJson()))));
  }
  for (const auto metric : header.getMetrics()) {
    std::string name = text_of(metric.getName());
    const std::string place = fmt::format("batch: metric {}", name);
    if (batch.metrics().find(name) != nullptr)
      return fail(ErrorCode::kCorrupt, "{}: comes twice", place);
    TROUPE_TRY(MetricEntry entry, read_metric(metric, place));
    batch.metrics().put(std::move(name), std::move(entry));
  }
  return batch;
}

FrameLimits frame_limits(const DecodeLimits& limits) {
  return {.frame_bytes_max = limits.bytes_max,
          .header_bytes_max = limits.header_bytes_max,
          .checksums = limits.checksums};
}

}  // namespace

result<std::vector<std::byte>> encode_batch(const Batch& batch) {
  for (const auto& [name, column] : batch.columns()) {
    if (column.is_reference())
      return fail(ErrorCode::kInvalidArgument,
                  "batch: column {}: is a reference; resolve to encode", name);
  }
  capnp::MallocMessageBuilder message;
  auto header = message.initRoot<schemas::BatchHeader>();
  header.setRows(batch.rows());
  header.setRowsFixed(batch.rows_fixed());
  auto metadata = header.initMetadata(list_size(batch.metadata().size()));
  unsigned at = 0;
  for (const auto& [key, json] : batch.metadata()) {
    metadata[at].setKey(whole_text(key));
    metadata[at++].setJson(whole_text(json));
  }
  write_metrics(batch.metrics(), header);
  Layout layout;
  std::deque<std::vector<std::int64_t>> lengths;
  auto columns = header.initColumns(list_size(batch.columns().size()));
  at = 0;
  for (const auto& [name, column] : batch.columns())
    write_column(name, column, layout, lengths, columns[at++]);
  const kj::Array<capnp::word> flat = capnp::messageToFlatArray(message);
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(flat.begin()),
                                         flat.size() * sizeof(capnp::word));
  constexpr std::int64_t kMost = DecodeLimits{}.header_bytes_max;
  if (static_cast<std::int64_t>(bytes.size()) > kMost)
    return fail(ErrorCode::kInvalidArgument, "batch: header of {} bytes, wanted at most {}",
                bytes.size(), kMost);
  return write_frame(bytes, layout);
}

result<Batch> decode_batch(const AlignedBytes& frame, const DecodeLimits& limits) {
  TROUPE_TRY(const auto header, open_frame(kFormat, frame.bytes(), frame_limits(limits)));
  const std::size_t header_end = kFramePrefixBytes + header.size();
  const std::int64_t payload = aligned(static_cast<std::int64_t>(header_end));
  if (payload > static_cast<std::int64_t>(frame.bytes().size()))
    return fail(ErrorCode::kCorrupt, "batch: payload starts at {} of {} bytes", payload,
                frame.bytes().size());
  TROUPE_TRY_VOID(
      check_zeros(frame.bytes().subspan(header_end, static_cast<std::size_t>(payload) - header_end),
                  "batch: header"));
  return guarded_decode<Batch>("batch", [&]() -> result<Batch> {
    capnp::FlatArrayMessageReader message(words_of(header), reader_options(header.size()));
    TROUPE_TRY_VOID(check_end(message.getEnd(), header, "batch: header"));
    return read_header(message.getRoot<schemas::BatchHeader>(), frame, payload, limits);
  });
}

result<std::vector<std::byte>> Batch::to_bytes() const { return encode_batch(*this); }

result<Batch> Batch::from_bytes(std::span<const std::byte> bytes, const DecodeLimits& limits) {
  TROUPE_TRY_VOID(open_frame(kFormat, bytes, frame_limits(limits)).map([](auto) {}));
  AlignedBytes frame(bytes.size());
  std::memcpy(frame.mutable_bytes().data(), bytes.data(), bytes.size());
  return decode_batch(frame, limits);
}

result<void> Batch::save(const std::filesystem::path& path) const {
  TROUPE_TRY(const std::vector<std::byte> bytes, to_bytes());
  return write_file(path, bytes);
}

result<Batch> Batch::load(const std::filesystem::path& path, const DecodeLimits& limits) {
  TROUPE_TRY(const AlignedBytes frame, read_file(path, limits.bytes_max));
  result<Batch> batch = decode_batch(frame, limits);
  if (batch) return batch;
  Error error = std::move(batch).error();
  error.message = fmt::format("{}: {}", path.string(), error.message);
  return fail(std::move(error));
}

}  // namespace troupe::runtime
