#include "actors/reward/answer_text.hpp"

#include "actors/reward/number.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace troupe::actors {
namespace {

constexpr std::string_view kSpaces = " \t\r\n\f\v";
constexpr int kNestedTuplesMax = 4;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_space(char c) { return kSpaces.find(c) != std::string_view::npos; }

/// Where an opened `\boxed{` stands and how its contents begin.
struct OpenBrace {
  std::size_t marker = 0;
  std::size_t contents = 0;
  bool is_box = false;
};

/// Length of `\boxed` or `\fbox` at `at`, or 0.
std::size_t box_command(std::string_view text, std::size_t at) {
  for (const std::string_view name : {"\\boxed", "\\fbox"}) {
    if (text.substr(at).starts_with(name)) {
      const std::size_t end = at + name.size();
      const bool longer_name = end < text.size() && is_letter(text[end]);
      return longer_name ? 0 : name.size();
    }
  }
  return 0;
}

/// `\boxed 5`: the word after the command, when it has no brace.
std::string_view bare_box_word(std::string_view text, std::size_t at) {
  const std::size_t begin = std::min(text.find_first_not_of(' ', at), text.size());
  std::size_t end = begin;
  while (end < text.size() && !is_space(text[end]) && text[end] != '$') ++end;
  return text.substr(begin, end - begin);
}

// Commands that change how a formula looks and not what it says. Sorted by length, longest first,
// so that a command is never taken for the start of a longer one.
constexpr std::array<std::string_view, 26> kDroppedCommands{"\\displaystyle",
                                                            "\\limits",
                                                            "\\degree",
                                                            "\\right",
                                                            "\\qquad",
                                                            "\\Biggl",
                                                            "\\Biggr",
                                                            "\\quad",
                                                            "\\biggl",
                                                            "\\biggr",
                                                            "\\circ",
                                                            "\\left",
                                                            "\\bigl",
                                                            "\\bigr",
                                                            "\\Bigl",
                                                            "\\Bigr",
                                                            "\\bigg",
                                                            "\\Bigg",
                                                            "\\big",
                                                            "\\Big",
                                                            "\\(",
                                                            "\\)",
                                                            "\\[",
                                                            "\\]",
                                                            "\\%",
                                                            "\\$"};
constexpr std::array<std::string_view, 7> kTextCommands{
    "\\operatorname", "\\textbf", "\\textit", "\\mathrm", "\\mathbf", "\\text", "\\mbox"};
constexpr std::array<std::string_view, 5> kSpaceCommands{"\\!", "\\,", "\\;", "\\:", "\\ "};
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kRenamed{{
    {"\\dfrac", "\\frac"},
    {"\\tfrac", "\\frac"},
    {"\\cfrac", "\\frac"},
    {"\\cdot", "*"},
    {"\\times", "*"},
    {"\\div", "/"},
    {"\xE2\x88\x92", "-"},
    {"\\leq", "\\le"},
}};

/// Rewrites LaTeX in one pass from left to right.
class MathNormaliser {
 public:
  explicit MathNormaliser(std::string_view text) : text_(text) { out_.reserve(text.size()); }

  std::string run() {
    while (at_ < text_.size()) {
      if (!rewrite()) copy();
    }
    return std::move(out_);
  }

 private:
  bool sees(std::string_view word) const { return text_.substr(at_).starts_with(word); }

  bool sees_command(std::string_view word) const {
    if (!sees(word)) return false;
    const std::size_t end = at_ + word.size();
    return !is_letter(word.back()) || end >= text_.size() || !is_letter(text_[end]);
  }

  bool rewrite() {
    for (const std::string_view degrees : {"^{\\circ}", "^\\circ", "\xC2\xB0"}) {
      if (sees(degrees)) return skip(degrees.size());
    }
    if (sees("{,}")) return emit(",", 3);
    const char c = text_[at_];
    if (c == '$' || c == '%') return skip(1);
    if (c == '~' || is_space(c)) return space(1);
    if (c == '\\') return rewrite_command();
    for (const auto& [from, to] : kRenamed) {
      if (from[0] == c && sees(from)) return emit(to, from.size());
    }
    return false;
  }

  bool rewrite_command() {
    for (const std::string_view word : kTextCommands) {
      if (sees_command(word)) return text_command(word.size());
    }
    for (const std::string_view word : kDroppedCommands) {
      if (sees_command(word)) return skip(word.size());
    }
    // `\,` and `\!` also stand between groups of digits, where a space would cut the number.
    for (const std::string_view word : kSpaceCommands) {
      if (sees(word)) return between_digits(word.size()) ? skip(word.size()) : space(word.size());
    }
    for (const auto& [from, to] : kRenamed) {
      if (sees_command(from)) {
        at_ += from.size();
        out_ += to;
        if (to == "\\frac") frac_arguments();
        return true;
      }
    }
    for (const std::string_view word : {"\\frac", "\\sqrt"}) {
      if (sees(word)) {
        emit(word, word.size());
        word == "\\frac" ? frac_arguments() : braced_argument();
        return true;
      }
    }
    if (at_ + 1 < text_.size() && !is_letter(text_[at_ + 1])) {  // \{ and \} are brackets of a set
      out_ += text_.substr(at_, 2);
      at_ += 2;
      return true;
    }
    return false;
  }

  /// Contents of \text at the start are the answer (`\text{east}`); later they are a unit.
  bool text_command(std::size_t length) {
    at_ += length;
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    if (at_ >= text_.size() || text_[at_] != '{') return true;
    const std::size_t begin = ++at_;
    int depth = 1;
    while (at_ < text_.size()) {
      if (text_[at_] == '{') ++depth;
      if (text_[at_] == '}' && --depth == 0) break;
      ++at_;
    }
    const std::string_view contents = text_.substr(begin, at_ - begin);
    if (at_ < text_.size()) ++at_;
    if (out_.find_first_not_of(' ') == std::string::npos) {
      out_ += trim(contents);
    } else {
      drop_exponent();
    }
    return true;
  }

  /// The power of a unit, as in `\text{cm}^2`.
  void drop_exponent() {
    if (at_ >= text_.size() || text_[at_] != '^') return;
    std::size_t end = at_ + 1;
    if (end < text_.size() && text_[end] == '{') {
      end = std::min(text_.find('}', end), text_.size() - 1);
    }
    at_ = std::min(end + 1, text_.size());
  }

  /// `\frac12` → `\frac{1}{2}`; `\frac1{x}` → `\frac{1}{x}`.
  void frac_arguments() {
    braced_argument();
    if (!out_.empty() && out_.back() == '}') braced_argument();
  }

  /// Puts braces around a single character that follows.
  void braced_argument() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    if (at_ >= text_.size()) return;
    const char c = text_[at_];
    if (is_letter(c) || (c >= '0' && c <= '9')) {
      out_ += {'{', c, '}'};
      ++at_;
    }
  }

  bool between_digits(std::size_t length) const {
    const auto is_group_end = [](char c) { return (c >= '0' && c <= '9') || c == ','; };
    return !out_.empty() && is_group_end(out_.back()) && at_ + length < text_.size() &&
           is_group_end(text_[at_ + length]);
  }

  bool skip(std::size_t length) {
    at_ += length;
    return true;
  }
  bool space(std::size_t length) {
    if (!out_.empty() && out_.back() != ' ') out_ += ' ';
    return skip(length);
  }
  bool emit(std::string_view word, std::size_t length) {
    out_ += word;
    return skip(length);
  }
  void copy() { out_ += text_[at_++]; }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string out_;
};

/// `x = 5` → `5`, for a name of one letter or one command on the left.
std::string_view strip_left_side(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || text.find('=', equals + 1) != std::string_view::npos)
    return text;
  const std::string_view left = trim(text.substr(0, equals));
  const bool one_letter = left.size() == 1 && is_letter(left[0]);
  const bool one_command =
      left.size() > 1 && left[0] == '\\' && std::all_of(left.begin() + 1, left.end(), is_letter);
  return one_letter || one_command ? trim(text.substr(equals + 1)) : text;
}

/// `\frac{a}{b}` without braces inside → `a/b`, sums in parentheses: as people type it.
std::string flat_fractions(std::string_view text) {
  constexpr std::string_view kOpen = "\\frac{";
  const auto grouped = [](std::string_view part) {
    const bool sum = part.find_first_of("+-*/ ", 1) != std::string_view::npos;
    return sum ? "(" + std::string(part) + ")" : std::string(part);
  };
  std::string out;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t open = std::min(text.find(kOpen, at), text.size());
    out += text.substr(at, open - at);
    at = open;
    if (at == text.size()) break;
    const std::size_t above = at + kOpen.size();
    const std::size_t middle = text.find_first_of("{}", above);
    const bool has_middle =
        middle != std::string_view::npos && text.substr(middle).starts_with("}{");
    const std::size_t below = has_middle ? middle + 2 : above;
    const std::size_t close = has_middle ? text.find_first_of("{}", below) : std::string_view::npos;
    if (close != std::string_view::npos && text[close] == '}' && middle > above && close > below) {
      out += grouped(text.substr(above, middle - above)) + "/" +
             grouped(text.substr(below, close - below));
      at = close + 1;
    } else {
      out += kOpen;
      at = above;
    }
  }
  return out;
}

/// Words are the same in any case; a single letter is a name and keeps its own.
std::string folded_word(std::string text) {
  if (text.size() > 1 && std::all_of(text.begin(), text.end(), is_letter)) {
    for (char& c : text) c = static_cast<char>(c | 0x20);
  }
  return text;
}

std::string without_spaces(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::copy_if(text.begin(), text.end(), std::back_inserter(out), [](char c) { return c != ' '; });
  return out;
}

/// One text for one number.
std::string number_text(const Number& number) {
  if (!number.decimal.empty()) return number.decimal;
  return number.fraction;
}

/// A list at the top level of brackets: the bracket pair around it, and its elements.
struct Elements {
  std::string_view open;
  std::string_view close;
  std::vector<std::string_view> items;
};

Elements split_elements(std::string_view text) {
  Elements list;
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kPairs{
      {{"\\{", "\\}"}, {"(", ")"}, {"[", "]"}}};
  for (const auto& [open, close] : kPairs) {
    // An interval may be half open, so either closing bracket ends a round or square one.
    const std::string_view end =
        open == "\\{" ? close : text.substr(text.empty() ? 0 : text.size() - 1);
    const bool ends = open == "\\{" ? text.ends_with(close) : (end == ")" || end == "]");
    if (text.size() >= open.size() + close.size() && text.starts_with(open) && ends) {
      list.open = open;
      list.close = end;
      text = text.substr(open.size(), text.size() - open.size() - end.size());
      break;
    }
  }
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (c == ',' && depth == 0) {
      list.items.push_back(text.substr(begin, at - begin));
      begin = at + 1;
    }
  }
  list.items.push_back(text.substr(begin));
  return list;
}

bool normalised_equal(std::string_view a, std::string_view b, int depth) {
  if (a == b) return true;
  const auto number_a = parse_number(a);
  const auto number_b = parse_number(b);
  if (number_a && number_b) return *number_a == *number_b;
  if (depth >= kNestedTuplesMax) return false;
  const Elements list_a = split_elements(a);
  const Elements list_b = split_elements(b);
  if (list_a.open != list_b.open || list_a.close != list_b.close ||
      list_a.items.size() != list_b.items.size() ||
      (list_a.items.size() == 1 && list_a.open.empty()))
    return false;
  return std::equal(list_a.items.begin(), list_a.items.end(), list_b.items.begin(),
                    [depth](std::string_view x, std::string_view y) {
                      return normalised_equal(trim(x), trim(y), depth + 1);
                    });
}

}  // namespace

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return text.substr(0, 0);
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

std::optional<MarkedAnswer> last_boxed(std::string_view text) {
  std::optional<MarkedAnswer> last;
  std::vector<OpenBrace> open;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '\\') {
      const std::size_t length = box_command(text, at);
      const std::size_t next = at + length;
      if (length == 0) {
        at += 2;  // also steps over \{ and \}
      } else if (next < text.size() && text[next] == '{') {
        open.push_back({.marker = at, .contents = next + 1, .is_box = true});
        at = next + 1;
      } else {
        const std::string_view word = bare_box_word(text, next);
        if (!word.empty() && word[0] != '{') last = MarkedAnswer{word, at};
        at = next;
      }
      continue;
    }
    if (c == '{') open.push_back({.marker = at, .contents = at + 1, .is_box = false});
    if (c == '}' && !open.empty()) {
      const OpenBrace brace = open.back();
      open.pop_back();
      if (brace.is_box && (!last || brace.marker > last->at))
        last = MarkedAnswer{trim(text.substr(brace.contents, at - brace.contents)), brace.marker};
    }
    ++at;
  }
  return last;
}

std::optional<MarkedAnswer> last_hash_answer(std::string_view text) {
  constexpr std::string_view kMarker = "####";
  const std::size_t at = text.rfind(kMarker);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view rest = text.substr(at + kMarker.size());
  rest = trim(rest.substr(0, rest.find('\n')));
  if (rest.empty()) return std::nullopt;
  return MarkedAnswer{rest, at};
}

std::optional<MarkedAnswer> last_tagged_answer(std::string_view text) {
  constexpr std::string_view kOpen = "<answer>";
  const std::size_t end = text.rfind("</answer>");
  if (end == std::string_view::npos) return std::nullopt;
  const std::size_t begin = text.substr(0, end).rfind(kOpen);
  if (begin == std::string_view::npos) return std::nullopt;
  const std::size_t contents = begin + kOpen.size();
  return MarkedAnswer{trim(text.substr(contents, end - contents)), begin};
}

std::string normalise_math(std::string_view text) {
  const std::string rewritten = MathNormaliser(trim(text)).run();
  std::string_view core = trim(rewritten);
  while (core.ends_with('.')) core = trim(core.substr(0, core.size() - 1));
  core = strip_left_side(core);
  while (core.size() >= 2 && core.front() == '{' && core.find('}') == core.size() - 1)
    core = trim(core.substr(1, core.size() - 2));
  if (const auto number = parse_number(core)) return number_text(*number);
  return folded_word(without_spaces(flat_fractions(core)));
}

bool math_equal(std::string_view a, std::string_view b) {
  return normalised_equal(normalise_math(a), normalise_math(b), 0);
}

}  // namespace troupe::actors
