#include "actors/text/bpe.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace troupe::actors {

MergeTable::MergeTable(std::size_t expected_count)
    : slots_(std::bit_ceil(std::max<std::size_t>(16, expected_count * 2))) {}

std::size_t MergeTable::slot_of(std::int32_t left, std::int32_t right) const {
  std::uint64_t key = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
                      static_cast<std::uint32_t>(right);
  key *= 0x9e3779b97f4a7c15ULL;  // Fibonacci hashing; the high bits are the good ones
  std::size_t slot = (key >> 32) & (slots_.size() - 1);
  while (slots_[slot].merge.merged != kNoToken &&
         (slots_[slot].left != left || slots_[slot].right != right))
    slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

void MergeTable::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old)
    if (slot.merge.merged != kNoToken) slots_[slot_of(slot.left, slot.right)] = slot;
}

void MergeTable::add(std::int32_t left, std::int32_t right, Merge merge) {
  if (size_ * 2 >= slots_.size()) grow();
  Slot& slot = slots_[slot_of(left, right)];
  if (slot.merge.merged == kNoToken) ++size_;
  slot = {left, right, merge};
}

const MergeTable::Merge* MergeTable::find(std::int32_t left, std::int32_t right) const {
  const Slot& slot = slots_[slot_of(left, right)];
  return slot.merge.merged == kNoToken ? nullptr : &slot.merge;
}

namespace {

/// For std heaps, whose top is the greatest: lowest rank, then leftmost.
bool comes_later(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

class Merger {
 public:
  Merger(const MergeTable& merges, const std::vector<bool>& is_barred, BpeScratch& scratch)
      : merges_(merges), is_barred_(is_barred), scratch_(scratch) {}

  void run() {
    auto& [symbols, chain, heap] = scratch_;
    const auto count = static_cast<std::int32_t>(symbols.size());
    chain.clear();
    heap.clear();
    for (std::int32_t i = 0; i < count; ++i)
      chain.push_back({symbols[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
    for (std::int32_t i = 0; i + 1 < count; ++i) consider(i);
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), comes_later);
      const BpeScratch::Candidate best = heap.back();
      heap.pop_back();
      apply(best);
    }
    symbols.clear();
    for (std::int32_t i = 0; i >= 0; i = at(i).next) symbols.push_back(at(i).id);
  }

 private:
  BpeScratch::Symbol& at(std::int32_t position) {
    return scratch_.chain[static_cast<std::size_t>(position)];
  }

  void consider(std::int32_t position) {
    const std::int32_t next = at(position).next;
    if (position < 0 || next < 0) return;
    const std::int32_t left = at(position).id;
    const std::int32_t right = at(next).id;
    const MergeTable::Merge* merge = merges_.find(left, right);
    if (merge == nullptr) return;
    if (!is_barred_.empty() && is_barred_[static_cast<std::size_t>(merge->merged)]) return;
    scratch_.heap.push_back({merge->rank, position, left, right, merge->merged});
    std::push_heap(scratch_.heap.begin(), scratch_.heap.end(), comes_later);
  }

  void apply(const BpeScratch::Candidate& best) {
    BpeScratch::Symbol& symbol = at(best.position);
    if (symbol.id != best.left || symbol.next < 0 || at(symbol.next).id != best.right) return;
    BpeScratch::Symbol& eaten = at(symbol.next);
    symbol.id = best.merged;
    symbol.next = eaten.next;
    eaten.id = kNoToken;  // candidates that start here are stale
    if (symbol.next >= 0) at(symbol.next).previous = best.position;
    if (symbol.previous >= 0) consider(symbol.previous);
    consider(best.position);
  }

  const MergeTable& merges_;
  const std::vector<bool>& is_barred_;
  BpeScratch& scratch_;
};

}  // namespace

void merge_symbols(const MergeTable& merges, const std::vector<bool>& is_barred,
                   BpeScratch& scratch) {
  if (scratch.symbols.size() < 2) return;
  Merger(merges, is_barred, scratch).run();
}

}  // namespace troupe::actors
