// The weight target of publications: boxes in any cut and order give the bits of `load_weights`,
// each number is written exactly once, what serves is never torn, memory stays where it is, and
// nothing computed under an old version is used after a commit unless it was asked for.

#include "actors/rollout/weight_store.hpp"
#include "reshard/rosters.hpp"
#include "tests/actors/rollout/ranks/tp_case.hpp"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>

namespace troupe::actors {
namespace {

using reshard::Box;

/// One write of an update.
struct Cell {
  const WeightSlot* slot = nullptr;
  Box box;
};

/// Cuts `box` by random rows and columns until pieces are small or luck ends.
void cut_at_random(Rng& rng, const WeightSlot& slot, const Box& box, std::vector<Cell>& cells) {
  const bool by_rows = rng.below(2) == 0;
  const std::int64_t length = by_rows ? box.rows() : box.cols();
  if (length < 2 || rng.below(5) == 0) {
    cells.push_back({&slot, box});
    return;
  }
  const auto at = 1 + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(length - 1)));
  Box low = box;
  Box high = box;
  if (by_rows)
    low.row_end = high.row_begin = box.row_begin + at;
  else
    low.col_end = high.col_begin = box.col_begin + at;
  cut_at_random(rng, slot, low, cells);
  cut_at_random(rng, slot, high, cells);
}

std::vector<Cell> random_cells(Rng& rng, const std::vector<WeightSlot>& slots) {
  std::vector<Cell> cells;
  for (const WeightSlot& slot : slots)
    if (!slot.held.empty()) cut_at_random(rng, slot, slot.held, cells);
  const auto order = rng.permutation(static_cast<std::int64_t>(cells.size()));
  std::vector<Cell> shuffled;
  for (const std::int64_t i : order) shuffled.push_back(cells[static_cast<std::size_t>(i)]);
  return shuffled;
}

std::vector<Cell> whole_cells(const std::vector<WeightSlot>& slots) {
  std::vector<Cell> cells;
  for (const WeightSlot& slot : slots)
    if (!slot.held.empty()) cells.push_back({&slot, slot.held});
  return cells;
}

/// Writes a cell to an engine or a store: out of the whole tensor, or out of a copy of its own.
template <class Target>
result<void> write_cell(Target& target, const WeightSet& weights, const Cell& cell, bool compact) {
  const float* whole = weights.find(cell.slot->name)->data.data();
  const std::int64_t cols = cell.slot->cols;
  const float* first = whole + cell.box.row_begin * cols + cell.box.col_begin;
  if (!compact) return target.write(cell.slot->name, cell.box, first, cols);
  std::vector<float> copy;
  for (std::int64_t row = 0; row < cell.box.rows(); ++row)
    copy.insert(copy.end(), first + row * cols, first + row * cols + cell.box.cols());
  return target.write(cell.slot->name, cell.box, copy.data(), cell.box.cols());
}

template <class Target>
void write_all(Target& target, const WeightSet& weights, const std::vector<Cell>& cells) {
  for (const Cell& cell : cells) {
    const auto written = write_cell(target, weights, cell, cell.box.row_begin % 2 == 0);
    ASSERT_TRUE(written.has_value()) << written.error().to_string();
  }
}

void expect_same_arrays(const PackedWeights& a, const PackedWeights& b, const std::string& place) {
  const auto left = a.arrays();
  const auto right = b.arrays();
  ASSERT_EQ(left.size(), right.size()) << place;
  for (std::size_t i = 0; i < left.size(); ++i) {
    ASSERT_EQ(left[i].size(), right[i].size()) << place << ", array " << i;
    if (left[i].empty()) continue;
    EXPECT_EQ(std::memcmp(left[i].data(), right[i].data(), left[i].size_bytes()), 0)
        << place << ", array " << i;
  }
}

GenerateRequest short_request(std::uint64_t id = 1, std::int32_t tokens = 12) {
  GenerateRequest request;
  request.prompt_id = id;
  request.prompt = {5, 9, 14, 3, 2};
  request.sampling.max_new_tokens = tokens;
  return request;
}

TEST(WeightUpdate, AnyCutAndOrderOfBoxesGivesTheBitsOfWholeTensors) {
  constexpr std::uint64_t kSeed = 20;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  Rng rng(kSeed);
  for (const TpModel& model : tp_models()) {
    const WeightSet weights = weights_for(model.config, 4);
    std::vector<int> sizes = model.sizes;
    sizes.insert(sizes.begin(), 1);
    for (const int size : sizes)
      for (int rank = 0; rank < size; ++rank) {
        const std::string place = fmt::format("{}, rank {} of {}", model.name, rank, size);
        const ModelShare share = share_of(model.config, rank, size).value();
        WeightStore store(model.config, share, WeightMemory::kDoubleBuffered);
        ASSERT_TRUE(store.begin(WeightVersion{1}));
        write_all(store, weights, whole_cells(store.slots()));
        ASSERT_TRUE(store.check_complete());
        store.commit();
        const PackedWeights* whole = store.active();
        ASSERT_TRUE(store.begin(WeightVersion{2}));
        write_all(store, weights, random_cells(rng, store.slots()));
        ASSERT_TRUE(store.check_complete()) << place;
        store.commit();
        EXPECT_NE(store.active(), whole);
        expect_same_arrays(*store.active(), *whole, place);
        if (size > 1) continue;
        const auto packed = PackedWeights::pack(model.config, weights.tensors());
        expect_same_arrays(*whole, *packed, place + ": load_weights");
      }
  }
}

std::vector<std::pair<std::int32_t, Box>> boxes_of(const reshard::RankLayout& layout) {
  std::vector<std::pair<std::int32_t, Box>> found;
  for (const reshard::Segment& segment : layout.segments)
    found.emplace_back(segment.tensor, segment.box);
  std::ranges::sort(found);
  return found;
}

ModelConfig random_config(Rng& rng) {
  const auto pick = [&](std::int64_t below) {
    return 1 + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(below)));
  };
  ModelConfig config = tiny_config();
  config.kv_head_count = pick(8);
  config.head_count = config.kv_head_count * pick(4);
  config.head_dim = 2 * pick(4);
  config.hidden_size = pick(20);
  config.intermediate_size = pick(60);
  config.vocab_size = pick(400);
  config.layer_count = pick(2);
  config.tie_embeddings = rng.below(2) == 0;
  config.qkv_bias = rng.below(2) == 0;
  config.o_bias = config.mlp_bias = rng.below(2) == 0;
  config.qk_norm = rng.below(2) == 0;
  return config;
}

TEST(WeightUpdate, DeclaresTheBoxesOfTheRolloutLayout) {
  constexpr std::uint64_t kSeed = 77;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  Rng rng(kSeed);
  int accepted = 0;
  for (int round = 0; round < 600; ++round) {
    const ModelConfig config = random_config(rng);
    const auto size = static_cast<std::int64_t>(1 + rng.below(8));
    const std::string place = fmt::format("round {}: {} ranks, heads {}/{}, mlp {}, vocabulary {}",
                                          round, size, config.head_count, config.kv_head_count,
                                          config.intermediate_size, config.vocab_size);
    const reshard::ModelShape shape = shape_of(config);
    const auto roster =
        reshard::rollout_roster(shape, {.tp = size, .vocab_multiple = vocab_multiple(size)});
    const auto first = share_of(config, 0, size);
    // The engine wants at least one mlp column per rank.
    ASSERT_EQ(first.has_value(), roster.has_value() && config.intermediate_size >= size) << place;
    if (!first) continue;
    ++accepted;
    reshard::Roster declared{.tensors = reshard::canonical_tensors(shape), .ranks = {}};
    for (std::int64_t rank = 0; rank < size; ++rank) {
      const ModelShare share = share_of(config, rank, size).value();
      const auto slots = weight_slots(config, share);
      ASSERT_EQ(slots.size(), declared.tensors.size()) << place;
      for (std::size_t i = 0; i < slots.size(); ++i)
        ASSERT_EQ(slots[i].name, declared.tensors[i].name) << place;
      declared.ranks.push_back(layout_of(slots, share));
      ASSERT_EQ(boxes_of(declared.ranks.back()),
                boxes_of(roster->ranks[static_cast<std::size_t>(rank)]))
          << place << ", rank " << rank;
    }
    EXPECT_TRUE(reshard::validate(declared, reshard::Side::kTarget)) << place;
  }
  EXPECT_GT(accepted, 100);
}

class Target : public ::testing::Test {
 protected:
  ModelConfig config_ = tiny_config();
  WeightSet old_ = weights_for(config_, 1);
  WeightSet fresh_ = weights_for(config_, 2);
  std::vector<WeightSlot> slots_ = weight_slots(config_, whole_model(config_));
  std::vector<Cell> cells_ = whole_cells(slots_);

  std::vector<GeneratedSequence> plain(const WeightSet& weights,
                                       const std::vector<GenerateRequest>& requests) {
    return generate_all(*engine_for(config_, weights), requests);
  }
};

TEST_F(Target, NamesTensorAndBoxOfWrongWrites) {
  auto engine = engine_for(config_, old_);
  const std::vector<float> data(10'000, 1.0f);
  const auto write = [&](std::string_view name, Box box, std::int64_t stride = 40) {
    return engine->write(name, box, data.data(), stride);
  };
  const std::string_view down = "model.layers.1.mlp.down_proj.weight";  // [40, 52]
  expect_error(write(down, {0, 1, 0, 40}), ErrorCode::kConflict, {down.data(), "outside of an"});
  expect_error(engine->commit_update(), ErrorCode::kConflict, {"without an open update"});
  ASSERT_TRUE(engine->begin_update(WeightVersion{2}));
  expect_error(engine->begin_update(WeightVersion{3}), ErrorCode::kConflict,
               {"version 3", "to version 2 is open"});
  expect_error(write("model.layers.2.mlp.down_proj.weight", {0, 1, 0, 40}), ErrorCode::kNotFound,
               {"model.layers.2.mlp.down_proj.weight", "no such tensor"});
  expect_error(write("lm_head.weight", {0, 1, 0, 40}), ErrorCode::kNotFound,
               {"its head is model.embed_tokens.weight"});
  expect_error(write(down, {0, 41, 0, 52}, 52), ErrorCode::kInvalidArgument,
               {down.data(), "[0, 41) x [0, 52)", "holds [0, 40) x [0, 52)"});
  expect_error(write(down, {3, 3, 0, 52}, 52), ErrorCode::kInvalidArgument, {"[3, 3)"});
  expect_error(write(down, {0, 2, 0, 52}, 51), ErrorCode::kInvalidArgument, {"stride 51"});
  ASSERT_TRUE(write(down, {3, 9, 10, 30}, 20));
  expect_error(write(down, {8, 20, 29, 52}, 52), ErrorCode::kConflict,
               {down.data(), "[8, 20) x [29, 52)", "[8, 9) x [29, 30) was written before"});
  ASSERT_TRUE(write(down, {9, 20, 29, 52}, 52)) << "what was refused wrote nothing";
  expect_error(engine->commit_update(), ErrorCode::kConflict,
               {"version 2", "model.embed_tokens.weight", "2440 of 2440", "[0, 1) x [0, 1)"});
  for (const Cell& cell : cells_)
    if (cell.slot->name != down) {
      ASSERT_TRUE(write_cell(*engine, fresh_, cell, false));
    }
  expect_error(engine->commit_update(), ErrorCode::kConflict,
               {down.data(), fmt::format("{} of 2080", 2080 - 120 - 11 * 23), "[0, 1) x [0, 1)"});
  EXPECT_EQ(engine->version(), WeightVersion{1});
}

TEST_F(Target, ServesTheOldVersionUntilTheCommit) {
  const std::vector<GenerateRequest> requests = {short_request(1), short_request(2)};
  const auto before = plain(old_, requests);
  const auto after = plain(fresh_, requests);
  auto engine = engine_for(config_, old_);
  ASSERT_TRUE(engine->begin_update(WeightVersion{2}));
  write_all(*engine, fresh_, {cells_.begin(), cells_.begin() + 10});
  expect_identical(generate_all(*engine, requests), before, "half written");
  engine->abort_update();
  expect_identical(generate_all(*engine, requests), before, "aborted");
  ASSERT_TRUE(engine->begin_update(WeightVersion{3}));
  write_all(*engine, fresh_, cells_);
  expect_identical(generate_all(*engine, requests), before, "written, not committed");
  ASSERT_TRUE(engine->commit_update());
  EXPECT_EQ(engine->version(), WeightVersion{3});
  const auto out = generate_all(*engine, requests);
  expect_identical(out, after, "committed");
  EXPECT_EQ(out[0].versions[0], WeightVersion{3});
}

TEST_F(Target, MayBeWrittenByAnotherThreadWhileTheEngineSteps) {
  const std::vector<GenerateRequest> requests = {short_request(1, 100), short_request(2, 100)};
  const auto before = plain(old_, requests);
  auto engine = engine_for(config_, old_);
  ASSERT_TRUE(engine->begin_update(WeightVersion{2}));
  std::thread writer([&] { write_all(*engine, fresh_, cells_); });
  expect_identical(generate_all(*engine, requests), before, "meanwhile");
  writer.join();
  ASSERT_TRUE(engine->commit_update());
  expect_identical(generate_all(*engine, requests), plain(fresh_, requests), "afterwards");
}

TEST_F(Target, KeepsBothSetsInPlaceOver100Publications) {
  WeightStore store(config_, whole_model(config_), WeightMemory::kDoubleBuffered);
  std::vector<std::vector<std::span<const float>>> seen;
  Rng rng(8);
  for (int i = 0; i < 100; ++i) {
    const WeightSet& weights = i % 2 == 0 ? old_ : fresh_;
    ASSERT_TRUE(store.begin(WeightVersion{i}));
    write_all(store, weights, random_cells(rng, store.slots()));
    if (i % 7 == 3) {
      store.abort();
      ASSERT_TRUE(store.begin(WeightVersion{i}));
      write_all(store, weights, cells_);
    }
    ASSERT_TRUE(store.check_complete());
    store.commit();
    const auto arrays = store.active()->arrays();
    if (seen.size() < 2) {
      seen.push_back(arrays);
      continue;
    }
    const auto& first = seen[static_cast<std::size_t>(i % 2)];
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      ASSERT_EQ(arrays[a].data(), first[a].data()) << "publication " << i << ", array " << a;
      ASSERT_EQ(arrays[a].size(), first[a].size());
    }
    ASSERT_EQ(store.bytes().value, 2 * store.active()->bytes().value);
  }
}

/// Bytes that this process has allocated and not freed; 0 where a sanitizer replaces malloc.
std::size_t allocated_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST_F(Target, AllocatesNothingThatStaysOver100Publications) {
  for (const WeightMemory memory : {WeightMemory::kDoubleBuffered, WeightMemory::kInPlace}) {
    auto engine = engine_for(config_, old_, {.kv_blocks = 40, .weight_memory = memory});
    const std::vector<std::int32_t> prompt = {1, 2, 3};
    std::size_t settled = 0;
    CanaryAnswer first;
    for (std::int64_t i = 0; i < 100; ++i) {
      const WeightSet& weights = i % 2 == 0 ? fresh_ : old_;
      ASSERT_TRUE(engine->begin_update(WeightVersion{i}));
      for (const Cell& cell : cells_) ASSERT_TRUE(write_cell(*engine, weights, cell, false));
      ASSERT_TRUE(engine->sleep(SleepLevel::kKv));
      ASSERT_TRUE(engine->commit_update());
      const CanaryAnswer answer = engine->canary(prompt, 5).value();
      ASSERT_TRUE(engine->wake(MemoryTag::kKv));
      if (i == 4) {
        settled = allocated_bytes();
        first = answer;
      }
      if (i < 4) continue;
      ASSERT_EQ(allocated_bytes(), settled) << "publication " << i;
      ASSERT_EQ(answer.tokens == first.tokens, i % 2 == 0) << "publication " << i;
    }
  }
}

TEST_F(Target, InPlaceServesNothingTornAndHalvesTheMemory) {
  EngineOptions options;
  options.weight_memory = WeightMemory::kInPlace;
  auto engine = engine_for(config_, old_, options);
  const Bytes once = engine->weight_bytes();
  const std::vector<GenerateRequest> requests = {short_request(1)};
  const auto before = plain(old_, requests);
  ASSERT_TRUE(engine->begin_update(WeightVersion{2}));
  expect_identical(generate_all(*engine, requests), before, "nothing written yet");
  ASSERT_TRUE(write_cell(*engine, fresh_, cells_[0], false));
  const std::vector<std::string> torn = {"torn", "version 1", "update to 2"};
  EXPECT_FALSE(engine->has_weights());
  expect_error(engine->generate(requests), ErrorCode::kConflict, torn);
  expect_error(engine->canary(requests[0].prompt, 2), ErrorCode::kConflict, torn);
  engine->release_kv();
  expect_error(engine->wake(MemoryTag::kKv), ErrorCode::kConflict, torn);
  engine->abort_update();
  expect_error(engine->generate(requests), ErrorCode::kConflict, torn);
  ASSERT_TRUE(engine->begin_update(WeightVersion{4}));
  write_all(*engine, fresh_, cells_);
  ASSERT_TRUE(engine->commit_update());
  ASSERT_TRUE(engine->wake(MemoryTag::kKv));
  expect_identical(generate_all(*engine, requests), plain(fresh_, requests), "whole again");
  ASSERT_TRUE(engine->load_weights(old_.tensors(), WeightVersion{5}));
  expect_identical(generate_all(*engine, requests), before, "loaded over it");
  EXPECT_EQ(engine->weight_bytes(), once);
}

TEST_F(Target, InPlaceDrainsBeforeTheFirstWriteOrNotAtAll) {
  EngineOptions options;
  options.weight_memory = WeightMemory::kInPlace;
  const std::vector<GenerateRequest> requests = {short_request(1, 30)};
  auto engine = engine_for(config_, old_, options);
  ASSERT_TRUE(engine->submit(requests[0]));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine->step());
  ASSERT_TRUE(engine->load_weights(fresh_.tensors(), WeightVersion{2}));
  auto out = engine->take_finished();
  ASSERT_EQ(out.size(), 1u);
  expect_identical(out, plain(old_, requests), "drained by load_weights");
  ASSERT_TRUE(engine->submit(requests[0]));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine->step());
  ASSERT_TRUE(engine->begin_update(WeightVersion{3}));
  write_all(*engine, old_, cells_);
  expect_error(engine->commit_update(WeightUpdate::kDrain), ErrorCode::kConflict,
               {"version 2", "cannot drain"});
  ASSERT_TRUE(engine->commit_update(WeightUpdate::kRecompute)) << "the update was kept";
  while (engine->unfinished() > 0) ASSERT_TRUE(engine->step());
  out = engine->take_finished();
  EXPECT_EQ(out[0].versions[3], WeightVersion{2});
  EXPECT_EQ(out[0].versions[4], WeightVersion{3});
}

TEST_F(Target, WakesInOrderAndSaysWhatIsMissing) {
  const std::vector<GenerateRequest> requests = {short_request(1)};
  auto engine = engine_for(config_, old_);
  const auto before = plain(old_, requests);
  ASSERT_TRUE(engine->sleep(SleepLevel::kKv));
  EXPECT_TRUE(engine->has_weights());
  EXPECT_EQ(engine->kv_bytes(), Bytes{0});
  EXPECT_TRUE(engine->canary(requests[0].prompt, 3)) << "needs no KV cache but its own";
  ASSERT_TRUE(engine->wake(MemoryTag::kKv));
  expect_identical(generate_all(*engine, requests), before, "level 1");

  ASSERT_TRUE(engine->begin_update(WeightVersion{2}));
  expect_error(engine->sleep(SleepLevel::kWeightsAndKv), ErrorCode::kConflict,
               {"update to version 2 is open"});
  engine->abort_update();
  ASSERT_TRUE(engine->sleep(SleepLevel::kWeightsAndKv));
  EXPECT_EQ(engine->weight_bytes(), Bytes{0});
  EXPECT_EQ(engine->kv_bytes(), Bytes{0});
  const std::vector<std::string> asleep = {"weights sleep", "wake them"};
  expect_error(engine->wake(MemoryTag::kKv), ErrorCode::kConflict, asleep);
  expect_error(engine->begin_update(WeightVersion{2}), ErrorCode::kConflict, asleep);
  expect_error(engine->load_weights(fresh_.tensors(), WeightVersion{2}), ErrorCode::kConflict,
               asleep);
  expect_error(engine->step(), ErrorCode::kConflict, asleep);
  ASSERT_TRUE(engine->wake(MemoryTag::kWeights));
  EXPECT_GT(engine->weight_bytes(), Bytes{0});
  expect_error(engine->wake(MemoryTag::kKv), ErrorCode::kConflict, {"were updated"});
  expect_error(engine->step(), ErrorCode::kConflict, {"were updated"});
  ASSERT_TRUE(engine->begin_update(WeightVersion{2}));
  write_all(*engine, fresh_, cells_);
  expect_error(engine->wake(MemoryTag::kKv), ErrorCode::kConflict, {"were updated"});
  ASSERT_TRUE(engine->commit_update());
  EXPECT_TRUE(engine->canary(requests[0].prompt, 3));
  expect_error(engine->step(), ErrorCode::kConflict, {"KV cache is released"});
  ASSERT_TRUE(engine->wake(MemoryTag::kKv));
  expect_identical(generate_all(*engine, requests), plain(fresh_, requests), "level 2");
}

TEST_F(Target, SequencesUnderWaySleepAndGoOn) {
  const std::vector<GenerateRequest> requests = {short_request(1, 40), short_request(2, 40)};
  auto engine = engine_for(config_, old_);
  for (const GenerateRequest& request : requests) ASSERT_TRUE(engine->submit(request));
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(engine->step());
  ASSERT_TRUE(engine->sleep(SleepLevel::kWeightsAndKv));
  ASSERT_TRUE(engine->wake(MemoryTag::kWeights));
  ASSERT_TRUE(engine->load_weights(old_.tensors(), WeightVersion{1}, WeightUpdate::kRecompute));
  ASSERT_TRUE(engine->wake(MemoryTag::kKv));
  while (engine->unfinished() > 0) ASSERT_TRUE(engine->step());
  auto out = engine->take_finished();
  std::ranges::sort(out, {}, &GeneratedSequence::id);
  expect_identical(out, plain(old_, requests), "slept");
}

/// A group whose trunk was prefilled under the old weights while members still wait to fork.
TEST_F(Target, NoForkReadsAPrefixOfTheOldVersion) {
  GenerateRequest request = short_request(3, 10);
  request.sample_indices = {0, 1, 2, 3, 4, 5};
  request.prompt.assign(40, 7);
  const auto of_old = plain(old_, {request});
  const auto of_fresh = plain(fresh_, {request});
  for (const WeightUpdate mode :
       {WeightUpdate::kDrain, WeightUpdate::kRecompute, WeightUpdate::kKeepKv}) {
    auto engine = engine_for(config_, old_, {.max_num_seqs = 2});
    ASSERT_TRUE(engine->submit(request));
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine->step());
    ASSERT_TRUE(engine->begin_update(WeightVersion{2}));
    write_all(*engine, fresh_, cells_);
    ASSERT_TRUE(engine->commit_update(mode));
    while (engine->unfinished() > 0) ASSERT_TRUE(engine->step());
    auto out = engine->take_finished();
    std::ranges::sort(out, {}, &GeneratedSequence::id);
    ASSERT_EQ(out.size(), 6u);
    // The trunk's logits were sampled for all members at once, under the old version.
    for (const GeneratedSequence& s : out) EXPECT_EQ(s.versions[0], WeightVersion{1});
    if (mode == WeightUpdate::kDrain) {
      expect_identical(out, of_old, "drained: also members that had not forked");
      continue;
    }
    // A member that had one token only goes on as if that were its prefix.
    auto fresh_engine = engine_for(config_, fresh_);
    GenerateRequest resumed = request;
    resumed.sample_indices = {5};
    resumed.prefixes = {{{of_old[5].tokens[0]},
                         {of_old[5].log_probs[0]},
                         {of_old[5].full_log_probs[0]},
                         {WeightVersion{1}}}};
    const auto wanted = generate_all(*fresh_engine, {resumed})[0];
    if (mode == WeightUpdate::kRecompute)
      expect_identical(out[5], wanted, "recomputed");
    else
      EXPECT_NE(bits_of(out[5].log_probs), bits_of(wanted.log_probs)) << "kept, as asked for";
  }
}

TEST_F(Target, CanaryAnswersLikeAGreedyRequestAndLeavesNoTrace) {
  const std::vector<std::int32_t> prompt = {4, 8, 15, 16, 23, 42, 7, 7, 7,
                                            1, 2, 3,  4,  5,  6,  7, 8, 9};
  GenerateRequest greedy = short_request(1, 20);
  greedy.prompt = prompt;
  greedy.sampling.temperature = 0.0;
  const auto wanted = plain(old_, {greedy})[0];
  // Blocks are short: a canary that took some would change preemptions.
  const EngineOptions options{.max_num_seqs = 4, .max_num_batched_tokens = 5, .kv_blocks = 9};
  Rng rng(3);
  const auto requests = random_requests(rng, 8, config_.vocab_size);
  const auto run = [&](bool with_canary) {
    auto engine = engine_for(config_, old_, options);
    for (const GenerateRequest& request : requests) EXPECT_TRUE(engine->submit(request));
    while (engine->unfinished() > 0) {
      if (with_canary) {
        const auto answer = engine->canary(prompt, 20);
        EXPECT_TRUE(answer.has_value());
        EXPECT_EQ(answer->tokens, wanted.tokens);
        EXPECT_EQ(bits_of(answer->log_probs), bits_of(wanted.log_probs));
        EXPECT_EQ(answer->version, WeightVersion{1});
      }
      EXPECT_TRUE(engine->step());
    }
    return std::make_pair(engine->take_finished(), engine->stats());
  };
  const auto [plain_out, plain_stats] = run(false);
  const auto [canary_out, canary_stats] = run(true);
  expect_identical(canary_out, plain_out, "with canaries");
  EXPECT_GT(plain_stats.preemptions, 0);
  EXPECT_EQ(canary_stats.preemptions, plain_stats.preemptions);
  EXPECT_EQ(canary_stats.steps, plain_stats.steps);
  EXPECT_EQ(canary_stats.tokens_generated, plain_stats.tokens_generated);
  auto engine = engine_for(config_, old_);
  expect_error(engine->canary({}, 3), ErrorCode::kInvalidArgument, {"0 prompt tokens"});
  expect_error(engine->canary(prompt, 0), ErrorCode::kInvalidArgument, {"0 new ones"});
  expect_error(engine->canary(prompt, 143), ErrorCode::kInvalidArgument, {"161 tokens", "160"});
  const std::vector<std::int32_t> wrong = {1, 61};
  expect_error(engine->canary(wrong, 1), ErrorCode::kInvalidArgument, {"token 1 is 61"});
}

TEST(WeightUpdate, CommitsOnAllRanksOrOnNone) {
  const ModelConfig config = switched_config(ModelFamily::kQwen2);
  const WeightSet old_weights = weights_for(config, 1);
  const WeightSet fresh = weights_for(config, 2);
  const std::vector<GenerateRequest> requests = {short_request(1), short_request(2)};
  const auto after = generate_on_ranks(2, config, fresh, requests)[0];
  on_ranks(2, [&](runtime::Collective& tp) {
    auto engine = rank_engine(config, old_weights, tp);
    const auto before = generate_all(*engine, requests);
    const auto slots = weight_slots(config, share_of(config, tp.rank(), 2).value());
    Rng rng(static_cast<std::uint64_t>(tp.rank()));
    std::vector<Cell> cells = random_cells(rng, slots);
    const Cell last = cells.back();
    cells.pop_back();
    ASSERT_TRUE(engine->begin_update(WeightVersion{2}));
    write_all(*engine, fresh, cells);
    if (tp.rank() == 0) {
      ASSERT_TRUE(write_cell(*engine, fresh, last, false));
    }
    const auto refused = engine->commit_update();
    if (tp.rank() == 0)
      expect_error(refused, ErrorCode::kAborted, {"commit", "rank 1 refused", "missing"});
    else
      expect_error(refused, ErrorCode::kConflict, {last.slot->name, "missing"});
    expect_identical(generate_all(*engine, requests), before, "none");
    if (tp.rank() == 1) {
      ASSERT_TRUE(write_cell(*engine, fresh, last, false));
    }
    ASSERT_TRUE(engine->commit_update());
    expect_identical(generate_all(*engine, requests), after, "all");
  });
}

TEST(WeightUpdate, DrainsAndRecomputesOverRanksAsOneRankDoes) {
  const ModelConfig config = tiny_config();
  const WeightSet old_weights = weights_for(config, 1);
  const WeightSet fresh = weights_for(config, 2);
  const auto run = [&](runtime::Collective* tp, WeightUpdate mode) {
    auto engine =
        RolloutEngine::create(config, patient({.max_num_seqs = 3, .max_num_batched_tokens = 8}), tp)
            .value();
    EXPECT_TRUE(engine->load_weights(old_weights.tensors(), WeightVersion{1}));
    for (std::uint64_t id = 0; id < 6; ++id) EXPECT_TRUE(engine->submit(short_request(id, 20)));
    for (int i = 0; i < 6; ++i) EXPECT_TRUE(engine->step());
    EXPECT_TRUE(engine->load_weights(fresh.tensors(), WeightVersion{2}, mode));
    while (engine->unfinished() > 0) EXPECT_TRUE(engine->step());
    return engine->take_finished();
  };
  for (const WeightUpdate mode :
       {WeightUpdate::kDrain, WeightUpdate::kRecompute, WeightUpdate::kKeepKv}) {
    const auto wanted = run(nullptr, mode);
    on_ranks(2, [&](runtime::Collective& tp) {
      const auto out = run(&tp, mode);
      ASSERT_EQ(out.size(), wanted.size());
      for (std::size_t i = 0; i < out.size(); ++i) {
        expect_close(out[i], wanted[i], 1e-5, fmt::format("sequence {}", i));
        EXPECT_EQ(out[i].versions, wanted[i].versions);
      }
    });
  }
}

}  // namespace
}  // namespace troupe::actors
