#pragma once

// Test data: random packed batches whose masked slots hold garbage, and the operations that the
// invariance tests need: a part of the rows, and extra padding.
//
// **Threads:** one test.

#include "actors/algorithm/aggregation.hpp"
#include "actors/algorithm/policy_loss.hpp"
#include "actors/algorithm/token_batch.hpp"
#include "runtime/base/rng.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors::test {

inline constexpr float kGarbage = std::numeric_limits<float>::quiet_NaN();

/// A packed batch that owns its arrays; `columns` are [T], `rows` [S].
struct Case {
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::uint8_t> mask;
  std::vector<std::int64_t> groups;
  std::vector<std::int64_t> ids;
  std::map<std::string, std::vector<float>> columns;

  std::size_t sequences() const { return groups.size(); }
  std::size_t tokens() const { return mask.size(); }
  TokenBatchView view() const {
    return {.offsets = offsets, .mask = mask, .groups = groups, .sequence_ids = ids};
  }
  const std::vector<float>& column(const std::string& name) const { return columns.at(name); }
  std::vector<float>& column(const std::string& name) { return columns.at(name); }
  LossNormaliser normaliser(double scale_factor = 7) const {
    return {.global = count_tokens(view()), .scale_factor = scale_factor};
  }
};

struct CaseShape {
  std::int64_t sequences = 8;
  std::int64_t length_max = 12;
  std::int64_t groups = 3;
  double masked = 0.25;       ///< share of tokens masked out inside a sequence
  double all_masked = 0.15;   ///< share of sequences that are masked altogether
  double log_ratio = 0.4;     ///< scale of log π - log π_old
};

/// Columns: log_probs, old, reference, rollout, advantages, rewards, values, old_values, returns,
/// entropy, weights. Values are eighths or random floats; masked slots are NaN.
inline Case random_case(Rng& rng, const CaseShape& shape = {}) {
  Case data;
  for (std::int64_t s = 0; s < shape.sequences; ++s) {
    const auto length = static_cast<std::int64_t>(
        rng.below(static_cast<std::uint64_t>(shape.length_max) + 1));
    const bool all_masked = rng.uniform() < shape.all_masked;
    data.groups.push_back(static_cast<std::int64_t>(
        rng.below(static_cast<std::uint64_t>(shape.groups)) * 1'000'003));
    data.ids.push_back(1'000 + 7 * s);
    data.offsets.push_back(data.offsets.back() + length);
    for (std::int64_t t = 0; t < length; ++t) {
      const bool valid = !all_masked && rng.uniform() >= shape.masked;
      data.mask.push_back(valid ? 1 : 0);
      const auto push = [&](const std::string& name, double value) {
        data.columns[name].push_back(valid ? static_cast<float>(value) : kGarbage);
      };
      const double log_prob = -3.0 * rng.uniform();
      push("log_probs", log_prob);
      push("old", log_prob + shape.log_ratio * rng.normal());
      push("reference", log_prob + rng.normal());
      push("rollout", log_prob + 0.3 * rng.normal());
      push("advantages", rng.uniform() < 0.1 ? 0.0 : rng.normal());
      push("rewards", rng.uniform() < 0.5 ? 0.0 : rng.normal());
      push("values", rng.normal());
      push("old_values", rng.normal());
      push("returns", rng.normal());
      push("entropy", 2 * rng.uniform());
      push("weights", 2 * rng.uniform());
    }
  }
  for (const char* name : {"log_probs", "old", "reference", "rollout", "advantages", "rewards",
                           "values", "old_values", "returns", "entropy", "weights"})
    data.columns[name];
  return data;
}

/// The rows `rows` of a batch, in that order.
inline Case take(const Case& data, const std::vector<std::size_t>& rows) {
  Case part;
  for (const auto& [name, values] : data.columns) part.columns[name];
  for (const std::size_t s : rows) {
    part.groups.push_back(data.groups[s]);
    part.ids.push_back(data.ids[s]);
    part.offsets.push_back(part.offsets.back() + data.offsets[s + 1] - data.offsets[s]);
    for (auto t = static_cast<std::size_t>(data.offsets[s]);
         t < static_cast<std::size_t>(data.offsets[s + 1]); ++t) {
      part.mask.push_back(data.mask[t]);
      for (const auto& [name, values] : data.columns) part.columns[name].push_back(values[t]);
    }
  }
  return part;
}

/// Flat token indices of `rows` in the order of `take`.
inline std::vector<std::size_t> tokens_of(const Case& data, const std::vector<std::size_t>& rows) {
  std::vector<std::size_t> tokens;
  for (const std::size_t s : rows)
    for (auto t = static_cast<std::size_t>(data.offsets[s]);
         t < static_cast<std::size_t>(data.offsets[s + 1]); ++t)
      tokens.push_back(t);
  return tokens;
}

/// The same batch with masked garbage after every sequence and masked sequences between them.
/// `origin[t]` is the old index of token t, or -1.
struct Padded {
  Case data;
  std::vector<std::int64_t> origin;
};
inline Padded pad(const Case& data, Rng& rng) {
  Padded padded;
  for (const auto& [name, values] : data.columns) padded.data.columns[name];
  const auto push = [&](std::uint8_t mask, std::int64_t origin) {
    padded.data.mask.push_back(mask);
    padded.origin.push_back(origin);
    for (const auto& [name, values] : data.columns)
      padded.data.columns[name].push_back(
          origin < 0 ? kGarbage : values[static_cast<std::size_t>(origin)]);
  };
  const auto end_sequence = [&](std::int64_t group, std::int64_t id) {
    padded.data.groups.push_back(group);
    padded.data.ids.push_back(id);
    padded.data.offsets.push_back(static_cast<std::int64_t>(padded.data.mask.size()));
  };
  for (std::size_t s = 0; s < data.sequences(); ++s) {
    for (std::int64_t t = data.offsets[s]; t < data.offsets[s + 1]; ++t)
      push(data.mask[static_cast<std::size_t>(t)], t);
    for (std::uint64_t i = rng.below(4); i > 0; --i) push(0, -1);
    end_sequence(data.groups[s], data.ids[s]);
    if (rng.uniform() < 0.5) {
      for (std::uint64_t i = rng.below(5); i > 0; --i) push(0, -1);
      end_sequence(data.groups[s], -1 - static_cast<std::int64_t>(s));
    }
  }
  return padded;
}

/// The rollout's log-probs are those of `old`: tests of off-policy losses give others.
inline PolicyLossInput loss_input(const Case& data, bool with_weights = false) {
  return {.tokens = data.view(),
          .log_probs = data.column("log_probs"),
          .old_log_probs = data.column("old"),
          .advantages = data.column("advantages"),
          .rollout_weights = with_weights ? std::span<const float>(data.column("weights"))
                                          : std::span<const float>(),
          .normaliser = data.normaliser(),
          .rollout_log_probs = data.column("old")};
}

/// Random rows into `parts` parts; some may be empty.
inline std::vector<std::vector<std::size_t>> random_split(std::size_t rows, std::size_t parts,
                                                          Rng& rng) {
  std::vector<std::vector<std::size_t>> split(parts);
  for (const std::int64_t row : rng.permutation(static_cast<std::int64_t>(rows)))
    split[rng.below(parts)].push_back(static_cast<std::size_t>(row));
  return split;
}

}  // namespace troupe::actors::test
