#include "actors/reward/number.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

namespace troupe::actors {
namespace {

__extension__ using Int128 = __int128;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kDigits64 = 18;  // decimal digits that always fit 64 bits
constexpr std::string_view kUnicodeMinus = "\xE2\x88\x92";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

Int128 gcd(Int128 a, Int128 b) {
  if (a < 0) a = -a;
  if (b < 0) b = -b;
  while (b != 0) a = std::exchange(b, a % b);
  return a;
}

/// A fraction of wide integers whose magnitudes are below 2^127, reduced and narrowed.
std::optional<std::pair<std::int64_t, std::int64_t>> narrow(Int128 numerator, Int128 denominator) {
  if (denominator == 0) return std::nullopt;
  if (denominator < 0) {
    numerator = -numerator;
    denominator = -denominator;
  }
  const Int128 divisor = gcd(numerator, denominator);
  numerator /= divisor;
  denominator /= divisor;
  if (numerator > kMax || numerator < -Int128{kMax} || denominator > kMax) return std::nullopt;
  return std::pair{static_cast<std::int64_t>(numerator), static_cast<std::int64_t>(denominator)};
}

std::optional<Rational> to_rational(Int128 numerator, Int128 denominator) {
  const auto pair = narrow(numerator, denominator);
  return pair ? Rational::make(pair->first, pair->second) : std::nullopt;
}

/// Unsigned decimal digits as they stand in a text, without separators.
struct Digits {
  std::string whole;
  std::string part;  ///< after the point
};

std::string strip_leading_zeros(std::string text) {
  text.erase(0, std::min(text.find_first_not_of('0'), text.size()));
  return text;
}

/// Canonical text: no needless zeros, `0` for zero, never `-0`.
std::string canonical_decimal(bool negative, const Digits& digits) {
  std::string whole = strip_leading_zeros(digits.whole);
  std::string part = digits.part;
  part.erase(part.find_last_not_of('0') + 1);
  if (whole.empty()) whole = "0";
  std::string text = part.empty() ? whole : whole + "." + part;
  return negative && text != "0" ? "-" + text : text;
}

std::optional<Rational> decimal_rational(std::string_view decimal) {
  std::int64_t numerator = 0;
  std::int64_t denominator = 1;
  bool after_point = false;
  std::size_t count = 0;
  const bool negative = decimal.starts_with('-');
  for (const char c : decimal.substr(negative ? 1 : 0)) {
    if (c == '.') {
      after_point = true;
      continue;
    }
    if (++count > kDigits64) return std::nullopt;
    numerator = numerator * 10 + (c - '0');
    if (after_point) denominator *= 10;
  }
  return Rational::make(negative ? -numerator : numerator, denominator);
}

Number decimal_number(bool negative, const Digits& digits) {
  Number number;
  number.decimal = canonical_decimal(negative, digits);
  number.rational = decimal_rational(number.decimal);
  return number;
}

/// A finite decimal for fractions such as 3/8, so that all forms of one value look alike.
std::string decimal_of(const Rational& value) {
  std::int64_t rest = value.denominator();
  std::size_t places = 0;
  std::int64_t scale = 1;
  while (rest > 1 && places < kDigits64) {
    scale *= 10;
    ++places;
    rest /= std::gcd(rest, std::int64_t{10});
  }
  const auto scaled = multiply(value, Rational::make(scale).value_or(Rational{}));
  if (rest != 1 || !scaled || scaled->denominator() != 1) return {};
  const bool negative = scaled->numerator() < 0;
  std::string digits = std::to_string(negative ? -scaled->numerator() : scaled->numerator());
  if (digits.size() <= places) digits.insert(0, places + 1 - digits.size(), '0');
  const std::size_t point = digits.size() - places;
  return canonical_decimal(negative, {digits.substr(0, point), digits.substr(point)});
}

Number rational_number(const Rational& value) {
  Number number;
  number.rational = value;
  number.decimal = decimal_of(value);
  if (number.decimal.empty())
    number.fraction = std::to_string(value.numerator()) + "/" + std::to_string(value.denominator());
  return number;
}

/// `numerator / denominator` for unsigned digit texts of any length; empty when it is over zero.
std::optional<Number> fraction_number(bool negative, const Digits& numerator,
                                      const Digits& denominator) {
  const std::string above = canonical_decimal(negative, numerator);
  const std::string below = canonical_decimal(false, denominator);
  if (below == "0") return std::nullopt;
  const auto a = decimal_rational(above);
  const auto b = decimal_rational(below);
  if (a && b) {
    if (const auto value = divide(*a, *b)) return rational_number(*value);
  }
  Number number;
  number.fraction = above + "/" + below;
  return number;
}

/// One pass over a text from a position; each read either succeeds and moves on, or stays.
class Scanner {
 public:
  Scanner(std::string_view text, std::size_t at) : text_(text), at_(at) {}

  std::size_t at() const { return at_; }
  void move_to(std::size_t at) { at_ = at; }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool take(std::string_view word) {
    if (!text_.substr(std::min(at_, text_.size())).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  char previous() const { return at_ > 0 && at_ <= text_.size() ? text_[at_ - 1] : '\0'; }
  void skip_spaces() {
    while (is_space(peek())) ++at_;
  }

  /// True for a minus sign; a plus sign is skipped.
  bool take_sign() {
    if (take("-") || take(kUnicodeMinus)) return true;
    take("+");
    return false;
  }
  void take_currency() {
    constexpr std::array<std::string_view, 5> kSigns{"\\$", "$", "\xE2\x82\xAC", "\xC2\xA3",
                                                     "\xC2\xA5"};
    for (const std::string_view sign : kSigns) {
      if (take(sign)) return;
    }
  }

  /// A run of digits.
  std::string take_digits() {
    const std::size_t begin = at_;
    while (is_digit(peek())) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  /// Digits with thousands separators and decimals; empty, without moving, when none starts here.
  std::optional<Digits> take_decimal() {
    const std::size_t begin = at_;
    Digits digits;
    digits.whole = take_digits();
    if (!digits.whole.empty() && digits.whole.size() <= 3) {
      while (take_group(digits.whole)) {
      }
    }
    if (peek() == '.' && is_digit(peek(1))) {
      ++at_;
      digits.part = take_digits();
    }
    if (digits.whole.empty() && digits.part.empty()) {
      at_ = begin;
      return std::nullopt;
    }
    take_exponent(digits);
    return digits;
  }

 private:
  /// Separator and exactly three digits.
  bool take_group(std::string& whole) {
    constexpr std::array<std::string_view, 4> kSeparators{",\\!", ",", "{,}", "\\,"};
    const std::size_t begin = at_;
    for (const std::string_view separator : kSeparators) {
      if (!take(separator)) continue;
      if (is_digit(peek()) && is_digit(peek(1)) && is_digit(peek(2)) && !is_digit(peek(3))) {
        whole.append(text_.substr(at_, 3));
        at_ += 3;
        return true;
      }
      break;
    }
    at_ = begin;
    return false;
  }

  void take_exponent(Digits& digits) {
    const std::size_t begin = at_;
    if (!take("e") && !take("E")) return;
    const bool negative = take_sign();
    const std::string power = is_digit(peek()) ? take_digits() : "";
    if (power.empty() || power.size() > 2 || is_letter(peek())) {
      at_ = begin;
      return;
    }
    const auto shift = static_cast<std::size_t>(std::stoi(power));
    std::string& giver = negative ? digits.whole : digits.part;
    if (giver.size() < shift) giver.insert(negative ? 0 : giver.size(), shift - giver.size(), '0');
    if (negative) {
      digits.part.insert(0, giver.substr(giver.size() - shift));
      giver.erase(giver.size() - shift);
    } else {
      digits.whole += giver.substr(0, shift);
      giver.erase(0, shift);
    }
  }

  std::string_view text_;
  std::size_t at_;
};

struct SignedDigits {
  bool negative = false;
  Digits digits;
};

/// `{12}`, or one digit, as an argument of \frac.
std::optional<SignedDigits> take_frac_argument(Scanner& scan) {
  scan.skip_spaces();
  SignedDigits argument;
  if (!scan.take("{")) {
    if (!is_digit(scan.peek())) return std::nullopt;
    argument.digits.whole = std::string(1, scan.peek());
    scan.move_to(scan.at() + 1);
    return argument;
  }
  scan.skip_spaces();
  argument.negative = scan.take_sign();
  const auto digits = scan.take_decimal();
  scan.skip_spaces();
  if (!digits || !scan.take("}")) return std::nullopt;
  argument.digits = *digits;
  return argument;
}

/// `\frac{a}{b}` and its variants; empty, without moving, when none starts here.
std::optional<Number> take_frac(Scanner& scan, bool negative) {
  const std::size_t begin = scan.at();
  if (scan.take("\\frac") || scan.take("\\dfrac") || scan.take("\\tfrac") || scan.take("\\cfrac")) {
    const auto above = take_frac_argument(scan);
    const auto below = above ? take_frac_argument(scan) : std::nullopt;
    if (below) {
      const bool sign = negative != (above->negative != below->negative);
      if (auto number = fraction_number(sign, above->digits, below->digits)) return number;
    }
  }
  scan.move_to(begin);
  return std::nullopt;
}

Number with_sign(const Rational& magnitude, bool negative) {
  return rational_number(negative ? subtract(Rational{}, magnitude).value_or(Rational{})
                                  : magnitude);
}

/// After whole digits: ` b/c` or `\frac{b}{c}` of a mixed number; empty, without moving, otherwise.
std::optional<Number> take_mixed_part(Scanner& scan, bool negative, const Digits& whole) {
  const std::size_t begin = scan.at();
  const auto base = decimal_rational(canonical_decimal(false, whole));
  std::optional<Number> part;
  if (!base || !whole.part.empty()) return std::nullopt;
  scan.skip_spaces();
  if (scan.peek() == '\\') {
    part = take_frac(scan, false);
  } else if (scan.at() == begin + 1) {
    const std::string above = scan.take_digits();
    if (!above.empty() && scan.take("/")) {
      const std::string below = scan.take_digits();
      if (!below.empty() && scan.peek() != '/')
        part = fraction_number(false, {above, ""}, {below, ""});
    }
  }
  if (part && part->rational && part->rational->numerator() >= 0 &&
      part->rational->numerator() < part->rational->denominator()) {
    if (const auto sum = add(*base, *part->rational)) return with_sign(*sum, negative);
  }
  scan.move_to(begin);
  return std::nullopt;
}

/// After digits: `/c` of a simple fraction, unless it goes on as a date or path does.
std::optional<Number> take_denominator(Scanner& scan, bool negative, const Digits& above) {
  const std::size_t begin = scan.at();
  if (scan.take("/")) {
    const std::string below = scan.take_digits();
    const bool goes_on = scan.peek() == '/' && is_digit(scan.peek(1));
    if (!below.empty() && !goes_on) {
      if (auto number = fraction_number(negative, above, {below, ""})) return number;
    }
  }
  scan.move_to(begin);
  return std::nullopt;
}

std::optional<Number> take_number(Scanner& scan) {
  const std::size_t begin = scan.at();
  const bool in_path = scan.previous() == '/';
  scan.take_currency();
  const bool negative = scan.take_sign();
  scan.take_currency();
  if (auto number = take_frac(scan, negative)) return number;
  const auto digits = scan.take_decimal();
  if (!digits) {
    scan.move_to(begin);
    return std::nullopt;
  }
  if (!in_path) {
    if (auto number = take_denominator(scan, negative, *digits)) return number;
  }
  if (auto number = take_mixed_part(scan, negative, *digits)) return number;
  return decimal_number(negative, *digits);
}

bool may_begin_number(std::string_view text, std::size_t at) {
  const char c = text[at];
  const char before = at > 0 ? text[at - 1] : ' ';
  if (is_digit(c)) return true;
  const bool joined = is_digit(before) || is_letter(before) || before == ')' || before == ']' ||
                      before == '}' || before == '%';
  if (c == '-' || c == '.' || c == kUnicodeMinus[0]) return !joined;
  return c == '$' || c == '\\' || c == '\xC2';
}

}  // namespace

std::optional<Rational> Rational::make(std::int64_t numerator, std::int64_t denominator) {
  const auto pair = narrow(numerator, denominator);
  if (!pair) return std::nullopt;
  Rational value;
  value.numerator_ = pair->first;
  value.denominator_ = pair->second;
  return value;
}

std::optional<Rational> add(const Rational& a, const Rational& b) {
  return to_rational(
      Int128{a.numerator()} * b.denominator() + Int128{b.numerator()} * a.denominator(),
      Int128{a.denominator()} * b.denominator());
}

std::optional<Rational> subtract(const Rational& a, const Rational& b) {
  return to_rational(
      Int128{a.numerator()} * b.denominator() - Int128{b.numerator()} * a.denominator(),
      Int128{a.denominator()} * b.denominator());
}

std::optional<Rational> multiply(const Rational& a, const Rational& b) {
  return to_rational(Int128{a.numerator()} * b.numerator(),
                     Int128{a.denominator()} * b.denominator());
}

std::optional<Rational> divide(const Rational& a, const Rational& b) {
  return to_rational(Int128{a.numerator()} * b.denominator(),
                     Int128{a.denominator()} * b.numerator());
}

bool operator==(const Number& a, const Number& b) {
  if (a.rational && b.rational) return *a.rational == *b.rational;
  if (!a.decimal.empty() || !b.decimal.empty()) return a.decimal == b.decimal;
  return a.fraction == b.fraction;
}

std::optional<ScannedNumber> scan_number(std::string_view text, std::size_t at) {
  Scanner scan(text, at);
  auto number = take_number(scan);
  if (!number) return std::nullopt;
  return ScannedNumber{std::move(*number), at, scan.at()};
}

std::optional<Number> parse_number(std::string_view text) {
  Scanner scan(text, 0);
  scan.skip_spaces();
  Scanner sign = scan;
  const bool spaced_minus = sign.take_sign() && is_space(sign.peek());
  if (spaced_minus) {
    sign.skip_spaces();
    scan = sign;
    sign.take_sign();
    if (sign.at() != scan.at()) return std::nullopt;
  }
  auto number = take_number(scan);
  if (!number) return std::nullopt;
  scan.skip_spaces();
  if (!scan.take("\\%")) scan.take("%");
  scan.take(".");
  scan.skip_spaces();
  if (scan.at() != text.size()) return std::nullopt;
  if (!spaced_minus) return number;
  if (number->rational) {
    const auto negated = subtract(Rational{}, *number->rational);
    return negated ? std::optional(rational_number(*negated)) : std::nullopt;
  }
  std::string& digits = number->decimal.empty() ? number->fraction : number->decimal;
  if (digits.starts_with('-')) return std::nullopt;
  digits.insert(0, "-");
  return number;
}

std::optional<ScannedNumber> first_number(std::string_view text) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (!may_begin_number(text, at)) continue;
    if (auto found = scan_number(text, at)) return found;
  }
  return std::nullopt;
}

std::optional<ScannedNumber> last_number(std::string_view text) {
  std::optional<ScannedNumber> last;
  for (std::size_t at = 0; at < text.size();) {
    auto found = may_begin_number(text, at) ? scan_number(text, at) : std::nullopt;
    // The power of a unit, as in `12 m^2`, is no answer.
    const bool is_power = text.substr(0, at).ends_with('^') || text.substr(0, at).ends_with("^{");
    at = found ? found->end : at + 1;
    if (found && !is_power) last = std::move(found);
  }
  return last;
}

}  // namespace troupe::actors
