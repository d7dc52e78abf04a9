// Proves the parts of tensor parallelism: which box each rank holds, log-probs over a cut
// vocabulary against those over the whole one, and which models may be cut how.
#include "actors/model/token_log_prob_parallel.hpp"
#include "tests/actors/train/mesh/mesh_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace troupe::actors {
namespace {

using testing::divisible_model;
using ::testing::HasSubstr;
using testing::on_ranks;

TEST(TensorParallel, OwnedBoxesCoverEveryTensorOnce) {
  for (const testing::ParallelModel& model : testing::parallel_models())
    for (const int size : {1, 2, 4, 8})
      for (const TensorShape& tensor : decoder_tensors(model.config, false)) {
        SCOPED_TRACE(model.name + ": " + tensor.name + ", tp " + std::to_string(size));
        const bool is_matrix = tensor.shape.size() > 1;
        const std::int64_t columns = is_matrix ? tensor.shape[1] : 1;
        std::vector<int> owners(static_cast<std::size_t>(tensor.element_count()), 0);
        for (int rank = 0; rank < size; ++rank) {
          const LocalTensor local =
              local_tensor(model.config, tensor, {.rank = rank, .size = size});
          EXPECT_EQ(local.whole, tensor.shape);
          if (!local.owned) continue;
          const std::int64_t width = is_matrix ? local.shape[1] : 1;
          for (std::int64_t r = 0; r < local.shape[0]; ++r)
            for (std::int64_t c = 0; c < width; ++c)
              ++owners.at(
                  static_cast<std::size_t>((local.row_begin + r) * columns + local.col_begin + c));
        }
        EXPECT_EQ(owners, std::vector<int>(owners.size(), 1));
      }
}

TEST(TensorParallel, EachRankHoldsTheKvHeadOfItsQueries) {
  ModelConfig config = divisible_model();  // 8 heads, 2 kv heads
  for (const int size : {1, 2, 4, 8})
    for (int rank = 0; rank < size; ++rank) {
      const TensorPlace place{.rank = rank, .size = size};
      const IndexRange queries = part_of(config.head_count, place);
      const IndexRange kv = kv_heads_of(config, place);
      const std::int64_t group = config.head_count / config.kv_head_count;
      EXPECT_EQ(kv.begin, queries.begin / group);
      EXPECT_EQ(kv.end, (queries.end - 1) / group + 1);
      EXPECT_EQ(queries.size() % kv.size(), 0);
    }
}

struct HeadCase {
  std::int64_t vocabulary;
  int ranks;
  double temperature;
  std::int64_t chunk;
};

/// What loss = Σ a·log_prob + b·entropy gives.
struct HeadResult {
  at::Tensor log_prob, entropy, hidden_gradient, head_gradient;
};

HeadResult head_result(
    const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& weights,
    const std::function<TokenLogProb(const at::Tensor&, const at::Tensor&)>& of) {
  const at::Tensor h = hidden.clone().set_requires_grad(true);
  const at::Tensor w = head.clone().set_requires_grad(true);
  const TokenLogProb out = of(h, w);
  torch::autograd::backward({out.log_prob, out.entropy}, {weights[0], weights[1]});
  return {out.log_prob.detach(), out.entropy.detach(), h.grad(), w.grad()};
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

TEST(TensorParallel, LogProbsOverACutVocabularyAreThoseOverTheWhole) {
  torch::manual_seed(4);
  const std::vector<HeadCase> cases = {
      {5, 4, 1.0, 3}, {29, 2, 0.7, 100}, {600, 3, 1.3, 4}, {1537, 4, 1.0, 1}};
  for (const HeadCase& c : cases) {
    SCOPED_TRACE(c.vocabulary);
    const at::Tensor hidden = torch::randn({11, 16});
    const at::Tensor head = 2 * torch::randn({c.vocabulary, 16});
    const at::Tensor targets = torch::randint(c.vocabulary, {11}, torch::kInt64);
    const at::Tensor weights = torch::randn({2, 11});
    const TokenLogProbOptions options{.temperature = c.temperature, .chunk_tokens = c.chunk};
    const HeadResult wanted =
        head_result(hidden, head, weights, [&](const at::Tensor& h, const at::Tensor& w) {
          return token_log_prob(h, w, targets, options);
        });
    std::vector<HeadResult> got(static_cast<std::size_t>(c.ranks));
    on_ranks(c.ranks, [&](int rank, runtime::Collective& world) {
      const TensorGroup group{.place = {.rank = rank, .size = c.ranks},
                              .ranks = &world,
                              .timeout = std::chrono::seconds(20)};
      const IndexRange rows = part_of(c.vocabulary, group.place);
      got[static_cast<std::size_t>(rank)] =
          head_result(hidden, head.narrow(0, rows.begin, rows.size()), weights,
                      [&](const at::Tensor& h, const at::Tensor& w) {
                        return token_log_prob_parallel(group, rows, h, w, targets, options);
                      });
    });
    std::vector<at::Tensor> head_gradients;
    for (const HeadResult& one : got) {
      EXPECT_LT((one.log_prob - wanted.log_prob).abs().max().item<double>(), 1e-5);
      EXPECT_LT((one.entropy - wanted.entropy).abs().max().item<double>(), 1e-5);
      EXPECT_LT(distance(one.hidden_gradient, wanted.hidden_gradient), 1e-5);
      EXPECT_TRUE(one.log_prob.equal(got[0].log_prob));
      EXPECT_TRUE(one.hidden_gradient.equal(got[0].hidden_gradient));
      head_gradients.push_back(one.head_gradient);
    }
    EXPECT_LT(distance(at::cat(head_gradients), wanted.head_gradient), 1e-5);
  }
}

TEST(ParallelOptions, WhatCannotBeCutIsRefusedNamingBothNumbers) {
  const ModelConfig model = divisible_model();
  const auto message = [&](const ParallelOptions& cut, int ranks, ModelConfig config) {
    const auto checked = check_parallel(config, cut, ranks);
    EXPECT_FALSE(checked) << cut.tp << " " << cut.pp;
    if (checked) return std::string();
    EXPECT_EQ(checked.error().code, ErrorCode::kConfig);
    return checked.error().message;
  };
  EXPECT_THAT(message({.tp = 3}, 3, model), HasSubstr("8 heads do not divide by tp 3"));
  EXPECT_THAT(message({.tp = 2}, 3, model), HasSubstr("3 ranks do not divide by tp × pp = 2"));
  EXPECT_THAT(message({.pp = 5}, 5, model), HasSubstr("5 pipeline runs"));
  EXPECT_THAT(message({.virtual_stages = 2}, 1, model), HasSubstr("virtual_stages"));
  EXPECT_THAT(message({.pp = 2, .stage_layers = {1, 2}}, 2, model), HasSubstr("sum to 3"));
  EXPECT_THAT(message({.pp = 2, .stage_layers = {4}}, 2, model), HasSubstr("has 1 numbers"));
  EXPECT_THAT(message({.shard_ranks = 3}, 4, model),
              HasSubstr("4 data-parallel ranks do not divide by shard_ranks 3"));
  ModelConfig odd = model;
  odd.intermediate_size = 37;
  EXPECT_THAT(message({.tp = 2}, 2, odd), HasSubstr("37 mlp columns do not divide by tp 2"));
  ModelConfig six = model;
  six.head_count = 12;
  six.kv_head_count = 6;
  EXPECT_THAT(message({.tp = 4}, 4, six), HasSubstr("6 kv heads do not divide by tp 4"));
  six.head_count = 24;
  six.kv_head_count = 3;
  EXPECT_THAT(message({.tp = 8}, 8, six), HasSubstr("tp 8 is no multiple of 3 kv heads"));
  ModelConfig tiny = model;
  tiny.vocab_size = 3;
  EXPECT_THAT(message({.tp = 4}, 4, tiny), HasSubstr("3 tokens of vocabulary for tp 4"));
  EXPECT_TRUE(check_parallel(model, {.tp = 8}, 8));  // each kv head on four ranks
}

}  // namespace
}  // namespace troupe::actors
