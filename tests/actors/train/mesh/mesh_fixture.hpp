#pragma once

// Models that admit cuts, the meshes that admit them, and the assembly of what the ranks of a
// sharded engine hold into whole tensors.
//
// **Threads:** `on_ranks` of engine_fixture.hpp makes and joins them; a `RankReport` is one rank's.

#include "actors/model/decoder_part.hpp"
#include "actors/train/train_engine.hpp"
#include "actors/train/train_groups.hpp"
#include "tests/actors/train/engine_fixture.hpp"

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

namespace troupe::testing {

struct ParallelModel {
  std::string name;
  actors::ModelConfig config;
  actors::ModelHead head = actors::ModelHead::kLanguage;
};

/// Widths that divide by 8, a vocabulary that divides by nothing.
inline actors::ModelConfig divisible_model() {
  actors::ModelConfig base;
  base.hidden_size = 24;
  base.intermediate_size = 40;
  base.layer_count = 4;
  base.head_count = 8;
  base.kv_head_count = 2;  // tp 4 and 8 hold each kv head more than once
  base.head_dim = 6;
  base.vocab_size = 29;
  base.positions_max = 512;
  base.initializer_range = 0.3;
  return base;
}

inline std::vector<ParallelModel> parallel_models() {
  std::vector<ParallelModel> models;
  models.push_back({"llama, two kv heads", divisible_model()});
  actors::ModelConfig biased = divisible_model();
  biased.qkv_bias = biased.o_bias = biased.mlp_bias = true;
  biased.tie_embeddings = true;
  biased.kv_head_count = 4;
  biased.layer_count = 5;  // uneven stages
  models.push_back({"all biases, tied, five layers", biased});
  actors::ModelConfig qwen3 = divisible_model();
  qwen3.family = actors::ModelFamily::kQwen3;
  qwen3.qk_norm = true;
  qwen3.head_dim = 10;
  qwen3.kv_head_count = 1;
  qwen3.tie_embeddings = true;
  qwen3.vocab_size = 31;
  models.push_back({"qwen3, one kv head, tied", qwen3});
  actors::ModelConfig deep = divisible_model();
  deep.layer_count = 8;
  deep.kv_head_count = 8;
  models.push_back({"critic, eight layers", deep, actors::ModelHead::kValue});
  return models;
}

/// Every tp × pp that `config` admits over `ranks` ranks.
inline std::vector<actors::ParallelOptions> cuts_of(const actors::ModelConfig& config, int ranks) {
  std::vector<actors::ParallelOptions> cuts;
  for (int tp = 1; tp <= ranks; ++tp)
    for (int pp = 1; pp * tp <= ranks; ++pp) {
      const actors::ParallelOptions cut{.tp = tp, .pp = pp};
      if (actors::check_parallel(config, cut, ranks)) cuts.push_back(cut);
    }
  return cuts;
}

inline std::string cut_text(const actors::ParallelOptions& cut, int ranks) {
  return fmt::format("pp {} × dp {} × tp {}, {} virtual stages", cut.pp, ranks / cut.pp / cut.tp,
                     cut.tp, cut.virtual_stages);
}

/// A copy of a box of a tensor that a rank holds.
struct HeldBox {
  std::string name;
  reshard::Box box;
  std::vector<float> numbers;
};

/// What an engine holds of the tensors whose state starts with `prefix`.
inline std::vector<HeldBox> held_boxes(const actors::TrainEngine& engine,
                                       const std::string& prefix) {
  std::vector<HeldBox> boxes;
  for (const actors::StatePiece& piece : engine.held_pieces())
    if (piece.name.starts_with(prefix))
      boxes.push_back({piece.name.substr(prefix.size()), piece.box,
                       std::vector<float>(piece.data.begin(), piece.data.end())});
  return boxes;
}

/// Whole tensors in the order of `decoder_tensors` from what all ranks hold. Throws when a number
/// is nowhere, or differs between two ranks that hold it.
inline std::vector<double> assemble(const actors::ModelConfig& config, actors::ModelHead head,
                                    const std::vector<std::vector<HeldBox>>& ranks) {
  std::map<std::string, std::vector<double>> whole;
  std::map<std::string, std::int64_t> columns;
  const auto shapes = actors::decoder_tensors(config, head == actors::ModelHead::kValue);
  for (const actors::TensorShape& tensor : shapes) {
    whole[tensor.name].assign(static_cast<std::size_t>(tensor.element_count()), NAN);
    columns[tensor.name] = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
  }
  for (const std::vector<HeldBox>& boxes : ranks)
    for (const HeldBox& held : boxes)
      for (std::size_t i = 0; i < held.numbers.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i);
        const std::int64_t row = held.box.row_begin + at / held.box.cols();
        const std::int64_t column = held.box.col_begin + at % held.box.cols();
        double& number =
            whole.at(held.name).at(static_cast<std::size_t>(row * columns.at(held.name) + column));
        const auto mine = static_cast<double>(held.numbers[i]);
        if (!std::isnan(number) && number != mine)
          throw std::runtime_error(
              fmt::format("{}: ranks disagree at {}: {} and {}", held.name, i, number, mine));
        number = mine;
      }
  std::vector<double> out;
  for (const actors::TensorShape& tensor : shapes)
    for (const double number : whole.at(tensor.name)) {
      if (std::isnan(number)) throw std::runtime_error(tensor.name + " is not covered");
      out.push_back(number);
    }
  return out;
}

/// As make_engine, but a critic gets random weights of its value head.
inline std::unique_ptr<actors::TrainEngine> make_parallel_engine(
    const ParallelModel& model, actors::TrainEngineOptions options,
    runtime::Collective* collective = nullptr) {
  options.head = model.head;
  const actors::WeightSet weights = tiny_weights(model.config, 31);
  std::vector<actors::NamedTensor> all(weights.tensors().begin(), weights.tensors().end());
  std::vector<float> head;
  Rng rng(5);
  for (std::int64_t i = 0; i < model.config.hidden_size; ++i)
    head.push_back(static_cast<float>(0.3 * rng.normal()));
  all.push_back({std::string(actors::kValueHead), {1, model.config.hidden_size}, head});
  auto engine = actors::TrainEngine::create(model.config, all, options, collective);
  if (!engine) throw std::runtime_error(engine.error().to_string());
  return std::move(*engine);
}

}  // namespace troupe::testing
