// One synchronous GRPO step on two colocated CPU ranks, measured from inside a real run: where the
// time goes, how long ranks idle, and what the controller holds and reads per row.
//
//   bench_step [--check]     --check ends with 1 when the controller holds more than 64 bytes a row

#include "actors/data/dataset.hpp"
#include "actors/data/tasks.hpp"
#include "actors/text/byte_level_tokenizer.hpp"
#include "apps/training/train_app.hpp"
#include "runtime/observe/metrics_writer.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace troupe;

constexpr double kControllerBytesMax = 64;
constexpr std::int64_t kWarmSteps = 2;

result<void> make_inputs(const std::filesystem::path& folder) {
  TROUPE_TRY(const int vocabulary, actors::write_byte_level_tokenizer(
                                       folder / "model", {.specials = {"<|pad|>", "<|endoftext|>"},
                                                          .alphabet = "0123456789 :=-sort\n",
                                                          .pad_token = "<|pad|>",
                                                          .eos_token = "<|endoftext|>",
                                                          .bos_token = {}}));
  actors::ModelConfig config;
  config.hidden_size = 128;
  config.intermediate_size = 384;
  config.layer_count = 4;
  config.head_count = 4;
  config.kv_head_count = 2;
  config.head_dim = 32;
  config.vocab_size = vocabulary;
  config.positions_max = 64;
  config.tie_embeddings = true;
  config.eos_ids = config.stop_ids = {1};
  TROUPE_TRY_VOID(actors::save_hf_folder(folder / "model", config,
                                         actors::random_weights(config, 1).tensors()));
  TROUPE_TRY(auto rows, actors::make_task_rows({.train_rows = 1024}));
  return actors::Dataset::from_rows(std::move(rows.train)).save((folder / "train.jsonl").string());
}

result<std::vector<runtime::MetricsRow>> run_steps(const std::filesystem::path& folder) {
  const apps::TrainingRegistries registries;
  const std::vector<std::string> words{
      "actor_rollout_ref.model.path=" + (folder / "model").string(),
      "data.train_files=[" + (folder / "train.jsonl").string() + "]",
      "data.train_batch_size=64",
      "data.max_prompt_length=32",
      "data.max_response_length=16",
      "actor_rollout_ref.rollout.n=8",
      "actor_rollout_ref.rollout.kv_cache_mb=128",
      "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096",
      "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=4096",
      "algorithm.adv_estimator=grpo",
      "trainer.n_gpus_per_node=2",
      "trainer.total_training_steps=12",
      "trainer.resume_mode=disable",
      "trainer.progress=false",
      "trainer.default_local_dir=" + (folder / "run").string()};
  TROUPE_TRY(const auto config, runtime::Config::load(apps::schema_for(registries), "", words));
  TROUPE_TRY_VOID(apps::train(config, registries).map([](const auto&) {}));
  return runtime::read_metrics((folder / "run/metrics.jsonl").string());
}

double mean(const std::vector<runtime::MetricsRow>& rows, const std::string& name) {
  double sum = 0;
  double count = 0;
  for (const auto& row : rows) {
    const auto found = row.values.find(name);
    if (row.step <= kWarmSteps || found == row.values.end()) continue;
    sum += found->second;
    count += 1;
  }
  return count > 0 ? sum / count : 0;
}

}  // namespace

int main(int count, char** words) {
  const bool check = count > 1 && std::string_view(words[1]) == "--check";
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("troupe-bench-step-{}", ::getpid());
  const auto made = make_inputs(folder);
  const result<std::vector<runtime::MetricsRow>> rows =
      made ? run_steps(folder) : fail(made.error());
  std::filesystem::remove_all(folder);
  if (!rows) {
    fmt::print(stderr, "{}\n", rows.error().to_string());
    return 2;
  }
  const double step = mean(*rows, "timing_s/step");
  fmt::print("GRPO, 64 prompts x 8 samples, 0.8 M parameters, 2 ranks, steps {} to {}\n",
             kWarmSteps + 1, rows->back().step);
  for (const char* phase :
       {"gen", "reward", "old_log_prob", "adv", "update_actor", "update_weights"}) {
    const double taken = mean(*rows, std::string("timing_s/") + phase);
    fmt::print("  {:<16} {:8.2f} ms {:6.1f} % of the step\n", phase, taken * 1e3,
               100 * taken / step);
  }
  const double held = mean(*rows, "perf/controller_metadata_bytes_per_row");
  fmt::print("  {:<16} {:8.2f} ms, {:.0f} tokens/s a rank\n", "step", step * 1e3,
             mean(*rows, "perf/throughput"));
  fmt::print("  rank idle share        {:6.3f}\n", mean(*rows, "perf/rank_idle_share"));
  fmt::print("  controller reads       {:6.1f} bytes a row\n",
             mean(*rows, "perf/controller_bytes_per_row"));
  fmt::print("  controller holds       {:6.1f} bytes a row beyond that, bar {}\n", held,
             kControllerBytesMax);
  return check && held > kControllerBytesMax ? 1 : 0;
}
