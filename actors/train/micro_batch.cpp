#include "actors/train/micro_batch.hpp"

#include "actors/algorithm/partition.hpp"

namespace troupe::actors {
namespace {

void append(MicroBatch& batch, const PackedSequences& shard, std::int64_t sequence,
            std::int64_t response_start) {
  const auto s = static_cast<std::size_t>(sequence);
  const auto begin = static_cast<std::size_t>(shard.offsets[s]);
  const auto end = static_cast<std::size_t>(shard.offsets[s + 1]);
  const std::int64_t base = batch.offsets.back();
  const std::int64_t prompt = shard.prompt_lengths[s];
  const std::int64_t responses = shard.response_length(sequence);
  batch.sequences.push_back(sequence);
  batch.tokens.insert(batch.tokens.end(), shard.tokens.begin() + shard.offsets[s],
                      shard.tokens.begin() + shard.offsets[s + 1]);
  batch.offsets.push_back(base + static_cast<std::int64_t>(end - begin));
  for (std::int64_t t = 0; t < responses; ++t) {
    batch.rows.push_back(base + prompt + t - 1);
    batch.targets.push_back(shard.tokens[begin + static_cast<std::size_t>(prompt + t)]);
    batch.origin.push_back(response_start + t);
  }
  batch.response_offsets.push_back(static_cast<std::int64_t>(batch.rows.size()));
}

}  // namespace

result<std::vector<MicroBatch>> make_micro_batches(const PackedSequences& sequences,
                                                   std::int64_t tokens_max) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t s = 0; s < sequences.count(); ++s) lengths.push_back(sequences.length(s));
  TROUPE_TRY(const std::int64_t count, micro_batch_count(lengths, tokens_max));
  if (count == 0) return std::vector<MicroBatch>{};
  TROUPE_TRY(const Partition partition, plan_micro_batches(lengths, tokens_max, count));
  const std::vector<std::int64_t> starts = sequences.response_offsets();
  std::vector<MicroBatch> batches;
  for (const std::vector<std::int64_t>& part : partition) {
    if (part.empty()) continue;
    MicroBatch batch;
    batch.offsets.push_back(0);
    batch.response_offsets.push_back(0);
    for (const std::int64_t s : part)
      append(batch, sequences, s, starts[static_cast<std::size_t>(s)]);
    batches.push_back(std::move(batch));
  }
  return batches;
}

}  // namespace troupe::actors
