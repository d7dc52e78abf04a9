#pragma once

// The pre-tokenizer of a tokenizer.json: cuts normalised text into the pieces that BPE never
// merges across.
//
// **Ownership:** a `PieceList` owns the text its pieces view.
// **Threads:** const functions from any thread, each with its own PieceList.

#include "actors/text/pattern.hpp"
#include "runtime/base/result.hpp"

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace troupe::actors {

/// What becomes of the matches of a split.
enum class SplitBehavior { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };

struct SplitStep {
  std::variant<std::string, Pattern> pattern;  ///< literal text (not empty), or an expression
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  ///< what does not match counts as the match
};
struct DigitsStep {
  bool individual = false;
};
/// The byte mapping itself happens in the model; this is what comes before it.
struct ByteLevelStep {
  bool add_prefix_space = false;
  std::optional<Pattern> pattern;  ///< GPT-2's, unless switched off
};
enum class PrependScheme { kAlways, kFirst, kNever };
/// Spaces become the marker `▁`, and one is put in front.
struct MetaspaceStep {
  std::string marker;
  PrependScheme prepend = PrependScheme::kAlways;
  bool split = true;
};
using PreTokenizerStep = std::variant<SplitStep, DigitsStep, ByteLevelStep, MetaspaceStep>;

struct PieceList {
  struct Piece {
    std::string_view text;
    bool is_at_start = false;  ///< begins where the whole input begins
  };
  std::vector<Piece> pieces;
  std::deque<std::string> changed;  // text that no longer is part of the input
};

class PreTokenizer {
 public:
  void add(PreTokenizerStep step) { steps_.push_back(std::move(step)); }
  bool is_byte_level() const;
  /// `text` (valid UTF-8) must outlive `list`, whose old content is dropped.
  void apply(std::string_view text, bool is_at_start, PieceList& list) const;

 private:
  std::vector<PreTokenizerStep> steps_;
};

}  // namespace troupe::actors
