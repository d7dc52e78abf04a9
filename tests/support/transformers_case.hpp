#pragma once

// The checkpoints of tests/fixtures/transformers, with what Hugging Face transformers computes from
// them. scripts/make_transformers_fixtures wrote both and says what the files mean.
//
// **Threads:** pure functions over files.

#include "actors/model/hf_folder.hpp"
#include "runtime/base/check.hpp"
#include "tests/support/test_files.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace troupe::testing {

inline std::filesystem::path transformers_fixtures() {
  return std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/fixtures/transformers";
}

/// What logits and log-probabilities in fp32 may differ by.
inline constexpr double kLogitTolerance = 1e-4;

/// One checkpoint and its golden numbers.
struct TransformersCase {
  std::filesystem::path folder;
  actors::ModelConfig config;
  actors::WeightSet weights;
  std::int64_t parameters = 0;
  std::vector<std::vector<std::int32_t>> sequences;
  std::vector<float> logits;                   ///< [T, V], the sequences end to end
  std::vector<std::vector<double>> log_probs;  ///< of each next token, per sequence
  std::vector<std::int32_t> greedy_prompt;
  std::vector<std::int32_t> greedy_tokens;
  std::vector<double> greedy_log_probs;

  /// Logits [V] after token `position` of sequence `sequence`.
  std::span<const float> row(std::size_t sequence, std::size_t position) const {
    std::size_t at = position;
    for (std::size_t s = 0; s < sequence; ++s) at += sequences[s].size();
    const auto width = static_cast<std::size_t>(config.vocab_size);
    return std::span(logits).subspan(at * width, width);
  }
};

/// Names of all checkpoints.
inline std::vector<std::string> transformers_cases() {
  return nlohmann::json::parse(read_file(transformers_fixtures() / "cases.json"))
      .get<std::vector<std::string>>();
}

inline TransformersCase load_transformers_case(const std::string& name) {
  const std::filesystem::path folder = transformers_fixtures() / name;
  auto config = actors::ModelConfig::load(folder);
  TROUPE_CHECK(config.has_value(), "{}", config.error().to_string());
  auto weights = actors::load_hf_weights(folder, *config);
  TROUPE_CHECK(weights.has_value(), "{}", weights.error().to_string());
  const auto numbers = actors::SafetensorsFile::open(folder / "golden.safetensors");
  TROUPE_CHECK(numbers.has_value(), "{}", numbers.error().to_string());
  auto logits = numbers->read<float>("logits");
  TROUPE_CHECK(logits.has_value(), "{}", logits.error().to_string());
  const auto golden = nlohmann::json::parse(read_file(folder / "golden.json"));
  const auto& greedy = golden.at("greedy");
  return {.folder = folder,
          .config = std::move(*config),
          .weights = std::move(*weights),
          .parameters = golden.at("parameters"),
          .sequences = golden.at("sequences"),
          .logits = std::move(*logits),
          .log_probs = golden.at("log_probs"),
          .greedy_prompt = greedy.at("prompt"),
          .greedy_tokens = greedy.at("tokens"),
          .greedy_log_probs = greedy.at("log_probs")};
}

/// The largest |difference| of two rows, for messages and bounds.
template <class Left, class Right>
double largest_difference(const Left& left, const Right& right) {
  TROUPE_CHECK(std::size(left) == std::size(right), "{} numbers beside {}", std::size(left),
               std::size(right));
  double worst = 0;
  for (std::size_t i = 0; i < std::size(left); ++i) {
    const double difference =
        std::abs(static_cast<double>(left[i]) - static_cast<double>(right[i]));
    if (!(difference <= worst)) worst = difference;  // a NaN counts as the worst
  }
  return worst;
}

}  // namespace troupe::testing
