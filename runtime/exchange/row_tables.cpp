#include "runtime/exchange/row_tables.hpp"

#include <map>

namespace troupe::runtime {
namespace {

void put(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

std::uint64_t zigzag(std::int64_t value) {
  return (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63);
}
std::int64_t unzigzag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  std::size_t left() const { return bytes_.size(); }
  result<std::uint64_t> next() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      const std::uint64_t bits = byte & 0x7F;
      if (shift == 63 && bits > 1) break;
      value |= bits << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return fail(ErrorCode::kCorrupt, "row table: torn number");
  }

 private:
  std::string_view bytes_;
};

}  // namespace

std::string encode_lengths(std::span<const std::int64_t> offsets) {
  const std::size_t rows = offsets.empty() ? 0 : offsets.size() - 1;
  const auto length = [&](std::size_t i) {
    return static_cast<std::uint64_t>(offsets[i + 1] - offsets[i]);
  };
  const auto same_from = [&](std::size_t i) {
    std::size_t end = i + 1;
    while (end < rows && length(end) == length(i)) ++end;
    return end - i;
  };
  constexpr std::size_t kWorthRepeating = 4;
  std::string out;
  for (std::size_t i = 0; i < rows;) {
    const std::size_t same = same_from(i);
    if (same >= kWorthRepeating) {
      put(out, static_cast<std::uint64_t>(same) << 1 | 1);
      put(out, length(i));
      i += same;
      continue;
    }
    std::size_t end = i;
    while (end < rows) {
      const std::size_t next = same_from(end);
      if (next >= kWorthRepeating) break;
      end += next;
    }
    put(out, static_cast<std::uint64_t>(end - i) << 1);
    for (; i < end; ++i) put(out, length(i));
  }
  return out;
}

result<std::vector<std::int64_t>> decode_lengths(std::string_view bytes, std::int64_t rows_max,
                                                 std::int64_t elements_max) {
  Reader in(bytes);
  std::vector<std::int64_t> offsets{0};
  std::int64_t total = 0;
  const auto add = [&](std::uint64_t length) -> result<void> {
    if (length > static_cast<std::uint64_t>(elements_max - total))
      return fail(ErrorCode::kCorrupt, "row table: row {} has length {}, wanted 0..{}",
                  offsets.size() - 1, length, elements_max - total);
    total += static_cast<std::int64_t>(length);
    offsets.push_back(total);
    return {};
  };
  while (!in.empty()) {
    TROUPE_TRY(const std::uint64_t token, in.next());
    const std::uint64_t count = token >> 1;
    const auto room = static_cast<std::uint64_t>(rows_max) - (offsets.size() - 1);
    if (count == 0 || count > room)
      return fail(ErrorCode::kCorrupt, "row table: {} further rows after {}, wanted 1..{}", count,
                  offsets.size() - 1, room);
    const bool repeated = (token & 1) != 0;
    if (!repeated && count > in.left())
      return fail(ErrorCode::kCorrupt, "row table: {} lengths in {} bytes", count, in.left());
    std::uint64_t length = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (i == 0 || !repeated) {
        TROUPE_TRY(length, in.next());
      }
      TROUPE_TRY_VOID(add(length));
    }
  }
  return offsets;
}

std::string encode_runs(std::span<const ExchangeRun> runs) {
  std::string out;
  std::map<std::uint32_t, std::int64_t> ends;
  for (const ExchangeRun& run : runs) {
    std::int64_t& end = ends[run.piece];
    put(out, run.piece);
    put(out, zigzag(run.first - end));
    put(out, static_cast<std::uint64_t>(run.count));
    end = run.first + run.count;
  }
  return out;
}

result<std::vector<ExchangeRun>> decode_runs(std::string_view bytes, std::int64_t rows) {
  Reader in(bytes);
  std::vector<ExchangeRun> runs;
  std::map<std::uint32_t, std::int64_t> ends;
  std::int64_t total = 0;
  while (!in.empty()) {
    TROUPE_TRY(const std::uint64_t piece, in.next());
    TROUPE_TRY(const std::uint64_t distance, in.next());
    TROUPE_TRY(const std::uint64_t count, in.next());
    if (piece > UINT32_MAX || count == 0 || count > static_cast<std::uint64_t>(rows - total))
      return fail(ErrorCode::kCorrupt, "row table: run of {} rows of piece {}, {} of {} are left",
                  count, piece, rows - total, rows);
    std::int64_t& end = ends[static_cast<std::uint32_t>(piece)];
    const std::int64_t by = unzigzag(distance);
    if (by > kRowsMax || by < -kRowsMax || end + by < 0 || end + by > kRowsMax)
      return fail(ErrorCode::kCorrupt, "row table: run starts {} rows from {}", by, end);
    const std::int64_t first = end + by;
    end = first + static_cast<std::int64_t>(count);
    total += static_cast<std::int64_t>(count);
    runs.push_back({static_cast<std::uint32_t>(piece), first, static_cast<std::int64_t>(count)});
  }
  if (total != rows)
    return fail(ErrorCode::kCorrupt, "row table: runs of {} rows, wanted {}", total, rows);
  return runs;
}

}  // namespace troupe::runtime
