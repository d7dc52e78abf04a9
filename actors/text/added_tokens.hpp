#pragma once

// Added tokens: fixed texts that are cut out of trusted text before anything else happens to it.
//
// **Threads:** const functions from any thread.
// **Cost:** one step in a trie per byte, plus the length of each attempted match.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::actors {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool is_special = false;
  bool is_single_word = false;      ///< only where no word character touches it
  bool strips_left = false;         ///< swallows white space before it
  bool strips_right = false;        ///< swallows white space after it
  bool matches_normalized = false;  ///< looked for after the normalizer, not before
};

/// Finds the leftmost longest added tokens of a text.
class AddedTokenFinder {
 public:
  /// `content` as it appears in the text that will be searched.
  void add(std::string_view content, const AddedToken& token);
  bool is_empty() const { return nodes_.size() == 1; }

  struct Part {
    std::string_view text;  ///< plain text when `id` is empty
    std::optional<std::int32_t> id;
  };
  /// Cuts `text` into added tokens and what lies between; no part is empty.
  std::vector<Part> cut(std::string_view text) const;

 private:
  struct Match {
    std::size_t length;
    const AddedToken* token;
  };
  std::optional<Match> longest_at(std::string_view text) const;

  struct Node {
    std::map<char, std::size_t> next;
    std::optional<AddedToken> token;
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
};

}  // namespace troupe::actors
