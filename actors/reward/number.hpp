#pragma once

// Exact numbers as people write them: decimals of any length, fractions and mixed numbers.
//
// A number is kept as a canonical decimal text when it is a finite decimal, and as a reduced
// fraction of 64-bit integers when it fits; two numbers are equal when either form agrees. So a
// thousand digits compare exactly, and 0.5 = 1/2 = \frac{3}{6}.
// **Threads:** value types and pure functions.
// **Invariants:** no overflow: arithmetic that does not fit gives an empty optional.
// **Cost:** linear in the text.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::actors {

/// A reduced fraction with a positive denominator. Operations are checked.
class Rational {
 public:
  constexpr Rational() = default;
  /// Empty when `denominator` is 0 or the reduced fraction does not fit.
  static std::optional<Rational> make(std::int64_t numerator, std::int64_t denominator = 1);

  std::int64_t numerator() const { return numerator_; }
  std::int64_t denominator() const { return denominator_; }
  bool operator==(const Rational&) const = default;

 private:
  std::int64_t numerator_ = 0;
  std::int64_t denominator_ = 1;
};

/// Exact; empty on overflow, `divide` also by zero.
std::optional<Rational> add(const Rational& a, const Rational& b);
std::optional<Rational> subtract(const Rational& a, const Rational& b);
std::optional<Rational> multiply(const Rational& a, const Rational& b);
std::optional<Rational> divide(const Rational& a, const Rational& b);

struct Number {
  std::string decimal;               ///< `-12.5`: no leading or trailing zeros; empty for 1/3
  std::optional<Rational> rational;  ///< where 64 bits suffice
  std::string fraction;              ///< `1/3`; empty for finite decimals

  /// Equal in value.
  friend bool operator==(const Number& a, const Number& b);
};

/// A number at the start of `text` from `at`, and one past its last character.
struct ScannedNumber {
  Number number;
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Reads one number starting exactly at `at`: sign (also U+2212), currency sign, digits with
/// thousands separators, decimals, an exponent of at most two digits, `a/b`, `a b/c`,
/// `\frac{a}{b}` (also \dfrac, \tfrac, \frac12) and `a\frac{b}{c}`. Empty when none starts there.
std::optional<ScannedNumber> scan_number(std::string_view text, std::size_t at);

/// The whole text as one number, with white space around, a space after its sign, a percent sign
/// and a final period allowed; empty when it is anything else.
std::optional<Number> parse_number(std::string_view text);

/// The first and the last number of a text; the last one that is no power (`12 m^2` gives 12).
std::optional<ScannedNumber> first_number(std::string_view text);
std::optional<ScannedNumber> last_number(std::string_view text);

}  // namespace troupe::actors
