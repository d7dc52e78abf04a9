#pragma once

// Wire forms of Troupe's own types: errors, metrics, batches and columns; see wire.hpp.
//
// **Threads:** stateless.
// **Invariants:** an error travels with origin and at most kCauseDepthMax levels of causes;
// batches and columns need a `WireContext`, without one they are kUnsupported.

#include "runtime/base/error.hpp"
#include "runtime/base/units.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/observe/metrics.hpp"
#include "runtime/wire/wire_traits.hpp"

namespace troupe::runtime {

template <>
struct WireTraits<Bytes> {
  static void write(WireWriter out, Bytes bytes) { out.integer(bytes.value); }
  static result<Bytes> read(const WireReader& in) {
    TROUPE_TRY(const std::int64_t value, in.integer());
    return Bytes{value};
  }
  static void describe(WireSignature& signature) { signature.add("bytes_count"); }
};

template <>
struct WireTraits<Error> {
  static void write(WireWriter out, const Error& error);
  static result<Error> read(const WireReader& in);
  static void describe(WireSignature& signature) { signature.add("error"); }
};

template <>
struct WireTraits<Metrics> {
  static void write(WireWriter out, const Metrics& metrics);
  static result<Metrics> read(const WireReader& in);
  static void describe(WireSignature& signature) { signature.add("metrics"); }
};

template <>
struct WireTraits<Column> {
  static void write(WireWriter out, const Column& column);
  static result<Column> read(const WireReader& in);
  static void describe(WireSignature& signature) { signature.add_columns("column"); }
};

template <>
struct WireTraits<Batch> {
  static void write(WireWriter out, const Batch& batch);
  static result<Batch> read(const WireReader& in);
  static void describe(WireSignature& signature) { signature.add_columns("batch"); }
};

}  // namespace troupe::runtime
