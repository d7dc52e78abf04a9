@0x96aec4df7d3fea36;

# Index of one checkpoint directory: which tensors, blobs and states lie where, with checksums.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::schemas");

using Batch = import "batch.capnp";

struct CheckpointFile {
  name @0 :Text;
  bytes @1 :UInt64;
}

struct CheckpointTensor {
  name @0 :Text;
  elementType @1 :Batch.ElementType;
  shape @2 :List(Int64);
  # Index into CheckpointIndex.files; the section counts from the start of that file.
  file @3 :UInt32;
  section @4 :Batch.Section;
}

struct CheckpointBlob {
  name @0 :Text;
  file @1 :UInt32;
  section @2 :Batch.Section;
}

struct CheckpointState {
  name @0 :Text;
  json @1 :Text;
}

struct CheckpointIndex {
  step @0 :Int64;
  files @1 :List(CheckpointFile);
  tensors @2 :List(CheckpointTensor);
  blobs @3 :List(CheckpointBlob);
  states @4 :List(CheckpointState);
}
