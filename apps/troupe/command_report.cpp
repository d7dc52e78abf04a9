#include "apps/troupe/commands.hpp"
#include "runtime/observe/report.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

namespace troupe::apps {

Command add_report(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("report", "write a self-contained HTML report of a run folder");
  const auto run = std::make_shared<std::string>();
  const auto out = std::make_shared<std::string>();
  command->add_option("run", *run, "run folder with metrics.jsonl")->required();
  command->add_option("--out", *out, "file to write; default RUN/report.html");
  return [run, out]() -> int {
    const std::filesystem::path folder(*run);
    const std::string file = out->empty() ? (folder / "report.html").string() : *out;
    const auto written =
        runtime::write_report({.metrics = (folder / "metrics.jsonl").string(),
                               .evaluations = (folder / "evaluations.jsonl").string(),
                               .trace = (folder / "trace.json").string(),
                               .config = (folder / "config.yaml").string(),
                               .output = file,
                               .title = "Troupe run " + folder.lexically_normal().string()});
    if (!written) return exit_with(written.error());
    fmt::print("{}\n", file);
    return kExitDone;
  };
}

}  // namespace troupe::apps
