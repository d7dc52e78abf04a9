#include "runtime/group/group_codec.hpp"

#include "runtime/batch/codec_support.hpp"
#include "runtime/wire/wire.hpp"

#include <capnp/serialize.h>
#include <schemas/group.capnp.h>

#include <cstring>

namespace troupe::runtime {
namespace {

capnp::Data::Reader data_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}
std::span<const std::byte> span_of(capnp::Data::Reader data) {
  return {reinterpret_cast<const std::byte*>(data.begin()), data.size()};
}

void write_part(const WirePartView& part, schemas::WirePart::Builder out) {
  if (part.held) {
    out.setHeld(data_of(part.bytes));
  } else {
    out.setInFrame(data_of(part.bytes));
  }
}

result<WirePartView> read_part(schemas::WirePart::Reader in) {
  switch (in.which()) {
    case schemas::WirePart::IN_FRAME:
      return WirePartView{span_of(in.getInFrame()), false};
    case schemas::WirePart::HELD:
      return WirePartView{span_of(in.getHeld()), true};
  }
  return fail(ErrorCode::kCorrupt, "part of kind {}", static_cast<unsigned>(in.which()));
}

std::vector<std::byte> bytes_of(capnp::MessageBuilder& message) {
  std::vector<std::byte> bytes(capnp::computeSerializedSizeInWords(message) * sizeof(capnp::word));
  kj::ArrayOutputStream stream(
      kj::arrayPtr(reinterpret_cast<kj::byte*>(bytes.data()), bytes.size()));
  capnp::writeMessage(stream, message);
  return bytes;
}

result<CallFrame> read_call(schemas::CallFrame::Reader in) {
  CallFrame call;
  call.id = CallId{in.getId()};
  call.method = in.getMethod();
  call.wanted = in.getWanted();
  call.rebuild_epoch = in.getRebuildEpoch();
  // A hostile or broken sender must not overflow the clock.
  constexpr std::int64_t kFarthest = Duration(std::chrono::hours(24 * 365)).count();
  call.remaining = Duration(std::clamp(in.getRemainingNanoseconds(), -kFarthest, kFarthest));
  call.ticket.number = in.getTicket();
  if (call.ticket.number != 0) {
    call.ticket.lane = text_of(in.getLane());
    call.ticket.floor = in.getTicketFloor();
  }
  if (call.rebuild_epoch < 0)
    return fail(ErrorCode::kCorrupt, "call {}: epoch {}", call.id.value, call.rebuild_epoch);
  const auto arguments = in.getArguments();
  if (arguments.size() > kArgumentsMax) {
    return fail(ErrorCode::kCorrupt, "call {}: {} arguments, wanted at most {}", call.id.value,
                arguments.size(), kArgumentsMax);
  }
  call.arguments.reserve(arguments.size());
  for (const auto argument : arguments) {
    TROUPE_TRY(const WirePartView part, read_part(argument));
    call.arguments.push_back(part);
  }
  return call;
}

result<ResultFrame> read_result(schemas::ResultFrame::Reader in) {
  ResultFrame frame;
  frame.id = CallId{in.getId()};
  frame.ran = in.getRan();
  frame.broken = in.getBroken();
  frame.begin = TimePoint(Duration(in.getBeginNanoseconds()));
  frame.end = TimePoint(Duration(in.getEndNanoseconds()));
  switch (in.which()) {
    case schemas::ResultFrame::NOTHING:
      return frame;
    case schemas::ResultFrame::VALUE: {
      TROUPE_TRY(frame.value, read_part(in.getValue()));
      return frame;
    }
    case schemas::ResultFrame::ERROR: {
      TROUPE_TRY(frame.error, decode_value<Error>(span_of(in.getError())));
      return frame;
    }
  }
  return fail(ErrorCode::kCorrupt, "result {} of kind {}", frame.id.value,
              static_cast<unsigned>(in.which()));
}

}  // namespace

std::vector<std::byte> encode_calls(std::span<const CallFrame> calls) {
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<schemas::CallFrames>().initCalls(list_size(calls.size()));
  for (unsigned i = 0; i < out.size(); ++i) {
    const CallFrame& call = calls[i];
    auto one = out[i];
    one.setId(call.id.value);
    one.setMethod(call.method);
    one.setWanted(call.wanted);
    one.setRebuildEpoch(call.rebuild_epoch);
    one.setRemainingNanoseconds(call.remaining.count());
    if (call.ticket.number != 0) {
      one.setLane(whole_text(call.ticket.lane));
      one.setTicket(call.ticket.number);
      one.setTicketFloor(call.ticket.floor);
    }
    auto arguments = one.initArguments(list_size(call.arguments.size()));
    for (unsigned a = 0; a < arguments.size(); ++a) write_part(call.arguments[a], arguments[a]);
  }
  return bytes_of(message);
}

std::vector<std::byte> encode_results(std::span<const ResultFrame> results) {
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<schemas::ResultFrames>().initResults(list_size(results.size()));
  for (unsigned i = 0; i < out.size(); ++i) {
    const ResultFrame& result = results[i];
    auto one = out[i];
    one.setId(result.id.value);
    one.setRan(result.ran);
    one.setBroken(result.broken);
    one.setBeginNanoseconds(result.begin.time_since_epoch().count());
    one.setEndNanoseconds(result.end.time_since_epoch().count());
    if (result.error) {
      const auto bytes = encode_value(*result.error);
      // Texts of errors are bounded by who makes them; one that is not is cut to its code.
      const auto small = bytes ? *bytes
                               : encode_value(Error{.code = result.error->code,
                                                    .message = "its text is too long to travel",
                                                    .origin = {},
                                                    .causes = {}})
                                     .value();
      one.setError(data_of(small));
    } else if (result.value) {
      write_part(*result.value, one.initValue());
    } else {
      one.setNothing();
    }
  }
  return bytes_of(message);
}

struct FrameDecoder::State {
  std::vector<capnp::word> copy;
  std::optional<capnp::FlatArrayMessageReader> message;

  void open(std::span<const std::byte> bytes) {
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(capnp::word) != 0) {
      copy = std::vector<capnp::word>(bytes.size() / sizeof(capnp::word));
      std::memcpy(static_cast<void*>(copy.data()), bytes.data(), bytes.size());
      bytes = std::as_bytes(std::span<const capnp::word>(copy));
    }
    message.emplace(words_of(bytes), reader_options(bytes.size()));
  }
};

FrameDecoder::FrameDecoder() : state_(std::make_unique<State>()) {}
FrameDecoder::~FrameDecoder() = default;

result<std::vector<CallFrame>> FrameDecoder::calls(std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() % sizeof(capnp::word) != 0)
    return fail(ErrorCode::kCorrupt, "calls: {} bytes", bytes.size());
  return guarded_decode<std::vector<CallFrame>>("calls", [&]() -> result<std::vector<CallFrame>> {
    state_->open(bytes);
    const auto list = state_->message->getRoot<schemas::CallFrames>().getCalls();
    if (list.size() > kCallsPerFrameMax)
      return fail(ErrorCode::kCorrupt, "calls: {} in a frame", list.size());
    std::vector<CallFrame> calls;
    calls.reserve(list.size());
    for (const auto one : list) {
      TROUPE_TRY(CallFrame call, read_call(one));
      calls.push_back(std::move(call));
    }
    return calls;
  });
}

result<std::vector<ResultFrame>> FrameDecoder::results(std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() % sizeof(capnp::word) != 0)
    return fail(ErrorCode::kCorrupt, "results: {} bytes", bytes.size());
  return guarded_decode<std::vector<ResultFrame>>(
      "results", [&]() -> result<std::vector<ResultFrame>> {
        state_->open(bytes);
        const auto list = state_->message->getRoot<schemas::ResultFrames>().getResults();
        if (list.size() > kCallsPerFrameMax)
          return fail(ErrorCode::kCorrupt, "results: {} in a frame", list.size());
        std::vector<ResultFrame> results;
        results.reserve(list.size());
        for (const auto one : list) {
          TROUPE_TRY(ResultFrame frame, read_result(one));
          results.push_back(std::move(frame));
        }
        return results;
      });
}

}  // namespace troupe::runtime
