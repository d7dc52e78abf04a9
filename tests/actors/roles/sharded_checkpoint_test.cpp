// Proves that a state written on any mesh comes back on any other with the same bits through a
// checkpoint on disk, by hand and through worker groups; that a whole engine still writes whole
// tensors under their old names; that whole weights can be had from any checkpoint; and that a
// manifest with a missing, doubled or misshapen box is refused by tensor, box and place.

#include "actors/roles/engine_checkpoint.hpp"
#include "actors/roles/group_world.hpp"
#include "actors/roles/sharded_batch.hpp"
#include "runtime/task/executor.hpp"
#include "tests/actors/train/sharded_fixture.hpp"
#include "tests/support/test_files.hpp"
#include "tests/support/tiny_model.hpp"
#include "tests/support/tiny_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <memory>

namespace troupe::actors {
namespace {

using runtime::value_or_throw;
using testing::assemble_state;
using testing::fsdp;
using ::testing::HasSubstr;
using testing::MeshRun;
using testing::OwnedPiece;
using testing::ShardMesh;
using testing::Share;
using testing::zero1;
using State = std::map<std::string, std::vector<float>>;

MeshRun tied_run() {
  MeshRun run{.config = testing::tiny_models()[1].config};
  run.config.intermediate_size = 38;
  run.config.kv_head_count = 2;
  run.options.optimizer.lr = 1e-2;
  Rng rng(41);
  run.samples = testing::random_samples(rng, 8, run.config.vocab_size);
  return run;
}

/// What the ranks of a mesh give after one step; the numbers are copies.
std::vector<EngineState> states_of(const MeshRun& run, const ShardMesh& mesh, State& wanted) {
  std::vector<EngineState> states(static_cast<std::size_t>(mesh.ranks));
  std::vector<std::vector<OwnedPiece>> all(states.size());
  testing::run_mesh(run, mesh, [&](TrainEngine& engine, const Share& share, int rank) {
    const auto r = static_cast<std::size_t>(rank);
    testing::update_once(engine, share);
    all[r] = testing::owned(engine.state_pieces());
    states[r].sharded = !engine.is_whole();
    if (rank == 0) states[r].json = engine.state_json();
    if (engine.is_whole() && rank > 0) return;
    const auto keep = std::make_shared<std::vector<std::vector<OwnedPiece>>>(1, all[r]);
    const std::vector<StatePiece> pieces = testing::views(*keep);
    std::vector<NamedTensor> tensors;
    for (const StatePiece& piece : pieces)
      tensors.push_back({.name = piece.name, .shape = piece.whole, .data = piece.data});
    states[r].tensors =
        value_or_throw(engine.is_whole() ? tensor_batch(tensors, keep) : piece_batch(pieces, keep));
  });
  wanted = assemble_state(testing::views(all));
  return states;
}

class ShardedCheckpoint : public ::testing::Test {
 protected:
  runtime::Checkpoint write(const std::vector<EngineState>& states,
                            const std::function<std::string(std::string)>& edit = nullptr) {
    auto writer =
        value_or_throw(runtime::CheckpointWriter::begin({.root = folder_.path(), .step = ++step_}));
    StateWriter state(writer, "actor");
    value_or_throw(state.add(0, states));
    if (!edit) {
      value_or_throw(state.finish());
    } else {
      ShardManifest manifest;
      for (const EngineState& rank : states) {
        const PieceRows rows = value_or_throw(PieceRows::open(rank.tensors, nullptr));
        for (const StatePiece& piece : rows.pieces())
          value_or_throw(add_piece(manifest, "actor", piece));
      }
      value_or_throw(writer.add_state(manifest_state("actor"), edit(manifest.to_json())));
    }
    return value_or_throw(runtime::Checkpoint::open(value_or_throw(writer.commit())));
  }

  /// The error of reading a checkpoint whose manifest `edit` changed.
  Error refused(const std::function<void(nlohmann::json&)>& edit) {
    State wanted;
    const auto states = states_of(tied_run(), fsdp(3), wanted);
    const runtime::Checkpoint checkpoint = write(states, [&](const std::string& text) {
      nlohmann::json json = nlohmann::json::parse(text);
      edit(json);
      return json.dump();
    });
    const auto read = read_state(checkpoint, "actor");
    EXPECT_FALSE(read.has_value());
    return read ? Error{} : read.error();
  }

  testing::TemporaryFolder folder_;
  std::int64_t step_ = 0;
};

TEST_F(ShardedCheckpoint, ComesBackOnAnyOtherMeshWithTheSameBits) {
  const std::uint64_t seed = 5;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  const std::vector<ShardMesh> meshes = {{},         {2, {}},           {4, {.tp = 2, .pp = 2}},
                                         zero1(2),   zero1(4, 2, 1, 1), fsdp(3),
                                         fsdp(4, 2), fsdp(4, 0, 2),     fsdp(8, 0, 2, 2)};
  const MeshRun run = tied_run();
  for (const ShardMesh& source : meshes) {
    State wanted;
    const runtime::Checkpoint checkpoint = write(states_of(run, source, wanted));
    value_or_throw(checkpoint.verify());
    const EngineState state = value_or_throw(read_state(checkpoint, "actor"));
    for (int pair = 0; pair < 2; ++pair) {
      const ShardMesh& target = meshes[rng.below(meshes.size())];
      SCOPED_TRACE(source.text() + " → " + target.text());
      std::vector<std::vector<OwnedPiece>> all(static_cast<std::size_t>(target.ranks));
      testing::run_mesh(run, target, [&](TrainEngine& engine, const Share&, int rank) {
        const PieceRows rows = value_or_throw(PieceRows::open(state.tensors, nullptr));
        value_or_throw(engine.load_pieces(state.json, rows.pieces()));
        EXPECT_EQ(engine.optimizer_steps(), 1);
        all[static_cast<std::size_t>(rank)] = testing::owned(engine.state_pieces());
      });
      EXPECT_EQ(assemble_state(testing::views(all)), wanted);
    }
    const WeightSet weights =
        value_or_throw(read_weights(checkpoint, "actor", expected_tensors(run.config)));
    for (const NamedTensor& tensor : weights.tensors())
      EXPECT_TRUE(std::ranges::equal(tensor.data, wanted.at("weights/" + tensor.name)))
          << tensor.name;
  }
}

TEST_F(ShardedCheckpoint, OfAWholeEngineHasWholeTensorsAndNoManifest) {
  State wanted;
  const runtime::Checkpoint checkpoint = write(states_of(tied_run(), {2, {}}, wanted));
  std::vector<std::string> names;
  for (const auto& [name, entry] : checkpoint.index().tensors) names.push_back(name);
  std::vector<std::string> expected;
  for (const auto& [name, values] : wanted) expected.push_back("actor/" + name);
  EXPECT_EQ(names, expected);
  EXPECT_EQ(checkpoint.index().states.size(), 1U);
  EXPECT_EQ(value_or_throw(checkpoint.state("actor")).find("mesh"), std::string::npos);
}

TEST_F(ShardedCheckpoint, IsNotWrittenWhenARankGivesNothing) {
  State wanted;
  std::vector<EngineState> states = states_of(tied_run(), fsdp(3), wanted);
  states.pop_back();
  auto writer =
      value_or_throw(runtime::CheckpointWriter::begin({.root = folder_.path(), .step = 1}));
  StateWriter state(writer, "actor");
  value_or_throw(state.add(0, states));
  const auto done = state.finish();
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(done.error().message, HasSubstr("tensor adam_m/"));
}

constexpr const char* kNorm = "weights/model.norm.weight";
constexpr const char* kEmbed = "adam_v/model.embed_tokens.weight";

TEST_F(ShardedCheckpoint, RefusesAMissingBox) {
  const Error error =
      refused([](nlohmann::json& json) { json["tensors"][kEmbed]["pieces"].erase(1); });
  EXPECT_EQ(error.code, ErrorCode::kNotFound) << error.to_string();
  EXPECT_THAT(error.message, HasSubstr(kEmbed));
  EXPECT_THAT(error.message, HasSubstr("global_step_1"));
}

TEST_F(ShardedCheckpoint, RefusesADoubledBox) {
  const Error error = refused([](nlohmann::json& json) {
    auto& pieces = json["tensors"][kEmbed]["pieces"];
    pieces.push_back(pieces[0]);
  });
  EXPECT_EQ(error.code, ErrorCode::kCorrupt) << error.to_string();
  EXPECT_THAT(error.message, HasSubstr(kEmbed));
  EXPECT_THAT(error.message, HasSubstr("in entry"));
}

TEST_F(ShardedCheckpoint, RefusesABoxThatIsNotItsEntrys) {
  // Both boxes of the tensor change places, so that it is still covered.
  const Error error = refused([](nlohmann::json& json) {
    auto& pieces = json["tensors"][kEmbed]["pieces"];
    std::swap(pieces[0]["entry"], pieces[pieces.size() - 1]["entry"]);
  });
  EXPECT_EQ(error.code, ErrorCode::kCorrupt) << error.to_string();
  EXPECT_THAT(error.message, HasSubstr(kEmbed));
  EXPECT_THAT(error.message, HasSubstr("has shape"));
}

TEST_F(ShardedCheckpoint, RefusesABoxOutsideItsTensorOrInNoFile) {
  Error error = refused([](nlohmann::json& json) {
    json["tensors"][kNorm]["pieces"][0]["box"] = {0, 9999, 0, 1};
  });
  EXPECT_EQ(error.code, ErrorCode::kCorrupt) << error.to_string();
  EXPECT_THAT(error.message, HasSubstr("[0, 9999)"));
  error = refused(
      [](nlohmann::json& json) { json["tensors"][kNorm]["pieces"][0]["entry"] = "actor/nothing"; });
  EXPECT_EQ(error.code, ErrorCode::kNotFound) << error.to_string();
  EXPECT_THAT(error.message, HasSubstr("actor/nothing"));
}

TEST_F(ShardedCheckpoint, RefusesAManifestThatIsNone) {
  for (const char* text : {"[]", "{}", R"({"format":1})", R"({"format":1,"tensors":[]})",
                           R"({"format":1,"tensors":{"w":{"shape":[0],"pieces":[]}}})",
                           R"({"format":1,"tensors":{"w":{"shape":[1,2,3],"pieces":[]}}})",
                           R"({"format":1,"tensors":{"w":{"shape":["a"],"pieces":[]}}})",
                           R"({"format":1,"tensors":{"w":{"shape":[1],"pieces":[{}]}}})",
                           R"({"format":1,"tensors":{"w":{"shape":[1],"pieces":
                             [{"box":[0,1],"entry":"e"}]}}})"}) {
    const auto read = ShardManifest::from_json(text);
    ASSERT_FALSE(read.has_value()) << text;
    EXPECT_EQ(read.error().code, ErrorCode::kCorrupt) << text;
  }
  EXPECT_EQ(ShardManifest::from_json(R"({"format":2,"tensors":{}})").error().code,
            ErrorCode::kUnsupported);
}

/// Worlds of two devices whose policy and critic are cut in one of several ways.
class ShardedWorld : public ::testing::Test {
 protected:
  void SetUp() override {
    std::int64_t vocabulary = 0;
    ASSERT_NO_FATAL_FAILURE(testing::make_tokenizer(folder_.path(), tokenizer_, vocabulary));
    model_ = testing::tiny_model(vocabulary);
  }

  std::unique_ptr<GroupWorld> make_world(Sharding sharding, std::uint64_t seed) {
    weights_.push_back(std::make_unique<WeightSet>(random_weights(model_, seed)));
    WorldOptions options;
    options.devices = 2;
    options.policy.model = model_;
    options.policy.weights = weights_.back()->tensors();
    options.policy.engine.micro_batch_tokens_max = 256;
    options.policy.engine.parallel.sharding = sharding;
    options.policy.plan.rows = 64;
    options.policy_update.loss = "vanilla";
    options.rollout.kv_bytes_max = mebibytes(1);
    auto world =
        GroupWorld::create(make_local_place(system_, options, *tokenizer_, rules_), options);
    if (!world) throw std::runtime_error(world.error().to_string());
    return std::move(*world);
  }

  static runtime::task<void> save(GroupWorld& world, runtime::CheckpointWriter& writer) {
    co_await world.save(writer);
  }
  static runtime::task<void> load(GroupWorld& world, const runtime::Checkpoint& checkpoint) {
    co_await world.load(checkpoint);
  }

  runtime::Checkpoint saved(GroupWorld& world) {
    auto writer =
        value_or_throw(runtime::CheckpointWriter::begin({.root = folder_.path(), .step = ++step_}));
    runtime::Executor executor;
    value_or_throw(executor.run(save(world, writer)));
    return value_or_throw(runtime::Checkpoint::open(value_or_throw(writer.commit())));
  }

  testing::TemporaryFolder folder_;
  std::optional<Tokenizer> tokenizer_;
  ModelConfig model_;
  std::vector<std::unique_ptr<WeightSet>> weights_;
  RewardRegistry rules_ = default_rewards();
  runtime::ActorSystem system_;
  std::int64_t step_ = 0;
};

TEST_F(ShardedWorld, SavesOnOneCutAndLoadsOnAnother) {
  const auto first = make_world(Sharding::kFsdp, 1);
  const runtime::Checkpoint checkpoint = saved(*first);
  EXPECT_TRUE(checkpoint.index().states.contains("actor.shards"));
  std::uint64_t seed = 2;
  for (const Sharding sharding : {Sharding::kNone, Sharding::kZero1, Sharding::kFsdp}) {
    const auto second = make_world(sharding, seed++);
    runtime::Executor executor;
    value_or_throw(executor.run(load(*second, checkpoint)));
    const runtime::Checkpoint again = saved(*second);
    EXPECT_EQ(again.index().states.contains("actor.shards"), sharding != Sharding::kNone);
    const WeightSet weights =
        value_or_throw(read_weights(again, "actor", expected_tensors(model_)));
    for (const NamedTensor& tensor : weights.tensors())
      EXPECT_TRUE(std::ranges::equal(tensor.data, weights_[0]->find(tensor.name)->data))
          << tensor.name;
  }
}

}  // namespace
}  // namespace troupe::actors
