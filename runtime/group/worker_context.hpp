#pragma once

// `WorkerContext`: what a worker knows about its place and about the call that it runs.
//
// Given to the worker's factory; stays valid as long as the worker.
// Ownership: owned by the rank.
// **Threads:** the rank's engine thread, but `progress` and `cancelled`, which any thread that the
// worker starts may call too.
// **Invariants:** the mesh and the rank never change; collectives may be replaced between calls
// (after a failure), so ask for them in each call instead of keeping the reference.

#include "runtime/base/clock.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"
#include "runtime/group/mesh.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::runtime {

class Collective;
class ColumnStore;
class PullMeter;
struct RankCell;

class WorkerContext {
 public:
  explicit WorkerContext(RankCell& cell) : cell_(cell) {}
  WorkerContext(const WorkerContext&) = delete;
  WorkerContext& operator=(const WorkerContext&) = delete;

  const std::string& group() const;
  RankId rank() const;
  int size() const { return mesh().size(); }
  const Mesh& mesh() const;
  /// Own index on an axis; 0 for an axis that the mesh lacks.
  int coordinate(std::string_view axis) const { return mesh().coordinate(rank(), axis); }

  /// All ranks of the group. CHECKs that the group has collectives.
  Collective& collective() const;
  /// The ranks that differ from this one on `axis` only.
  Collective& collective(std::string_view axis) const;

  /// The present call's deadline; in the factory that of `create`. Pass it to collectives.
  Deadline deadline() const;
  /// True when nobody wants the present call's result any more; long methods should look.
  bool cancelled() const;
  /// Says "alive and getting on", for the stuck-rank watch and the status table.
  void progress(std::int64_t steps = 1);

  /// While it lives, the status table shows what the engine waits for, and since when.
  class Waiting {
   public:
    explicit Waiting(RankCell& cell, std::string what);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    RankCell& cell_;
  };
  [[nodiscard]] Waiting waiting_for(std::string what) { return Waiting(cell_, std::move(what)); }

  /// Where this rank keeps result columns that stay with it.
  ColumnStore& columns() const;
  /// Counts the payload that arguments of this rank have pulled from others.
  PullMeter& pulled() const;

 private:
  RankCell& cell_;
};

}  // namespace troupe::runtime
