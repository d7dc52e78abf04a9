@0xbf8bb60b11066f0d;

# Trajectories: samples that stopped somewhere and can go on anywhere. What migrates between
# rollout ranks and what a checkpoint keeps; see actors/pacing/trajectory.hpp.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::schemas");

struct SamplingRecord {
  temperature @0 :Float64;
  topP @1 :Float64;
  topK @2 :Int32;
  minP @3 :Float64;
  repetitionPenalty @4 :Float64;
  frequencyPenalty @5 :Float64;
  presencePenalty @6 :Float64;
  maxNewTokens @7 :Int32;
  stopIds @8 :List(Int32);
  stopStrings @9 :List(Data);
  ignoreEos @10 :Bool;
  seed @11 :UInt64;
}

# `count` tokens in a row that were made by weights of `version`; -1 for the environment's.
struct VersionRun {
  version @0 :Int64;
  count @1 :UInt32;
}

struct TrajectoryRecord {
  group @0 :UInt64;
  promptId @1 :UInt64;
  sampleIndex @2 :UInt32;
  issuedAt @3 :Int64;
  prompt @4 :List(Int32);
  tokens @5 :List(Int32);
  logProbs @6 :List(Float32);
  fullLogProbs @7 :List(Float32);
  versionRuns @8 :List(VersionRun);
  # One byte a token, 0 or 1.
  mask @9 :Data;
  sampling @10 :SamplingRecord;
  samplerPosition @11 :UInt64;
  turnBegin @12 :UInt64;
  environment @13 :Data;
  finished @14 :Bool;
  # Of actors/rollout/generate_request.hpp: StopReason.
  reason @15 :UInt8;
  text @16 :Data;
  hasScore @17 :Bool;
  score @18 :Float64;
}

struct TrajectoryList {
  trajectories @0 :List(TrajectoryRecord);
}
