#pragma once

// Where a target rank's weights end up: the seam to the rollout engine.
//
// A sink keeps an active set, which serves, and a second one that an update fills. `begin` prepares
// the second, boxes come in by memory (`buffer`) or by call (`write`), `commit` makes it the active
// one. Until then nothing that serves changes, whatever happens.
// Ownership: the caller's; it outlives every publication.
// **Threads:** one at a time, the thread that runs the publication's step; `active` from any.
// **Invariants:** after a failure of any call, and after `abort`, the active set is what it was.
// Addresses of `buffer` are stable from `begin` to `commit` or `abort`.

#include "reshard/layout.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

#include <cstddef>
#include <span>

namespace troupe::reshard {

class WeightSink {
 public:
  virtual ~WeightSink() = default;

  /// The version that serves now.
  virtual WeightVersion active() const = 0;
  /// Makes the second set ready for `version`. `from_active`: it must start as a copy of the active
  /// one, since only what changed will be written; kUnsupported when it cannot.
  virtual result<void> begin(WeightVersion version, bool from_active) = 0;
  /// The bytes of local buffer `index` of the set that is being filled, when it is plain memory
  /// that the layout's segments point into; empty when boxes must come by `write`.
  virtual std::span<std::byte> buffer(std::int32_t index) {
    (void)index;
    return {};
  }
  /// Numbers of `box` of `tensor`, row-major, `row_stride` elements from row to row; `data` is the
  /// caller's and dead after the call.
  virtual result<void> write(const TensorInfo& tensor, const Box& box, const std::byte* data,
                             std::int64_t row_stride) = 0;
  /// Offers the source's own memory, in this process, in place of a copy; only when the publication
  /// permits views. True: the sink reads it from now on, and the caller of the publication sees to
  /// it that the source does not change while the sink serves it.
  virtual bool adopt(const TensorInfo& tensor, const Box& box, const std::byte* data,
                     std::int64_t row_stride) {
    (void)tensor, (void)box, (void)data, (void)row_stride;
    return false;
  }
  /// All of `layer`'s boxes are written; layers come in ascending order, each once.
  virtual void layer_ready(std::int32_t layer) { (void)layer; }
  virtual result<void> commit() = 0;
  virtual void abort() = 0;
};

}  // namespace troupe::reshard
