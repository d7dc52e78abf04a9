// Proves that a checkpoint comes back bit for bit, that a kill at any point of a save leaves the
// last complete one readable, that torn directories are skipped with a warning while damage is an
// error naming file, tensor and both checksums, and that pruning keeps the newest. Kills are real:
// a child process is ended at random moments. Oracle: what was written.

#include "runtime/checkpoint/checkpoint.hpp"

#include "runtime/base/log.hpp"
#include "runtime/batch/checksum.hpp"
#include "tests/runtime/batch/batch_support.hpp"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <set>

namespace troupe::runtime {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::span<const std::byte> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string text_of(const AlignedBytes& content) {
  return {reinterpret_cast<const char*>(content.bytes().data()), content.bytes().size()};
}

/// Writes a step whose every value is derived from the step.
result<std::filesystem::path> save(const std::filesystem::path& root, std::int64_t step,
                                   std::int64_t keep = 0, std::size_t elements = 100) {
  const std::vector<float> weights(elements, static_cast<float>(step));
  const std::vector<std::int64_t> counts{step, step + 1};
  TROUPE_TRY(
      CheckpointWriter writer,
      CheckpointWriter::begin({.root = root, .step = step, .keep = keep, .file_bytes_max = 256}));
  TROUPE_TRY_VOID(
      writer.add_tensor<float>("model.weight", {static_cast<std::int64_t>(elements)}, weights));
  TROUPE_TRY_VOID(writer.add_tensor<std::int64_t>("counts", {2, 1}, counts));
  TROUPE_TRY_VOID(writer.add_blob("rng", bytes_of(fmt::format("state of {}", step))));
  TROUPE_TRY_VOID(writer.add_state("cursor", fmt::format("{{\"row\": {}}}", step)));
  return writer.commit();
}

void expect_step(const Checkpoint& checkpoint, std::int64_t step) {
  EXPECT_EQ(checkpoint.step(), step);
  const auto weights = checkpoint.tensor<float>("model.weight");
  ASSERT_TRUE(weights) << weights.error().message;
  for (const float weight : *weights) ASSERT_EQ(weight, static_cast<float>(step));
  EXPECT_EQ(*checkpoint.state("cursor"), fmt::format("{{\"row\": {}}}", step));
  EXPECT_TRUE(checkpoint.verify());
}

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

void flip_byte(const std::filesystem::path& path, std::int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 0x10));
}

/// Standard error while `body` runs.
template <class Body>
std::string warnings_of(Body&& body) {
  ::testing::internal::CaptureStderr();
  log::set_up(log::Level::kWarn);
  body();
  std::string text = ::testing::internal::GetCapturedStderr();
  log::set_up(log::Level::kWarn);
  return text;
}

TEST(Checkpoint, ComesBackBitForBit) {
  for_seeds(30, [](Rng& rng) {
    const TemporaryFolder root;
    std::map<std::string, std::vector<double>> tensors;
    std::map<std::string, std::string> blobs;
    result<CheckpointWriter> writer = CheckpointWriter::begin(
        {.root = root.path(), .step = 7, .keep = 0, .file_bytes_max = 1 + pick(rng, 400)});
    ASSERT_TRUE(writer);
    for (std::int64_t i = pick(rng, 8); i > 0; --i) {
      std::vector<double> values;
      for (std::int64_t j = pick(rng, 40); j > 0; --j) values.push_back(random_value<double>(rng));
      const std::string name = fmt::format("layer.{}.weight", i);
      ASSERT_TRUE(writer->add_tensor<double>(name, {1, std::ssize(values)}, values));
      tensors[name] = values;
      blobs[name] = random_text(rng);
      ASSERT_TRUE(writer->add_blob(name, bytes_of(blobs[name])));
    }
    ASSERT_TRUE(writer->add_state("s", "[1, 2]"));
    const auto folder = writer->commit();
    ASSERT_TRUE(folder) << folder.error().message;
    EXPECT_EQ(*folder, root.path() / "global_step_7");
    const result<Checkpoint> back = Checkpoint::open(*folder);
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(back->index().tensors.size(), tensors.size());
    for (const auto& [name, values] : tensors) {
      const auto found = back->tensor<double>(name);
      ASSERT_TRUE(found) << found.error().message;
      EXPECT_TRUE(Column::dense<double>(*found).bitwise_equal(Column::dense<double>(values)));
      EXPECT_EQ(text_of(*back->blob(name)), blobs[name]);
      EXPECT_EQ(back->index().tensors.at(name).shape,
                (std::vector<std::int64_t>{1, std::ssize(values)}));
    }
    EXPECT_EQ(*back->state("s"), "[1, 2]");
    EXPECT_TRUE(back->verify());
  });
}

TEST(Checkpoint, RootHoldsStepsAndTheMarkerOnly) {
  const TemporaryFolder root;
  ASSERT_TRUE(save(root.path(), 10));
  ASSERT_TRUE(save(root.path(), 20));
  EXPECT_THAT(names_in(root.path()),
              ElementsAre("global_step_10", "global_step_20", std::string(kMarkerFile)));
  std::ifstream marker(root.path() / kMarkerFile);
  std::int64_t step = 0;
  marker >> step;
  EXPECT_EQ(step, 20);
  expect_step(**Checkpoint::latest(root.path()), 20);
  EXPECT_THAT(*complete_steps(root.path()), ElementsAre(10, 20));
}

TEST(Checkpoint, NoneIsNotAnError) {
  const TemporaryFolder root;
  EXPECT_EQ(*Checkpoint::latest(root.path()), std::nullopt);
  EXPECT_EQ(*Checkpoint::latest(root.path() / "missing"), std::nullopt);
}

TEST(Checkpoint, SavingAStepAgainReplacesIt) {
  const TemporaryFolder root;
  ASSERT_TRUE(save(root.path(), 5, 0, 3));
  ASSERT_TRUE(save(root.path(), 5, 0, 50));
  EXPECT_EQ((*Checkpoint::latest(root.path()))->tensor<float>("model.weight")->size(), 50U);
  EXPECT_EQ(names_in(root.path()).size(), 2U);
}

TEST(Checkpoint, AnAbandonedWriterLeavesNothing) {
  const TemporaryFolder root;
  ASSERT_TRUE(save(root.path(), 1));
  {
    result<CheckpointWriter> writer = CheckpointWriter::begin({.root = root.path(), .step = 2});
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->add_blob("x", bytes_of("y")));
    EXPECT_EQ(names_in(root.path()).size(), 3U);
  }
  EXPECT_EQ(names_in(root.path()).size(), 2U);
  expect_step(**Checkpoint::latest(root.path()), 1);
}

TEST(Checkpoint, PruningKeepsTheNewestAndNeverTheLastOneLess) {
  const TemporaryFolder root;
  for (std::int64_t step = 1; step <= 5; ++step) ASSERT_TRUE(save(root.path(), step, 2));
  EXPECT_THAT(*complete_steps(root.path()), ElementsAre(4, 5));
  ASSERT_TRUE(save(root.path(), 6, 1));
  EXPECT_THAT(*complete_steps(root.path()), ElementsAre(6));
}

TEST(Checkpoint, PruningCountsCompleteOnesOnly) {
  const TemporaryFolder root;
  for (std::int64_t step = 1; step <= 3; ++step) ASSERT_TRUE(save(root.path(), step));
  std::filesystem::remove(root.path() / "global_step_3" / kIndexFile);
  std::filesystem::create_directory(root.path() / "global_step_0");
  ASSERT_TRUE(save(root.path(), 4, 2));
  EXPECT_THAT(*complete_steps(root.path()), ElementsAre(2, 4));
  EXPECT_THAT(names_in(root.path()), ElementsAre("global_step_2", "global_step_3", "global_step_4",
                                                 std::string(kMarkerFile)));
}

TEST(Checkpoint, LeftoversOfDeadWritersAreRemovedThoseOfLiveOnesNot) {
  const TemporaryFolder root;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const auto dead = root.path() / fmt::format(".global_step_9.tmp-{}-1", child);
  const auto live = root.path() / fmt::format(".global_step_9.tmp-{}-1", ::getppid());
  std::filesystem::create_directory(dead);
  std::filesystem::create_directory(live);
  ASSERT_TRUE(save(root.path(), 1));
  EXPECT_FALSE(std::filesystem::exists(dead));
  EXPECT_TRUE(std::filesystem::exists(live));
}

TEST(Checkpoint, TornDirectoriesAreSkippedWithAWarningThatNamesThem) {
  using Tear = std::function<void(const std::filesystem::path&)>;
  const std::vector<std::pair<const char*, Tear>> tears{
      {"index gone", [](const auto& folder) { std::filesystem::remove(folder / kIndexFile); }},
      {"index empty",
       [](const auto& folder) { std::filesystem::resize_file(folder / kIndexFile, 0); }},
      {"index short",
       [](const auto& folder) { std::filesystem::resize_file(folder / kIndexFile, 60); }},
      {"data gone", [](const auto& folder) { std::filesystem::remove(folder / "data_00000.bin"); }},
      {"data short",
       [](const auto& folder) { std::filesystem::resize_file(folder / "data_00000.bin", 100); }},
      {"data long",
       [](const auto& folder) { std::filesystem::resize_file(folder / "data_00000.bin", 9000); }},
      {"all gone", [](const auto& folder) {
         std::filesystem::remove_all(folder);
         std::filesystem::create_directory(folder);
       }}};
  for (const auto& [name, tear] : tears) {
    SCOPED_TRACE(name);
    const TemporaryFolder root;
    ASSERT_TRUE(save(root.path(), 10));
    ASSERT_TRUE(save(root.path(), 20));
    tear(root.path() / "global_step_20");
    const std::string warnings = warnings_of([&] {
      const auto latest = Checkpoint::latest(root.path());
      ASSERT_TRUE(latest) << latest.error().message;
      ASSERT_TRUE(latest->has_value());
      expect_step(**latest, 10);
    });
    EXPECT_THAT(warnings, HasSubstr((root.path() / "global_step_20").string()));
    EXPECT_EQ(Checkpoint::open(root.path() / "global_step_20").error().code, ErrorCode::kCorrupt);
  }
}

TEST(Checkpoint, StepsThatTheMarkerHasNotReachedAreSkipped) {
  const TemporaryFolder root;
  ASSERT_TRUE(save(root.path(), 20));
  ASSERT_TRUE(save(root.path(), 10));  // a run that went back to 10 and saved there
  std::string warnings = warnings_of([&] { expect_step(**Checkpoint::latest(root.path()), 10); });
  EXPECT_THAT(warnings, HasSubstr("global_step_20"));
  std::filesystem::remove(root.path() / kMarkerFile);
  warnings = warnings_of([&] { EXPECT_EQ(*Checkpoint::latest(root.path()), std::nullopt); });
  EXPECT_THAT(warnings, AllOf(HasSubstr("global_step_20"), HasSubstr("global_step_10"),
                              HasSubstr("missing")));
}

TEST(Checkpoint, DamagedContentNamesFileTensorAndBothChecksums) {
  const TemporaryFolder root;
  const auto folder = *save(root.path(), 3);
  const Checkpoint before = *Checkpoint::open(folder);
  const CheckpointSection& section = before.index().tensors.at("model.weight").section;
  const auto path = folder / before.index().files[section.file].name;
  flip_byte(path, section.offset + 17);
  const Checkpoint checkpoint = **Checkpoint::latest(root.path());  // sizes are right: not torn
  const auto bad = checkpoint.tensor<float>("model.weight");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::kCorrupt);
  const auto damaged = read_file_part(path, section.offset, section.bytes);
  EXPECT_THAT(bad.error().message,
              AllOf(HasSubstr(path.string()), HasSubstr("model.weight"),
                    HasSubstr(fmt::format("{:08x}", section.checksum)),
                    HasSubstr(fmt::format("{:08x}", crc32c(damaged->bytes())))));
  EXPECT_FALSE(checkpoint.verify());
  EXPECT_TRUE(checkpoint.tensor<std::int64_t>("counts"));
}

TEST(Checkpoint, DamagedIndexIsAnErrorNotASkip) {
  const TemporaryFolder root;
  ASSERT_TRUE(save(root.path(), 10));
  const auto folder = *save(root.path(), 20);
  flip_byte(folder / kIndexFile, 100);
  const auto latest = Checkpoint::latest(root.path());
  ASSERT_FALSE(latest);
  EXPECT_EQ(latest.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(latest.error().message,
              AllOf(HasSubstr((folder / kIndexFile).string()), HasSubstr("checksum")));
}

TEST(Checkpoint, DamagedMarkerIsAnErrorThatNamesIt) {
  const TemporaryFolder root;
  ASSERT_TRUE(save(root.path(), 10));
  for (const char* text : {"", "ten", "-1", "10 20", "99999999999999999999", "010"}) {
    std::ofstream(root.path() / kMarkerFile) << text;
    const auto latest = Checkpoint::latest(root.path());
    ASSERT_FALSE(latest) << text;
    EXPECT_THAT(latest.error().message, HasSubstr(std::string(kMarkerFile)));
  }
}

TEST(Checkpoint, AFolderRenamedToAnotherStepIsNoticed) {
  const TemporaryFolder root;
  std::filesystem::rename(*save(root.path(), 10), root.path() / "global_step_9");
  EXPECT_THAT(Checkpoint::latest(root.path()).error().message,
              AllOf(HasSubstr("global_step_9"), HasSubstr("step 10")));
}

TEST(Checkpoint, WriterRefusesWhatItCouldNotReadBack) {
  const TemporaryFolder root;
  EXPECT_EQ(CheckpointWriter::begin({.root = root.path(), .step = -1}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_FALSE(CheckpointWriter::begin({.root = "/proc/nowhere", .step = 1}));
  CheckpointWriter writer = *CheckpointWriter::begin({.root = root.path(), .step = 1});
  const std::vector<float> three{1, 2, 3};
  EXPECT_THAT(writer.add_tensor<float>("w", {2, 2}, three).error().message,
              AllOf(HasSubstr("tensor w"), HasSubstr("12 bytes"), HasSubstr("16")));
  EXPECT_TRUE(writer.add_tensor<float>("w", {3}, three));
  EXPECT_EQ(writer.add_tensor<float>("w", {3}, three).error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(writer.add_state("s", "{").error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(writer.commit());
  const Checkpoint checkpoint = **Checkpoint::latest(root.path());
  EXPECT_EQ(checkpoint.tensor<float>("none").error().code, ErrorCode::kNotFound);
  EXPECT_THAT(checkpoint.tensor<double>("w").error().message,
              AllOf(HasSubstr("f32"), HasSubstr("f64")));
  EXPECT_EQ(checkpoint.blob("none").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(checkpoint.state("none").error().code, ErrorCode::kNotFound);
}

TEST(Checkpoint, AKillAtAnyMomentLeavesTheLastCompleteOne) {
  const TemporaryFolder root;
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(save(root.path(), 1, 2, 20'000));
  const auto one_save = std::chrono::steady_clock::now() - start;
  const auto longest =
      std::chrono::duration_cast<std::chrono::microseconds>(3 * one_save).count() + 2000;
  std::int64_t reached = 1;
  Rng rng(11);
  for (int round = 0; round < 25; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (std::int64_t step = reached + 1;; ++step) {
        if (!save(root.path(), step, 2, 20'000)) ::_exit(1);
      }
    }
    ::usleep(static_cast<useconds_t>(pick(rng, longest)));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child could not save";
    warnings_of([&] {
      const auto latest = Checkpoint::latest(root.path());
      ASSERT_TRUE(latest) << latest.error().message;
      ASSERT_TRUE(latest->has_value());
      ASSERT_GE((*latest)->step(), reached);
      reached = (*latest)->step();
      expect_step(**latest, reached);
    });
  }
  EXPECT_GT(reached, 1) << "no child lived long enough for a save";
  ASSERT_TRUE(save(root.path(), reached + 1, 1));
  EXPECT_THAT(*complete_steps(root.path()), ElementsAre(reached + 1));
  for (const std::string& name : names_in(root.path()))
    EXPECT_THAT(name, testing::Not(StartsWith(".")));
}

}  // namespace
}  // namespace troupe::runtime
