#include "runtime/link/frame_reader.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace troupe::runtime {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are written as they lie");

constexpr std::array<char, 4> kMagic{'T', 'r', 'L', 'k'};
constexpr std::size_t kSealOffset = kLinkPrefixBytes - kSealBytes;
/// A buffer that held a large frame is given back when it is empty again.
constexpr std::size_t kHeldBytesKept = std::size_t{128} << 10;

struct Prefix {
  std::array<char, 4> magic;
  std::uint8_t version;
  std::uint8_t kind;
  std::uint16_t zero;
  std::uint32_t payload_bytes;
  std::uint32_t also_zero;
  std::uint64_t sequence;
};
static_assert(sizeof(Prefix) == kSealOffset);

Prefix prefix_of(std::span<const std::byte> bytes) {
  Prefix prefix{};
  std::memcpy(&prefix, bytes.data(), sizeof prefix);
  return prefix;
}

/// TLS records start with their type and 3; worth its own words, since it is a common mistake.
bool looks_like_tls(std::span<const std::byte> bytes) {
  const auto type = std::to_integer<unsigned>(bytes[0]);
  return type >= 20 && type <= 23 && std::to_integer<unsigned>(bytes[1]) == 3;
}

/// Refuses a stream by its first bytes, also before there is a whole prefix.
result<void> check_start(std::span<const std::byte> bytes, std::uint64_t sequence) {
  const std::size_t count = std::min(bytes.size(), kMagic.size());
  if (std::memcmp(bytes.data(), kMagic.data(), count) == 0) return {};
  if (bytes.size() < 2) return {};
  if (looks_like_tls(bytes))
    return fail(ErrorCode::kConflict, "frame {}: the peer speaks TLS, this end does not", sequence);
  std::string found;
  for (const std::byte byte : bytes.first(count))
    found += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return fail(ErrorCode::kCorrupt, "frame {}: starts with {}, wanted 54724c6b", sequence, found);
}

}  // namespace

void FrameReader::feed(std::span<const std::byte> bytes) {
  if (fed_.empty()) {
    fed_ = bytes;
    return;
  }
  // The last bytes were not read to their end: keep them before they go.
  held_.insert(held_.end(), fed_.begin(), fed_.end());
  fed_ = bytes;
}

result<std::optional<LinkFrame>> FrameReader::next() {
  if (failure_) return fail(*failure_);
  auto frame = read();
  if (!frame) {
    failure_ = frame.error();
    held_ = {};
    held_read_ = 0;
    fed_ = {};
  }
  return frame;
}

/// `bytes` of the stream in one piece, from what is held if there is any; nullopt when they have
/// not all come, and then what has come is held.
std::optional<std::span<const std::byte>> FrameReader::gather(std::size_t bytes) {
  if (held_read_ == held_.size()) {
    held_.clear();
    held_read_ = 0;
    if (held_.capacity() > kHeldBytesKept) held_.shrink_to_fit();
    if (fed_.size() >= bytes) return fed_.first(bytes);
  } else if (held_read_ > 0) {
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(held_read_));
    held_read_ = 0;
  }
  if (held_.size() < bytes) {
    const std::size_t more = std::min(bytes - held_.size(), fed_.size());
    held_.insert(held_.end(), fed_.begin(), fed_.begin() + static_cast<std::ptrdiff_t>(more));
    fed_ = fed_.subspan(more);
  }
  if (held_.size() < bytes) return std::nullopt;
  return std::span<const std::byte>(held_).first(bytes);
}

result<std::size_t> FrameReader::frame_bytes(std::span<const std::byte> bytes) const {
  const Prefix prefix = prefix_of(bytes);
  TROUPE_TRY_VOID(check_start(bytes, sequence_));
  if (prefix.version != kLinkVersion)
    return fail(ErrorCode::kConflict, "frame {}: protocol version {}, wanted {}", sequence_,
                prefix.version, kLinkVersion);
  if (prefix.kind < static_cast<std::uint8_t>(FrameKind::kHello) ||
      prefix.kind > static_cast<std::uint8_t>(FrameKind::kEnvelope))
    return fail(ErrorCode::kCorrupt, "frame {}: kind {}, wanted 1..6", sequence_, prefix.kind);
  if (prefix.zero != 0 || prefix.also_zero != 0)
    return fail(ErrorCode::kCorrupt, "frame {}: reserved bytes {:x} and {:x}, wanted 0", sequence_,
                prefix.zero, prefix.also_zero);
  if (prefix.payload_bytes > payload_bytes_max_)
    return fail(ErrorCode::kCorrupt, "frame {}: {} bytes, wanted at most {}", sequence_,
                prefix.payload_bytes, payload_bytes_max_);
  if (prefix.sequence != sequence_)
    return fail(ErrorCode::kCorrupt, "frame {}: sequence number {}", sequence_, prefix.sequence);
  return kLinkPrefixBytes + std::size_t{prefix.payload_bytes};
}

result<std::optional<LinkFrame>> FrameReader::read() {
  const auto prefix = gather(kLinkPrefixBytes);
  if (!prefix) {
    if (!held_.empty()) TROUPE_TRY_VOID(check_start(held_, sequence_));
    return std::nullopt;
  }
  TROUPE_TRY(const std::size_t bytes, frame_bytes(*prefix));
  const auto frame = gather(bytes);
  if (!frame) return std::nullopt;
  const auto payload = frame->subspan(kLinkPrefixBytes);
  const auto seal = frame->subspan(kSealOffset, kSealBytes);
  if (!seal_.check(sequence_, frame->first(kSealOffset), payload, seal))
    return fail(ErrorCode::kCorrupt, "frame {}: its {} does not fit its {} bytes", sequence_,
                seal_.kind() == SealKind::kKeyed ? "MAC" : "checksum", payload.size());
  if (held_.empty()) {
    fed_ = fed_.subspan(bytes);
  } else {
    held_read_ = bytes;
  }
  ++sequence_;
  return LinkFrame{static_cast<FrameKind>(prefix_of(*frame).kind), payload};
}

void FrameWriter::append(FrameKind kind, std::span<const std::byte> payload,
                         std::vector<char>& target) {
  const Prefix prefix{kMagic,
                      kLinkVersion,
                      static_cast<std::uint8_t>(kind),
                      0,
                      static_cast<std::uint32_t>(payload.size()),
                      0,
                      sequence_};
  const auto bytes = std::as_bytes(std::span(&prefix, 1));
  const SealBytes seal = seal_.make(sequence_, bytes, payload);
  ++sequence_;
  const auto add = [&target](std::span<const std::byte> part) {
    const auto* from = reinterpret_cast<const char*>(part.data());
    target.insert(target.end(), from, from + part.size());
  };
  add(bytes);
  add(seal);
  add(payload);
}

}  // namespace troupe::runtime
