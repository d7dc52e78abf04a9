#pragma once

// Named fp32 weights of one model: the common currency of loader, engines and tests.
//
// **Ownership:** a `WeightSet` owns the numbers; `NamedTensor` only views them.
// **Threads:** const access from any thread; `mutable_data` from one at a time.
// **Invariants:** names are unique and in the order of `expected_tensors`; views stay valid when
// the set is moved.

#include "actors/model/model_config.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe::actors {

/// A weight matrix [out, in], vector [n], or embedding [V, H]; row-major.
struct NamedTensor {
  std::string name = {};
  std::vector<std::int64_t> shape = {};
  std::span<const float> data = {};
};

struct TensorShape {
  std::string name = {};
  std::vector<std::int64_t> shape = {};
  bool operator==(const TensorShape&) const = default;
  std::int64_t element_count() const;
};

/// `[512, 64]`, for messages.
std::string shape_text(std::span<const std::int64_t> shape);

/// Every tensor of the model under its Hugging Face name, in canonical order: embedding, the layers
/// (input norm; q, k, v, o each weight then bias; q norm, k norm; post-attention norm; gate, up,
/// down each weight then bias), final norm, and `lm_head.weight` unless tied.
std::vector<TensorShape> expected_tensors(const ModelConfig& config);

class WeightSet {
 public:
  /// All zero, with these names and shapes.
  static WeightSet zeros(std::span<const TensorShape> shapes);
  static WeightSet zeros(const ModelConfig& config) { return zeros(expected_tensors(config)); }
  /// A deep copy of views.
  static WeightSet copy_of(std::span<const NamedTensor> tensors);

  WeightSet(WeightSet&&) noexcept = default;
  WeightSet& operator=(WeightSet&&) noexcept = default;
  WeightSet(const WeightSet&) = delete;
  WeightSet& operator=(const WeightSet&) = delete;
  ~WeightSet() = default;

  std::span<const NamedTensor> tensors() const { return tensors_; }
  /// Null when there is no such tensor.
  const NamedTensor* find(std::string_view name) const;
  /// The numbers of tensor `index` of `tensors()`, to fill or change.
  std::span<float> mutable_data(std::size_t index);
  std::span<float> mutable_data(std::string_view name);  ///< CHECKs that the name exists
  std::int64_t element_count() const;

 private:
  WeightSet() = default;
  std::vector<std::vector<float>> values_;
  std::vector<NamedTensor> tensors_;
  std::unordered_map<std::string, std::size_t> index_of_;
};

struct RandomWeightOptions {
  /// Biases and norm weights too get random values (0 and 1 plus normal · spread), so that tests
  /// notice a forgotten one. 0 = the usual initialisation.
  double bias_and_norm_spread = 0.0;
};

/// Matrices normal(0, initializer_range), biases 0, norms 1. Each tensor is a pure function of
/// (seed, its name), so the same tensor of two configs is the same.
WeightSet random_weights(const ModelConfig& config, std::uint64_t seed,
                         RandomWeightOptions options = {});

}  // namespace troupe::actors
