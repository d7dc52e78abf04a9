#pragma once

// A slow decoder in double precision with plain loops: the oracle of the rollout and train engines.
//
// It recomputes everything for a whole sequence: no cache, no batching, no blocking, no shared code
// with the engines but the config and the weights (its RoPE angles are its own, too). Checked
// itself against Hugging Face transformers, by the golden logits in
// tests/fixtures/transformers.
// **Ownership:** keeps views of the weights; keep those alive.
// **Threads:** const functions from any thread.
// **Cost:** ~1 ms a token for stories260K.

#include "actors/model/model_config.hpp"
#include "actors/model/weight_set.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe::testing {

/// Row-major [rows, columns] of doubles.
struct Table {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<double> values;
  Table(std::size_t r, std::size_t c) : rows(r), columns(c), values(r * c, 0.0) {}
  std::span<double> row(std::size_t i) { return std::span(values).subspan(i * columns, columns); }
  std::span<const double> row(std::size_t i) const {
    return std::span(values).subspan(i * columns, columns);
  }
};

class ReferenceModel {
 public:
  ReferenceModel(const actors::ModelConfig& config, std::span<const actors::NamedTensor> tensors)
      : config_(config) {
    for (const actors::NamedTensor& tensor : tensors) weights_.emplace(tensor.name, tensor.data);
  }

  /// Token ids of one sequence → final hidden states after the last norm, [T, H].
  Table hidden(std::span<const std::int32_t> ids) const {
    const auto width = size(config_.hidden_size);
    Table x(ids.size(), width);
    const auto embedding = weight("model.embed_tokens.weight");
    for (std::size_t t = 0; t < ids.size(); ++t) {
      TROUPE_CHECK(ids[t] >= 0 && ids[t] < config_.vocab_size, "token id {} of {}", ids[t],
                   config_.vocab_size);
      for (std::size_t h = 0; h < width; ++h)
        x.row(t)[h] = embedding[static_cast<std::size_t>(ids[t]) * width + h];
    }
    for (std::int64_t layer = 0; layer < config_.layer_count; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      add(x, attention(norm(x, prefix + "input_layernorm.weight"), prefix + "self_attn."));
      add(x, mlp(norm(x, prefix + "post_attention_layernorm.weight"), prefix + "mlp."));
    }
    return norm(x, "model.norm.weight");
  }

  /// Token ids of one sequence → logits [T, V]; row t predicts token t + 1.
  Table logits(std::span<const std::int32_t> ids) const {
    const bool tied = config_.tie_embeddings;
    return linear(hidden(ids), tied ? "model.embed_tokens" : "lm_head", size(config_.vocab_size));
  }

  /// log p(ids[t + 1] | ids[0..t]) at the given temperature, [T - 1].
  std::vector<double> log_probs(std::span<const std::int32_t> ids, double temperature = 1.0) const {
    const Table scores = logits(ids);
    std::vector<double> values;
    for (std::size_t t = 0; t + 1 < ids.size(); ++t) {
      const std::vector<double> row = log_softmax(scores.row(t), temperature);
      values.push_back(row[static_cast<std::size_t>(ids[t + 1])]);
    }
    return values;
  }

  /// Greedy continuation of `prompt` by `count` tokens, lowest id on ties; stops after a stop id.
  std::vector<std::int32_t> greedy(std::span<const std::int32_t> prompt, int count,
                                   std::span<const std::int32_t> stop_ids = {}) const {
    std::vector<std::int32_t> ids(prompt.begin(), prompt.end());
    for (int i = 0; i < count; ++i) {
      const Table scores = logits(ids);
      const auto last = scores.row(ids.size() - 1);
      const auto best = std::max_element(last.begin(), last.end()) - last.begin();
      ids.push_back(static_cast<std::int32_t>(best));
      if (std::find(stop_ids.begin(), stop_ids.end(), ids.back()) != stop_ids.end()) break;
    }
    return {ids.begin() + static_cast<std::ptrdiff_t>(prompt.size()), ids.end()};
  }

  /// Log-softmax of logits [V] / temperature.
  static std::vector<double> log_softmax(std::span<const double> logits, double temperature = 1.0) {
    const double top = *std::max_element(logits.begin(), logits.end()) / temperature;
    double sum = 0.0;
    for (const double value : logits) sum += std::exp(value / temperature - top);
    std::vector<double> result;
    for (const double value : logits) result.push_back(value / temperature - top - std::log(sum));
    return result;
  }

 private:
  static std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

  std::span<const float> weight(const std::string& name) const {
    const auto found = weights_.find(name);
    TROUPE_CHECK(found != weights_.end(), "reference model: no tensor {}", name);
    return found->second;
  }

  static void add(Table& x, const Table& y) {
    for (std::size_t i = 0; i < x.values.size(); ++i) x.values[i] += y.values[i];
  }

  void norm_in_place(std::span<double> values, std::span<const float> scale) const {
    double squares = 0.0;
    for (const double value : values) squares += value * value;
    const double mean = squares / static_cast<double>(values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = scale[i] * values[i] / std::sqrt(mean + config_.rms_norm_eps);
  }

  Table norm(Table x, const std::string& name) const {
    for (std::size_t t = 0; t < x.rows; ++t) norm_in_place(x.row(t), weight(name));
    return x;
  }

  /// x [T, in] → [T, out] by `name.weight` [out, in], plus `name.bias` [out] when the model has it.
  Table linear(const Table& x, const std::string& name, std::size_t out) const {
    const auto matrix = weight(name + ".weight");
    TROUPE_CHECK(matrix.size() == out * x.columns, "reference model: {} has {} values, not {} x {}",
                 name, matrix.size(), out, x.columns);
    const auto bias = weights_.find(name + ".bias");
    Table y(x.rows, out);
    for (std::size_t t = 0; t < x.rows; ++t) {
      for (std::size_t o = 0; o < out; ++o) {
        double sum = bias == weights_.end() ? 0.0 : bias->second[o];
        for (std::size_t i = 0; i < x.columns; ++i) sum += matrix[o * x.columns + i] * x.row(t)[i];
        y.row(t)[o] = sum;
      }
    }
    return y;
  }

  double inverse_frequency(std::size_t i) const {
    const actors::RopeConfig& rope = config_.rope;
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(config_.head_dim);
    const double plain = 1.0 / std::pow(rope.theta, exponent);
    if (rope.kind == actors::RopeKind::kDefault) return plain;
    const double slowed = plain / rope.factor;
    if (rope.kind == actors::RopeKind::kLinear) return slowed;
    // Llama 3: the share of the plain frequency grows with the turns made in the original context.
    const double turns = rope.original_positions * plain / (2.0 * std::numbers::pi);
    const double share = std::clamp(
        (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
    return share * plain + (1.0 - share) * slowed;
  }

  /// Rotates every head of row t by its position; halves of a head pair up.
  void rotate(Table& x) const {
    const auto width = size(config_.head_dim);
    const auto half = width / 2;
    for (std::size_t t = 0; t < x.rows; ++t) {
      for (std::size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(t) * inverse_frequency(i);
        for (std::size_t head = 0; head < x.columns / width; ++head) {
          double& a = x.row(t)[head * width + i];
          double& b = x.row(t)[head * width + half + i];
          const double first = a * std::cos(angle) - b * std::sin(angle);
          b = b * std::cos(angle) + a * std::sin(angle);
          a = first;
        }
      }
    }
  }

  void norm_heads(Table& x, const std::string& name) const {
    const auto width = size(config_.head_dim);
    for (std::size_t t = 0; t < x.rows; ++t)
      for (std::size_t head = 0; head < x.columns / width; ++head)
        norm_in_place(x.row(t).subspan(head * width, width), weight(name));
  }

  /// Causal attention: x [T, H] → [T, H].
  Table attention(const Table& x, const std::string& prefix) const {
    const auto width = size(config_.head_dim);
    const auto heads = size(config_.head_count);
    const auto heads_per_kv = heads / size(config_.kv_head_count);
    Table q = linear(x, prefix + "q_proj", size(config_.q_size()));
    Table k = linear(x, prefix + "k_proj", size(config_.kv_size()));
    const Table v = linear(x, prefix + "v_proj", size(config_.kv_size()));
    if (config_.qk_norm) {
      norm_heads(q, prefix + "q_norm.weight");
      norm_heads(k, prefix + "k_norm.weight");
    }
    rotate(q);
    rotate(k);
    Table mixed(x.rows, heads * width);
    for (std::size_t t = 0; t < x.rows; ++t) {
      for (std::size_t head = 0; head < heads; ++head) {
        const std::size_t kv_column = head / heads_per_kv * width;
        std::vector<double> scores(t + 1, 0.0);
        for (std::size_t s = 0; s <= t; ++s) {
          for (std::size_t d = 0; d < width; ++d)
            scores[s] += q.row(t)[head * width + d] * k.row(s)[kv_column + d];
          scores[s] /= std::sqrt(static_cast<double>(width));
        }
        const std::vector<double> log_shares = log_softmax(scores);
        for (std::size_t s = 0; s <= t; ++s)
          for (std::size_t d = 0; d < width; ++d)
            mixed.row(t)[head * width + d] += std::exp(log_shares[s]) * v.row(s)[kv_column + d];
      }
    }
    return linear(mixed, prefix + "o_proj", size(config_.hidden_size));
  }

  Table mlp(const Table& x, const std::string& prefix) const {
    Table gate = linear(x, prefix + "gate_proj", size(config_.intermediate_size));
    const Table up = linear(x, prefix + "up_proj", size(config_.intermediate_size));
    for (std::size_t i = 0; i < gate.values.size(); ++i)
      gate.values[i] = gate.values[i] / (1.0 + std::exp(-gate.values[i])) * up.values[i];
    return linear(gate, prefix + "down_proj", size(config_.hidden_size));
  }

  actors::ModelConfig config_;
  std::unordered_map<std::string, std::span<const float>> weights_;
};

}  // namespace troupe::testing
