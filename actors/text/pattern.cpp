#include "actors/text/pattern.hpp"

#include "actors/text/utf8.hpp"
#include "runtime/base/check.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>

namespace troupe::actors {
namespace {

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

/// `\s` and `\S` of the expression, written out as Unicode's property White_Space: PCRE2 counts
/// U+180E as well, which has not been white space since Unicode 6.3 and is not to Oniguruma.
std::string with_unicode_space(std::string_view expression) {
  constexpr std::string_view kSpace =
      R"(\t-\r\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
  std::string written;
  bool in_class = false;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const std::string_view rest = expression.substr(i);
    if (rest.starts_with("\\s")) {
      written += in_class ? std::string(kSpace) : fmt::format("[{}]", kSpace);
      ++i;
    } else if (rest.starts_with("\\S") && !in_class) {
      written += fmt::format("[^{}]", kSpace);
      ++i;
    } else {
      // A bracket that opens a class may be followed by brackets that belong to it.
      std::size_t taken = rest.front() == '\\' ? 2 : 1;
      if (!in_class && rest.front() == '[') {
        in_class = true;
        if (rest.substr(taken).starts_with('^')) ++taken;
        if (rest.substr(taken).starts_with(']')) ++taken;
      } else if (in_class && rest.starts_with("[:")) {
        const std::size_t end = rest.find(":]");
        taken = end == std::string_view::npos ? taken : end + 2;
      } else if (rest.front() == ']') {
        in_class = false;
      }
      written += rest.substr(0, taken);
      i += taken - 1;
    }
  }
  return written;
}

pcre2_code* compile_text(std::string_view expression, int& error, PCRE2_SIZE& offset) {
  return pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                       PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
}

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct Pattern::Code {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

Pattern::Pattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

result<Pattern> Pattern::compile(std::string_view expression) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  // First as it is, so that an error's place is one of the caller's text.
  code->code = compile_text(expression, error, offset);
  if (const std::string written = with_unicode_space(expression);
      code->code != nullptr && written != expression) {
    pcre2_code_free(code->code);
    code->code = compile_text(written, error, offset);
  }
  if (code->code == nullptr)
    return fail(ErrorCode::kUnsupported, "pattern \"{}\": at byte {}: {}", expression, offset,
                pcre2_message(error));
  // Without JIT support the interpreter gives the same matches, slower.
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);
  code->context = pcre2_match_context_create(nullptr);
  TROUPE_CHECK(code->context != nullptr, "out of memory");
  constexpr std::uint32_t kStepsMax = 10'000'000;
  pcre2_set_match_limit(code->context, kStepsMax);
  return Pattern(std::move(code));
}

void Pattern::find_all(std::string_view text, std::vector<TextRange>& matches) const {
  matches.clear();
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(pcre2_match_data_create(1, nullptr));
  TROUPE_CHECK(data != nullptr, "out of memory");
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::size_t start = 0;
  while (start < text.size()) {
    // Checked by the caller; checking again at every match would make this quadratic.
    constexpr std::uint32_t kOptions = PCRE2_NO_UTF_CHECK;
    int found =
        pcre2_match(code_->code, subject, text.size(), start, kOptions, data.get(), code_->context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
      found = pcre2_match(code_->code, subject, text.size(), start, kOptions | PCRE2_NO_JIT,
                          data.get(), code_->context);
    if (found == PCRE2_ERROR_NOMATCH) return;
    TROUPE_CHECK(found >= 0, "tokenizer pattern failed at byte {} of {}: {}", start, text.size(),
                 pcre2_message(found));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    if (ends[0] >= ends[1]) {  // empty, or turned round by \K in a look-around
      if (ends[0] < start || ends[0] >= text.size()) return;
      start = ends[0] + next_character(text.substr(ends[0])).length;
      continue;
    }
    // \K in a look-behind may even report a start before the one asked for.
    if (ends[1] <= start) return;
    matches.push_back({std::max<std::size_t>(ends[0], start), ends[1]});
    start = ends[1];
  }
}

}  // namespace troupe::actors
