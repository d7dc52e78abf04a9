#pragma once

// Byte-pair encoding of one piece: symbols merged, lowest rank first, leftmost on ties.
//
// The vocabulary maps symbols to ids; a merge is a pair of ids with a rank (its place in the file).
// **Ownership:** owns its tables; `BpeScratch` is the caller's and saves allocations.
// **Threads:** const functions from any thread, each with its own scratch.
// **Cost:** O(n log n) in the symbols of the piece.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe::actors {

inline constexpr std::int32_t kNoToken = -1;

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};
using Vocabulary = std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>>;

/// Open-addressing map from a pair of ids to (rank, merged id).
class MergeTable {
 public:
  struct Merge {
    std::int32_t rank = 0;
    std::int32_t merged = kNoToken;
  };
  explicit MergeTable(std::size_t expected_count = 0);
  /// A pair that is there already is replaced, as in the Hugging Face library.
  void add(std::int32_t left, std::int32_t right, Merge merge);
  /// Null when the pair does not merge.
  const Merge* find(std::int32_t left, std::int32_t right) const;
  std::size_t size() const { return size_; }

 private:
  struct Slot {
    std::int32_t left = kNoToken;
    std::int32_t right = kNoToken;
    Merge merge;
  };
  std::size_t slot_of(std::int32_t left, std::int32_t right) const;
  void grow();
  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

/// Working memory of `merge_symbols`.
struct BpeScratch {
  struct Symbol {
    std::int32_t id;
    std::int32_t previous;
    std::int32_t next;
  };
  struct Candidate {
    std::int32_t rank;
    std::int32_t position;
    std::int32_t left;  // ids when the candidate was found; stale when they have changed
    std::int32_t right;
    std::int32_t merged;
  };
  std::vector<std::int32_t> symbols;  ///< in: the ids of the piece; out: merged
  std::vector<Symbol> chain;
  std::vector<Candidate> heap;
};

/// Merges `scratch.symbols` in place. `is_barred[id]` ids are never made (empty = none are barred).
void merge_symbols(const MergeTable& merges, const std::vector<bool>& is_barred,
                   BpeScratch& scratch);

}  // namespace troupe::actors
