#include "runtime/batch/frame.hpp"

#include "runtime/base/check.hpp"
#include "runtime/batch/checksum.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace troupe::runtime {
namespace {

constexpr std::size_t kMagicBytes = 8;
constexpr std::size_t kWordBytes = 8;  // Cap'n Proto messages are whole words

struct Prefix {
  std::array<char, kMagicBytes> magic{};
  std::uint32_t version = 0;
  std::uint32_t header_checksum = 0;
  std::uint64_t header_bytes = 0;
  std::uint64_t frame_bytes = 0;
};
static_assert(sizeof(Prefix) == kFramePrefixBytes);

std::uint64_t bound(std::int64_t limit) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(limit, 0));
}

}  // namespace

void write_frame_prefix(const FrameFormat& format, std::span<const std::byte> header,
                        std::int64_t frame_bytes, std::span<std::byte> target) {
  TROUPE_CHECK(format.magic.size() == kMagicBytes && target.size() >= sizeof(Prefix),
               "{}: magic of {} bytes, room of {}", format.place, format.magic.size(),
               target.size());
  Prefix prefix{.magic = {},
                .version = format.version,
                .header_checksum = crc32c(header),
                .header_bytes = header.size(),
                .frame_bytes = static_cast<std::uint64_t>(frame_bytes)};
  std::copy(format.magic.begin(), format.magic.end(), prefix.magic.begin());
  std::memcpy(target.data(), &prefix, sizeof(prefix));
}

std::uint64_t claimed_frame_bytes(std::span<const std::byte> frame) {
  Prefix prefix;
  if (frame.size() < sizeof(prefix)) return 0;
  std::memcpy(&prefix, frame.data(), sizeof(prefix));
  return prefix.frame_bytes;
}

result<std::span<const std::byte>> open_frame(const FrameFormat& format,
                                              std::span<const std::byte> frame,
                                              const FrameLimits& limits) {
  if (frame.size() > bound(limits.frame_bytes_max))
    return fail(ErrorCode::kCorrupt, "{}: {} bytes, wanted at most {}", format.place, frame.size(),
                limits.frame_bytes_max);
  Prefix prefix;
  if (frame.size() < sizeof(prefix))
    return fail(ErrorCode::kCorrupt, "{}: {} bytes, wanted at least {}", format.place, frame.size(),
                sizeof(prefix));
  std::memcpy(&prefix, frame.data(), sizeof(prefix));
  if (std::string_view(prefix.magic.data(), kMagicBytes) != format.magic)
    return fail(ErrorCode::kCorrupt, "{}: does not start with {}", format.place, format.magic);
  if (prefix.version != format.version)
    return fail(ErrorCode::kCorrupt, "{}: version {}, wanted {}", format.place, prefix.version,
                format.version);
  if (prefix.frame_bytes != frame.size())
    return fail(ErrorCode::kCorrupt, "{}: {} bytes, its prefix says {}", format.place, frame.size(),
                prefix.frame_bytes);
  const std::uint64_t most =
      std::min<std::uint64_t>(frame.size() - sizeof(prefix), bound(limits.header_bytes_max));
  if (prefix.header_bytes > most || prefix.header_bytes % kWordBytes != 0)
    return fail(ErrorCode::kCorrupt, "{}: header of {} bytes, wanted whole words, at most {}",
                format.place, prefix.header_bytes, most);
  const auto header = frame.subspan(sizeof(prefix), prefix.header_bytes);
  const std::uint32_t checksum = crc32c(header);
  if (limits.checksums && checksum != prefix.header_checksum)
    return fail(ErrorCode::kCorrupt, "{}: header checksum {:08x}, wanted {:08x}", format.place,
                checksum, prefix.header_checksum);
  return header;
}

}  // namespace troupe::runtime
