#include "runtime/config/scalar.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace troupe::runtime {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Removes `_` between digits; empty when one stands elsewhere.
std::optional<std::string> without_separators(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      plain += text[i];
    } else if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) {
      return std::nullopt;
    }
  }
  return plain;
}

template <class T, class... Extra>
std::optional<T> read_whole(std::string_view text, Extra... extra) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value, extra...);
  if (error != std::errc{} || at != end) return std::nullopt;
  return value;
}

bool looks_decimal(std::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (text.empty() || !is_digit(text[0])) return false;
  for (char c : text) {
    if (!is_digit(c) && c != '_') return false;
  }
  return true;
}

}  // namespace

std::optional<bool> parse_boolean(std::string_view text) {
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  return std::nullopt;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  const auto plain = without_separators(text);
  if (!plain || plain->empty()) return std::nullopt;
  std::string_view digits = *plain;
  if (digits[0] == '+') digits.remove_prefix(1);
  if (digits.empty() || digits[0] == '+') return std::nullopt;
  if (digits.starts_with("0x") || digits.starts_with("0X")) {
    if (digits.size() < 3 || digits[2] == '-' || digits[2] == '+') return std::nullopt;
    return read_whole<std::int64_t>(digits.substr(2), 16);
  }
  if (auto whole = read_whole<std::int64_t>(digits)) return whole;
  if (digits.find_first_of("eE") == std::string_view::npos ||
      digits.find('.') != std::string_view::npos) {
    return std::nullopt;
  }
  constexpr double kExact = 9007199254740992.0;  // 2^53
  const auto number = read_whole<double>(digits);
  if (!number || std::fabs(*number) > kExact || std::floor(*number) != *number) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

std::optional<double> parse_number(std::string_view text) {
  const auto plain = without_separators(text);
  if (!plain || plain->empty()) return std::nullopt;
  std::string_view rest = *plain;
  const bool negative = rest[0] == '-';
  if (rest[0] == '-' || rest[0] == '+') rest.remove_prefix(1);
  if (rest.empty() || rest[0] == '-' || rest[0] == '+') return std::nullopt;
  for (std::string_view word : {".inf", ".Inf", ".INF", "inf", "Inf", "infinity", "Infinity"}) {
    if (rest == word) return negative ? -INFINITY : INFINITY;
  }
  for (std::string_view word : {".nan", ".NaN", ".NAN", "nan", "NaN"}) {
    if (rest == word) return std::numeric_limits<double>::quiet_NaN();
  }
  if (!is_digit(rest[0]) && rest[0] != '.') return std::nullopt;
  const auto value = read_whole<double>(rest);
  if (!value) return std::nullopt;
  return negative ? -*value : *value;
}

Value infer_scalar(std::string_view text, bool quoted) {
  if (quoted) return std::string(text);
  if (auto boolean = parse_boolean(text)) return *boolean;
  if (looks_decimal(text)) {
    if (auto whole = parse_integer(text)) return *whole;
  }
  if (auto number = parse_number(text)) return *number;
  return std::string(text);
}

std::string shown(std::string_view text) {
  std::string out = "'";
  for (char c : text.substr(0, 80)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f)
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  if (text.size() > 80) {
    // Do not end inside a character.
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0x80) out.pop_back();
    if (static_cast<unsigned char>(out.back()) >= 0xC0) out.pop_back();
    out += "…";
  }
  return out + "'";
}

std::string quoted_yaml(std::string_view text) {
  const bool plain = !text.empty() &&
                     (std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '/') &&
                     text.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-") ==
                         std::string_view::npos;
  static constexpr std::string_view kWords[] = {"null", "true", "false", "yes", "no",  "on",
                                                "off",  "y",    "n",     "nan", "inf", "infinity"};
  bool is_word = false;
  if (plain && text.size() <= 8) {
    std::string lower(text);
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (auto word : kWords) is_word = is_word || lower == word;
  }
  if (plain && !is_word) return std::string(text);
  std::string out = "\"";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += {'\\', c};
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (byte < 0x20 || byte == 0x7f)
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  return out + "\"";
}

}  // namespace troupe::runtime
