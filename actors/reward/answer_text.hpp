#pragma once

// Finding the final answer in a solution text, and one spelling for LaTeX that means the same.
//
// **Threads:** pure functions.
// **Invariants:** returned views point into the argument.
// **Cost:** linear in the text, however its braces nest.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::actors {

/// Text without white space at both ends (space, tab, line ends).
std::string_view trim(std::string_view text);

struct MarkedAnswer {
  std::string_view text;  ///< what the marker encloses or precedes, trimmed
  std::size_t at = 0;     ///< where the marker begins
};

/// Contents of the `\boxed{…}` or `\fbox{…}` that opens last among those that close; braces nest,
/// escaped braces do not count. `\boxed 5` gives `5`.
std::optional<MarkedAnswer> last_boxed(std::string_view text);

/// The rest of the line after the last `####`; empty text counts as no answer.
std::optional<MarkedAnswer> last_hash_answer(std::string_view text);

/// Contents of the last `<answer>…</answer>` pair.
std::optional<MarkedAnswer> last_tagged_answer(std::string_view text);

/// LaTeX brought to one spelling: math delimiters, spacing and sizing commands, `\text{…}` units,
/// degree and percent signs, currency and a final period go; \frac{a}{b} and its variants become
/// a/b; a leading `x =` goes; words lose their case; numbers take their canonical form
/// (1,234.50 → 1234.5, \frac{3}{6} → 0.5).
std::string normalise_math(std::string_view text);

/// True when both texts are the same after normalise_math, as numbers, or element by element in
/// tuples and sets of equal brackets.
bool math_equal(std::string_view a, std::string_view b);

}  // namespace troupe::actors
