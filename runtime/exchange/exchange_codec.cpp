#include "runtime/exchange/exchange_codec.hpp"

#include "runtime/batch/codec_support.hpp"
#include "runtime/batch/frame.hpp"
#include "runtime/exchange/row_tables.hpp"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <schemas/exchange.capnp.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

namespace troupe::runtime {
namespace {

constexpr FrameFormat kFormat{.place = "exchange frame", .magic = "TRPXCHNG", .version = 1};
constexpr std::size_t kRowShapeMax = 16;
constexpr std::size_t kOwnersMax = 65536;

/// Tables of bytes, each kept once.
class TableWriter {
 public:
  std::uint32_t add(std::string table) {
    const auto [place, added] =
        places_.emplace(std::move(table), static_cast<std::uint32_t>(tables_.size()));
    if (added) tables_.push_back(&place->first);
    return place->second;
  }
  std::size_t size() const { return tables_.size(); }
  void write(capnp::List<capnp::Data>::Builder out) const {
    for (std::size_t i = 0; i < tables_.size(); ++i)
      out.set(static_cast<unsigned>(i),
              {reinterpret_cast<const capnp::byte*>(tables_[i]->data()), tables_[i]->size()});
  }

 private:
  std::unordered_map<std::string, std::uint32_t> places_;
  std::vector<const std::string*> tables_;  ///< keys of the map, which stay where they are
};

void write_column(const ExchangeColumn& column, TableWriter& lengths, TableWriter& runs,
                  schemas::ExchangeColumn::Builder out) {
  out.setName(whole_text(column.name));
  out.setKind(static_cast<schemas::ColumnKind>(column.type.kind));
  out.setElementType(static_cast<schemas::ElementType>(column.type.dtype));
  auto shape = out.initRowShape(list_size(column.type.row_shape.size()));
  for (std::size_t i = 0; i < column.type.row_shape.size(); ++i)
    shape.set(static_cast<unsigned>(i), column.type.row_shape[i]);
  auto pieces = out.initPieces(list_size(column.pieces.size()));
  for (std::size_t i = 0; i < column.pieces.size(); ++i) {
    const ExchangePiece& piece = column.pieces[i];
    auto one = pieces[static_cast<unsigned>(i)];
    one.setOwner(piece.owner);
    one.setColumn(piece.column.value);
    one.setFirstRow(piece.first_row);
    one.setRows(piece.rows);
    one.setLengths(piece.offsets ? 1 + lengths.add(encode_lengths(*piece.offsets)) : 0);
    one.setGranted(piece.granted);
  }
  out.setRuns(runs.add(encode_runs(*column.runs)));
}

void write_owner(const ExchangeOwner& owner, schemas::ExchangeOwner::Builder out) {
  out.setGroup(whole_text(owner.owner.group));
  out.setRank(owner.owner.rank.value);
  out.setEpoch(owner.epoch);
}

result<std::vector<std::byte>> finish(capnp::MallocMessageBuilder& message) {
  const kj::Array<capnp::word> flat = capnp::messageToFlatArray(message);
  const std::span<const std::byte> header(reinterpret_cast<const std::byte*>(flat.begin()),
                                          flat.size() * sizeof(capnp::word));
  constexpr std::int64_t kMost = DecodeLimits{}.header_bytes_max;
  if (static_cast<std::int64_t>(header.size()) > kMost)
    return fail(ErrorCode::kInvalidArgument, "exchange frame: {} bytes, wanted at most {}",
                header.size(), kMost);
  std::vector<std::byte> frame(static_cast<std::size_t>(kFramePrefixBytes) + header.size());
  write_frame_prefix(kFormat, header, static_cast<std::int64_t>(frame.size()), frame);
  std::memcpy(frame.data() + kFramePrefixBytes, header.data(), header.size());
  return frame;
}

/// Reads tables when a column first names them, so that each is decoded once.
class TableReader {
 public:
  TableReader(schemas::ExchangeBatch::Reader batch, const ExchangeLimits& limits)
      : lengths_(batch.getLengthTables()),
        runs_(batch.getRunTables()),
        rows_left_(limits.table_rows_max),
        elements_max_(limits.batch.bytes_max) {}

  using Offsets = std::shared_ptr<const std::vector<std::int64_t>>;
  using Runs = std::shared_ptr<const std::vector<ExchangeRun>>;

  result<Offsets> offsets(std::uint32_t index, std::int64_t rows, std::string_view place) {
    if (index >= lengths_.size())
      return fail(ErrorCode::kCorrupt, "{}: length table {} of {}", place, index, lengths_.size());
    auto known = known_lengths_.find(index);
    if (known == known_lengths_.end()) {
      TROUPE_TRY(auto offsets, decode_lengths(text(lengths_[index]), rows_left_, elements_max_));
      rows_left_ -= static_cast<std::int64_t>(offsets.size()) - 1;
      auto shared = std::make_shared<const std::vector<std::int64_t>>(std::move(offsets));
      known = known_lengths_.emplace(index, std::move(shared)).first;
    }
    const auto found = static_cast<std::int64_t>(known->second->size()) - 1;
    if (found != rows)
      return fail(ErrorCode::kCorrupt, "{}: length table of {} rows, wanted {}", place, found,
                  rows);
    return known->second;
  }
  result<Runs> runs(std::uint32_t index, std::int64_t rows, std::string_view place) {
    if (index >= runs_.size())
      return fail(ErrorCode::kCorrupt, "{}: run table {} of {}", place, index, runs_.size());
    auto known = known_runs_.find(index);
    if (known == known_runs_.end()) {
      TROUPE_TRY(auto runs, decode_runs(text(runs_[index]), rows));
      auto shared = std::make_shared<const std::vector<ExchangeRun>>(std::move(runs));
      known = known_runs_.emplace(index, std::move(shared)).first;
    }
    return known->second;
  }
  /// Nothing in a frame goes unread.
  result<void> finish() const {
    if (known_lengths_.size() != lengths_.size() || known_runs_.size() != runs_.size())
      return fail(ErrorCode::kCorrupt, "exchange frame: {} and {} of {} and {} tables are used",
                  known_lengths_.size(), known_runs_.size(), lengths_.size(), runs_.size());
    return {};
  }

 private:
  static std::string_view text(capnp::Data::Reader data) {
    return {reinterpret_cast<const char*>(data.begin()), data.size()};
  }
  capnp::List<capnp::Data>::Reader lengths_;
  capnp::List<capnp::Data>::Reader runs_;
  std::int64_t rows_left_;
  std::int64_t elements_max_;
  std::unordered_map<std::uint32_t, Offsets> known_lengths_;
  std::unordered_map<std::uint32_t, Runs> known_runs_;
};

result<ColumnType> read_type(schemas::ExchangeColumn::Reader in, std::string_view place) {
  const auto kind = static_cast<unsigned>(in.getKind());
  const auto dtype = static_cast<unsigned>(in.getElementType());
  if (kind > static_cast<unsigned>(ColumnKind::kJson) ||
      dtype > static_cast<unsigned>(DType::kBool))
    return fail(ErrorCode::kCorrupt, "{}: kind {} of element type {}", place, kind, dtype);
  ColumnType type{static_cast<ColumnKind>(kind), static_cast<DType>(dtype), {}};
  const bool is_text = type.kind == ColumnKind::kText || type.kind == ColumnKind::kJson;
  const auto shape = in.getRowShape();
  if ((is_text && type.dtype != DType::kU8) ||
      shape.size() > (type.kind == ColumnKind::kDense ? kRowShapeMax : 0))
    return fail(ErrorCode::kCorrupt, "{}: {} of {} with {} sides", place,
                column_kind_name(type.kind), dtype_name(type.dtype), shape.size());
  std::int64_t elements = 1;
  for (const std::int64_t side : shape) {
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    if (side < 0 || side > kMost / elements)
      return fail(ErrorCode::kCorrupt, "{}: row shape has side {}", place, side);
    if (side > 0) elements *= side;
    type.row_shape.push_back(side);
  }
  return type;
}

result<ExchangePiece> read_piece(schemas::ExchangePiece::Reader in, const ColumnType& type,
                                 std::size_t owners, TableReader& tables,
                                 const ExchangeLimits& limits, std::string_view place) {
  ExchangePiece piece{.owner = in.getOwner(),
                      .column = ColumnId{in.getColumn()},
                      .first_row = in.getFirstRow(),
                      .rows = in.getRows(),
                      .offsets = nullptr,
                      .granted = in.getGranted()};
  const std::int64_t most = std::min(limits.batch.rows_max, kRowsMax);
  if (piece.owner >= owners || piece.first_row < 0 || piece.first_row > kRowsMax ||
      piece.rows < 1 || piece.rows > most)
    return fail(ErrorCode::kCorrupt, "{}: rows {}+{} of owner {} of {}", place, piece.first_row,
                piece.rows, piece.owner, owners);
  const bool dense = type.kind == ColumnKind::kDense;
  if (dense != (in.getLengths() == 0))
    return fail(ErrorCode::kCorrupt, "{}: {} with length table {}", place, type.to_string(),
                in.getLengths());
  if (!dense) {
    TROUPE_TRY(piece.offsets, tables.offsets(in.getLengths() - 1, piece.rows, place));
  } else if (const std::int64_t row = row_elements(type.row_shape) * dtype_bytes(type.dtype);
             row != 0 && piece.rows > limits.batch.bytes_max / row) {
    return fail(ErrorCode::kCorrupt, "{}: {} rows of {} bytes are over {}", place, piece.rows, row,
                limits.batch.bytes_max);
  }
  return piece;
}

result<ExchangeColumn> read_column(schemas::ExchangeColumn::Reader in, std::int64_t rows,
                                   std::size_t owners, TableReader& tables,
                                   const ExchangeLimits& limits) {
  ExchangeColumn column;
  column.name = text_of(in.getName());
  const std::string place = fmt::format("exchange frame: column {}", column.name);
  TROUPE_TRY(column.type, read_type(in, place));
  for (const auto piece : in.getPieces()) {
    TROUPE_TRY(ExchangePiece one, read_piece(piece, column.type, owners, tables, limits, place));
    column.pieces.push_back(std::move(one));
  }
  TROUPE_TRY(column.runs, tables.runs(in.getRuns(), rows, place));
  std::int64_t total = 0;
  for (const ExchangeRun& run : *column.runs) {
    if (run.piece >= column.pieces.size() || run.first > column.pieces[run.piece].rows - run.count)
      return fail(ErrorCode::kCorrupt, "{}: run {}+{} of piece {} of {}", place, run.first,
                  run.count, run.piece, column.pieces.size());
    total += run.count;
  }
  if (total != rows)
    return fail(ErrorCode::kCorrupt, "{}: runs of {} rows, wanted {}", place, total, rows);
  return column;
}

result<ExchangeBatch> read_batch(schemas::ExchangeBatch::Reader in, const ExchangeLimits& limits) {
  ExchangeBatch batch;
  const auto inlined = in.getInline();
  TROUPE_TRY(batch.inlined, Batch::from_bytes({reinterpret_cast<const std::byte*>(inlined.begin()),
                                               inlined.size()},
                                              limits.batch));
  if (in.getOwners().size() > kOwnersMax)
    return fail(ErrorCode::kCorrupt, "exchange frame: {} owners, wanted at most {}",
                in.getOwners().size(), kOwnersMax);
  for (const auto owner : in.getOwners())
    batch.owners.push_back(
        {{text_of(owner.getGroup()), RankId{owner.getRank()}}, owner.getEpoch()});
  const auto columns = in.getColumns();
  const auto found = static_cast<std::int64_t>(batch.inlined.columns().size() + columns.size());
  if (found > limits.batch.columns_max)
    return fail(ErrorCode::kCorrupt, "exchange frame: {} columns, wanted at most {}", found,
                limits.batch.columns_max);
  if (columns.size() > 0 && !batch.inlined.rows_fixed())
    return fail(ErrorCode::kCorrupt, "exchange frame: rows not fixed, yet {} columns",
                columns.size());
  TableReader tables(in, limits);
  for (const auto column : columns) {
    TROUPE_TRY(ExchangeColumn one,
               read_column(column, batch.inlined.rows(), batch.owners.size(), tables, limits));
    const bool twice =
        batch.inlined.has(one.name) ||
        std::any_of(batch.columns.begin(), batch.columns.end(),
                    [&one](const ExchangeColumn& other) { return other.name == one.name; });
    if (twice) return fail(ErrorCode::kCorrupt, "exchange frame: column {}: comes twice", one.name);
    batch.columns.push_back(std::move(one));
  }
  TROUPE_TRY_VOID(tables.finish());
  return batch;
}

result<ExchangeHeld> read_held(schemas::ExchangeHeld::Reader in, const ExchangeLimits& limits) {
  const auto owner = in.getOwner();
  ExchangeHeld held{
      .owner = {{text_of(owner.getGroup()), RankId{owner.getRank()}}, owner.getEpoch()},
      .column = ColumnId{in.getColumn()},
      .bytes = 0,
      .checksum = in.getChecksum(),
      .granted = in.getGranted()};
  const std::int64_t most = limits.batch.header_bytes_max + kFramePrefixBytes;
  if (in.getBytes() == 0 || in.getBytes() > static_cast<std::uint64_t>(most))
    return fail(ErrorCode::kCorrupt, "exchange frame: held frame of {} bytes, wanted 1..{}",
                in.getBytes(), most);
  held.bytes = static_cast<std::int64_t>(in.getBytes());
  return held;
}

/// A copy whose words are aligned; frames come from anywhere.
kj::Array<capnp::word> aligned_words(std::span<const std::byte> bytes) {
  auto words = kj::heapArray<capnp::word>(bytes.size() / sizeof(capnp::word));
  if (!bytes.empty()) std::memcpy(words.begin(), bytes.data(), bytes.size());
  return words;
}

}  // namespace

result<std::vector<std::byte>> encode_exchange(const ExchangeBatch& batch) {
  TROUPE_TRY(const std::vector<std::byte> inlined, batch.inlined.to_bytes());
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<schemas::ExchangeFrame>().initBatch();
  out.setInline({reinterpret_cast<const capnp::byte*>(inlined.data()), inlined.size()});
  auto owners = out.initOwners(list_size(batch.owners.size()));
  for (std::size_t i = 0; i < batch.owners.size(); ++i)
    write_owner(batch.owners[i], owners[static_cast<unsigned>(i)]);
  TableWriter lengths;
  TableWriter runs;
  auto columns = out.initColumns(list_size(batch.columns.size()));
  for (std::size_t i = 0; i < batch.columns.size(); ++i)
    write_column(batch.columns[i], lengths, runs, columns[static_cast<unsigned>(i)]);
  lengths.write(out.initLengthTables(list_size(lengths.size())));
  runs.write(out.initRunTables(list_size(runs.size())));
  return finish(message);
}

result<std::vector<std::byte>> encode_exchange(const ExchangeHeld& held) {
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<schemas::ExchangeFrame>().initHeld();
  write_owner(held.owner, out.initOwner());
  out.setColumn(held.column.value);
  out.setBytes(static_cast<std::uint64_t>(held.bytes));
  out.setChecksum(held.checksum);
  out.setGranted(held.granted);
  return finish(message);
}

result<ExchangeFrame> decode_exchange(std::span<const std::byte> bytes,
                                      const ExchangeLimits& limits) {
  const std::int64_t most = limits.batch.header_bytes_max + kFramePrefixBytes;
  TROUPE_TRY(const auto header, open_frame(kFormat, bytes,
                                           {.frame_bytes_max = most,
                                            .header_bytes_max = limits.batch.header_bytes_max,
                                            .checksums = limits.batch.checksums}));
  if (bytes.size() != static_cast<std::size_t>(kFramePrefixBytes) + header.size())
    return fail(ErrorCode::kCorrupt, "exchange frame: {} bytes after the header",
                bytes.size() - static_cast<std::size_t>(kFramePrefixBytes) - header.size());
  return guarded_decode<ExchangeFrame>("exchange frame", [&]() -> result<ExchangeFrame> {
    const kj::Array<capnp::word> words = aligned_words(header);
    const std::span<const std::byte> aligned(reinterpret_cast<const std::byte*>(words.begin()),
                                             words.size() * sizeof(capnp::word));
    capnp::FlatArrayMessageReader message(words_of(aligned), reader_options(aligned.size()));
    TROUPE_TRY_VOID(check_end(message.getEnd(), aligned, "exchange frame: header"));
    const auto root = message.getRoot<schemas::ExchangeFrame>();
    switch (root.which()) {
      case schemas::ExchangeFrame::BATCH: {
        TROUPE_TRY(ExchangeBatch batch, read_batch(root.getBatch(), limits));
        return ExchangeFrame(std::move(batch));
      }
      case schemas::ExchangeFrame::HELD: {
        TROUPE_TRY(ExchangeHeld held, read_held(root.getHeld(), limits));
        return ExchangeFrame(std::move(held));
      }
    }
    return fail(ErrorCode::kCorrupt, "exchange frame: neither batch nor held");
  });
}

std::vector<std::byte> encode_lease_notice(const LeaseNotice& notice) {
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<schemas::LeaseNotice>();
  out.setEpoch(notice.epoch);
  auto releases = out.initReleases(list_size(notice.releases.size()));
  for (std::size_t i = 0; i < notice.releases.size(); ++i) {
    releases[static_cast<unsigned>(i)].setColumn(notice.releases[i].column.value);
    releases[static_cast<unsigned>(i)].setGrants(notice.releases[i].grants);
  }
  const kj::Array<capnp::word> flat = capnp::messageToFlatArray(message);
  const auto* first = reinterpret_cast<const std::byte*>(flat.begin());
  return {first, first + flat.size() * sizeof(capnp::word)};
}

result<LeaseNotice> decode_lease_notice(std::span<const std::byte> bytes) {
  constexpr std::size_t kMost = kNoticeReleasesMax * 16 + 4096;
  if (bytes.empty() || bytes.size() % sizeof(capnp::word) != 0 || bytes.size() > kMost)
    return fail(ErrorCode::kCorrupt, "lease notice: {} bytes, wanted whole words up to {}",
                bytes.size(), kMost);
  return guarded_decode<LeaseNotice>("lease notice", [&]() -> result<LeaseNotice> {
    const kj::Array<capnp::word> words = aligned_words(bytes);
    capnp::FlatArrayMessageReader message(words, reader_options(bytes.size()));
    const auto root = message.getRoot<schemas::LeaseNotice>();
    LeaseNotice notice{.epoch = root.getEpoch(), .releases = {}};
    if (root.getReleases().size() > kNoticeReleasesMax)
      return fail(ErrorCode::kCorrupt, "lease notice: {} releases, wanted at most {}",
                  root.getReleases().size(), kNoticeReleasesMax);
    for (const auto one : root.getReleases()) {
      if (one.getGrants() < 1)
        return fail(ErrorCode::kCorrupt, "lease notice: column {}: {} grants", one.getColumn(),
                    one.getGrants());
      notice.releases.push_back({ColumnId{one.getColumn()}, one.getGrants()});
    }
    return notice;
  });
}

}  // namespace troupe::runtime
