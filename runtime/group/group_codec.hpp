#pragma once

// Frames of calls and results between a controller and its rank processes (schemas/group.capnp).
//
// **Threads:** pure functions over values.
// **Invariants:** decoding is bounded by the frame and never throws; views in decoded frames live
// as long as the bytes and the decoder's buffer. Frames keep the order of what they hold.

#include "runtime/base/clock.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"
#include "runtime/group/lane_ticket.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::runtime {

/// Most calls or results that one frame may carry.
inline constexpr std::size_t kCallsPerFrameMax = 256;
/// Most arguments of a method.
inline constexpr std::size_t kArgumentsMax = 64;

/// An encoded value: in the frame, or an exported column of bytes that holds it.
struct WirePartView {
  std::span<const std::byte> bytes;
  bool held = false;
};

struct CallFrame {
  CallId id;
  std::uint16_t method = 0;
  bool wanted = false;
  std::int64_t rebuild_epoch = 0;
  Duration remaining{};
  LaneTicket ticket;  ///< number 0: none
  std::vector<WirePartView> arguments;
};

struct ResultFrame {
  CallId id;
  bool ran = false;
  bool broken = false;
  TimePoint begin;
  TimePoint end;
  std::optional<WirePartView> value;
  std::optional<Error> error;
};

std::vector<std::byte> encode_calls(std::span<const CallFrame> calls);
std::vector<std::byte> encode_results(std::span<const ResultFrame> results);

/// Keeps the words that views of a decoded frame point into, when the bytes were not aligned.
class FrameDecoder {
 public:
  FrameDecoder();
  ~FrameDecoder();
  FrameDecoder(const FrameDecoder&) = delete;
  FrameDecoder& operator=(const FrameDecoder&) = delete;
  /// `bytes` outlive what is read. kCorrupt names the frame and what is wrong with it.
  result<std::vector<CallFrame>> calls(std::span<const std::byte> bytes);
  result<std::vector<ResultFrame>> results(std::span<const std::byte> bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe::runtime
