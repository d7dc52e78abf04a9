// Proves that the training decoder computes the right function and the right gradient: logits
// against the slow reference of tests/support, gradients against plain double-precision autograd
// and against finite differences of the reference, for every family and switch; and that packing,
// its order, and activation recompute change nothing.
#include "actors/model/decoder.hpp"

#include "actors/model/hf_folder.hpp"
#include "tests/actors/decoder/plain_decoder.hpp"
#include "tests/actors/decoder/tiny_models.hpp"
#include "tests/support/reference_model.hpp"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

namespace troupe::actors {
namespace {

using testing::Packed;
using testing::PlainDecoder;
using testing::ReferenceModel;
using testing::TinyModel;

std::unique_ptr<Decoder> make_decoder(const ModelConfig& config, const WeightSet& weights,
                                      DecoderOptions options = {}) {
  auto decoder = Decoder::create(config, weights.tensors(), options);
  if (!decoder) throw std::runtime_error(decoder.error().to_string());
  return std::move(*decoder);
}

at::Tensor all_logits(Decoder& decoder, const Packed& packed) {
  const std::vector<std::int64_t> rows = packed.all_rows();
  return decoder.logits(decoder.hidden({packed.tokens, packed.offsets, rows}));
}

/// Largest |Δ| over sequences, divided by the largest |reference|.
double logit_error(Decoder& decoder, const ReferenceModel& reference, const Packed& packed) {
  const at::NoGradGuard no_gradient;
  const at::Tensor logits = all_logits(decoder, packed);
  double worst = 0;
  double scale = 0;
  for (std::size_t s = 0; s + 1 < packed.offsets.size(); ++s) {
    const std::span<const std::int32_t> ids(packed.tokens.data() + packed.offsets[s],
                                            packed.tokens.data() + packed.offsets[s + 1]);
    const testing::Table wanted = reference.logits(ids);
    const float* got = logits.data_ptr<float>() + packed.offsets[s] * logits.size(1);
    for (std::size_t i = 0; i < wanted.values.size(); ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(got[i]) - wanted.values[i]));
      scale = std::max(scale, std::abs(wanted.values[i]));
    }
  }
  return worst / scale;
}

/// A loss that touches every output: Σ over tokens of cosine-weighted log-prob and entropy.
double coefficient(std::int64_t row) { return std::cos(0.7 * static_cast<double>(row)); }

struct Targets {
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> targets;
};

/// Every position but a sequence's last predicts the next token.
Targets next_tokens(const Packed& packed) {
  Targets out;
  for (std::size_t s = 0; s + 1 < packed.offsets.size(); ++s)
    for (std::int64_t t = packed.offsets[s]; t + 1 < packed.offsets[s + 1]; ++t) {
      out.rows.push_back(t);
      out.targets.push_back(packed.tokens[static_cast<std::size_t>(t + 1)]);
    }
  return out;
}

void run_backward(Decoder& decoder, const Packed& packed, double temperature = 1.0) {
  const Targets targets = next_tokens(packed);
  decoder.parameters().zero_gradients();
  const at::Tensor hidden = decoder.hidden({packed.tokens, packed.offsets, targets.rows});
  const TokenLogProb out = decoder.log_probs(hidden, torch::tensor(targets.targets, torch::kInt64),
                                             {.temperature = temperature, .chunk_tokens = 7});
  std::vector<float> weights;
  for (const std::int64_t row : targets.rows)
    weights.push_back(static_cast<float>(coefficient(row)));
  const at::Tensor w = torch::tensor(weights);
  torch::autograd::backward({out.log_prob, out.entropy}, {w, 0.3 * w});
}

/// The same loss by plain autograd; leaves the gradients in the plain model's leaves.
void plain_backward(PlainDecoder& plain, const Packed& packed, double temperature = 1.0) {
  at::Tensor loss = torch::zeros({}, torch::kFloat64);
  for (std::size_t s = 0; s + 1 < packed.offsets.size(); ++s) {
    const std::span<const std::int32_t> ids(packed.tokens.data() + packed.offsets[s],
                                            packed.tokens.data() + packed.offsets[s + 1]);
    const at::Tensor logits = plain.logits(ids) / temperature;
    const at::Tensor log_probs = logits.log_softmax(-1);
    const at::Tensor entropy = -(log_probs.exp() * log_probs).sum(-1);
    for (std::size_t t = 0; t + 1 < ids.size(); ++t) {
      const auto row = static_cast<std::int64_t>(t);
      loss = loss + coefficient(packed.offsets[s] + row) *
                        (log_probs[row][ids[t + 1]] + 0.3 * entropy[row]);
    }
  }
  loss.backward();
}

/// Largest |Δ| of one tensor's gradient over the tensor's largest |gradient|.
double gradient_error(Decoder& decoder, const ParameterSegment& segment, const at::Tensor& wanted) {
  const float* got = decoder.parameters().gradients().data() + segment.offset;
  const at::Tensor flat = wanted.contiguous().view({-1});
  const double* want = flat.data_ptr<double>();
  double worst = 0;
  double scale = 1e-6;
  for (std::int64_t i = 0; i < segment.count; ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - want[i]));
    scale = std::max(scale, std::abs(want[i]));
  }
  return worst / scale;
}

TEST(Decoder, LogitsMatchTheSlowReferenceInEveryFamily) {
  for (const TinyModel& model : testing::tiny_models()) {
    SCOPED_TRACE(model.name);
    const WeightSet weights = testing::tiny_weights(model.config, 11);
    const ReferenceModel reference(model.config, weights.tensors());
    const auto decoder = make_decoder(model.config, weights);
    Rng rng(5);
    const Packed packed =
        testing::random_packed(rng, {1, 17, 2, 40, 16, 33}, model.config.vocab_size);
    EXPECT_LT(logit_error(*decoder, reference, packed), 2e-5);
  }
}

TEST(Decoder, LogitsOfStories260KMatchTheSlowReference) {
  const char* shared = std::getenv("TROUPE_SHARED");
  const std::filesystem::path root = shared != nullptr
                                         ? std::filesystem::path(shared)
                                         : std::filesystem::path(TROUPE_SOURCE_DIR) / "../shared";
  const std::filesystem::path folder = root / "models/stories260K";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const ModelConfig config = ModelConfig::load(folder).value();
  const WeightSet weights = load_hf_weights(folder, config).value();
  const ReferenceModel reference(config, weights.tensors());
  const auto decoder = make_decoder(config, weights, {.trainable = false});
  Rng rng(6);
  Packed packed = testing::random_packed(rng, {30, 90}, config.vocab_size);
  // Text of its own kind as well: a greedy story.
  const std::vector<std::int32_t> start = {1};
  std::vector<std::int32_t> story = reference.greedy(start, 40);
  story.insert(story.begin(), 1);
  packed.add(story);
  EXPECT_LT(logit_error(*decoder, reference, packed), 1e-5);
}

TEST(Decoder, ThePlainOracleAgreesWithTheReference) {
  for (const TinyModel& model : testing::tiny_models()) {
    SCOPED_TRACE(model.name);
    const WeightSet weights = testing::tiny_weights(model.config, 12);
    const ReferenceModel reference(model.config, weights.tensors());
    PlainDecoder plain(model.config, weights.tensors());
    Rng rng(7);
    const auto ids = testing::random_tokens(rng, 21, model.config.vocab_size);
    const at::Tensor got = plain.logits(ids).contiguous();
    const testing::Table wanted = reference.logits(ids);
    for (std::size_t i = 0; i < wanted.values.size(); ++i)
      ASSERT_NEAR(got.data_ptr<double>()[i], wanted.values[i], 1e-10);
  }
}

TEST(Decoder, GradientsMatchPlainAutogradInEveryFamily) {
  for (const TinyModel& model : testing::tiny_models()) {
    for (const double temperature : {1.0, 0.6}) {
      SCOPED_TRACE(model.name);
      const WeightSet weights = testing::tiny_weights(model.config, 13);
      const auto decoder = make_decoder(model.config, weights);
      PlainDecoder plain(model.config, weights.tensors());
      Rng rng(8);
      const Packed packed = testing::random_packed(rng, {19, 1, 2, 35}, model.config.vocab_size);
      run_backward(*decoder, packed, temperature);
      plain_backward(plain, packed, temperature);
      for (const ParameterSegment& segment : decoder->parameters().segments())
        EXPECT_LT(gradient_error(*decoder, segment, plain.weight(segment.name).grad()), 3e-5)
            << segment.name;
    }
  }
}

TEST(Decoder, GradientsMatchFiniteDifferencesOfTheReference) {
  for (const TinyModel& model : testing::tiny_models()) {
    SCOPED_TRACE(model.name);
    WeightSet weights = testing::tiny_weights(model.config, 14);
    const auto decoder = make_decoder(model.config, weights);
    Rng rng(9);
    const Packed packed = testing::random_packed(rng, {9, 14}, model.config.vocab_size);
    run_backward(*decoder, packed);
    const auto loss = [&] {
      const ReferenceModel reference(model.config, weights.tensors());
      double sum = 0;
      for (std::size_t s = 0; s + 1 < packed.offsets.size(); ++s) {
        const std::span<const std::int32_t> ids(packed.tokens.data() + packed.offsets[s],
                                                packed.tokens.data() + packed.offsets[s + 1]);
        const testing::Table logits = reference.logits(ids);
        for (std::size_t t = 0; t + 1 < ids.size(); ++t) {
          const auto row = ReferenceModel::log_softmax(logits.row(t));
          double entropy = 0;
          for (const double value : row) entropy -= std::exp(value) * value;
          sum += coefficient(packed.offsets[s] + static_cast<std::int64_t>(t)) *
                 (row[static_cast<std::size_t>(ids[t + 1])] + 0.3 * entropy);
        }
      }
      return sum;
    };
    for (std::size_t i = 0; i < weights.tensors().size(); ++i) {
      const std::string name = weights.tensors()[i].name;
      const std::span<float> values = weights.mutable_data(i);
      const std::size_t at = rng.below(values.size());
      const float original = values[at];
      values[at] = original + 2e-3F;
      const double above = static_cast<double>(values[at]);
      const double loss_above = loss();
      values[at] = original - 2e-3F;
      const double slope = (loss_above - loss()) / (above - static_cast<double>(values[at]));
      values[at] = original;
      const ParameterSegment* segment = decoder->parameters().find(name);
      ASSERT_NE(segment, nullptr);
      const float got =
          decoder->parameters().gradients()[static_cast<std::size_t>(segment->offset) + at];
      EXPECT_NEAR(static_cast<double>(got), slope, 2e-3 * std::max(1.0, std::abs(slope)))
          << name << "[" << at << "]";
    }
  }
}

TEST(Decoder, ASequenceDoesNotSeeItsNeighbours) {
  const ModelConfig config = testing::tiny_models().front().config;
  const auto decoder = make_decoder(config, testing::tiny_weights(config, 15));
  const at::NoGradGuard no_gradient;
  Rng rng(10);
  const auto sequence = testing::random_tokens(rng, 23, config.vocab_size);
  Packed alone;
  alone.add(sequence);
  Packed among = testing::random_packed(rng, {5, 31}, config.vocab_size);
  among.add(sequence);
  among.add(testing::random_tokens(rng, 12, config.vocab_size));
  const at::Tensor a = all_logits(*decoder, alone);
  const at::Tensor b = all_logits(*decoder, among).narrow(0, 36, 23);
  EXPECT_LT((a - b).abs().max().item<double>(), 1e-5);
  // A token of the future changes nothing before it.
  Packed changed = alone;
  changed.tokens.back() = (changed.tokens.back() + 1) % 29;
  const at::Tensor c = all_logits(*decoder, changed);
  EXPECT_TRUE(torch::equal(a.narrow(0, 0, 22), c.narrow(0, 0, 22)));
  EXPECT_FALSE(torch::equal(a, c));
}

TEST(Decoder, GradientsDoNotDependOnThePackingOrder) {
  const ModelConfig config = testing::tiny_models().front().config;
  const WeightSet weights = testing::tiny_weights(config, 16);
  const auto decoder = make_decoder(config, weights);
  Rng rng(11);
  const Packed forward = testing::random_packed(rng, {7, 20, 3}, config.vocab_size);
  const auto mean_gradient = [&](const std::vector<std::size_t>& order) {
    Packed packed;
    for (const std::size_t s : order)
      packed.add({forward.tokens.begin() + forward.offsets[s],
                  forward.tokens.begin() + forward.offsets[s + 1]});
    const Targets targets = next_tokens(packed);
    decoder->parameters().zero_gradients();
    const at::Tensor hidden = decoder->hidden({packed.tokens, packed.offsets, targets.rows});
    decoder->log_probs(hidden, torch::tensor(targets.targets, torch::kInt64), {})
        .log_prob.mean()
        .backward();
    const std::span<float> gradients = decoder->parameters().gradients();
    return std::vector<float>(gradients.begin(), gradients.end());
  };
  const std::vector<float> a = mean_gradient({0, 1, 2});
  const std::vector<float> b = mean_gradient({2, 0, 1});
  float scale = 0;
  float worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    scale = std::max(scale, std::abs(a[i]));
    worst = std::max(worst, std::abs(a[i] - b[i]));
  }
  EXPECT_LT(worst / scale, 1e-5F);
}

TEST(Decoder, RecomputeGivesTheSameBits) {
  for (const TinyModel& model : testing::tiny_models()) {
    SCOPED_TRACE(model.name);
    const WeightSet weights = testing::tiny_weights(model.config, 17);
    const auto plain = make_decoder(model.config, weights);
    const auto recomputed = make_decoder(model.config, weights, {.recompute = true});
    Rng rng(12);
    const Packed packed = testing::random_packed(rng, {25, 8, 1}, model.config.vocab_size);
    run_backward(*plain, packed);
    run_backward(*recomputed, packed);
    EXPECT_TRUE(
        std::ranges::equal(plain->parameters().gradients(), recomputed->parameters().gradients()));
  }
}

TEST(Decoder, ACriticReadsAValuePerTokenAndTrainsItsHead) {
  const ModelConfig config = testing::tiny_models().front().config;
  const WeightSet weights = testing::tiny_weights(config, 18);
  const auto fresh = make_decoder(config, weights, {.value_head = true});
  Rng rng(13);
  const Packed packed = testing::random_packed(rng, {6, 9}, config.vocab_size);
  const std::vector<std::int64_t> rows = packed.all_rows();
  const at::Tensor zero = fresh->values(fresh->hidden({packed.tokens, packed.offsets, rows}));
  EXPECT_EQ(zero.sizes(), at::IntArrayRef({15}));
  EXPECT_EQ(zero.abs().max().item<float>(), 0.0F) << "a new value head starts at zero";

  std::vector<float> head(24);
  for (std::size_t i = 0; i < head.size(); ++i) head[i] = 0.1F * static_cast<float>(i) - 1.0F;
  std::vector<NamedTensor> with_head(weights.tensors().begin(), weights.tensors().end());
  with_head.push_back({"value_head.weight", {1, 24}, head});
  auto critic = Decoder::create(config, with_head, {.value_head = true}).value();
  const at::Tensor values = critic->values(critic->hidden({packed.tokens, packed.offsets, rows}));
  critic->parameters().zero_gradients();
  values.sum().backward();

  PlainDecoder plain(config, weights.tensors());
  const at::Tensor vector = torch::tensor(head).to(torch::kFloat64).set_requires_grad(true);
  at::Tensor total = torch::zeros({}, torch::kFloat64);
  for (std::size_t s = 0; s + 1 < packed.offsets.size(); ++s) {
    const std::span<const std::int32_t> ids(packed.tokens.data() + packed.offsets[s],
                                            packed.tokens.data() + packed.offsets[s + 1]);
    const at::Tensor wanted = plain.hidden(ids).matmul(vector);
    const at::Tensor got = values.narrow(0, packed.offsets[s], wanted.size(0));
    EXPECT_LT((got - wanted).abs().max().item<double>(), 1e-4);
    total = total + wanted.sum();
  }
  total.backward();
  for (const ParameterSegment& segment : critic->parameters().segments()) {
    const at::Tensor wanted =
        segment.name == "value_head.weight" ? vector.grad() : plain.weight(segment.name).grad();
    EXPECT_LT(gradient_error(*critic, segment, wanted), 3e-5) << segment.name;
  }
  EXPECT_EQ(critic->parameters().find("lm_head.weight"), nullptr);
}

TEST(Decoder, ExportsViewsInCanonicalOrder) {
  for (const TinyModel& model : testing::tiny_models()) {
    SCOPED_TRACE(model.name);
    const WeightSet weights = testing::tiny_weights(model.config, 19);
    const auto decoder = make_decoder(model.config, weights);
    const auto exported = decoder->parameters().tensors();
    ASSERT_EQ(exported.size(), weights.tensors().size());
    for (std::size_t i = 0; i < exported.size(); ++i) {
      EXPECT_EQ(exported[i].name, weights.tensors()[i].name);
      EXPECT_EQ(exported[i].shape, weights.tensors()[i].shape);
      EXPECT_TRUE(std::ranges::equal(exported[i].data, weights.tensors()[i].data));
    }
    // They are views: a change of the weights shows.
    decoder->parameters().weights()[0] += 1.0F;
    EXPECT_EQ(exported[0].data[0], weights.tensors()[0].data[0] + 1.0F);
  }
}

TEST(Decoder, RefusesMissingDoubledAndMisshapenTensorsByName) {
  const ModelConfig config = testing::tiny_models().front().config;
  const WeightSet weights = testing::tiny_weights(config, 20);
  const auto tensors = weights.tensors();
  std::vector<NamedTensor> list(tensors.begin(), tensors.end());
  const auto create = [&] { return Decoder::create(config, list, {}); };

  list.erase(list.begin() + 3);
  auto missing = create();
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find(tensors[3].name), std::string::npos);

  list.assign(tensors.begin(), tensors.end());
  list.push_back(list.front());
  EXPECT_EQ(create().error().code, ErrorCode::kInvalidArgument);

  list.assign(tensors.begin(), tensors.end());
  list[2].shape = {static_cast<std::int64_t>(list[2].data.size()), 1};
  auto misshapen = create();
  ASSERT_FALSE(misshapen);
  EXPECT_EQ(misshapen.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(misshapen.error().message.find(tensors[2].name), std::string::npos);

  list.assign(tensors.begin(), tensors.end());
  list[2].data = list[2].data.first(1);
  EXPECT_EQ(create().error().code, ErrorCode::kInvalidArgument);
}

TEST(Decoder, SettingWeightsIsAllOrNothing) {
  const ModelConfig config = testing::tiny_models().front().config;
  const WeightSet first = testing::tiny_weights(config, 21);
  const WeightSet second = testing::tiny_weights(config, 22);
  const auto decoder = make_decoder(config, first);
  std::vector<NamedTensor> broken(second.tensors().begin(), second.tensors().end());
  broken.pop_back();
  EXPECT_FALSE(decoder->set_weights(broken));
  for (std::size_t i = 0; i < first.tensors().size(); ++i)
    EXPECT_TRUE(
        std::ranges::equal(decoder->parameters().tensors()[i].data, first.tensors()[i].data));
  ASSERT_TRUE(decoder->set_weights(second.tensors()));
  EXPECT_TRUE(
      std::ranges::equal(decoder->parameters().tensors()[0].data, second.tensors()[0].data));
}

}  // namespace
}  // namespace troupe::actors
