@0xb3c5ffd81184fce6;

# Header of an encoded batch. The payload follows it as raw sections, each aligned to 64 bytes, in
# the order of the columns: lengths (i64, one a row; not for dense columns), then values.
# runtime/batch/batch_codec.hpp describes the frame around this message.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::schemas");

enum ElementType {
  f32 @0;
  f64 @1;
  i64 @2;
  i32 @3;
  u8 @4;
  bool @5;
}

enum ColumnKind {
  dense @0;
  jagged @1;
  text @2;
  json @3;
}

# Bytes [offset, offset + bytes) from the start of the payload, and their CRC-32C.
struct Section {
  offset @0 :UInt64;
  bytes @1 :UInt64;
  checksum @2 :UInt32;
}

struct ColumnHeader {
  name @0 :Text;
  kind @1 :ColumnKind;
  elementType @2 :ElementType;
  rowShape @3 :List(Int64);
  lengths @4 :Section;
  values @5 :Section;
}

struct MetadataEntry {
  key @0 :Text;
  json @1 :Text;
}

enum Reduction {
  mean @0;
  sum @1;
  min @2;
  max @3;
  last @4;
  histogram @5;
}

struct Metric {
  name @0 :Text;
  reduction @1 :Reduction;
  weight @2 :Float64;
  weightedSum @3 :Float64;
  min @4 :Float64;
  max @5 :Float64;
  last @6 :Float64;
  count @7 :Int64;
  # Histogram: bucket keys in rising order, their weights, and the weight of what is not finite.
  bucketKeys @8 :List(Int32);
  bucketWeights @9 :List(Float64);
  nonFiniteWeight @10 :Float64;
}

struct BatchHeader {
  rows @0 :Int64;
  # False for a batch that no column has given a row count yet.
  rowsFixed @1 :Bool;
  columns @2 :List(ColumnHeader);
  metadata @3 :List(MetadataEntry);
  metrics @4 :List(Metric);
}
