#pragma once

// A simulated run as files: a trace for Perfetto and a page of its own.
//
// Nodes are processes of the trace and roles their threads. Replicas of rollout have a process each
// with their trajectories, which are there when the report was made with `trace`; KV caches,
// running and waiting samples and the version of the weights are counters.
// **Threads:** pure, but for writing.

#include "runtime/observe/trace.hpp"
#include "sim/report/sim_report.hpp"

#include <memory>
#include <string>

namespace troupe::sim {

struct TraceOptions {
  std::size_t events_max = std::size_t{1} << 20;  ///< the newest are kept
};

/// Everything that the run wrote down.
std::unique_ptr<runtime::Trace> trace_of(const SimReport& report, const TraceOptions& options = {});

/// One page that needs no other file: numbers, plots over steps, and who had which node when.
/// `config_yaml` is shown as it is.
std::string report_page(const SimReport& report, const std::string& config_yaml);

}  // namespace troupe::sim
