// `troupe simulate` as a program: every example configuration runs and says the same twice, files
// are written, and a wrong command line or configuration ends with code 2 and one line that says
// why.

#include "tests/support/simulated_example.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class SimulateCommand : public SimulatedExample {
 protected:
  Said run(std::vector<std::string> words) {
    words.insert(words.begin(), "simulate");
    return run_troupe(std::move(words));
  }
};

/// The same configuration with less of everything.
const std::vector<std::string> kLess{"data.train_batch_size=16",
                                     "actor_rollout_ref.actor.ppo_mini_batch_size=16",
                                     "simulation.steps=2",
                                     "simulation.warm_up_steps=1",
                                     "--quick",
                                     "--json"};

std::vector<std::string> with_less(std::vector<std::string> words) {
  words.insert(words.end(), kLess.begin(), kLess.end());
  return words;
}

TEST_F(SimulateCommand, RunsEveryExampleAndSaysTheSameTwice) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(example(""))) {
    ++count;
    const Said first = run(with_less({entry.path().string()}));
    ASSERT_EQ(first.code, 0) << entry.path() << first.err;
    const json out = json::parse(first.out);
    EXPECT_GT(out.at("numbers").at("step_s").at("value"), 0.0) << entry.path();
    EXPECT_EQ(first.err, "") << entry.path();
    EXPECT_EQ(run(with_less({entry.path().string()})).out, first.out) << entry.path();
  }
  EXPECT_GE(count, 4);
}

TEST_F(SimulateCommand, WritesTraceAndPage) {
  const std::string trace = (folder_ / "trace.json").string();
  const std::string page = (folder_ / "page.html").string();
  const Said ended = run(with_less({example("async_7b.yaml"), "--trace", trace, "--html", page}));
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_GT(json::parse(read_file(trace)).at("traceEvents").size(), 100U);
  EXPECT_THAT(read_file(page), HasSubstr("Timeline"));
}

TEST_F(SimulateCommand, ComparesTwoRuns) {
  const Said ended = run({"--compare", example("sync_7b.yaml"), example("async_7b.yaml"), "--quick",
                          "data.train_batch_size=16",
                          "actor_rollout_ref.actor.ppo_mini_batch_size=16", "simulation.steps=4"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("B / A"));
  EXPECT_THAT(ended.out, HasSubstr("B takes"));
}

TEST_F(SimulateCommand, ListsWhatTheCatalogueHas) {
  const Said ended = run({"--catalogue"});
  EXPECT_EQ(ended.code, 0);
  for (const char* name : {"device    gb200", "model     kimi-k2", "constant  gemm_share"})
    EXPECT_THAT(ended.out, HasSubstr(name));
}

TEST_F(SimulateCommand, EndsWithCodeTwoAndTheReason) {
  const struct {
    std::vector<std::string> words;
    std::string said;
  } bad[] = {
      {{example("sync_7b.yaml"), "simulation.device=h10"}, "did you mean"},
      {{example("sync_7b.yaml"), "simulation.stepz=3"}, "did you mean simulation.steps"},
      {{example("sync_7b.yaml"), "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=3"},
       "cannot be cut"},
      {{example("sync_7b.yaml"), "trainer.nnodes=1000000"}, "the nearest possible is 65536 in all"},
      {{example("sync_7b.yaml"), "data.train_batch_size=2000000"}, "more than 1048576 samples"},
      {{"--compare", example("sync_7b.yaml")}, "--compare"},
      {{"--compare", example("sync_7b.yaml"), example("sync_7b.yaml"), example("sync_7b.yaml")},
       "At Most 2 required"},
      {{"--compare", example("sync_7b.yaml"), example("sync_7b.yaml"), "--html", "x.html"},
       "--html"},
      {{example("sync_7b.yaml"), "--threads", "-1"}, "--threads"},
      {{}, "simulation.lengths.response.shape"},
  };
  for (const auto& tried : bad) {
    const Said ended = run(tried.words);
    EXPECT_EQ(ended.code, 2) << tried.said;
    EXPECT_THAT(ended.err + ended.out, HasSubstr(tried.said));
  }
}

/// Constants of the section that `--calibrate` prints, as overrides.
std::vector<std::string> printed_constants(const std::string& text) {
  std::vector<std::string> overrides;
  std::istringstream lines(text.substr(text.find("\nsimulation:\n  constants:\n")));
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(": ");
    if (!line.starts_with("    ") || colon == std::string::npos) continue;
    const std::string value = line.substr(colon + 2, line.find(' ', colon + 2) - colon - 2);
    overrides.push_back("simulation.constants." + line.substr(4, colon - 4) + "=" + value);
  }
  return overrides;
}

TEST_F(SimulateCommand, CalibratesByTheMetricsOfARealRun) {
  // Three steps of GRPO of SmolLM2-135M by `troupe train` on two cores of a CPU; its times and
  // lengths, as it wrote them. The device is declared: what such a core is good for, about,
  // at half its tflops for numbers of four bytes.
  const std::string metrics =
      TROUPE_SOURCE_DIR "/tests/apps/simulate/fixtures/smollm2_metrics.jsonl";
  const std::string catalogue = (folder_ / "cpu.yaml").string();
  write_file(catalogue,
             "devices:\n"
             "  core: {tflops: 0.4, hbm_gb: 16, hbm_tbs: 0.0055, nvlink_gbs: 0, pcie_gbs: 5, "
             "per_node: 2, nic_gbits: 10, price_per_hour: 0.05, generation: a100}\n"
             "models:\n"
             "  smollm2-135m: {source: config.json, vocab: 49152, hidden: 576, intermediate: "
             "1536, layers: 30, heads: 9, kv_heads: 3, head_dim: 64, tied: true}\n");
  const std::string config = (folder_ / "run.yaml").string();
  write_file(config,
             "data: {train_batch_size: 16, max_prompt_length: 64, max_response_length: 24}\n"
             "actor_rollout_ref:\n"
             "  model: {enable_gradient_checkpointing: false}\n"
             "  actor: {ppo_mini_batch_size: 16, ppo_max_token_len_per_gpu: 2048}\n"
             "  rollout: {n: 8, tensor_model_parallel_size: 1}\n"
             "algorithm: {adv_estimator: grpo}\n"
             "trainer: {nnodes: 1, n_gpus_per_node: 2}\n"
             "simulation:\n"
             "  catalogue_files: [" +
                 catalogue +
                 "]\n"
                 "  device: core\n"
                 "  model: smollm2-135m\n"
                 "  precision: fp32\n"
                 "  lengths:\n"
                 "    prompt: {shape: fixed, tokens: 26}\n"
                 "    response: {shape: fixed, tokens: 19}\n");
  const Said fitted = run({config, "--calibrate", metrics});
  ASSERT_EQ(fitted.code, 0) << fitted.err;
  EXPECT_THAT(fitted.out, HasSubstr("update_actor"));
  std::vector<std::string> words{config, "--quick", "--json"};
  const std::vector<std::string> constants = printed_constants(fitted.out);
  EXPECT_GE(constants.size(), 5U) << fitted.out;
  words.insert(words.end(), constants.begin(), constants.end());
  const Said simulated = run(words);
  ASSERT_EQ(simulated.code, 0) << simulated.err;
  const json out = json::parse(simulated.out);
  // Medians of the steps behind the first.
  EXPECT_NEAR(out.at("numbers").at("step_s").at("value"), 25.8, 0.1 * 25.8) << fitted.out;
  const json& parts = out.at("parts_s");
  EXPECT_NEAR(parts.at("update_actor").at("value"), 16.5, 0.15 * 16.5) << fitted.out;
  EXPECT_NEAR(parts.at("gen").at("value"), 3.5, 0.15 * 3.5) << fitted.out;
  // Lines that cannot be are refused by their number.
  const std::string broken = (folder_ / "broken.jsonl").string();
  write_file(broken, "{\"step\":1,\"timing_s/step\":2}\nnothing\n");
  const Said refused = run({config, "--calibrate", broken});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("broken.jsonl:2"));
}

TEST_F(SimulateCommand, NamesAFileThatIsMissing) {
  const Said ended = run({"/nowhere/run.yaml"});
  EXPECT_EQ(ended.code, 2) << "as any wrong configuration";
  EXPECT_THAT(ended.err, HasSubstr("/nowhere/run.yaml"));
  const Said metrics = run({example("sync_7b.yaml"), "--calibrate", "/nowhere/metrics.jsonl"});
  EXPECT_EQ(metrics.code, 1);
  EXPECT_THAT(metrics.err, HasSubstr("/nowhere/metrics.jsonl"));
}

}  // namespace
}  // namespace troupe::testing
