#pragma once

// The normalizer of a tokenizer.json: Unicode forms, prepended and replaced text.
//
// **Threads:** const functions from any thread.
// **Cost:** ASCII text passes the Unicode forms untouched.

#include "actors/text/pattern.hpp"
#include "runtime/base/result.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace troupe::actors {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

/// Puts `text` in front of anything that is not empty.
struct PrependStep {
  std::string text;
};
struct ReplaceStep {
  std::variant<std::string, Pattern> pattern;  ///< literal text, or an expression
  std::string content;
};
using NormalizerStep = std::variant<UnicodeForm, PrependStep, ReplaceStep>;

class Normalizer {
 public:
  void add(NormalizerStep step) { steps_.push_back(std::move(step)); }
  bool is_identity() const { return steps_.empty(); }
  /// `text` must be valid UTF-8; so is the outcome.
  std::string apply(std::string_view text) const;

 private:
  std::vector<NormalizerStep> steps_;
};

/// Every occurrence of `pattern` (not empty), left to right, replaced by `content`.
std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content);

}  // namespace troupe::actors
