#include "actors/train/packed_sequences.hpp"

namespace troupe::actors {

std::int64_t PackedSequences::response_tokens() const {
  std::int64_t total = 0;
  for (std::int64_t s = 0; s < count(); ++s) total += response_length(s);
  return total;
}

std::vector<std::int64_t> PackedSequences::response_offsets() const {
  std::vector<std::int64_t> result = {0};
  result.reserve(prompt_lengths.size() + 1);
  for (std::int64_t s = 0; s < count(); ++s) result.push_back(result.back() + response_length(s));
  return result;
}

result<void> check_sequences(const PackedSequences& sequences, std::int64_t vocabulary,
                             std::int64_t tokens_max) {
  const auto& [tokens, offsets, prompts] = sequences;
  if (offsets.size() != prompts.size() + 1)
    return fail(ErrorCode::kInvalidArgument,
                "sequences: {} offsets for {} prompt lengths, wanted {}", offsets.size(),
                prompts.size(), prompts.size() + 1);
  if (offsets.front() != 0 || offsets.back() != static_cast<std::int64_t>(tokens.size()))
    return fail(ErrorCode::kInvalidArgument, "sequences: offsets span {}..{}, tokens span 0..{}",
                offsets.front(), offsets.back(), tokens.size());
  for (std::size_t s = 0; s < prompts.size(); ++s) {
    if (offsets[s + 1] < offsets[s])
      return fail(ErrorCode::kInvalidArgument, "sequence {}: offsets fall from {} to {}", s,
                  offsets[s], offsets[s + 1]);
    const std::int64_t length = offsets[s + 1] - offsets[s];
    if (prompts[s] < 1 || prompts[s] > length)
      return fail(ErrorCode::kInvalidArgument,
                  "sequence {}: prompt length {} is not in 1..{} (the sequence's tokens)", s,
                  prompts[s], length);
    if (tokens_max > 0 && length > tokens_max)
      return fail(ErrorCode::kInvalidArgument, "sequence {}: {} tokens exceed the limit of {}", s,
                  length, tokens_max);
  }
  for (std::size_t t = 0; t < tokens.size(); ++t)
    if (tokens[t] < 0 || tokens[t] >= vocabulary)
      return fail(ErrorCode::kInvalidArgument, "sequences: token {} at {} is not in 0..{}",
                  tokens[t], t, vocabulary - 1);
  return {};
}

void SequencePack::add(std::span<const std::int32_t> prompt,
                       std::span<const std::int32_t> response) {
  tokens_.insert(tokens_.end(), prompt.begin(), prompt.end());
  tokens_.insert(tokens_.end(), response.begin(), response.end());
  offsets_.push_back(static_cast<std::int64_t>(tokens_.size()));
  prompt_lengths_.push_back(static_cast<std::int64_t>(prompt.size()));
}

PackedSequences SequencePack::view() const {
  return PackedSequences{.tokens = tokens_, .offsets = offsets_, .prompt_lengths = prompt_lengths_};
}

}  // namespace troupe::actors
