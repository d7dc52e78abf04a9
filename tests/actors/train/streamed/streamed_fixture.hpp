#pragma once

// Steps that are trained at once or part by part, on any mesh, and how far apart they end.
//
// **Threads:** `run_mesh` of sharded_fixture.hpp makes and joins them.

#include "tests/actors/train/sharded_fixture.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace troupe::testing {

/// What the loss of a step is.
struct Recipe {
  std::string loss = "vanilla";
  actors::LossAggregation aggregation = actors::LossAggregation::kTokenMean;
  double scale_factor = 7;
};

inline constexpr actors::LossAggregation kAggregations[] = {
    actors::LossAggregation::kTokenMean, actors::LossAggregation::kTokenSum,
    actors::LossAggregation::kSeqMeanTokenSum, actors::LossAggregation::kSeqMeanTokenSumNorm,
    actors::LossAggregation::kSeqMeanTokenMean};

/// Samples of each part of a step, in the order in which they are fed.
using Parts = std::vector<std::vector<Sample>>;

/// Cuts anywhere, empty parts included; `shuffled`: in any order.
inline Parts random_parts(Rng& rng, std::vector<Sample> samples, bool shuffled) {
  if (shuffled)
    for (std::size_t i = samples.size(); i > 1; --i)
      std::swap(samples[i - 1], samples[static_cast<std::size_t>(rng.below(i))]);
  Parts parts(1);
  for (Sample& sample : samples) {
    while (rng.uniform() < 0.35) parts.emplace_back();
    parts.back().push_back(std::move(sample));
  }
  return parts;
}

inline actors::PolicyUpdate policy_part(const Share& share, const Recipe& recipe) {
  actors::PolicyUpdate update = policy_update(share, recipe.loss);
  update.objective.loss.aggregation = recipe.aggregation;
  update.loss_scale_factor = recipe.scale_factor;
  update.rollout_weights = share.weights;
  update.rollout_log_probs = share.reference;
  return update;
}

inline actors::ValueUpdate value_part(const Share& share, const Recipe& recipe) {
  actors::ValueUpdate update;
  update.returns = share.returns;
  update.old_values = share.reference;
  update.mask = share.mask;
  update.options.aggregation = recipe.aggregation;
  update.options.clip = 0.4;
  update.loss_scale_factor = recipe.scale_factor;
  return update;
}

inline bool is_policy(const actors::TrainEngine& engine) {
  return engine.options().head == actors::ModelHead::kLanguage;
}

inline result<runtime::Metrics> at_once(actors::TrainEngine& engine, const Share& share,
                                        const Recipe& recipe) {
  return is_policy(engine) ? engine.update_policy(share.pack.view(), policy_part(share, recipe))
                           : engine.update_value(share.pack.view(), value_part(share, recipe));
}

inline result<runtime::Metrics> add_part(actors::TrainEngine& engine, const Share& share,
                                         const Recipe& recipe) {
  return is_policy(engine) ? engine.accumulate_policy(share.pack.view(), policy_part(share, recipe))
                           : engine.accumulate_value(share.pack.view(), value_part(share, recipe));
}

/// This rank's shares of all parts, then the end of the step.
inline result<runtime::Metrics> in_parts(actors::TrainEngine& engine, const Parts& parts, int dp,
                                         int dp_size, const Recipe& recipe) {
  runtime::Metrics metrics;
  for (const std::vector<Sample>& part : parts) {
    const Share share = share_of(part, dp, dp_size);
    TROUPE_TRY(const runtime::Metrics added, add_part(engine, share, recipe));
    TROUPE_TRY_VOID(metrics.merge(added));
  }
  TROUPE_TRY(const runtime::Metrics last, engine.finish_step());
  TROUPE_TRY_VOID(metrics.merge(last));
  return metrics;
}

/// How a mesh ended, and what its speakers reported of the last step.
struct Ending {
  std::map<std::string, std::vector<float>> state;
  runtime::Metrics metrics;
};

/// One step after another, each in these parts; without parts, each at once.
inline Ending train(const MeshRun& run, const ShardMesh& mesh, const Recipe& recipe,
                    const std::vector<std::optional<Parts>>& steps) {
  const auto ranks = static_cast<std::size_t>(mesh.ranks);
  std::vector<std::vector<OwnedPiece>> pieces(ranks);
  std::vector<runtime::Metrics> metrics(ranks);
  run_mesh(run, mesh, [&](actors::TrainEngine& engine, const Share& share, int rank) {
    const actors::MeshPlace place = actors::mesh_place(mesh.cut, rank, mesh.ranks);
    const auto r = static_cast<std::size_t>(rank);
    for (const std::optional<Parts>& parts : steps) {
      const auto done = parts ? in_parts(engine, *parts, place.dp, place.dp_size, recipe)
                              : at_once(engine, share, recipe);
      if (!done) throw std::runtime_error(done.error().to_string());
      metrics[r] = *done;
    }
    pieces[r] = owned(engine.state_pieces());
  });
  Ending ending{.state = assemble_state(views(pieces)), .metrics = {}};
  for (int rank = 0; rank < mesh.ranks; ++rank)
    if (actors::mesh_place(mesh.cut, rank, mesh.ranks).speaker())
      if (!ending.metrics.merge(metrics[static_cast<std::size_t>(rank)]))
        throw std::runtime_error("metrics of ranks do not merge");
  return ending;
}

/// ‖a − b‖ / ‖b‖ over one kind of state (`weights/`, `adam_m/`, `adam_v/`).
inline double distance(const Ending& a, const Ending& b, const std::string& kind) {
  double apart = 0;
  double length = 0;
  for (const auto& [name, values] : b.state) {
    if (!name.starts_with(kind)) continue;
    const std::vector<float>& others = a.state.at(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto wanted = static_cast<double>(values[i]);
      apart += std::pow(static_cast<double>(others[i]) - wanted, 2);
      length += wanted * wanted;
    }
  }
  return std::sqrt(apart / length);
}

/// A model of `tiny_models`, and random samples. `alike`: all equally long, so that each is a
/// micro-batch of its own however the step is cut, and with advantages > 0, so that gradients do
/// not cancel: what is left is the rounding of sums and of the scale.
inline MeshRun streamed_run(std::uint64_t seed, bool alike = true, std::size_t model = 1) {
  constexpr std::int64_t kLength = 24;
  MeshRun run{.config = tiny_models()[model].config};
  run.config.intermediate_size = 38;  // divides by tp 2
  run.options.micro_batch_tokens_max = 2 * kLength - 1;
  run.options.optimizer.lr = 3e-3;
  // Large enough that the rounding of a gradient near 0 does not become a step of full size.
  run.options.optimizer.eps = 1e-3;
  run.options.optimizer.grad_norm_max = 0.3;
  Rng rng(seed);
  run.samples = random_samples(rng, 14, run.config.vocab_size);
  if (!alike) return run;
  for (Sample& sample : run.samples) {
    const auto response = static_cast<std::int64_t>(sample.response.size());
    sample.prompt = random_tokens(rng, kLength - response, run.config.vocab_size);
    for (float& advantage : sample.advantages) advantage = std::abs(advantage) + 0.2F;
  }
  return run;
}

}  // namespace troupe::testing
