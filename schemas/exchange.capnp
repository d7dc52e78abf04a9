@0xd5b7a3c49e1f6082;

# Batches and columns between processes: what is small travels inside, the rest is referred to where
# it lies. docs/column_exchange.md describes the frame around this message and the tables.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::schemas");
using Batch = import "batch.capnp";

# A process that holds columns. The epoch tells it from an earlier process of the same name.
struct ExchangeOwner {
  group @0 :Text;
  rank @1 :Int32;
  epoch @2 :UInt64;
}

# Rows [firstRow, firstRow + rows) of a column at its owner.
struct ExchangePiece {
  owner @0 :UInt32;     # index into owners
  column @1 :UInt64;
  firstRow @2 :Int64;
  rows @3 :Int64;
  lengths @4 :UInt32;   # 1 + index into lengthTables; 0 for dense columns
  granted @5 :Bool;     # the receiver gets a grant of the lease
}

struct ExchangeColumn {
  name @0 :Text;
  kind @1 :Batch.ColumnKind;
  elementType @2 :Batch.ElementType;
  rowShape @3 :List(Int64);
  pieces @4 :List(ExchangePiece);
  runs @5 :UInt32;      # index into runTables
}

struct ExchangeBatch {
  # An encoded batch (batch.capnp and its frame): rows, metadata, metrics and the inline columns.
  inline @0 :Data;
  owners @1 :List(ExchangeOwner);
  # Row lengths and runs of rows as variable-length integers; equal tables come once.
  lengthTables @2 :List(Data);
  runTables @3 :List(Data);
  columns @4 :List(ExchangeColumn);
}

# A frame that was too big to travel: a u8 column at its owner.
struct ExchangeHeld {
  owner @0 :ExchangeOwner;
  column @1 :UInt64;
  bytes @2 :UInt64;
  checksum @3 :UInt32;
  granted @4 :Bool;
}

struct ExchangeFrame {
  union {
    batch @0 :ExchangeBatch;
    held @1 :ExchangeHeld;
  }
}

struct LeaseReleaseEntry {
  column @0 :UInt64;
  grants @1 :Int64;
}

# columns.release, and columns.renew with no releases.
struct LeaseNotice {
  # Of the owner that it is meant for.
  epoch @0 :UInt64;
  releases @1 :List(LeaseReleaseEntry);
}
