#pragma once

// The messages between ranks of a group between processes; docs/collectives.md lists them.
//
// **Threads:** plain values, pure functions.
// **Invariants:** an encoded message has exactly kGroupFrameBytes; decoding trusts no length. An
// error travels with its first cause at each of at most kFrameCausesMax levels, texts cut to
// kFrameTextMax.

#include "runtime/comm/posted_call.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace troupe::runtime {

inline constexpr std::size_t kGroupFrameBytes = 4096;
inline constexpr std::size_t kFrameTextMax = 700;
inline constexpr int kFrameCausesMax = 4;
/// Messages up to this travel inside the frame.
inline constexpr std::size_t kInlineBytesMax = 3072;

struct GroupFrame {
  enum class Kind : std::uint8_t {
    kArrive,    ///< rank → 0: `call`, `operation`
    kWithdraw,  ///< rank → 0: `operation`
    kFail,      ///< rank → 0: please fail with `error`
    kDepart,    ///< rank → 0, or 0 → all: the sender has left
    kGo,        ///< 0 → all: `operation`
    kFailed,    ///< 0 → all: `error`
    kGone,      ///< 0 → all: `rank`
    kMessage,   ///< sender → receiver: `tag`, `call.type`, `call.count`, `id`, perhaps `bytes`
    kTaken,     ///< receiver → sender: message `id` was read
    kAbandon,   ///< rank → all but 0: the sender heard no go for `operation` and ends with `error`
  };
  Kind kind = Kind::kArrive;
  std::uint64_t group = 0;
  std::uint64_t received = 0;  ///< frames that the sender has had from this receiver
  std::uint64_t operation = 0;
  int rank = 0;
  int tag = 0;
  std::uint64_t id = 0;
  PostedCall call;
  std::optional<Error> error = {};
  std::vector<std::byte> bytes = {};
};

std::vector<std::byte> encode_group_frame(const GroupFrame& frame);
/// kCorrupt says what is wrong.
result<GroupFrame> decode_group_frame(std::span<const std::byte> bytes);

}  // namespace troupe::runtime
