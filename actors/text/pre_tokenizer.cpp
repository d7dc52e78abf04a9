#include "actors/text/pre_tokenizer.hpp"

#include "actors/text/normalizer.hpp"
#include "actors/text/utf8.hpp"

#include <algorithm>

namespace troupe::actors {
namespace {

/// A part of a text and whether it is a match; parts of one text lie side by side.
struct Segment {
  TextRange range;
  bool is_match = false;
};

/// Fills the gaps between matches.
std::vector<Segment> segments_of(std::size_t size, const std::vector<TextRange>& matches,
                                 bool invert) {
  std::vector<Segment> segments;
  std::size_t done = 0;
  for (const TextRange& match : matches) {
    if (match.begin > done) segments.push_back({{done, match.begin}, invert});
    segments.push_back({match, !invert});
    done = match.end;
  }
  if (done < size) segments.push_back({{done, size}, invert});
  return segments;
}

/// Joins segments as `behavior` says; what is left are the pieces.
std::vector<TextRange> join_segments(std::vector<Segment> segments, SplitBehavior behavior) {
  std::vector<TextRange> ranges;
  bool was_match = false;
  const bool from_the_end = behavior == SplitBehavior::kMergedWithNext;
  if (from_the_end) std::reverse(segments.begin(), segments.end());
  for (const Segment& segment : segments) {
    bool joins = false;
    if (behavior == SplitBehavior::kRemoved && segment.is_match) continue;
    if (behavior == SplitBehavior::kContiguous) joins = segment.is_match == was_match;
    if (behavior == SplitBehavior::kMergedWithPrevious || from_the_end)
      joins = segment.is_match && !was_match;
    was_match = segment.is_match;
    if (!joins || ranges.empty()) {
      ranges.push_back(segment.range);
    } else if (from_the_end) {
      ranges.back().begin = segment.range.begin;
    } else {
      ranges.back().end = segment.range.end;
    }
  }
  if (from_the_end) std::reverse(ranges.begin(), ranges.end());
  return ranges;
}

void find_literal(std::string_view text, std::string_view literal,
                  std::vector<TextRange>& matches) {
  matches.clear();
  for (std::size_t at = text.find(literal); at != std::string_view::npos;
       at = text.find(literal, at + literal.size()))
    matches.push_back({at, at + literal.size()});
}

void find_digits(std::string_view text, std::vector<TextRange>& matches) {
  matches.clear();
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = next_character(text.substr(i));
    if (is_numeric(step.code_point)) matches.push_back({i, i + step.length});
    i += step.length;
  }
}

struct StepApplier {
  const PieceList::Piece& piece;
  PieceList& list;
  std::vector<PieceList::Piece>& output;
  std::vector<TextRange>& matches;

  void emit(const PieceList::Piece& whole, TextRange range) const {
    if (range.begin == range.end) return;
    output.push_back({whole.text.substr(range.begin, range.end - range.begin),
                      whole.is_at_start && range.begin == 0});
  }
  void emit_joined(const PieceList::Piece& whole, SplitBehavior behavior, bool invert) const {
    for (const TextRange& range :
         join_segments(segments_of(whole.text.size(), matches, invert), behavior))
      emit(whole, range);
  }
  /// The most frequent case, without its intermediate lists.
  void emit_isolated(const PieceList::Piece& whole) const {
    std::size_t done = 0;
    for (const TextRange& match : matches) {
      emit(whole, {done, match.begin});
      emit(whole, match);
      done = match.end;
    }
    emit(whole, {done, whole.text.size()});
  }

  void operator()(const SplitStep& step) const {
    if (const auto* literal = std::get_if<std::string>(&step.pattern))
      find_literal(piece.text, *literal, matches);
    else
      std::get<Pattern>(step.pattern).find_all(piece.text, matches);
    if (step.behavior == SplitBehavior::kIsolated) return emit_isolated(piece);
    emit_joined(piece, step.behavior, step.invert);
  }
  void operator()(const DigitsStep& step) const {
    find_digits(piece.text, matches);
    if (step.individual) return emit_isolated(piece);
    emit_joined(piece, SplitBehavior::kContiguous, false);
  }
  void operator()(const ByteLevelStep& step) const {
    PieceList::Piece spaced = piece;
    if (step.add_prefix_space && !piece.text.starts_with(' '))
      spaced.text = list.changed.emplace_back(" " + std::string(piece.text));
    if (!step.pattern) return emit(spaced, {0, spaced.text.size()});
    step.pattern->find_all(spaced.text, matches);
    emit_isolated(spaced);
  }
  void operator()(const MetaspaceStep& step) const {
    std::string marked = replace_all(piece.text, " ", step.marker);
    const bool prepends = step.prepend == PrependScheme::kAlways ||
                          (step.prepend == PrependScheme::kFirst && piece.is_at_start);
    if (prepends && !marked.starts_with(step.marker)) marked.insert(0, step.marker);
    PieceList::Piece whole = piece;
    whole.text = list.changed.emplace_back(std::move(marked));
    if (!step.split) return emit(whole, {0, whole.text.size()});
    find_literal(whole.text, step.marker, matches);
    emit_joined(whole, SplitBehavior::kMergedWithNext, false);
  }
};

}  // namespace

bool PreTokenizer::is_byte_level() const {
  return !steps_.empty() && std::holds_alternative<ByteLevelStep>(steps_.back());
}

void PreTokenizer::apply(std::string_view text, bool is_at_start, PieceList& list) const {
  list.pieces.clear();
  list.changed.clear();
  if (text.empty()) return;
  list.pieces.push_back({text, is_at_start});
  std::vector<PieceList::Piece> output;
  std::vector<TextRange> matches;
  for (const PreTokenizerStep& step : steps_) {
    output.clear();
    for (const PieceList::Piece& piece : list.pieces)
      std::visit(StepApplier{piece, list, output, matches}, step);
    list.pieces.swap(output);
  }
}

}  // namespace troupe::actors
