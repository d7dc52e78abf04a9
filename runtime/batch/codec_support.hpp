#pragma once

// What every Cap'n Proto decoder of Troupe shares: limits, and the door at which a malformed
// message stops being an exception. Include it from `*_codec.cpp` only.
//
// **Threads:** pure functions.
// **Invariants:** a decoder never throws: kj exceptions become kCorrupt errors.

#include "runtime/base/check.hpp"
#include "runtime/base/result.hpp"

#include <capnp/common.h>
#include <capnp/message.h>
#include <kj/exception.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace troupe::runtime {

/// Deepest pointer chain that a message of ours may have.
inline constexpr int kNestingMax = 32;

/// Every word may be read about twice: once to count, once to copy. More is an amplification.
inline capnp::ReaderOptions reader_options(std::size_t message_bytes) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = message_bytes / sizeof(capnp::word) * 2 + 64;
  options.nestingLimit = kNestingMax;
  return options;
}

/// `bytes` must start at a word boundary and be whole words.
inline kj::ArrayPtr<const capnp::word> words_of(std::span<const std::byte> bytes) {
  TROUPE_CHECK(reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(capnp::word) == 0 &&
                   bytes.size() % sizeof(capnp::word) == 0,
               "codec: {} bytes not in words", bytes.size());
  return {reinterpret_cast<const capnp::word*>(bytes.data()), bytes.size() / sizeof(capnp::word)};
}

/// All of `text` for a setter; the implicit conversion would stop at the first zero byte.
inline capnp::Text::Reader whole_text(const std::string& text) {
  return {text.c_str(), text.size()};
}

inline std::string text_of(capnp::Text::Reader text) { return {text.cStr(), text.size()}; }

/// A list size for an `init…` call, which takes 32 bits and at most 2^29 elements.
inline unsigned list_size(std::size_t size) {
  TROUPE_CHECK(size < (std::size_t{1} << 29), "codec: list of {} elements", size);
  return static_cast<unsigned>(size);
}

/// The same failure, called kCorrupt since the value came from bytes.
inline result<void> as_corrupt(result<void> outcome) {
  if (outcome) return outcome;
  Error error = std::move(outcome).error();
  error.code = ErrorCode::kCorrupt;
  return fail(std::move(error));
}

inline result<void> check_zeros(std::span<const std::byte> padding, std::string_view place) {
  const auto bad = std::find_if(padding.begin(), padding.end(),
                                [](std::byte byte) { return byte != std::byte{0}; });
  if (bad != padding.end())
    return fail(ErrorCode::kCorrupt, "{}: padding byte {} is {}, wanted 0", place,
                bad - padding.begin(), static_cast<unsigned>(*bad));
  return {};
}

/// A message must fill its bytes, or some of them would go unread.
inline result<void> check_end(const capnp::word* end, std::span<const std::byte> bytes,
                              std::string_view place) {
  const auto read = reinterpret_cast<const std::byte*>(end) - bytes.data();
  if (read != static_cast<std::ptrdiff_t>(bytes.size()))
    return fail(ErrorCode::kCorrupt, "{}: message of {} bytes in {}", place, read, bytes.size());
  return {};
}

/// Runs `decode`, turning what Cap'n Proto throws at malformed bytes into an error.
template <class T, class Decode>
result<T> guarded_decode(std::string_view place, Decode&& decode) {
  try {
    return std::forward<Decode>(decode)();
  } catch (const kj::Exception& exception) {
    return fail(ErrorCode::kCorrupt, "{}: {}", place, exception.getDescription().cStr());
  }
}

}  // namespace troupe::runtime
