@0xee78439db964d582;

# One control message between processes: a call to a method of a worker group, its answer, a
# heartbeat, or an abort. Frames stay under 1 MiB; payload travels apart and is referred to.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::schemas");

enum MessageKind {
  call @0;
  result @1;
  error @2;
  heartbeat @3;
  abort @4;
}

struct ErrorReply {
  # Name of the code, e.g. "deadline"; see runtime/base/error.hpp.
  code @0 :Text;
  message @1 :Text;
  group @2 :Text;
  # -1 when unknown.
  rank @3 :Int32 = -1;
  node @4 :Int32 = -1;
  causes @5 :List(ErrorReply);
}

# Where the arguments or the result are: in the frame, or as a column store entry at a rank.
struct PayloadReference {
  union {
    none @0 :Void;
    inFrame @1 :Data;
    held :group {
      group @2 :Text;
      rank @3 :Int32;
      id @4 :UInt64;
    }
  }
  bytes @5 :UInt64;
  checksum @6 :UInt32;
}

struct Envelope {
  kind @0 :MessageKind;
  callId @1 :UInt64;
  group @2 :Text;
  method @3 :Text;
  # The deadline as time left when the message was sent, so that clocks need not agree; the wall
  # time of sending serves logs and bounds on how stale a message is.
  remainingNanoseconds @4 :Int64;
  sentWallNanoseconds @5 :Int64;
  # -1 for the controller.
  sourceRank @6 :Int32 = -1;
  epoch @7 :UInt64;
  traceId @8 :UInt64;
  payload @9 :PayloadReference;
  error @10 :ErrorReply;
}
