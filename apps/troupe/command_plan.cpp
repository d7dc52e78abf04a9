#include "apps/training/sections.hpp"
#include "apps/training/simulated_run.hpp"
#include "apps/troupe/sim_commands.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/log.hpp"
#include "sim/plan/plan.hpp"
#include "sim/scenario/role_layouts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troupe::apps {
namespace {

using runtime::Config;

struct PlanWords {
  std::vector<std::string> words;
  std::vector<std::string> gpus;
  std::vector<std::string> modes;
  std::string out;
  std::size_t top = 3;
  std::size_t simulate = 8;
  int granularity = 0;
  bool json = false;
  bool cost = false;
  bool runnable = false;
};

/// Layouts and places that a search chooses itself, and that could not be on its way there.
std::vector<std::string> without_place(std::vector<std::string> overrides) {
  for (const std::string at : {kActor, kReference, kCritic}) {
    for (const std::string key :
         {".megatron.tensor_model_parallel_size=1", ".megatron.pipeline_model_parallel_size=1",
          ".megatron.virtual_pipeline_model_parallel_size=1", ".megatron.pipeline_layers=null",
          ".fsdp_config.fsdp_size=-1"})
      overrides.push_back(at + key);
  }
  for (const char* key :
       {"actor_rollout_ref.rollout.tensor_model_parallel_size=1", "simulation.sets=[]",
        "simulation.expert_parallel_size=1", "simulation.side_by_side=false"})
    overrides.emplace_back(key);
  return overrides;
}

/// `64` or `h20:64`.
result<sim::DeviceOffer> offer_of(const Config& config, const sim::Catalogue& catalogue,
                                  const std::string& text) {
  const auto colon = text.find(':');
  const std::string count = colon == std::string::npos ? text : text.substr(colon + 1);
  sim::DeviceOffer offer;
  if (colon == std::string::npos) {
    TROUPE_TRY(offer.device, sim::device_of(config, catalogue, "simulation.device"));
  } else {
    auto device = catalogue.device(text.substr(0, colon));
    if (!device) return fail(ErrorCode::kConfig, "--gpus {}: {}", text, device.error().message);
    offer.device = *std::move(device);
  }
  offer.name = offer.device.name;
  const char* const end = count.data() + count.size();
  const auto [stop, problem] = std::from_chars(count.data(), end, offer.devices);
  const bool too_many = problem == std::errc::result_out_of_range && !count.starts_with('-');
  if (problem != std::errc() || stop != end || offer.devices < 1 ||
      offer.devices > sim::kSimulatedDevicesMax)
    return fail(ErrorCode::kConfig,
                "--gpus {}: {} is no number of devices; the nearest possible is {}", text, count,
                too_many || offer.devices > 1 ? sim::kSimulatedDevicesMax : 1);
  return offer;
}

/// Without --gpus: as many as the configuration has itself.
std::vector<std::string> gpus_of(const PlanWords& words, const Config& config) {
  if (!words.gpus.empty()) return words.gpus;
  int devices = config.get<int>("trainer.nnodes") * config.get<int>("trainer.n_gpus_per_node");
  std::vector<std::string> gpus;
  if (config.get<std::string>("trainer.mode") != "sync") {
    const int rollout = static_cast<int>(
        config.get_optional<std::int64_t>("trainer.rollout_devices")
            .value_or(config.get<int>("actor_rollout_ref.rollout.tensor_model_parallel_size")));
    const auto kind = config.get<std::string>("simulation.rollout_device");
    if (kind.empty() || kind == config.get<std::string>("simulation.device"))
      devices += rollout;
    else
      gpus.push_back(fmt::format("{}:{}", kind, rollout));
  }
  gpus.insert(gpus.begin(), std::to_string(devices));
  return gpus;
}

result<sim::PlanRequest> request_of(const PlanWords& words, const ConfigWords& sorted) {
  const runtime::Schema schema = simulate_schema();
  TROUPE_TRY(const Config config, Config::load(schema, sorted.file, sorted.overrides));
  TROUPE_TRY(const Config unplaced,
             Config::load(schema, sorted.file, without_place(sorted.overrides)));
  sim::PlanRequest request;
  TROUPE_TRY(request.base, unplaced_job(unplaced));
  TROUPE_TRY(const sim::Catalogue catalogue, sim::read_catalogue(config));
  for (const std::string& text : gpus_of(words, config)) {
    TROUPE_TRY(sim::DeviceOffer offer, offer_of(config, catalogue, text));
    offer.nodes =
        static_cast<int>(config.get_optional<std::int64_t>("simulation.nodes").value_or(0));
    request.offers.push_back(std::move(offer));
  }
  request.staleness_max = config.get_optional<std::int64_t>("async.staleness").value_or(1);
  if (!words.modes.empty()) request.modes.clear();
  for (const std::string& name : words.modes) {
    auto mode = sim::sim_mode_from_name(name);
    if (!mode) return fail(ErrorCode::kConfig, "--mode {}: {}", name, mode.error().message);
    request.modes.push_back(*mode);
  }
  request.simulate_best = words.simulate;
  request.granularity = words.granularity;
  if (words.cost) request.objective = sim::PlanObjective::kCost;
  if (words.runnable) {
    request.split_trained = false;
    request.experts_cut_tried = {1};
  }
  return request;
}

/// The configuration with the placement in it; it has passed the checks of `troupe train` and
/// `troupe simulate`.
result<std::string> configuration(const ConfigWords& sorted, const sim::PlanRequest& request,
                                  const sim::PlannedRun& run) {
  std::vector<std::string> overrides = sorted.overrides;
  for (const std::string& one : sim::overrides_of(request, run.candidate)) overrides.push_back(one);
  TROUPE_TRY(const Config config, Config::load(simulate_schema(), sorted.file, overrides));
  TROUPE_TRY([[maybe_unused]] const sim::Scenario scenario, simulated_scenario(config));
  return config.to_yaml(true);
}

result<void> run_plan(const PlanWords& words) {
  log::set_up(log::Level::kWarn);  // the loops report to the log what stands in the plan here
  TROUPE_TRY(const ConfigWords sorted, sort_words(words.words));
  TROUPE_TRY(const sim::PlanRequest request, request_of(words, sorted));
  TROUPE_TRY(const sim::Plan plan, sim::make_plan(request));
  const std::string text =
      words.json ? sim::to_json(plan, request, words.top) : sim::to_text(plan, request, words.top);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (words.out.empty()) return {};
  const sim::PlannedRun& written = plan.runnable ? *plan.runnable : plan.best.front();
  TROUPE_TRY(const std::string yaml, configuration(sorted, request, written));
  return write_text_file(words.out, yaml);
}

}  // namespace

Command add_plan(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "plan",
      "searches placements for a configuration of troupe train: who shares devices, layouts, loop; "
      "simulated, no device is used");
  const auto words = std::make_shared<PlanWords>();
  command->add_option("words", words->words, "CONFIG.yaml and key.path=value overrides");
  command->add_option("--gpus", words->gpus,
                      "most devices, as 64 or kind:64, once for each kind; else as configured");
  command->add_option("--mode", words->modes,
                      "sync, one_step_off, async or pipelined, again for more; else all");
  command->add_option("--top", words->top, "candidates to print")->check(CLI::Range(1, 100));
  command->add_option("--simulate", words->simulate, "candidates to simulate")
      ->check(CLI::Range(1, 1000));
  command
      ->add_option("--granularity", words->granularity,
                   "sets have multiples of so many devices; 0: whole nodes or parts of one")
      ->check(CLI::Range(0, 1024));
  command->add_option("--out", words->out,
                      "write the configuration of the best that troupe train can run, else of the "
                      "best");
  command->add_flag("--cost", words->cost, "by the price of a step instead of its time");
  command->add_flag("--runnable", words->runnable, "only what troupe train can run");
  command->add_flag("--json", words->json, "print JSON");
  return [words]() -> int {
    const auto done = run_plan(*words);
    return done ? kExitDone : exit_with(done.error());
  };
}

}  // namespace troupe::apps
