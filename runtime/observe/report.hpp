#pragma once

// The report of a run: one HTML file that needs no network, no script and no other file.
//
// **Threads:** pure, but for the file functions.
// **Invariants:** everything that comes from outside is escaped; missing metrics leave their plot
// out and are listed; the page reads well in light and dark.
// **Cost:** linear in the metrics file; about 10 KB per plot.

#include "runtime/base/result.hpp"
#include "runtime/observe/metrics_writer.hpp"
#include "runtime/observe/trace.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::runtime {

struct ReportData {
  std::string title = "Troupe run";
  std::vector<std::pair<std::string, std::string>> facts =
      {};  ///< e.g. {"command", "troupe train …"}
  std::vector<MetricsRow> metrics = {};
  std::optional<TraceFile> trace = {};
  std::string config_yaml = {};  ///< shown as it is; may be empty
};

/// The page.
std::string render_report(const ReportData& data);

struct ReportFiles {
  std::string metrics;  ///< metrics.jsonl; must exist
  /// evaluations.jsonl: rows joined with those of the same steps; left out when empty or missing
  std::string evaluations = {};
  std::string trace;   ///< trace.json; left out when empty or missing
  std::string config;  ///< config.yaml; left out when empty or missing
  std::string output;  ///< report.html
  std::string title = "Troupe run";
  std::vector<std::pair<std::string, std::string>> facts = {};
};

/// Reads, renders, writes atomically. Errors name the file.
result<void> write_report(const ReportFiles& files);

}  // namespace troupe::runtime
