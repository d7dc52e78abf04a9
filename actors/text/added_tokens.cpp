#include "actors/text/added_tokens.hpp"

#include "actors/text/utf8.hpp"

#include <algorithm>

namespace troupe::actors {
namespace {

/// The last character of valid UTF-8; 0 when there is none.
char32_t last_character(std::string_view text) {
  std::size_t start = text.size();
  while (start > 0) {
    --start;
    if ((static_cast<unsigned char>(text[start]) & 0xc0U) != 0x80U) break;
  }
  return next_character(text.substr(start)).code_point;
}

bool touches_a_word(std::string_view before, std::string_view after) {
  return (!before.empty() && is_word(last_character(before))) ||
         (!after.empty() && is_word(next_character(after).code_point));
}

std::size_t white_space_at_start(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const Utf8Step step = next_character(text.substr(length));
    if (!is_white_space(step.code_point)) break;
    length += step.length;
  }
  return length;
}

std::size_t white_space_at_end(std::string_view text) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = next_character(text.substr(i));
    i += step.length;
    length = is_white_space(step.code_point) ? length + step.length : 0;
  }
  return length;
}

}  // namespace

void AddedTokenFinder::add(std::string_view content, const AddedToken& token) {
  std::size_t node = 0;
  for (const char c : content) {
    const auto found = nodes_[node].next.find(c);
    if (found != nodes_[node].next.end()) {
      node = found->second;
      continue;
    }
    nodes_.emplace_back();
    nodes_[node].next.emplace(c, nodes_.size() - 1);
    node = nodes_.size() - 1;
  }
  if (node != 0) nodes_[node].token = token;  // an empty text matches nowhere
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::longest_at(std::string_view text) const {
  std::optional<Match> best;
  std::size_t node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto found = nodes_[node].next.find(text[i]);
    if (found == nodes_[node].next.end()) break;
    node = found->second;
    if (nodes_[node].token) best = Match{i + 1, &*nodes_[node].token};
  }
  return best;
}

std::vector<AddedTokenFinder::Part> AddedTokenFinder::cut(std::string_view text) const {
  std::vector<Part> parts;
  std::size_t done = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::optional<Match> match = longest_at(text.substr(i));
    if (!match) {
      ++i;
      continue;
    }
    std::size_t begin = i;
    std::size_t end = i + match->length;
    i = end;
    const AddedToken& token = *match->token;
    if (token.is_single_word && touches_a_word(text.substr(0, begin), text.substr(end))) continue;
    if (token.strips_left) begin -= white_space_at_end(text.substr(done, begin - done));
    if (token.strips_right) end += white_space_at_start(text.substr(end));
    if (begin > done) parts.push_back({text.substr(done, begin - done), std::nullopt});
    parts.push_back({text.substr(begin, end - begin), token.id});
    done = i = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), std::nullopt});
  return parts;
}

}  // namespace troupe::actors
