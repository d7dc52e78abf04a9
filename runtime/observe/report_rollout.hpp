#pragma once

// The part of a report about rollout that runs beside training: staleness, idle shares, who worked
// when, and scores over wall-clock time. Used by report.cpp only.
//
// **Threads:** pure.
// **Invariants:** says so where durations were declared, not measured.

#include "runtime/observe/metrics_writer.hpp"
#include "runtime/observe/trace.hpp"

#include <set>
#include <string>
#include <vector>

namespace troupe::runtime {

/// HTML; empty for a run without such rollout. Names that it shows are added to `shown`.
std::string rollout_section(const std::vector<MetricsRow>& rows, const TraceFile* trace,
                            std::set<std::string>& shown);

/// Scores over the seconds since the run began; empty where those were not recorded.
std::string wall_clock_plots(const std::vector<MetricsRow>& rows);

/// A sentence for the head of the page when delays were simulated; else empty.
std::string simulation_note(const std::vector<MetricsRow>& rows);

/// Adds the values of `more` to the rows of the same steps; other steps become rows of their own.
void join_rows(std::vector<MetricsRow>& rows, std::vector<MetricsRow> more);

}  // namespace troupe::runtime
