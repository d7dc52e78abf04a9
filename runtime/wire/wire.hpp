#pragma once

// Plain C++ values as bytes and back: arguments and results of calls between processes, and every
// control message whose fields are a struct.
//
//   struct StartRank {
//     std::string group;
//     RankId rank;
//     static constexpr auto fields() {
//       return std::tuple{field("group", &StartRank::group), field("rank", &StartRank::rank)};
//     }
//   };
//   auto bytes = encode_value(start);                      // result<std::vector<std::byte>>
//   auto back = decode_value<StartRank>(*bytes);           // kCorrupt: `StartRank.rank: wanted …`
//
// A type travels when `WireTraits<T>` exists: bool, numbers, enums whose enumerators lie in 0..127,
// std::string, StrongId, durations, optional, vector (numbers as raw bytes), array, map, pair,
// tuple, variant, Error, Metrics, structs with `fields()`, and Batch and Column with a
// `WireContext`. Specialise it for a type of your own: `write`, `read`, `describe`.
// **Threads:** pure functions.
// **Invariants:** decoding never throws and never trusts a length; a wrong kind or range, or a
// missing field, is kCorrupt naming type and field path. Fields that the reader does not know are
// skipped; a missing field is an error unless it is an optional. What decodes encodes again to an
// equal value.
// **Cost:** one message; a struct of eight small fields about 1 µs each way.

#include "runtime/wire/wire_traits.hpp"
#include "runtime/wire/wire_types.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace troupe::runtime {

/// The bytes of `value`. Errors name the type: kUnsupported without the context that it needs,
/// kResourceExhausted above kValueBytesMax.
template <Wireable T>
result<std::vector<std::byte>> encode_value(const T& value, WireContext* context = nullptr) {
  WireEncoder encoder(context);
  WireTraits<T>::write(encoder.root(), value);
  auto bytes = encoder.finish();
  if (!bytes) return fail(wire_error_at(std::move(bytes).error(), wire_type_name<T>()));
  return bytes;
}

template <Wireable T>
result<T> decode_value(std::span<const std::byte> bytes, WireContext* context = nullptr) {
  WireDecoder decoder(context);
  auto root = decoder.open(bytes);
  if (!root) return fail(wire_error_at(std::move(root).error(), wire_type_name<T>()));
  auto value = WireTraits<T>::read(*root);
  if (!value) return fail(wire_error_at(std::move(value).error(), wire_type_name<T>()));
  return value;
}

/// True when a T may hold batches or columns, so that reading one may pull payload.
template <Wireable T>
bool wire_has_columns() {
  static const bool has = [] {
    WireSignature signature;
    WireTraits<T>::describe(signature);
    return signature.has_columns();
  }();
  return has;
}

/// A hash of the shape of T: kinds and field names, not C++ names. Equal on both sides of a link
/// when they can talk about a T.
template <Wireable T>
std::uint64_t wire_signature() {
  WireSignature signature;
  WireTraits<T>::describe(signature);
  return signature.hash();
}

}  // namespace troupe::runtime
