#pragma once

// Log-softmax statistics of rows of logits of which a rank holds only some columns.
//
// Each rank sums up its own columns relative to its own largest logit; `merge_log_prob_rows` joins
// the parts of all ranks exactly as if one had seen the whole row, so one exchange of four numbers
// per token and rank is all that a forward pass needs.
// Torch-free. **Threads:** pure functions. **Invariants:** a row's result does not depend on the
// other rows nor on their number; parts are joined in rank order.

#include "actors/model/train_kernels.hpp"

#include <cstdint>
#include <span>

namespace troupe::actors {

/// What one rank knows of one row, d = (z − largest)/temperature over its columns.
struct LogitPart {
  double largest = 0;  ///< of z/temperature
  double sum = 0;      ///< Σ e^d
  double dot = 0;      ///< Σ e^d · d
  double target = 0;   ///< z/temperature of the target; 0 where another rank has it
};

/// logits [rows, V/tp] → parts [rows]. targets [rows] are columns of this shard, −1: elsewhere; so
/// `log_prob_rows_backward` takes them too.
void logit_parts(RowShape shape, const float* logits, const std::int64_t* targets,
                 float inverse_temperature, LogitPart* parts);

/// parts [ranks, rows] → `log_prob`, `entropy`, `log_sum_exp` of `out`, each [rows].
void merge_log_prob_rows(std::span<const LogitPart> parts, std::int64_t rows,
                         const LogProbRows& out);

}  // namespace troupe::actors
