#pragma once

// A regular expression of a tokenizer.json, run by PCRE2 with Unicode classes and its JIT.
//
// PCRE2 and Oniguruma (which the Hugging Face library uses) agree on the patterns of tokenizers,
// with `\s` and `\S` understood as Unicode's white space.
// **Ownership:** move-only; owns the compiled code.
// **Threads:** const functions from any thread.

#include "runtime/base/result.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// Half-open byte range of a text.
struct TextRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool operator==(const TextRange&) const = default;
};

class Pattern {
 public:
  /// Errors: kUnsupported with PCRE2's message and the place in the expression.
  static result<Pattern> compile(std::string_view expression);

  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  /// Non-overlapping matches from left to right; empty ones are left out. `text` must be valid
  /// UTF-8. Throws CheckFailure when the expression needs unreasonable work on this text.
  void find_all(std::string_view text, std::vector<TextRange>& matches) const;

 private:
  struct Code;
  explicit Pattern(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

/// The expression that `ByteLevel` with `use_regex` stands for (GPT-2's).
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace troupe::actors
