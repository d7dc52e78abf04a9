@0xd1f0a6b7c3e98542;

# Placement groups on the wire and in the ledger. Who sends what and when, and what each number
# means: docs/placement_protocol.md. Amounts count in 1/10,000, memory in bytes, times in
# nanoseconds. Enumerators travel as the numbers of their C++ enum and are checked on arrival.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::schemas");

using Envelope = import "envelope.capnp";

# ---- what groups ask for ----------------------------------------------------------------------

struct PlacementNamed {
  name @0 :Text;
  units @1 :Int64;
}

struct PlacementSelector {
  label @0 :Text;
  op @1 :UInt8;
  values @2 :List(Text);
}

# `count` equal bundles in a row.
struct PlacementBundles {
  count @0 :UInt32;
  gpu @1 :Int64;
  cpu @2 :Int64;
  memory @3 :Int64;
  named @4 :List(PlacementNamed);
  selectors @5 :List(PlacementSelector);
}

struct PlacementAffinity {
  group @0 :Text;
  apart @1 :Bool;
  level @2 :UInt8;
  strict @3 :Bool;
}

struct PlacementRequest {
  name @0 :Text;
  bundles @1 :List(PlacementBundles);
  strategy @2 :UInt8;
  level @3 :UInt8;
  perDomainMax @4 :Int32;
  perDomainExact @5 :Int32;
  priority @6 :Int32;
  reserveCpu @7 :Int64;
  reserveMemory @8 :Int64;
  affinities @9 :List(PlacementAffinity);
  movable @10 :Bool;
}

struct PlacementTerms {
  repair @0 :UInt8;
  detached @1 :Bool;
  feasibleWithin @2 :Int64;
}

struct PlacementOwner {
  name @0 :Text;
  instance @1 :UInt64;
}

# ---- where bundles lie ------------------------------------------------------------------------

struct PlacementDevice {
  device @0 :Int32;
  units @1 :Int64;
}

# Cores first, first + 1, … with the same share.
struct PlacementCores {
  first @0 :Int32;
  count @1 :UInt32;
  units @2 :Int64;
}

# Where one bundle lies. The name of the node stands in a table beside the list of these.
struct PlacementSlot {
  slot @0 :UInt32;
  bundle @1 :Int32;
  node @2 :Int32;
  nodeName @3 :UInt32;
  socket @4 :Int32;
  devices @5 :List(PlacementDevice);
  cores @6 :List(PlacementCores);
  nic @7 :Text;
  memory @8 :Int64;
  named @9 :List(PlacementNamed);
  # Of the attempt that placed it; in the ledger only.
  epoch @10 :UInt64;
}

struct PlacementSlots {
  nodeNames @0 :List(Text);
  slots @1 :List(PlacementSlot);
}

# ---- controller and head ----------------------------------------------------------------------

struct PlacementGroupKey {
  id @0 :UInt64;
  name @1 :Text;
}

# A new session of an owner, and the groups that it believes in.
struct PlacementSession {
  owner @0 :PlacementOwner;
  known @1 :List(UInt64);
}

struct PlacementCreate {
  groups @0 :List(Item);
  struct Item {
    number @0 :UInt64;
    request @1 :PlacementRequest;
    terms @2 :PlacementTerms;
  }
}

# One outcome for each group of a create (id) or remove.
struct PlacementOutcomes {
  outcomes @0 :List(Item);
  struct Item {
    union {
      id @0 :UInt64;
      error @1 :Envelope.ErrorReply;
    }
  }
}

struct PlacementKeys {
  groups @0 :List(PlacementGroupKey);
}

struct PlacementResize {
  number @0 :UInt64;
  group @1 :PlacementGroupKey;
  remove @2 :List(Int32);
  add @3 :List(PlacementBundles);
}

struct PlacementList {
  after @0 :UInt64;
  limit @1 :UInt32;
}

struct PlacementView {
  id @0 :UInt64;
  name @1 :Text;
  owner @2 :PlacementOwner;
  status @3 :UInt8;
  terms @4 :PlacementTerms;
  epoch @5 :UInt64;
  bundles @6 :UInt32;
  placements @7 :PlacementSlots;
  age @8 :Int64;
  why @9 :Text;
}

struct PlacementPage {
  groups @0 :List(PlacementView);
  more @1 :Bool;
}

struct PlacementChange {
  kind @0 :UInt8;
  group @1 :UInt64;
  status @2 :UInt8;
  epoch @3 :UInt64;
  bundles @4 :List(Int32);
  placements @5 :PlacementSlots;
  cause @6 :Envelope.ErrorReply;
}

struct PlacementChanges {
  changes @0 :List(PlacementChange);
}

# ---- head and node ----------------------------------------------------------------------------

struct PlacementNodeSpec {
  name @0 :Text;
  rack @1 :Text;
  domain @2 :Text;
  sockets @3 :Int32;
  devices @4 :List(Device);
  cores @5 :Int32;
  memory @6 :Int64;
  named @7 :List(PlacementNamed);
  labels @8 :List(Label);
  draining @9 :Bool;

  struct Device {
    socket @0 :Int32;
    nic @1 :Text;
    failed @2 :Bool;
  }
  struct Label {
    name @0 :Text;
    value @1 :Text;
  }
}

struct PlacementHello {
  spec @0 :PlacementNodeSpec;
  incarnation @1 :UInt64;
  hello @2 :UInt64;
}

struct PlacementSlotBundle {
  slot @0 :UInt32;
  bundle @1 :Int32;
}

struct PlacementNodeOp {
  kind @0 :UInt8;
  group @1 :UInt64;
  epoch @2 :UInt64;
  name @3 :Text;
  slots @4 :PlacementSlots;
  bundles @5 :List(PlacementSlotBundle);
}

struct PlacementPass {
  term @0 :UInt64;
  session @1 :UInt64;
  number @2 :UInt64;
  hello @3 :UInt64;
  lease @4 :Int64;
  wantTruth @5 :Bool;
  ops @6 :List(PlacementNodeOp);
}

struct PlacementHeld {
  group @0 :UInt64;
  epoch @1 :UInt64;
  slot @2 :UInt32;
  bundle @3 :Int32;
  committed @4 :Bool;
}

struct PlacementReply {
  term @0 :UInt64;
  session @1 :UInt64;
  number @2 :UInt64;
  draining @3 :Bool;
  ops @4 :UInt32;
  # Only the operations that were refused.
  refusals @5 :List(Refusal);
  hasTruth @6 :Bool;
  truth @7 :List(PlacementHeld);

  struct Refusal {
    op @0 :UInt32;
    error @1 :Envelope.ErrorReply;
  }
}

# ---- ledger -----------------------------------------------------------------------------------

struct PlacementLedgerGroup {
  id @0 :UInt64;
  owner @1 :PlacementOwner;
  number @2 :UInt64;
  resizeNumber @3 :UInt64;
  request @4 :PlacementRequest;
  terms @5 :PlacementTerms;
  nextSlot @6 :UInt32;
  wasActive @7 :Bool;
  slots @8 :PlacementSlots;
  epoch @9 :UInt64;
}

struct PlacementRecord {
  union {
    # A head started, or a snapshot begins: what is counted and not derived from groups.
    counters :group {
      term @0 :UInt64;
      nextGroup @1 :UInt64;
      nextNode @2 :Int32;
    }
    # The group is exactly this from now on.
    put @3 :PlacementLedgerGroup;
    # Its bundles lie here from now on.
    placed :group {
      id @4 :UInt64;
      nextSlot @5 :UInt32;
      wasActive @6 :Bool;
      slots @7 :PlacementSlots;
      epoch @8 :UInt64;
    }
    erased @9 :UInt64;
  }
}

# One frame of the ledger.
struct PlacementRecords {
  records @0 :List(PlacementRecord);
}
