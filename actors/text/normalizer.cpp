#include "actors/text/normalizer.hpp"

#include "actors/text/utf8.hpp"
#include "runtime/base/check.hpp"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

namespace troupe::actors {
namespace {

struct FreeBuffer {
  void operator()(utf8proc_uint8_t* buffer) const { std::free(buffer); }
};

utf8proc_option_t options_of(UnicodeForm form) {
  int options = UTF8PROC_STABLE;
  const bool composes = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  options |= composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd) options |= UTF8PROC_COMPAT;
  return static_cast<utf8proc_option_t>(options);
}

std::string to_form(std::string_view text, UnicodeForm form) {
  if (is_ascii(text)) return std::string(text);
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &raw, options_of(form));
  const std::unique_ptr<utf8proc_uint8_t, FreeBuffer> buffer(raw);
  TROUPE_CHECK(length >= 0, "utf8proc: {} on {} bytes", utf8proc_errmsg(length), text.size());
  return {reinterpret_cast<const char*>(buffer.get()), static_cast<std::size_t>(length)};
}

std::string replace_pattern(std::string_view text, const Pattern& pattern,
                            std::string_view content) {
  std::vector<TextRange> matches;
  pattern.find_all(text, matches);
  std::string replaced;
  std::size_t done = 0;
  for (const TextRange& match : matches) {
    replaced.append(text.substr(done, match.begin - done)).append(content);
    done = match.end;
  }
  return replaced.append(text.substr(done));
}

struct StepApplier {
  std::string_view text;
  std::string operator()(UnicodeForm form) const { return to_form(text, form); }
  std::string operator()(const PrependStep& step) const {
    return text.empty() ? std::string() : step.text + std::string(text);
  }
  std::string operator()(const ReplaceStep& step) const {
    if (const auto* literal = std::get_if<std::string>(&step.pattern))
      return replace_all(text, *literal, step.content);
    return replace_pattern(text, std::get<Pattern>(step.pattern), step.content);
  }
};

}  // namespace

std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string replaced;
  replaced.reserve(text.size());
  while (true) {
    const std::size_t found = text.find(pattern);
    replaced.append(text.substr(0, found));
    if (found == std::string_view::npos) return replaced;
    replaced.append(content);
    text.remove_prefix(found + pattern.size());
  }
}

std::string Normalizer::apply(std::string_view text) const {
  std::string current(text);
  for (const NormalizerStep& step : steps_) current = std::visit(StepApplier{current}, step);
  return current;
}

}  // namespace troupe::actors
