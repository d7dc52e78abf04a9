#pragma once

// Batches as bytes, the same on the wire and on disk.
//
// A frame is: the prefix (frame.hpp) with magic `TRPBATCH` and version 1; the header
// (schemas/batch.capnp, one flat message); zeros up to a multiple of 64; then the sections that
// the header lists, in its order, each padded with zeros to a multiple of 64.
// **Threads:** pure functions.
// **Invariants:** decoding trusts nothing: every size, count, offset and checksum is checked before
// use, no byte of a frame is unchecked, and a failure is one kCorrupt error that names the column
// and both values. Memory is bounded by the frame's own size times a small constant.
// **Cost:** encoding copies the payload once; decoded columns are views on the one buffer.

#include "runtime/base/result.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/batch/durable_file.hpp"

#include <cstddef>
#include <vector>

namespace troupe::runtime {

/// kInvalidArgument when a column is an unresolved reference or the header outgrows its bound.
result<std::vector<std::byte>> encode_batch(const Batch& batch);

/// The decoded columns share `frame`.
result<Batch> decode_batch(const AlignedBytes& frame, const DecodeLimits& limits);

}  // namespace troupe::runtime
