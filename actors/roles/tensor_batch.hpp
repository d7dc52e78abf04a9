#pragma once

// Named tensors as a batch, so that they travel like any other columns: by reference in a process,
// pulled over the data plane between processes.
//
// One row a tensor: `name` text, `shape` jagged i64, `data` jagged f32.
// **Ownership:** `tensor_batch` copies nothing: the batch views the tensors, and keeps what it is
// given to keep. `TensorRows` holds the batch that its views point into.
// **Threads:** values.
// **Invariants:** the elements of a row are those of its shape (kCorrupt otherwise).

#include "actors/model/weight_set.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/batch/batch.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace troupe::actors {

inline constexpr std::string_view kTensorName = "name";
inline constexpr std::string_view kTensorShape = "shape";
inline constexpr std::string_view kTensorData = "data";

result<runtime::Batch> tensor_batch(std::span<const NamedTensor> tensors,
                                    std::shared_ptr<const void> keep);

/// Payload bytes of the tensors, here or elsewhere.
std::int64_t tensor_bytes(const runtime::Batch& batch);

class TensorRows {
 public:
  /// Pulls what is elsewhere, all of it before it returns. Blocks.
  static result<TensorRows> open(const runtime::Batch& batch,
                                 std::optional<Deadline> deadline = std::nullopt);
  std::span<const NamedTensor> tensors() const { return tensors_; }

 private:
  runtime::Batch batch_;
  std::vector<NamedTensor> tensors_;
};

}  // namespace troupe::actors
