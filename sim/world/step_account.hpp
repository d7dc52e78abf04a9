#pragma once

// What each step came to: differences of the world's sums, joined with the loop's own report.
//
// **Ownership:** borrows the world and the outcome that it fills.
// **Threads:** one.

#include "actors/loops/step_report.hpp"
#include "sim/world/sim_world.hpp"
#include "sim/world/simulate.hpp"

#include <cstdint>

namespace troupe::sim {

class StepAccounts {
 public:
  StepAccounts(SimWorld& world, bool keep_phases, SimOutcome& outcome);

  /// The step that began where the last one ended ends now.
  void end_step(actors::StepReport report);
  void end_run();

 private:
  struct Mark {
    WorldTotals totals{};
    std::int64_t tokens = 0;  ///< generated
    std::int64_t prefill_tokens = 0;
    std::int64_t recomputed_tokens = 0;
    std::int64_t preemptions = 0;
    double port_bytes = 0;
    double adapter_bytes = 0;
  };
  Mark mark() const;
  void count(const Mark& before, const Mark& now, SimStep& step) const;

  SimWorld& world_;
  const bool keep_phases_;
  SimOutcome& outcome_;
  double peak_ = 0;  ///< FLOPs a second of all devices
  int devices_ = 0;
  Mark mark_;
  TimePoint begin_{};
  std::size_t spans_ = 0;  ///< of the log that earlier steps have
};

}  // namespace troupe::sim
