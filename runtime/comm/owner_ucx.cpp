// Answers of the UCX engine: what readers asked for, sent or pinned.

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/comm/engine_ucx.hpp"

#include <algorithm>
#include <cstring>

namespace troupe::runtime {
namespace {

/// An answer up to this is sent at once even if the reader could copy: one message fewer.
constexpr std::int64_t kAtOnceBytes = std::int64_t{8} << 10;
/// Longest that an answer is kept for a reader, whatever deadline it names.
constexpr Duration kKeepLongest = std::chrono::minutes(30);

/// Appends bytes [skip, skip + take) of the spans, neighbours joined.
void take_bytes(const Pinned& pinned, std::int64_t skip, std::int64_t take,
                std::vector<std::span<const std::byte>>& out) {
  for (std::span<const std::byte> span : pinned.spans) {
    const auto passed = std::min<std::int64_t>(skip, static_cast<std::int64_t>(span.size()));
    skip -= passed;
    span = span.subspan(static_cast<std::size_t>(passed));
    span = span.first(std::min(span.size(), static_cast<std::size_t>(take)));
    if (span.empty()) continue;
    take -= static_cast<std::int64_t>(span.size());
    if (!out.empty() && out.back().data() + out.back().size() == span.data())
      out.back() = {out.back().data(), out.back().size() + span.size()};
    else
      out.push_back(span);
  }
}

}  // namespace

void UcxEngine::accept_request(Arrival arrival) {
  const MessageHeader& header = arrival.header;
  result<Request> request = decode_request(header, arrival.payload);
  if (!request) return refuse(request.error());
  Peer* peer = known_peer(header.from);
  if (peer != nullptr && peer->lost) return;
  if (!request->reader.empty()) {
    result<TransportAddress> address = decode_address(request->reader);
    if (!address) return refuse(address.error());
    if (address->epoch != header.from)
      return refuse(
          Error{.code = ErrorCode::kCorrupt,
                .message = fmt::format("{} introduces itself as epoch {:x}, sends as {:x}",
                                       address->name, address->epoch, header.from),
                .origin = {},
                .causes = {}});
    // It has connected anew, so what we had towards it leads nowhere.
    if (peer != nullptr && header.connection > peer->their_connection &&
        peer->their_connection != 0)
      fail_peer(header.from,
                Error{.code = ErrorCode::kRankDead,
                      .message = "it has connected anew",
                      .origin = {},
                      .causes = {}},
                false);
    result<Peer*> connected = peer_of(*address);
    if (!connected) return refuse(connected.error());
    peer = *connected;
    if (!arrival.admitted && !admit(*peer, header)) return;
    peer->their_connection = std::max(peer->their_connection, header.connection);
  }
  if (peer == nullptr) {
    counters_.late.fetch_add(1);
    return;
  }
  if (peer->endpoint == nullptr) {  // ours broke, theirs did not
    if (const result<void> connected = connect(*peer); !connected) return refuse(connected.error());
  }
  const std::span<const RequestPart> parts(request->parts);
  for (std::size_t first = 0; first < parts.size();) {
    std::size_t end = first + 1;
    while (end < parts.size() && parts[end].chunk == parts[first].chunk) ++end;
    MessageHeader one = header;
    one.chunk = static_cast<std::uint32_t>(parts[first].chunk);
    if (peer->endpoint == nullptr) return;  // it failed meanwhile
    answer_chunk(*peer, one, parts.subspan(first, end - first));
    first = end;
  }
}

void UcxEngine::answer_chunk(Peer& peer, const MessageHeader& header,
                             std::span<const RequestPart> parts) {
  if (peer.answers_open >= kAnswersOpenMax)
    return answer_error(peer, header,
                        Error{.code = ErrorCode::kResourceExhausted,
                              .message = fmt::format("{}: {} answers to {} are open", options_.name,
                                                     peer.answers_open, peer.address.name),
                              .origin = {},
                              .causes = {}});
  result<Pieces> pieces = gather(parts);
  if (!pieces) return answer_error(peer, header, pieces.error());
  answer(peer, header, *std::move(pieces));
}

result<UcxEngine::Pieces> UcxEngine::gather(std::span<const RequestPart> parts) const {
  if (!options_.source) return fail(ErrorCode::kNotFound, "{}: serves no columns", options_.name);
  Pieces pieces;
  for (const RequestPart& part : parts) {
    TROUPE_TRY(Pinned pinned, options_.source(ColumnId{part.column}, part.first, part.rows));
    std::int64_t bytes = 0;
    for (const auto& span : pinned.spans) bytes += static_cast<std::int64_t>(span.size());
    if (bytes != part.bytes)
      return fail(ErrorCode::kConflict, "{}: column {}: rows {}+{} have {} bytes, wanted {}",
                  options_.name, part.column, part.first, part.rows, bytes, part.bytes);
    take_bytes(pinned, part.skip, part.take, pieces.spans);
    pieces.keeps.push_back(std::move(pinned.keep));
    pieces.bytes += part.take;
  }
  return pieces;
}

void UcxEngine::answer(Peer& peer, const MessageHeader& request, Pieces pieces) {
  if ((request.flags & kFlagPlaces) != 0 && pieces.bytes > kAtOnceBytes) {
    if (pieces.spans.size() <= kAnswerPiecesMax)
      return answer_places(peer, request, std::move(pieces));
    // Lanes bring it in smaller chunks, packed; the reader asks again for those.
    return answer_error(
        peer, request,
        Error{.code = ErrorCode::kUnsupported,
              .message = fmt::format("{}: {} places, at most {} fit an answer", options_.name,
                                     pieces.spans.size(), kAnswerPiecesMax),
              .origin = {},
              .causes = {}});
  }
  const bool must_pack = pieces.spans.size() > 1;
  if (must_pack && packed_bytes_ > 0 && packed_bytes_ + pieces.bytes > options_.pack_bytes_max) {
    ++peer.answers_open;  // so that a reader cannot queue without bound
    waiting_.push_back({peer.address.epoch, request, std::move(pieces)});
    return;
  }
  answer_data(peer, request, std::move(pieces));
}

void UcxEngine::answer_data(Peer& peer, const MessageHeader& request, Pieces pieces) {
  auto made = std::make_unique<Answer>();
  made->engine = this;
  made->number = ++last_number_;
  made->epoch = peer.address.epoch;
  made->pull = request.pull;
  made->chunk = request.chunk;
  const auto remaining = std::min<std::uint64_t>(request.remaining_ns,
                                                 static_cast<std::uint64_t>(kKeepLongest.count()));
  made->expires = steady_now() + Duration(static_cast<std::int64_t>(remaining)) + options_.drain;
  std::span<const std::byte> bytes;
  if (pieces.spans.size() == 1) bytes = pieces.spans[0];
  if (pieces.spans.size() > 1) {
    made->packed.resize(static_cast<std::size_t>(pieces.bytes));
    std::byte* target = made->packed.data();
    for (const auto& span : pieces.spans) {
      std::memcpy(target, span.data(), span.size());
      target += span.size();
    }
    packed_bytes_ += pieces.bytes;
    pieces.keeps.clear();
    bytes = made->packed;
  }
  made->keeps = std::move(pieces.keeps);
  MessageHeader header{.type = MessageType::kData, .pull = request.pull, .chunk = request.chunk};
  header.bytes = bytes.size();
  made->head = seal_message(options_.key, stamp(peer, header), {});
  ++peer.answers_open;
  counters_.bytes_served.fetch_add(pieces.bytes);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &UcxEngine::on_answered;
  param.user_data = made.get();
  const bool watched = (request.flags & kFlagWatched) != 0;
  if (static_cast<std::int64_t>(bytes.size()) <= worker_.at_once_bytes(watched)) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
  }
  Answer& kept = *answers_.emplace(made->number, std::move(made)).first->second;
  void* sent = ucp_am_send_nbx(peer.endpoint, kMessageId, kept.head.data(), kept.head.size(),
                               bytes.data(), bytes.size(), &param);
  if (UCS_PTR_IS_PTR(sent)) return;
  if (UCS_PTR_IS_ERR(sent))
    broken_.push_back({peer.address.epoch, peer.connection, UCS_PTR_STATUS(sent)});
  drop_answer(kept.number);
}

void UcxEngine::on_answered(void* request, ucs_status_t /*status*/, void* answer) {
  const auto* done = static_cast<const Answer*>(answer);
  UcxEngine* engine = done->engine;
  engine->drop_answer(done->number);
  ucp_request_free(request);
  engine->serve_waiting();
}

void UcxEngine::answer_places(Peer& peer, const MessageHeader& request, Pieces pieces) {
  std::vector<MemoryPlace> places;
  places.reserve(pieces.spans.size());
  for (const auto& span : pieces.spans)
    places.push_back({reinterpret_cast<std::uintptr_t>(span.data()), span.size()});
  auto made = std::make_unique<Answer>();
  made->engine = this;
  made->number = ++last_number_;
  made->epoch = peer.address.epoch;
  made->pull = request.pull;
  made->chunk = request.chunk;
  made->places = true;
  const auto remaining = std::min<std::uint64_t>(request.remaining_ns,
                                                 static_cast<std::uint64_t>(kKeepLongest.count()));
  // A reader gives up at its deadline, so that no copy that counts can follow the unpinning.
  made->expires = steady_now() + Duration(static_cast<std::int64_t>(remaining)) + options_.drain;
  made->keeps = std::move(pieces.keeps);
  ++peer.answers_open;
  counters_.pins_held.fetch_add(1);
  counters_.bytes_served.fetch_add(pieces.bytes);
  pins_[{made->epoch, {made->pull, made->chunk}}] = made->number;
  answers_.emplace(made->number, std::move(made));
  send(peer, {.type = MessageType::kPlaces, .pull = request.pull, .chunk = request.chunk},
       encode_places(places));
}

void UcxEngine::answer_error(Peer& peer, const MessageHeader& request, const Error& error) {
  send(peer, {.type = MessageType::kError, .pull = request.pull, .chunk = request.chunk},
       encode_failure(error));
}

void UcxEngine::drop_answer(std::uint64_t number) {
  const auto place = answers_.find(number);
  if (place == answers_.end()) return;
  const std::unique_ptr<Answer> answer = std::move(place->second);
  answers_.erase(place);
  packed_bytes_ -= static_cast<std::int64_t>(answer->packed.size());
  if (answer->places) {
    counters_.pins_held.fetch_sub(1);
    pins_.erase({answer->epoch, {answer->pull, answer->chunk}});
  }
  if (Peer* peer = known_peer(answer->epoch)) --peer->answers_open;
}

void UcxEngine::unpin(const MessageHeader& header) {
  const auto place = pins_.find({header.from, {header.pull, header.chunk}});
  if (place != pins_.end()) drop_answer(place->second);
}

void UcxEngine::serve_waiting() {
  while (!waiting_.empty()) {
    const Waiting& next = waiting_.front();
    if (packed_bytes_ > 0 && packed_bytes_ + next.pieces.bytes > options_.pack_bytes_max) return;
    Waiting one = std::move(waiting_.front());
    waiting_.pop_front();
    Peer* peer = known_peer(one.epoch);
    if (peer == nullptr || peer->endpoint == nullptr) continue;
    --peer->answers_open;
    answer_data(*peer, one.header, std::move(one.pieces));
  }
}

}  // namespace troupe::runtime
