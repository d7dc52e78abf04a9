// Proves that reward ranks share a sandbox and scale: rows are dealt over ranks and come back in
// order, failures are counted by reason and reported where the loop can drop groups, a call ends by
// its deadline. Also: specs of commands survive the wire, every field of them.

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "actors/roles/judge_specs.hpp"
#include "actors/roles/reward_worker.hpp"
#include "actors/text/byte_level_tokenizer.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/group/worker_group.hpp"
#include "runtime/task/executor.hpp"
#include "runtime/wire/wire.hpp"
#include "tests/support/test_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace troupe::actors {
namespace {

using runtime::Batch;
using runtime::Column;
using runtime::WorkerContext;
using Group = runtime::WorkerGroup<RewardWorker>;
using ::testing::HasSubstr;

constexpr const char* kProgram = R"(
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    print("bad" if row["response"] == "bad" else int(row["response"]), flush=True)
)";

CommandRewardSpec program(std::optional<double> failure_score) {
  CommandRewardSpec spec{.data_source = "py", .options = {}};
  spec.options.sandbox.name = "rule";
  spec.options.sandbox.command = {"/usr/bin/python3", "-c", kProgram};
  spec.options.sandbox.workers = 2;
  spec.options.failure_score = failure_score;
  return spec;
}

Tokenizer bytes() {
  testing::TemporaryFolder folder;
  EXPECT_TRUE(write_byte_level_tokenizer(folder.path()).has_value());
  return std::move(Tokenizer::load(folder.path()).value());
}

Batch rows_of(const Tokenizer& tokenizer, const std::vector<std::string>& texts,
              const std::string& source = "py") {
  std::vector<std::vector<std::int32_t>> tokens;
  for (const std::string& text : texts) tokens.push_back(tokenizer.encode(text));
  Batch batch;
  const auto put = [&batch](std::string_view name, Column column) {
    EXPECT_TRUE(batch.set(std::string(name), std::move(column)).has_value());
  };
  put(column::kPrompts, Column::jagged(tokens));
  put(column::kResponses, Column::jagged(tokens));
  put(column::kDataSource, Column::strings(std::vector<std::string>(texts.size(), source)));
  put(column::kGroundTruth, Column::strings(std::vector<std::string>(texts.size(), "")));
  put(column::kExtraInfo, Column::json(std::vector<std::string>(texts.size(), "{}")));
  return batch;
}

struct Stage {
  explicit Stage(std::optional<double> failure_score, bool report_failed, int ranks = 3) {
    const std::vector<CommandRewardSpec> commands{program(failure_score)};
    EXPECT_TRUE(add_command_rewards(rules, commands).has_value());
    EXPECT_TRUE(rules.add("slow", [](const RewardInput&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return 1.0;
    }));
    runtime::GroupOptions options;
    options.name = "reward";
    options.mesh = runtime::Mesh::data_parallel(ranks);
    options.collectives = false;
    auto made = Group::create(system, options, [this, report_failed](WorkerContext& context) {
      return std::make_unique<RewardWorker>(
          tokenizer, rules,
          RewardWorkerOptions{.report_failed = report_failed, .context = &context});
    });
    EXPECT_TRUE(made.has_value()) << made.error().to_string();
    group = std::make_unique<Group>(std::move(made).value());
  }
  result<Batch> score(const Batch& batch) {
    auto call = group->call<&RewardWorker::score>(batch);
    TROUPE_TRY(const Batch scored, call.wait(Deadline::in(std::chrono::minutes(1))));
    return scored.resolve();
  }

  Tokenizer tokenizer = bytes();
  RewardRegistry rules;
  runtime::ActorSystem system;
  std::unique_ptr<Group> group;
};

TEST(RewardRanks, ShareASandboxAndKeepTheOrderOfRows) {
  Stage stage(0.0, false);
  std::vector<std::string> texts;
  std::vector<float> wanted;
  for (int i = 0; i < 100; ++i) {
    texts.push_back(i == 50 ? "bad" : std::to_string(i));
    wanted.push_back(i == 50 ? 0.0F : static_cast<float>(i));
  }
  const auto scored = stage.score(rows_of(stage.tokenizer, texts));
  ASSERT_TRUE(scored.has_value()) << scored.error().to_string();
  EXPECT_EQ(scored->column(column::kScores).values<float>(), wanted);
  EXPECT_EQ(scored->metrics().value("reward/failed"), 1);
  EXPECT_EQ(scored->metrics().value("reward/failed/answer"), 1);
  EXPECT_FALSE(scored->has(column::kScoreFailed));
}

TEST(RewardRanks, ReportWhatWasGivenUpWhereGroupsCanBeDropped) {
  Stage stage(std::nullopt, true);
  const auto scored = stage.score(rows_of(stage.tokenizer, {"1", "bad", "3"}));
  ASSERT_TRUE(scored.has_value()) << scored.error().to_string();
  EXPECT_EQ(scored->column(column::kScoreFailed).values<std::uint8_t>(),
            (std::vector<std::uint8_t>{0, 1, 0}));

  Stage strict(std::nullopt, false, 1);
  const auto refused = strict.score(rows_of(strict.tokenizer, {"1", "bad", "3"}));
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().to_string(), HasSubstr("row 1 (py)"));
}

TEST(RewardRanks, ACallEndsByItsDeadline) {
  Stage stage(0.0, false, 1);
  auto call = stage.group->call_with<&RewardWorker::score>(
      runtime::CallOptions().within(std::chrono::milliseconds(100)),
      rows_of(stage.tokenizer, std::vector<std::string>(500, "1"), "slow"));
  const auto late = call.wait(Deadline::in(std::chrono::minutes(1)));
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().root_cause().code, ErrorCode::kDeadline) << late.error().to_string();
  // The rank heeds it too, and is free soon: 500 rows would take ten seconds.
  const auto after = stage.score(rows_of(stage.tokenizer, {"4"}));
  ASSERT_TRUE(after.has_value()) << after.error().to_string();
}

TEST(JudgeSpecs, SurviveTheWireInEveryField) {
  EnvironmentSpec spec;
  spec.tokenizer_folder = "/models/x";
  spec.options = {.environment = "my/game",
                  .turns_max = 3,
                  .turn_tokens_max = 44,
                  .state_max = Bytes{55},
                  .turn_deadline = std::chrono::seconds(6),
                  .retries_max = 7,
                  .exhausted_score = -8,
                  .failure_score = 9.5,
                  .before = "b",
                  .after = "a"};
  SandboxOptions& sandbox = spec.commands.emplace_back().sandbox;
  spec.commands.back().data_source = "my/*";
  sandbox = {.name = "n",
             .command = {"c", "d"},
             .environment = {{"K", "V"}},
             .hidden_folders = {"/h"},
             .scratch_root = "/s",
             .limits = {.sample_wall = std::chrono::seconds(1),
                        .sample_cpu = std::chrono::seconds(2),
                        .start = std::chrono::seconds(3),
                        .memory = Bytes{4},
                        .scratch = Bytes{5},
                        .answer = Bytes{6},
                        .open_files = 7,
                        .processes = 8},
             .require_isolation = true,
             .network = true,
             .workers = 9,
             .samples_per_worker = 10,
             .samples_ahead = 11,
             .whole_batches = true,
             .failures_at_start_max = 12};
  const auto back =
      runtime::decode_value<EnvironmentSpec>(runtime::encode_value(spec).value()).value();
  EXPECT_EQ(back, spec);
  CommandRewardSpec rule{.data_source = "r", .options = {.sandbox = sandbox, .failure_score = {}}};
  EXPECT_EQ(runtime::decode_value<CommandRewardSpec>(runtime::encode_value(rule).value()).value(),
            rule);
}

}  // namespace
}  // namespace troupe::actors
