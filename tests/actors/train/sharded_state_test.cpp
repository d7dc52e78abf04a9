// Proves that a run of numbers becomes at most three boxes that hold exactly those numbers; that
// state written on any mesh loads on any other with the same bits, and goes on alike; that layouts
// say where weights lie; and that pieces which do not cover a tensor once are refused by name.
#include "reshard/layout.hpp"
#include "tests/actors/train/sharded_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace troupe::actors {
namespace {

using testing::assemble_state;
using testing::fsdp;
using ::testing::HasSubstr;
using testing::MeshRun;
using testing::OwnedPiece;
using testing::ShardMesh;
using testing::Share;
using testing::zero1;
using State = std::map<std::string, std::vector<float>>;
using Pieces = std::vector<std::vector<OwnedPiece>>;  // one entry a rank

TEST(BoxesOfARun, HoldItsNumbersAndAreAtMostThree) {
  const std::uint64_t seed = 17;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  for (int trial = 0; trial < 2000; ++trial) {
    LocalTensor tensor;
    const auto rows = 1 + static_cast<std::int64_t>(rng.below(7));
    const std::int64_t cols = trial % 4 == 0 ? 1 : 1 + static_cast<std::int64_t>(rng.below(6));
    tensor.shape = trial % 4 == 0 ? std::vector{rows} : std::vector{rows, cols};
    tensor.row_begin = static_cast<std::int64_t>(rng.below(5));
    tensor.col_begin = trial % 4 == 0 ? 0 : static_cast<std::int64_t>(rng.below(5));
    const auto begin =
        static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(rows * cols)));
    const auto count =
        static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(rows * cols - begin + 1)));
    const std::vector<RunBox> boxes = boxes_of(tensor, begin, count);
    ASSERT_LE(boxes.size(), 3U);
    std::int64_t at = begin;
    for (const RunBox& part : boxes) {
      ASSERT_EQ(part.begin, at - begin);
      for (std::int64_t r = part.box.row_begin; r < part.box.row_end; ++r)
        for (std::int64_t c = part.box.col_begin; c < part.box.col_end; ++c, ++at) {
          ASSERT_EQ(r - tensor.row_begin, at / cols);
          ASSERT_EQ(c - tensor.col_begin, at % cols);
        }
    }
    ASSERT_EQ(at, begin + count);
  }
}

std::vector<ShardMesh> all_meshes() {
  return {{},
          {2, {}},
          {2, {.tp = 2}},
          {4, {.tp = 2, .pp = 2}},
          zero1(2),
          zero1(4, 2),
          zero1(4, 0, 2),
          zero1(4, 0, 1, 2),
          fsdp(2),
          fsdp(3),
          fsdp(8),
          fsdp(4, 2),
          fsdp(4, 0, 2),
          fsdp(4, 0, 1, 2),
          fsdp(8, 0, 2, 2)};
}

MeshRun run_of(bool tied) {
  MeshRun run{.config = testing::tiny_models()[tied ? 1 : 2].config};
  run.config.intermediate_size = 38;
  run.config.kv_head_count = 2;
  run.options.optimizer.lr = 1e-2;
  run.options.optimizer.eps = 1e-3;  // see sharded_engine_test.cpp
  run.options.micro_batch_tokens_max = 64;
  Rng rng(21);
  run.samples = testing::random_samples(rng, 9, run.config.vocab_size);
  return run;
}

/// State after two steps.
Pieces written_on(const MeshRun& run, const ShardMesh& mesh, std::string& json) {
  Pieces pieces(static_cast<std::size_t>(mesh.ranks));
  testing::run_mesh(run, mesh, [&](TrainEngine& engine, const Share& share, int rank) {
    for (int step = 0; step < 2; ++step) testing::update_once(engine, share);
    pieces[static_cast<std::size_t>(rank)] = testing::owned(engine.state_pieces());
    if (rank == 0) json = engine.state_json();
  });
  return pieces;
}

struct Loaded {
  State now;   // right after loading
  State next;  // one step later
};

Loaded loaded_on(const MeshRun& run, const ShardMesh& mesh, const std::string& json,
                 const std::vector<StatePiece>& source) {
  Pieces now(static_cast<std::size_t>(mesh.ranks));
  Pieces next(now.size());
  testing::run_mesh(run, mesh, [&](TrainEngine& engine, const Share& share, int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const auto done = engine.load_pieces(json, source);
    if (!done) throw std::runtime_error(done.error().to_string());
    now[r] = testing::owned(engine.state_pieces());
    testing::update_once(engine, share);
    next[r] = testing::owned(engine.state_pieces());
  });
  return {assemble_state(testing::views(now)), assemble_state(testing::views(next))};
}

TEST(ShardedState, LoadsOnAnyOtherMeshWithTheSameBits) {
  const std::uint64_t seed = 23;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  const std::vector<ShardMesh> meshes = all_meshes();
  for (std::size_t a = 0; a < meshes.size(); ++a) {
    const MeshRun run = run_of(a % 2 == 0);
    std::string json;
    const Pieces written = written_on(run, meshes[a], json);
    const std::vector<StatePiece> source = testing::views(written);
    const State wanted = assemble_state(source);
    const Loaded one = loaded_on(run, {}, json, source);
    EXPECT_EQ(one.now, wanted);
    for (int pair = 0; pair < 3; ++pair) {
      const ShardMesh& target = meshes[rng.below(meshes.size())];
      SCOPED_TRACE(meshes[a].text() + " → " + target.text());
      const Loaded got = loaded_on(run, target, json, source);
      EXPECT_EQ(got.now, wanted);
      for (const char* kind : {"weights/", "adam_m/", "adam_v/"})
        EXPECT_LT(testing::state_error(got.next, one.next, kind), 1e-4) << kind;
    }
  }
}

TEST(ShardedState, SaysOnWhichMeshItWasWritten) {
  std::string json;
  written_on(run_of(true), fsdp(4, 2, 2), json);
  EXPECT_THAT(json, HasSubstr("\"sharding\":\"fsdp\""));
  EXPECT_THAT(json, HasSubstr("\"tp\":2"));
  EXPECT_THAT(json, HasSubstr("\"dp\":2"));
  EXPECT_THAT(json, HasSubstr("\"shard_ranks\":2"));
  written_on(run_of(true), {}, json);
  EXPECT_EQ(json.find("mesh"), std::string::npos);
}

TEST(ShardedState, LayoutsOfAllRanksAreAValidSourceOfEveryTensor) {
  for (const ShardMesh& mesh : all_meshes()) {
    SCOPED_TRACE(mesh.text());
    const MeshRun run = run_of(true);
    reshard::Roster roster;
    roster.ranks.resize(static_cast<std::size_t>(mesh.ranks));
    const WeightSet weights = testing::tiny_weights(run.config, 31);
    testing::run_mesh(run, mesh, [&](TrainEngine& engine, const Share&, int rank) {
      const std::vector<reshard::TensorInfo> tensors = engine.tensors();
      const reshard::RankLayout layout = engine.layout();
      EXPECT_EQ(layout.rank, rank);
      ASSERT_EQ(engine.buffers().size(), 1U);
      const std::span<const float> buffer = engine.buffers()[0];
      ASSERT_EQ(layout.buffer_elements[0], static_cast<std::int64_t>(buffer.size()));
      for (const reshard::Segment& segment : layout.segments) {
        const reshard::TensorInfo& info = tensors[static_cast<std::size_t>(segment.tensor)];
        const NamedTensor* const whole = weights.find(info.name);
        ASSERT_NE(whole, nullptr) << info.name;
        for (std::int64_t r = 0; r < segment.box.rows(); ++r)
          for (std::int64_t c = 0; c < segment.box.cols(); ++c)
            ASSERT_EQ(buffer[static_cast<std::size_t>(segment.offset + r * segment.row_stride + c)],
                      whole->data[static_cast<std::size_t>((segment.box.row_begin + r) * info.cols +
                                                           segment.box.col_begin + c)])
                << info.name;
      }
      roster.ranks[static_cast<std::size_t>(rank)] = layout;
      if (rank == 0) roster.tensors = tensors;
    });
    const auto valid = reshard::validate(roster, reshard::Side::kSource);
    EXPECT_TRUE(valid.has_value()) << valid.error().to_string();
  }
}

class BrokenPieces : public ::testing::Test {
 protected:
  BrokenPieces() : written_(written_on(run_, fsdp(3), json_)), pieces_(testing::views(written_)) {}

  /// Loads `pieces_` into one rank; the engine must be as before.
  Error refused() {
    const auto engine = testing::make_engine(run_.config, run_.options);
    const std::vector<float> before = testing::all_weights(*engine);
    const auto done = engine->load_pieces(json_, pieces_);
    EXPECT_FALSE(done.has_value());
    EXPECT_EQ(testing::all_weights(*engine), before);
    EXPECT_EQ(engine->optimizer_steps(), 0);
    return done ? Error{} : done.error();
  }

  MeshRun run_ = run_of(false);
  std::string json_;
  Pieces written_;
  std::vector<StatePiece> pieces_;
};

TEST_F(BrokenPieces, AreRefusedWhenOneIsMissing) {
  const StatePiece gone = pieces_[5];
  pieces_.erase(pieces_.begin() + 5);
  const Error error = refused();
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
  EXPECT_THAT(error.message, HasSubstr(gone.name));
}

TEST_F(BrokenPieces, AreRefusedWhenOneComesTwice) {
  pieces_.push_back(pieces_[7]);
  const Error error = refused();
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_THAT(error.message, HasSubstr(pieces_[7].name));
  EXPECT_THAT(error.message, HasSubstr(box_text(pieces_[7].box)));
}

TEST_F(BrokenPieces, AreRefusedWhenABoxDoesNotFit) {
  pieces_[3].box.row_end += 1000;
  Error error = refused();
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_THAT(error.message, HasSubstr("is not inside"));
  pieces_[3].box.row_end -= 1000;
  pieces_[3].data = pieces_[3].data.first(pieces_[3].data.size() - 1);
  error = refused();
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_THAT(error.message, HasSubstr(pieces_[3].name));
}

TEST_F(BrokenPieces, AreRefusedWhenTheyAreOfAnotherModel) {
  for (StatePiece& piece : pieces_) piece.whole[0] += 1;
  EXPECT_EQ(refused().code, ErrorCode::kConflict);
}

}  // namespace
}  // namespace troupe::actors
