#include "actors/train/micro_batch.hpp"

#include "actors/algorithm/partition.hpp"

#include <algorithm>
#include <map>

namespace troupe::actors {
namespace {

using Tokens = std::span<const std::int32_t>;

/// Sequences that are laid out together: one, or some of equal prompts.
struct Unit {
  std::vector<std::int64_t> sequences;
  std::int64_t tokens = 0;  ///< the prompt once
};

struct Lexicographic {
  bool operator()(Tokens a, Tokens b) const {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  }
};

Tokens prompt_of(const PackedSequences& shard, std::int64_t sequence) {
  const auto s = static_cast<std::size_t>(sequence);
  return shard.tokens.subspan(static_cast<std::size_t>(shard.offsets[s]),
                              static_cast<std::size_t>(shard.prompt_lengths[s]));
}

Tokens response_of(const PackedSequences& shard, std::int64_t sequence) {
  const auto s = static_cast<std::size_t>(sequence);
  return shard.tokens.subspan(static_cast<std::size_t>(shard.offsets[s] + shard.prompt_lengths[s]),
                              static_cast<std::size_t>(shard.response_length(sequence)));
}

/// In order of their first sequences; a group that is too large for one goes on in another.
std::vector<Unit> make_units(const PackedSequences& shard, std::int64_t tokens_max, bool share) {
  std::vector<Unit> units;
  std::map<Tokens, std::size_t, Lexicographic> open;
  for (std::int64_t s = 0; s < shard.count(); ++s) {
    if (share) {
      const auto found = open.find(prompt_of(shard, s));
      if (found != open.end() &&
          units[found->second].tokens + shard.response_length(s) <= tokens_max) {
        units[found->second].sequences.push_back(s);
        units[found->second].tokens += shard.response_length(s);
        continue;
      }
      open[prompt_of(shard, s)] = units.size();
    }
    units.push_back({.sequences = {s}, .tokens = shard.length(s)});
  }
  return units;
}

/// Lays sequences into one micro-batch.
class Layout {
 public:
  Layout(const PackedSequences& shard, std::span<const std::int64_t> response_starts)
      : shard_(shard), response_starts_(response_starts) {
    batch_.offsets.push_back(0);
    batch_.response_offsets.push_back(0);
  }

  void add(const Unit& unit) {
    if (unit.sequences.size() == 1) {
      const std::int64_t s = unit.sequences.front();
      append(prompt_of(shard_, s));
      const std::int64_t prompt_end = end();
      append(response_of(shard_, s));
      close_piece(kNoPrefix);
      predict(s, prompt_end, prompt_end);
      return;
    }
    const auto prompt = static_cast<std::int64_t>(batch_.prefixes.size());
    append(prompt_of(shard_, unit.sequences.front()));
    const std::int64_t prompt_end = end();
    close_piece(kNoPrefix);
    shares_ = true;
    for (const std::int64_t s : unit.sequences) {
      const std::int64_t begin = end();
      append(response_of(shard_, s));
      if (end() > begin) close_piece(prompt);
      predict(s, prompt_end, begin);
    }
  }

  MicroBatch take() {
    if (!shares_) batch_.prefixes.clear();
    return std::move(batch_);
  }

 private:
  static constexpr std::int64_t kNoPrefix = -1;

  std::int64_t end() const { return static_cast<std::int64_t>(batch_.tokens.size()); }
  void append(Tokens tokens) {
    batch_.tokens.insert(batch_.tokens.end(), tokens.begin(), tokens.end());
  }
  void close_piece(std::int64_t prefix) {
    batch_.offsets.push_back(end());
    batch_.prefixes.push_back(prefix);
  }
  /// The prompt's last token predicts the first of the response, which begins at `begin`.
  void predict(std::int64_t sequence, std::int64_t prompt_end, std::int64_t begin) {
    const Tokens response = response_of(shard_, sequence);
    const std::int64_t start = response_starts_[static_cast<std::size_t>(sequence)];
    for (std::size_t i = 0; i < response.size(); ++i) {
      const auto t = static_cast<std::int64_t>(i);
      batch_.rows.push_back(t == 0 ? prompt_end - 1 : begin + t - 1);
      batch_.targets.push_back(response[i]);
      batch_.origin.push_back(start + t);
    }
    batch_.sequences.push_back(sequence);
    batch_.response_offsets.push_back(static_cast<std::int64_t>(batch_.rows.size()));
  }

  const PackedSequences& shard_;
  std::span<const std::int64_t> response_starts_;
  MicroBatch batch_;
  bool shares_ = false;
};

}  // namespace

result<std::vector<MicroBatch>> make_micro_batches(const PackedSequences& sequences,
                                                   std::int64_t tokens_max, bool share_prompts) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t s = 0; s < sequences.count(); ++s) lengths.push_back(sequences.length(s));
  TROUPE_TRY_VOID(micro_batch_count(lengths, tokens_max));  // names a sequence that is too long
  const std::vector<Unit> units = make_units(sequences, tokens_max, share_prompts);
  lengths.clear();
  for (const Unit& unit : units) lengths.push_back(unit.tokens);
  TROUPE_TRY(const std::int64_t count, micro_batch_count(lengths, tokens_max));
  if (count == 0) return std::vector<MicroBatch>{};
  TROUPE_TRY(const Partition partition, plan_micro_batches(lengths, tokens_max, count));
  const std::vector<std::int64_t> starts = sequences.response_offsets();
  std::vector<MicroBatch> batches;
  for (const std::vector<std::int64_t>& part : partition) {
    if (part.empty()) continue;
    Layout layout(sequences, starts);
    for (const std::int64_t unit : part) layout.add(units[static_cast<std::size_t>(unit)]);
    batches.push_back(layout.take());
  }
  return batches;
}

}  // namespace troupe::actors
