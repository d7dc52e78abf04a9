#include "placement/ledger_frame.hpp"

#include "runtime/batch/checksum.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace troupe::placement {
namespace {

static_assert(std::endian::native == std::endian::little, "ledger files are little-endian");

constexpr std::array<char, 8> kMagic{'T', 'R', 'P', 'L', 'E', 'D', 'G', '\n'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kFrameMagic = 0x524C4654;  // "TFLR"
constexpr std::size_t kPadding = 8;

template <class T>
T read_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
void write_at(std::span<std::byte> bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

std::size_t padded(std::size_t bytes) { return (bytes + kPadding - 1) / kPadding * kPadding; }

struct Frame {
  std::uint64_t number = 0;
  std::span<const std::byte> payload;
  std::size_t end = 0;
};

/// The frame at `offset` when it is whole.
std::optional<Frame> frame_at(std::span<const std::byte> bytes, std::size_t offset) {
  if (bytes.size() - offset < kFrameHeaderBytes) return std::nullopt;
  if (read_at<std::uint32_t>(bytes, offset) != kFrameMagic) return std::nullopt;
  const auto payload_bytes = read_at<std::uint64_t>(bytes, offset + 16);
  if (payload_bytes == 0 || payload_bytes > kFramePayloadBytesMax) return std::nullopt;
  const std::size_t whole = kFrameHeaderBytes + padded(static_cast<std::size_t>(payload_bytes));
  if (whole > bytes.size() - offset) return std::nullopt;
  const auto checked = bytes.subspan(offset + 8, whole - 8);
  if (runtime::crc32c(checked) != read_at<std::uint32_t>(bytes, offset + 4)) return std::nullopt;
  return Frame{
      .number = read_at<std::uint64_t>(bytes, offset + 8),
      .payload = bytes.subspan(offset + kFrameHeaderBytes, static_cast<std::size_t>(payload_bytes)),
      .end = offset + whole};
}

/// Where the next whole frame behind `offset` starts.
std::optional<std::size_t> whole_frame_behind(std::span<const std::byte> bytes,
                                              std::size_t offset) {
  for (std::size_t at = offset + kPadding; at + kFrameHeaderBytes <= bytes.size(); at += kPadding) {
    if (frame_at(bytes, at)) return at;
  }
  return std::nullopt;
}

result<std::uint64_t> first_frame_of(std::span<const std::byte> bytes, std::string_view place) {
  if (bytes.size() < kLedgerHeaderBytes)
    return fail(ErrorCode::kCorrupt, "{}: {} bytes, wanted at least {}", place, bytes.size(),
                kLedgerHeaderBytes);
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    return fail(ErrorCode::kCorrupt, "{}: not a placement ledger", place);
  const auto version = read_at<std::uint32_t>(bytes, 8);
  if (version != kVersion)
    return fail(ErrorCode::kUnsupported, "{}: version {}, wanted {}", place, version, kVersion);
  const auto wanted = read_at<std::uint32_t>(bytes, 12);
  const std::uint32_t found = runtime::crc32c(bytes.subspan(16, 8));
  if (wanted != found)
    return fail(ErrorCode::kCorrupt, "{}: checksum of the header is {:08x}, wanted {:08x}", place,
                found, wanted);
  return read_at<std::uint64_t>(bytes, 16);
}

}  // namespace

std::vector<std::byte> encode_ledger_header(std::uint64_t first_frame) {
  std::vector<std::byte> bytes(kLedgerHeaderBytes);
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  write_at(bytes, 8, kVersion);
  write_at(bytes, 16, first_frame);
  write_at(bytes, 12, runtime::crc32c(std::span(bytes).subspan(16, 8)));
  return bytes;
}

result<std::vector<std::byte>> encode_ledger_frame(std::uint64_t number,
                                                   std::span<const std::byte> payload) {
  if (payload.empty() || payload.size() > kFramePayloadBytesMax)
    return fail(ErrorCode::kInvalidArgument, "ledger: frame of {} bytes, wanted 1..{}",
                payload.size(), kFramePayloadBytesMax);
  std::vector<std::byte> bytes(kFrameHeaderBytes + padded(payload.size()));
  write_at(bytes, 0, kFrameMagic);
  write_at(bytes, 8, number);
  write_at(bytes, 16, static_cast<std::uint64_t>(payload.size()));
  std::memcpy(bytes.data() + kFrameHeaderBytes, payload.data(), payload.size());
  write_at(bytes, 4, runtime::crc32c(std::span(bytes).subspan(8)));
  return bytes;
}

result<LedgerContent> read_ledger(std::span<const std::byte> bytes, std::string_view place) {
  TROUPE_TRY(const std::uint64_t first, first_frame_of(bytes, place));
  LedgerContent content;
  content.next_frame = first;
  content.bytes = kLedgerHeaderBytes;
  while (content.bytes < bytes.size()) {
    const std::optional<Frame> frame = frame_at(bytes, content.bytes);
    if (!frame) {
      const auto behind = whole_frame_behind(bytes, content.bytes);
      if (behind)
        return fail(ErrorCode::kCorrupt,
                    "{}: frame {} at byte {} is damaged, and a whole frame follows at byte {}",
                    place, content.next_frame, content.bytes, *behind);
      content.warning =
          fmt::format("{}: frame {} at byte {} is torn; {} bytes are cut off", place,
                      content.next_frame, content.bytes, bytes.size() - content.bytes);
      break;
    }
    if (frame->number != content.next_frame)
      return fail(ErrorCode::kCorrupt, "{}: frame at byte {} has number {}, wanted {}", place,
                  content.bytes, frame->number, content.next_frame);
    content.payloads.push_back(frame->payload);
    content.bytes = frame->end;
    ++content.next_frame;
  }
  return content;
}

}  // namespace troupe::placement
