// Proves that the trainer computes what Hugging Face transformers computes, on the checkpoints of
// tests/fixtures/transformers: logits of every position of sequences packed end to end, in any
// order, and log-probabilities with the chunks and temperature of training.

#include "actors/model/decoder.hpp"
#include "tests/actors/decoder/tiny_models.hpp"
#include "tests/support/transformers_case.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>

namespace troupe::actors {
namespace {

using troupe::testing::kLogitTolerance;
using troupe::testing::largest_difference;
using troupe::testing::Packed;
using troupe::testing::TransformersCase;

class TransformersDecoder : public ::testing::TestWithParam<std::string> {
 protected:
  const TransformersCase golden_ = troupe::testing::load_transformers_case(GetParam());
  const std::unique_ptr<Decoder> decoder_ =
      Decoder::create(golden_.config, golden_.weights.tensors(), {.trainable = false}).value();
};

INSTANTIATE_TEST_SUITE_P(Cases, TransformersDecoder,
                         ::testing::ValuesIn(troupe::testing::transformers_cases()),
                         [](const auto& test) { return test.param; });

TEST_P(TransformersDecoder, GivesTheLogitsOfPackedSequencesInAnyOrder) {
  const at::NoGradGuard no_gradient;
  std::vector<std::size_t> order = {0, 1, 2};
  double worst = 0;
  ASSERT_EQ(golden_.sequences.size(), order.size());
  do {
    Packed packed;
    for (const std::size_t s : order) packed.add(golden_.sequences[s]);
    const auto rows = packed.all_rows();
    const at::Tensor logits =
        decoder_->logits(decoder_->hidden({packed.tokens, packed.offsets, rows}));
    ASSERT_EQ(logits.size(1), golden_.config.vocab_size);
    for (std::size_t i = 0; i < order.size(); ++i)
      for (std::size_t t = 0; t < golden_.sequences[order[i]].size(); ++t) {
        const std::int64_t row = packed.offsets[i] + static_cast<std::int64_t>(t);
        const std::span<const float> found(logits.data_ptr<float>() + row * logits.size(1),
                                           static_cast<std::size_t>(logits.size(1)));
        const double difference = largest_difference(found, golden_.row(order[i], t));
        EXPECT_LT(difference, kLogitTolerance) << "sequence " << order[i] << ", position " << t;
        worst = std::max(worst, difference);
      }
  } while (std::ranges::next_permutation(order).found);
  RecordProperty("largest_logit_difference", fmt::format("{:.1e}", worst));
}

TEST_P(TransformersDecoder, GivesTheLogProbabilitiesOfNextTokens) {
  const at::NoGradGuard no_gradient;
  Packed packed;
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> targets;
  std::vector<double> wanted;
  for (std::size_t s = 0; s < golden_.sequences.size(); ++s) {
    const auto& ids = golden_.sequences[s];
    for (std::size_t t = 0; t + 1 < ids.size(); ++t) {
      rows.push_back(packed.offsets.back() + static_cast<std::int64_t>(t));
      targets.push_back(ids[t + 1]);
    }
    packed.add(ids);
    wanted.insert(wanted.end(), golden_.log_probs[s].begin(), golden_.log_probs[s].end());
  }
  const TokenLogProb found =
      decoder_->log_probs(decoder_->hidden({packed.tokens, packed.offsets, rows}),
                          torch::tensor(targets, torch::kInt64), {.chunk_tokens = 7});
  const std::span<const float> numbers(found.log_prob.data_ptr<float>(), rows.size());
  EXPECT_LT(largest_difference(numbers, wanted), kLogitTolerance);
}

}  // namespace
}  // namespace troupe::actors
