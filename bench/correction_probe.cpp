// What stale data does to each correction, on a toy: a table of held-out scores by lag.
//
//   bench_correction_probe [--check] [--seeds N]
//
// A linear softmax policy answers prompts of six random rows each with one of eight letters per
// row; a hidden linear teacher knows the right ones, and the letter before shifts what is right, so
// a policy that moves meets rows that its data does not show. GRPO, Adam, one update per rollout;
// every rollout is sampled by weights `lag` updates old. Losses and corrections are those of
// actors/algorithm; all else is written out here. Score: greedy answers that are right throughout,
// on held-out prompts. **A toy**: it shows which corrections survive stale data, not how good they
// are on language. With --check it ends with 1 unless at lag 0 all scores are the same, and at lag
// 16 uncorrected is at least 0.05 below truncated, and truncated below the trust region.

#include "actors/algorithm/policy_loss.hpp"
#include "actors/algorithm/rollout_correction.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::actors;

constexpr std::size_t kFeatures = 12;
constexpr std::size_t kLetters = 8;
constexpr std::size_t kLength = 6;
constexpr std::size_t kPrompts = 12;
constexpr std::size_t kSamples = 8;
constexpr std::size_t kTokens = kPrompts * kSamples * kLength;
constexpr std::size_t kHeldOut = 500;
constexpr int kSteps = 300;
constexpr double kLearningRate = 0.1;
constexpr double kMemory = 2.5;  ///< how much the letter before weighs in a row

using Weights = std::vector<double>;  // [letter][feature]
using Row = std::vector<double>;      // [feature]

Row random_row(Rng& rng) {
  Row row(kFeatures);
  for (double& x : row) x = rng.normal();
  return row;
}

std::vector<double> logits_of(const Weights& weights, const Row& row) {
  std::vector<double> logits(kLetters, 0.0);
  for (std::size_t v = 0; v < kLetters; ++v)
    for (std::size_t f = 0; f < kFeatures; ++f) logits[v] += weights[v * kFeatures + f] * row[f];
  return logits;
}

std::size_t best_of(const std::vector<double>& logits) {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<double> softmax(const Weights& weights, const Row& row) {
  std::vector<double> p = logits_of(weights, row);
  const double best = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - best);
  for (double& x : p) x /= sum;
  return p;
}

/// The sampled batch in the packed layout of the losses.
struct Rollout {
  std::vector<Row> rows = {};  ///< of each token
  std::vector<std::size_t> letters = {};
  std::vector<float> log_probs = {};
  std::vector<float> advantages = {};
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::uint8_t> mask = {};
  TokenBatchView view() const { return {.offsets = offsets, .mask = mask}; }
};

/// `row` as it is met after `letter`; none comes before the first.
Row after(Row row, const std::size_t* letter) {
  if (letter != nullptr) row[*letter] += kMemory;
  return row;
}

std::size_t draw(const std::vector<double>& p, Rng& rng) {
  double left = rng.uniform();
  for (std::size_t v = 0; v + 1 < p.size(); ++v)
    if ((left -= p[v]) < 0) return v;
  return p.size() - 1;
}

/// Group-normalised advantages (GRPO) of the share of right letters.
Rollout sample(const Weights& behaviour, const Weights& teacher, Rng& rng) {
  Rollout rollout;
  for (std::size_t prompt = 0; prompt < kPrompts; ++prompt) {
    std::vector<Row> rows;
    for (std::size_t i = 0; i < kLength; ++i) rows.push_back(random_row(rng));
    std::vector<double> rewards;
    for (std::size_t g = 0; g < kSamples; ++g) {
      double right = 0;
      for (std::size_t i = 0; i < kLength; ++i) {
        Row row = after(rows[i], i == 0 ? nullptr : &rollout.letters.back());
        const std::vector<double> p = softmax(behaviour, row);
        const std::size_t letter = draw(p, rng);
        right += letter == best_of(logits_of(teacher, row)) ? 1 : 0;
        rollout.rows.push_back(std::move(row));
        rollout.letters.push_back(letter);
        rollout.log_probs.push_back(static_cast<float>(std::log(p[letter])));
      }
      rewards.push_back(right / kLength);
      rollout.offsets.push_back(static_cast<std::int64_t>(rollout.rows.size()));
    }
    double mean = 0;
    double square = 0;
    for (const double reward : rewards) mean += reward / kSamples;
    for (const double reward : rewards) square += (reward - mean) * (reward - mean);
    const double deviation = std::sqrt(square / (kSamples - 1));
    for (const double reward : rewards)
      for (std::size_t i = 0; i < kLength; ++i)
        rollout.advantages.push_back(static_cast<float>((reward - mean) / (deviation + 1e-6)));
  }
  rollout.mask.assign(rollout.rows.size(), 1);
  return rollout;
}

struct Adam {
  Weights m = Weights(kLetters * kFeatures, 0.0);
  Weights v = m;
  int step = 0;

  void update(Weights& weights, Weights gradient) {
    double norm = 0;
    for (const double g : gradient) norm += g * g;
    const double scale = std::min(1.0, 1.0 / (std::sqrt(norm) + 1e-12));
    ++step;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double g = gradient[i] * scale;
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.999 * v[i] + 0.001 * g * g;
      const double first = m[i] / (1 - std::pow(0.9, step));
      const double second = v[i] / (1 - std::pow(0.999, step));
      weights[i] -= kLearningRate * first / (std::sqrt(second) + 1e-8);
    }
  }
};

/// One line of the table: a preset, or plain REINFORCE.
struct Arm {
  std::string name;
  std::string preset;  ///< empty: `gpg`, nothing corrected
};

/// Loss gradient with respect to the weights, through the losses of the library.
Weights gradient_of(const CorrectionPreset& preset, const Weights& weights,
                    const Rollout& rollout) {
  std::vector<std::vector<double>> shares;
  std::vector<float> log_probs;
  for (std::size_t t = 0; t < kTokens; ++t) {
    shares.push_back(softmax(weights, rollout.rows[t]));
    log_probs.push_back(
        static_cast<float>(std::log(std::max(shares.back()[rollout.letters[t]], 1e-300))));
  }
  const TokenBatchView batch = rollout.view();
  // One update per rollout: the proximal policy is the current one, unless the clip is around b.
  const bool bypass = preset.options.proximal == ProximalSource::kRollout;
  const std::vector<float>& old = bypass ? rollout.log_probs : log_probs;
  const auto correction = rollout_correction({.tokens = batch,
                                              .log_probs = old,
                                              .rollout_log_probs = rollout.log_probs,
                                              .advantages = rollout.advantages},
                                             preset.options);
  TROUPE_CHECK(correction.has_value(), "{}", correction.error().to_string());
  PolicyLossOptions options{.clip_low = 0.2, .clip_high = 0.28, .importance = preset.importance};
  const PolicyLossInput input{.tokens = batch,
                              .log_probs = log_probs,
                              .old_log_probs = old,
                              .advantages = rollout.advantages,
                              .rollout_weights = correction->weights,
                              .normaliser = {.global = count_tokens(batch)},
                              .rollout_log_probs = rollout.log_probs};
  const PolicyLoss loss = default_policy_losses().find(preset.policy_loss).value();
  const auto output = loss.apply(input, options);
  TROUPE_CHECK(output.has_value(), "{}", output.error().to_string());
  Weights gradient(kLetters * kFeatures, 0.0);
  for (std::size_t t = 0; t < kTokens; ++t) {
    const double slope = output->gradient[t];
    if (slope == 0) continue;
    for (std::size_t v = 0; v < kLetters; ++v) {
      const double push = slope * ((v == rollout.letters[t] ? 1.0 : 0.0) - shares[t][v]);
      for (std::size_t f = 0; f < kFeatures; ++f)
        gradient[v * kFeatures + f] += push * rollout.rows[t][f];
    }
  }
  return gradient;
}

double score_of(const Weights& weights, const Weights& teacher, std::uint64_t seed) {
  Rng rng(mix_seed(seed, 99));
  double right = 0;
  for (std::size_t prompt = 0; prompt < kHeldOut; ++prompt) {
    bool all_right = true;
    std::size_t letter = 0;
    for (std::size_t i = 0; i < kLength; ++i) {
      const Row row = after(random_row(rng), i == 0 ? nullptr : &letter);
      letter = best_of(logits_of(weights, row));
      all_right &= letter == best_of(logits_of(teacher, row));
    }
    right += all_right ? 1 : 0;
  }
  return right / kHeldOut;
}

struct Outcome {
  double last = 0;
  double best = 0;
};

Outcome train(const CorrectionPreset& preset, std::size_t lag, std::uint64_t seed) {
  Rng rng(mix_seed(seed, 1));
  Weights teacher(kLetters * kFeatures);
  for (double& w : teacher) w = rng.normal();
  Weights weights(kLetters * kFeatures, 0.0);
  std::deque<Weights> versions;  // the oldest samples
  Adam adam;
  Outcome outcome;
  for (int step = 1; step <= kSteps; ++step) {
    versions.push_back(weights);
    if (versions.size() > lag + 1) versions.pop_front();
    const Rollout rollout = sample(versions.front(), teacher, rng);
    adam.update(weights, gradient_of(preset, weights, rollout));
    if (step % 25 == 0) outcome.best = std::max(outcome.best, score_of(weights, teacher, seed));
  }
  outcome.last = score_of(weights, teacher, seed);
  return outcome;
}

using Table = std::map<std::string, std::vector<double>>;  // mean final score by lag

bool in_order(const Table& table) {
  bool ok = true;
  const auto demand = [&](bool holds, std::string_view what) {
    if (!holds) fmt::print("MISSED: {}\n", what);
    ok &= holds;
  };
  const std::vector<double>& none = table.at("no correction");
  for (const auto& [name, scores] : table)
    demand(scores[0] == none[0], name + " is the uncorrected loss at lag 0");
  const double plain = none.back();
  const double truncated = table.at("TIS").back();
  const double trusted = table.at("PPO clip").back();
  demand(plain + 0.05 <= truncated, "at lag 16 truncation is 0.05 better than nothing");
  demand(plain + 0.15 <= trusted, "at lag 16 a trust region is 0.15 better than nothing");
  demand(truncated < trusted, "at lag 16 a trust region is better than truncation");
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  bool check = false;
  std::uint64_t seeds = 3;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--check") check = true;
    if (word == "--seeds" && i + 1 < argc) seeds = std::strtoull(argv[++i], nullptr, 10);
  }
  const std::vector<Arm> arms = {{"no correction", ""}, {"TIS", "tis"},   {"MIS", "mis"},
                                 {"IcePop", "icepop"},  {"TOPR", "topr"}, {"M2PO", "m2po"},
                                 {"CISPO", "cispo"},    {"OPSM", "opsm"}, {"PPO clip", "naive"}};
  constexpr std::size_t kLags[] = {0, 4, 16};
  fmt::print("toy, {} steps, {} seeds: mean final score (mean best), spread of the final\n", kSteps,
             seeds);
  fmt::print("{:<14}", "loss");
  for (const std::size_t lag : kLags) fmt::print("  {:<24}", fmt::format("lag {}", lag));
  fmt::print("\n");
  const auto start = std::chrono::steady_clock::now();
  Table table;
  for (const Arm& arm : arms) {
    const CorrectionPreset preset = arm.preset.empty()
                                        ? CorrectionPreset{.policy_loss = "gpg"}
                                        : default_corrections().find(arm.preset).value();
    fmt::print("{:<14}", arm.name);
    for (const std::size_t lag : kLags) {
      Outcome mean;
      double low = 1;
      double high = 0;
      for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        const Outcome one = train(preset, lag, seed);
        mean.last += one.last / static_cast<double>(seeds);
        mean.best += one.best / static_cast<double>(seeds);
        low = std::min(low, one.last);
        high = std::max(high, one.last);
      }
      table[arm.name].push_back(mean.last);
      fmt::print("  {:<24}",
                 fmt::format("{:.2f} ({:.2f}) {:.2f}-{:.2f}", mean.last, mean.best, low, high));
    }
    fmt::print("\n");
    std::fflush(stdout);
  }
  fmt::print("{:.1f} s\n",
             std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return check && !in_order(table) ? 1 : 0;
}
