#pragma once

// The check after a publication: do all replicas generate the same, and does the trainer give it
// the same log-probs?
//
// **Threads:** pure functions.
// **Invariants:** the prompt depends on the vocabulary alone, so that runs can be compared.

#include "actors/roles/publication_wire.hpp"
#include "actors/rollout/rollout_engine.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/group/mesh.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::actors {

/// Asks for at most `tokens` after up to 16 others, all within `positions` ≥ 2.
CanaryRequest canary_request(std::int64_t vocabulary, std::int64_t positions, int tokens);

/// `answers`: of all ranks; `replicas`: whose each is. kConflict naming version, replica, answer
/// and the first token that is not that of the first one.
result<void> compare_replicas(std::span<const CanaryAnswer> answers, std::span<const int> replicas,
                              WeightVersion version);
/// `answers`: one per rank of `mesh`.
result<void> compare_replicas(std::span<const CanaryAnswer> answers, const runtime::Mesh& mesh,
                              WeightVersion version);

/// The largest distance of the trainer's log-probs (one row a data-parallel rank) from those of
/// `answer`. kConflict naming version, row and the first token beyond `tolerance`, with both
/// numbers.
result<double> compare_log_probs(const CanaryAnswer& answer, const runtime::Column& trainer,
                                 double tolerance);

/// `rows` times prompt and answer, as a policy evaluates them.
result<runtime::Batch> canary_batch(const std::vector<std::int32_t>& prompt,
                                    const CanaryAnswer& answer, int rows);

}  // namespace troupe::actors
