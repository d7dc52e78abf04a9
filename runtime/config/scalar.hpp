#pragma once

// Text of one YAML scalar to a value of a wanted type, and back.
//
// **Threads:** pure.
// **Invariants:** a number is read whole or not at all; `to_yaml_text` of a value reads back as
// the same value, also where no type is wanted.

#include "runtime/config/schema.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::runtime {

/// `12`, `-3`, `1_000`, `0x1f`, and `1e6` where the outcome is whole.
std::optional<std::int64_t> parse_integer(std::string_view text);
/// `0.5`, `1e-6`, `1_000.5`, `.inf`, `nan`. Empty also when the value is out of range.
std::optional<double> parse_number(std::string_view text);
/// `true` and `false`, as YAML 1.2 spells them.
std::optional<bool> parse_boolean(std::string_view text);

/// Plain text where nothing says which type is wanted: integer, number, boolean or text.
Value infer_scalar(std::string_view text, bool quoted);

/// For messages: quoted, control characters escaped, at most 80 bytes.
std::string shown(std::string_view text);
/// A YAML scalar that reads back as exactly this text.
std::string quoted_yaml(std::string_view text);

}  // namespace troupe::runtime
