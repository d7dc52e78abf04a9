#pragma once

// How the values of placement are written to and read from Cap'n Proto: what the codecs of messages
// and of the ledger share. Include it from `*_codec.cpp` only.
//
// **Threads:** pure functions.
// **Invariants:** reading checks enumerators, signs and counts before it allocates; what a request
// means is checked by `validate` where it is used.

#include "placement/placement_protocol.hpp"
#include "runtime/base/result.hpp"
#include "runtime/batch/codec_support.hpp"

#include <capnp/serialize.h>
#include <schemas/placement.capnp.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::placement {

/// Lists in one message hold at most this many entries.
inline constexpr std::size_t kListEntriesMax = std::size_t{1} << 20;

/// A number from the wire as an enumerator; kCorrupt when it is above `last`.
template <class Enum>
result<Enum> read_enum(std::uint8_t value, Enum last, std::string_view what) {
  if (value > static_cast<std::uint8_t>(last))
    return fail(ErrorCode::kCorrupt, "{} is {}, wanted 0..{}", what, value,
                static_cast<unsigned>(last));
  return static_cast<Enum>(value);
}

result<void> check_count(std::size_t count, std::size_t most, std::string_view what);
result<Duration> read_span(std::int64_t nanoseconds, std::string_view what);

void write_error(const Error& error, schemas::ErrorReply::Builder out, std::size_t depth = 0);
result<Error> read_error(schemas::ErrorReply::Reader in, std::size_t depth = 0);

void write_owner(const Owner& owner, schemas::PlacementOwner::Builder out);
result<Owner> read_owner(schemas::PlacementOwner::Reader in);

void write_terms(const GroupTerms& terms, schemas::PlacementTerms::Builder out);
result<GroupTerms> read_terms(schemas::PlacementTerms::Reader in);

void write_bundles(
    const std::vector<Bundle>& bundles,
    const std::function<capnp::List<schemas::PlacementBundles>::Builder(unsigned)>& init);
result<std::vector<Bundle>> read_bundles(capnp::List<schemas::PlacementBundles>::Reader in);

void write_request(const GroupRequest& request, schemas::PlacementRequest::Builder out);
result<GroupRequest> read_request(schemas::PlacementRequest::Reader in);

/// A slot with the attempt that placed it; messages leave the epoch 0.
struct EpochSlot {
  Epoch epoch{};
  Slot slot{};
};
void write_slots(const std::vector<EpochSlot>& slots, schemas::PlacementSlots::Builder out);
result<std::vector<EpochSlot>> read_slots(schemas::PlacementSlots::Reader in);

void write_spec(const NodeSpec& spec, schemas::PlacementNodeSpec::Builder out);
result<NodeSpec> read_spec(schemas::PlacementNodeSpec::Reader in);

/// The bytes of a message built by `write(root)`.
template <class Root, class Write>
std::vector<std::byte> encode_message(Write&& write) {
  capnp::MallocMessageBuilder message;
  std::forward<Write>(write)(message.initRoot<Root>());
  const kj::Array<capnp::word> flat = capnp::messageToFlatArray(message);
  const auto* bytes = reinterpret_cast<const std::byte*>(flat.begin());
  return {bytes, bytes + flat.size() * sizeof(capnp::word)};
}

/// What `read(root)` makes of a message. `bytes` need not be aligned.
template <class T, class Root, class Read>
result<T> decode_message(std::string_view place, std::span<const std::byte> bytes, Read&& read) {
  if (bytes.size() % sizeof(capnp::word) != 0 || bytes.empty())
    return fail(ErrorCode::kCorrupt, "{}: {} bytes, wanted whole words", place, bytes.size());
  std::vector<capnp::word> words(bytes.size() / sizeof(capnp::word));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  auto decoded = runtime::guarded_decode<T>(place, [&]() -> result<T> {
    capnp::FlatArrayMessageReader message(
        kj::ArrayPtr<const capnp::word>(words.data(), words.size()),
        runtime::reader_options(bytes.size()));
    const std::span<const std::byte> whole(reinterpret_cast<const std::byte*>(words.data()),
                                           bytes.size());
    TROUPE_TRY_VOID(runtime::check_end(message.getEnd(), whole, place));
    return std::forward<Read>(read)(message.getRoot<Root>());
  });
  if (!decoded && !decoded.error().message.starts_with(place)) {
    Error error = std::move(decoded).error();
    error.message = fmt::format("{}: {}", place, error.message);
    return fail(std::move(error));
  }
  return decoded;
}

}  // namespace troupe::placement
