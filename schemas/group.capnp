@0x8d7c1e5b94a3f062;

# Calls and results between a controller and its rank processes, several in one frame.
# docs/remote_groups.md describes the protocol around them.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::schemas");

# One encoded value (value.capnp): here, or as a column of bytes that its sender holds.
struct WirePart {
  union {
    inFrame @0 :Data;
    held @1 :Data;
  }
}

struct CallFrame {
  id @0 :UInt64;
  # Index in the list of methods that the controller gave at the start.
  method @1 :UInt16;
  # The value of this rank is wanted.
  wanted @2 :Bool;
  # Rebuild the communicators before, as this epoch; 0: do not.
  rebuildEpoch @3 :Int64;
  # Until the deadline, when this was sent.
  remainingNanoseconds @4 :Int64;
  # Place in the lane of the rank's device; number 0: none.
  lane @5 :Text;
  ticket @6 :UInt64;
  arguments @7 :List(WirePart);
  # Every ticket of the lane below this one is over.
  ticketFloor @8 :UInt64;
}

struct CallFrames {
  calls @0 :List(CallFrame);
}

struct ResultFrame {
  id @0 :UInt64;
  # False when the call was skipped.
  ran @1 :Bool;
  # The collectives of this rank are broken.
  broken @2 :Bool;
  # When the method began and ended, by the rank's steady clock.
  beginNanoseconds @3 :Int64;
  endNanoseconds @4 :Int64;
  union {
    nothing @5 :Void;
    value @6 :WirePart;
    # A value of type Error.
    error @7 :Data;
  }
}

struct ResultFrames {
  results @0 :List(ResultFrame);
}
