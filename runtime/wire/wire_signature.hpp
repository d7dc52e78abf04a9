#pragma once

// Names, shapes and error paths of types on the wire; what wire.hpp needs to know about a type
// besides its bytes.
//
// **Threads:** values and pure functions.
// **Invariants:** a signature depends on kinds and field names only, so two builds with the same
// declarations agree.

#include "runtime/base/error.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace troupe::runtime {

/// A hash over a description, fed word by word (FNV-1a, 64 bits).
class WireSignature {
 public:
  void add(std::string_view word, std::uint64_t number = 0) {
    for (const char c : word) mix(static_cast<unsigned char>(c));
    mix(0);
    for (int shift = 0; shift < 64; shift += 8)
      mix(static_cast<unsigned char>((number >> shift) & 0xFF));
  }
  /// False when structs are nested so deep that they must contain themselves.
  bool enter() {
    if (depth_ == kDepthMax) return false;
    ++depth_;
    return true;
  }
  void leave() { --depth_; }
  /// What is described holds batches or columns.
  void add_columns(std::string_view word) {
    add(word);
    has_columns_ = true;
  }
  bool has_columns() const { return has_columns_; }
  std::uint64_t hash() const { return hash_; }

 private:
  static constexpr int kDepthMax = 6;
  void mix(unsigned char byte) {
    hash_ ^= byte;
    hash_ *= 0x100000001b3U;
  }
  std::uint64_t hash_ = 0xcbf29ce484222325U;
  int depth_ = 0;
  bool has_columns_ = false;
};

/// Puts `place` before the path that the message starts with: `.rank: wanted …` at `StartRank`.
Error wire_error_at(Error error, std::string_view place, char separator = '\0');
/// The same for element `i` of a list.
Error wire_error_in(Error error, std::size_t i);

/// The unqualified name of T without template arguments, for messages.
template <class T>
constexpr std::string_view wire_type_name() {
  // `… wire_type_name() [with T = troupe::runtime::StartRank; …]`
  std::string_view text = __PRETTY_FUNCTION__;
  const std::size_t begin = text.find("T = ");
  if (begin == std::string_view::npos) return "value";
  text = text.substr(begin + 4);
  text = text.substr(0, text.find_first_of("<;]"));
  const std::size_t colon = text.rfind("::");
  return colon == std::string_view::npos ? text : text.substr(colon + 2);
}

template <class E, E kValue>
constexpr bool is_enumerator() {
  // A value with a name is printed by it, any other as a cast: `(troupe::Kind)7`.
  constexpr std::string_view kText = __PRETTY_FUNCTION__;
  constexpr std::size_t kAt = kText.find("kValue = ");
  static_assert(kAt != std::string_view::npos);
  return kText[kAt + 9] != '(' && kText[kAt + 9] != '-' &&
         (kText[kAt + 9] < '0' || kText[kAt + 9] > '9');
}

/// Which of 0..127 are enumerators of E.
template <class E>
constexpr std::array<bool, 128> wire_enumerators() {
  return []<std::size_t... I>(std::index_sequence<I...>) {
    return std::array<bool, 128>{is_enumerator<E, static_cast<E>(I)>()...};
  }
  (std::make_index_sequence<128>());
}

}  // namespace troupe::runtime
