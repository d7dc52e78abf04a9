#pragma once

// The byte alphabet of GPT-2: each byte as one printable character, so that a vocabulary of bytes
// can be written in JSON.
//
// Bytes 33–126, 161–172 and 174–255 stand for themselves (as code points); the other 68 follow in
// order from U+0100.
// **Threads:** pure functions.

#include <optional>
#include <string>
#include <string_view>

namespace troupe::actors {

char32_t byte_level_character(unsigned char byte);

/// `Ġhello` for " hello".
std::string to_byte_level(std::string_view bytes);

/// The inverse; empty when some character is not in the alphabet.
std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace troupe::actors
