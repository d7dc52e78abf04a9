#pragma once

// Mini-batches, rank threads and gradient read-out for the tests of the train engine.
//
// **Threads:** `on_ranks` makes and joins its own.

#include "actors/train/train_engine.hpp"
#include "runtime/base/rng.hpp"
#include "tests/actors/decoder/tiny_models.hpp"

#include <cmath>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace troupe::testing {

/// One sequence with everything that an update may read about it.
struct Sample {
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> response;
  std::vector<float> old_log_probs;
  std::vector<float> advantages;
  std::vector<float> reference;
  std::vector<float> weights;
  std::vector<float> returns;
  std::vector<std::uint8_t> mask;
  std::int64_t id = 0;
};

/// A rank's share, packed; `update` and `value` borrow from it.
struct Share {
  actors::SequencePack pack;
  std::vector<float> old_log_probs, advantages, reference, weights, returns;
  std::vector<std::uint8_t> mask;
  std::vector<std::int64_t> ids;

  void add(const Sample& s) {
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    pack.add(s.prompt, s.response);
    append(old_log_probs, s.old_log_probs);
    append(advantages, s.advantages);
    append(reference, s.reference);
    append(weights, s.weights);
    append(returns, s.returns);
    append(mask, s.mask);
    ids.push_back(s.id);
  }
};

enum class Prompts { kSomeEqual, kOwn };

/// Samples with old log-probs near a uniform policy, so that ratios clip on both sides. Half of
/// them have the prompt of one before, unless each is to have its own.
inline std::vector<Sample> random_samples(Rng& rng, int count, std::int64_t vocab,
                                          Prompts prompts = Prompts::kSomeEqual) {
  std::vector<Sample> samples;
  for (int i = 0; i < count; ++i) {
    Sample s;
    s.id = 100 + i;
    if (prompts == Prompts::kSomeEqual && i > 0 && rng.below(2) == 1)
      s.prompt = samples[rng.below(samples.size())].prompt;
    else
      s.prompt = random_tokens(rng, 1 + static_cast<std::int64_t>(rng.below(9)), vocab);
    s.response = random_tokens(rng, static_cast<std::int64_t>(rng.below(14)), vocab);
    const auto advantage = static_cast<float>(rng.normal());
    for (std::size_t t = 0; t < s.response.size(); ++t) {
      s.old_log_probs.push_back(static_cast<float>(-3.4 + 0.5 * rng.normal()));
      s.advantages.push_back(advantage);
      s.reference.push_back(static_cast<float>(-3.4 + 0.5 * rng.normal()));
      s.weights.push_back(static_cast<float>(0.5 + rng.uniform()));
      s.returns.push_back(static_cast<float>(rng.normal()));
      s.mask.push_back(rng.uniform() < 0.85 ? 1 : 0);
    }
    samples.push_back(std::move(s));
  }
  return samples;
}

/// Rank `rank` of `size` takes samples in contiguous runs; late ranks may get none.
inline Share share_of(const std::vector<Sample>& samples, int rank, int size) {
  Share share;
  const std::size_t n = samples.size();
  const auto r = static_cast<std::size_t>(rank);
  const auto k = static_cast<std::size_t>(size);
  const std::size_t each = (n + k - 1) / k;
  for (std::size_t i = r * each; i < std::min(n, (r + 1) * each); ++i) share.add(samples[i]);
  return share;
}

inline actors::PolicyUpdate policy_update(const Share& share, const std::string& loss) {
  actors::PolicyUpdate update;
  update.old_log_probs = share.old_log_probs;
  update.advantages = share.advantages;
  update.mask = share.mask;
  update.reference_log_probs = share.reference;
  update.sequence_ids = share.ids;
  update.loss = actors::default_policy_losses().find(loss).value();
  update.objective.entropy_coefficient = 0.01;
  update.objective.kl_coefficient = 0.05;
  return update;
}

inline std::unique_ptr<actors::TrainEngine> make_engine(const actors::ModelConfig& config,
                                                        const actors::TrainEngineOptions& options,
                                                        runtime::Collective* collective = nullptr,
                                                        std::uint64_t seed = 31) {
  const actors::WeightSet weights = tiny_weights(config, seed);
  auto engine = actors::TrainEngine::create(config, weights.tensors(), options, collective);
  if (!engine) throw std::runtime_error(engine.error().to_string());
  return std::move(*engine);
}

/// lr 0 and no clip: an update leaves the weights alone and the gradient in the first moment.
inline actors::TrainEngineOptions gradient_options() {
  actors::TrainEngineOptions options;
  options.optimizer.lr = 0;
  options.optimizer.beta1 = 0.5;
  options.optimizer.grad_norm_max = 0;
  return options;
}

/// The gradient of the only update so far, all tensors in order.
inline std::vector<double> gradient_of(const actors::TrainEngine& engine) {
  std::vector<double> out;
  const actors::TrainState state = engine.state();
  for (const actors::NamedTensor& tensor : state.tensors)
    if (tensor.name.starts_with("adam_m/"))
      for (const float m : tensor.data) out.push_back(static_cast<double>(m) / 0.5);
  return out;
}

/// max |a - b| / max |b|.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  double scale = 1e-12;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= worst)) worst = std::abs(a[i] - b[i]);
    scale = std::max(scale, std::abs(b[i]));
  }
  return worst / scale;
}

/// Runs `work` on one thread per rank of a local group.
inline void on_ranks(int size, const std::function<void(int, runtime::Collective&)>& work) {
  auto group = runtime::make_local_group(size, {.name = "policy"});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back(
        [&work, &group, rank] { work(rank, *group[static_cast<std::size_t>(rank)]); });
  for (std::thread& thread : threads) thread.join();
}

inline std::vector<float> all_weights(const actors::TrainEngine& engine) {
  std::vector<float> out;
  for (const actors::NamedTensor& tensor : engine.weights())
    out.insert(out.end(), tensor.data.begin(), tensor.data.end());
  return out;
}

}  // namespace troupe::testing
