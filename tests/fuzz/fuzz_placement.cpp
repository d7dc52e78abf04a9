// No bytes crash the decoders of placement messages and of the ledger, what they accept is encoded
// again to an equal value, and no pass, however odd, ends a node: it is done or refused. The first
// byte says which decoder.

#include "placement/ledger.hpp"
#include "placement/ledger_frame.hpp"
#include "placement/node_reservations.hpp"
#include "placement/protocol_codec.hpp"

#include <cstdlib>
#include <span>

namespace {

using namespace troupe;
using namespace troupe::placement;

template <class Decode, class Encode>
void round_trip(MessageView bytes, Decode decode, Encode encode) {
  const auto value = decode(bytes);
  if (!value) return;
  const auto again = decode(encode(*value));
  if (!again || !(*again == *value)) std::abort();
}

void apply_pass(MessageView bytes) {
  auto pass = decode_pass(bytes);
  if (!pass) return;
  NodeSpec spec;
  spec.name = "n";
  spec.devices.resize(4);
  spec.cores = 16;
  spec.memory = gibibytes(8);
  auto node = NodeReservations::create(spec, 1);
  if (!node) std::abort();
  pass->hello = node->hello().hello;
  pass->number = 1;
  ReservationChanges changes;
  const auto reply = node->step(*pass, TimePoint{}, changes);
  if (!reply || reply->refusals.size() != pass->ops.size()) std::abort();
  node->expire(TimePoint{kLeaseMax + Duration{1}});
}

void read_ledger_file(MessageView bytes) {
  const auto content = read_ledger(bytes, "fuzz");
  if (content) (void)replay(content->payloads);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const MessageView bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  switch (data[0] % 12) {
    case 0:
      apply_pass(bytes);
      break;
    case 1:
      round_trip(bytes, decode_pass, encode_pass);
      break;
    case 2:
      round_trip(bytes, decode_reply, encode_reply);
      break;
    case 3:
      round_trip(bytes, decode_hello, encode_hello);
      break;
    case 4:
      round_trip(bytes, decode_creates,
                 [](const std::vector<CreateGroup>& groups) { return encode_creates(groups); });
      break;
    case 5:
      round_trip(bytes, decode_resize, encode_resize);
      break;
    case 6:
      round_trip(bytes, decode_changes,
                 [](const std::vector<GroupChange>& changes) { return encode_changes(changes); });
      break;
    case 7:
      round_trip(bytes, decode_view, encode_view);
      break;
    case 8:
      round_trip(bytes, decode_session, encode_session);
      break;
    case 9:
      round_trip(bytes, decode_page, encode_page);
      break;
    case 10:
      (void)decode_records(bytes);
      break;
    default:
      read_ledger_file(bytes);
      break;
  }
  return 0;
}
