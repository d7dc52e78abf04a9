// Proves the sizes of models: to the last parameter against the canonical tensors of the planner
// for random shapes, and against the published counts of real models.

#include "sim/cost/model_spec.hpp"

#include "runtime/base/rng.hpp"
#include "sim/catalogue/catalogue.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace troupe::sim {
namespace {

std::int64_t elements_of(const reshard::ModelShape& shape) {
  std::int64_t sum = 0;
  for (const reshard::TensorInfo& tensor : reshard::canonical_tensors(shape))
    sum += tensor.rows * tensor.cols;
  return sum;
}

ModelSpec random_spec(Rng& rng) {
  ModelSpec spec;
  reshard::ModelShape& s = spec.shape;
  s.kv_heads = 1 + static_cast<std::int64_t>(rng.below(4));
  s.heads = s.kv_heads * (1 + static_cast<std::int64_t>(rng.below(4)));
  s.head_dim = 2 * (1 + static_cast<std::int64_t>(rng.below(8)));
  s.hidden = 8 * (1 + static_cast<std::int64_t>(rng.below(8)));
  s.intermediate = 8 * (1 + static_cast<std::int64_t>(rng.below(8)));
  s.layers = 1 + static_cast<std::int64_t>(rng.below(6));
  s.vocab = 17 + static_cast<std::int64_t>(rng.below(100));
  s.tied = rng.below(2) == 0;
  s.qkv_bias = rng.below(2) == 0;
  s.o_bias = rng.below(2) == 0;
  s.mlp_bias = rng.below(2) == 0;
  s.qk_norm = rng.below(2) == 0;
  s.value_head = rng.below(4) == 0;
  if (s.value_head) s.tied = false;
  if (rng.below(2) == 0) {
    s.mlp_bias = false;
    s.expert.experts = 2 + static_cast<std::int64_t>(rng.below(6));
    s.expert.intermediate = 8;
    s.expert.shared_intermediate = 8 * static_cast<std::int64_t>(rng.below(2));
    s.expert.dense_layers = static_cast<std::int64_t>(rng.below(2));
    s.expert.router_bias = rng.below(2) == 0;
    spec.experts_per_token = 1;
  }
  if (rng.below(3) == 0) {
    s.qkv_bias = s.qk_norm = false;
    s.kv_heads = s.heads;
    s.latent = {.q_rank = 8 * static_cast<std::int64_t>(rng.below(2)),
                .kv_rank = 8,
                .nope_dim = 4,
                .rope_dim = 2,
                .v_dim = 6};
  }
  return spec;
}

TEST(ModelSpec, CountsWhatThePlannerCounts) {
  int valid = 0;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const ModelSpec spec = random_spec(rng);
    if (!spec.validate()) continue;
    ++valid;
    EXPECT_EQ(size_of(spec).parameters, elements_of(spec.shape));
  }
  EXPECT_GE(valid, 300);
}

TEST(ModelSpec, HasThePublishedSizes) {
  struct Known {
    const char* name;
    double billions;
    double active_billions;  // embedding look-up included, as model cards count
  };
  // Model cards of the named models.
  const Known kKnown[] = {
      {"llama-7b", 6.74, 6.74},         {"llama-13b", 13.02, 13.02}, {"llama-70b", 68.98, 68.98},
      {"llama-3.1-8b", 8.03, 8.03},     {"qwen2.5-7b", 7.62, 7.62},  {"qwen2.5-32b", 32.76, 32.76},
      {"qwen2.5-72b", 72.71, 72.71},    {"qwen3-32b", 32.76, 32.76}, {"qwen3-30b-a3b", 30.53, 3.35},
      {"qwen3-235b-a22b", 235.1, 22.1}, {"deepseek-v3", 671.0, 37.5}};
  const Catalogue& catalogue = Catalogue::built_in();
  for (const Known& known : kKnown) {
    SCOPED_TRACE(known.name);
    const auto spec = catalogue.model(known.name);
    ASSERT_TRUE(spec) << spec.error().to_string();
    const ModelSize size = size_of(*spec);
    EXPECT_NEAR(static_cast<double>(size.parameters) / 1e9, known.billions, 0.006 * known.billions);
    const double active = static_cast<double>(size.active() + size.embedding -
                                              (spec->shape.tied ? size.embedding : 0));
    EXPECT_NEAR(active / 1e9, known.active_billions, 0.02 * known.active_billions);
  }
}

TEST(ModelSpec, HasThePublishedKvBytes) {
  // reference/simulator.md §2.2, bf16.
  const std::pair<const char*, double> kKnown[] = {
      {"llama-7b", 512},     {"llama-13b", 800}, {"llama-34b", 192}, {"llama-70b", 320},
      {"llama-3.1-8b", 128}, {"qwen2.5-7b", 56}, {"qwen3-32b", 256}};
  for (const auto& [name, kibibytes] : kKnown) {
    const auto spec = Catalogue::built_in().model(name);
    ASSERT_TRUE(spec) << spec.error().to_string();
    EXPECT_EQ(static_cast<double>(kv_elements_per_token(*spec)) * 2 / 1024, kibibytes) << name;
  }
}

TEST(ModelSpec, ForwardFlopsAgreeWithTheUsualCounter) {
  // 6·N·tokens + 6·L·n_q·d_h·Σs² for forward and backward (verl, Megatron): a third is forward.
  const ModelSpec spec = *Catalogue::built_in().model("qwen2.5-7b");
  const ModelSize size = size_of(spec);
  const double tokens = 3 * 1000;
  const double squares = 3 * 1000.0 * 1000.0;
  const double usual =
      (6 * static_cast<double>(size.active()) * tokens +
       6 * static_cast<double>(spec.shape.layers * spec.shape.q_rows()) * squares) /
      3;
  EXPECT_NEAR(forward_flops(spec, tokens, squares), usual, 1e-9 * usual);
}

TEST(ModelSpec, RefusesExpertsThatAreNotThere) {
  ModelSpec spec = *Catalogue::built_in().model("qwen3-30b-a3b");
  spec.experts_per_token = 129;
  const auto checked = spec.validate();
  ASSERT_FALSE(checked);
  EXPECT_NE(checked.error().message.find("129 experts per token, it has 128"), std::string::npos)
      << checked.error().to_string();
}

}  // namespace
}  // namespace troupe::sim
