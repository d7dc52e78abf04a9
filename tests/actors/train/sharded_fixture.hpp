#pragma once

// Meshes of a sharded train engine, and engines of all their ranks on threads.
//
// **Threads:** `run_mesh` makes and joins its own.

#include "actors/train/sharded_state.hpp"
#include "actors/train/train_groups.hpp"
#include "tests/actors/train/engine_fixture.hpp"

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

namespace troupe::testing {

/// A mesh of `ranks` ranks; one rank without any cut is the reference.
struct ShardMesh {
  int ranks = 1;
  actors::ParallelOptions cut = {};

  std::string text() const {
    static constexpr const char* kNames[] = {"none", "zero1", "fsdp"};
    return fmt::format("{} ranks, tp {}, pp {}×{}, {} over {}", ranks, cut.tp, cut.pp,
                       cut.virtual_stages, kNames[static_cast<int>(cut.sharding)], cut.shard_ranks);
  }
};

inline ShardMesh zero1(int ranks, int shard_ranks = 0, int tp = 1, int pp = 1) {
  return {ranks,
          {.tp = tp, .pp = pp, .sharding = actors::Sharding::kZero1, .shard_ranks = shard_ranks}};
}
inline ShardMesh fsdp(int ranks, int shard_ranks = 0, int tp = 1, int pp = 1) {
  return {ranks,
          {.tp = tp, .pp = pp, .sharding = actors::Sharding::kFsdp, .shard_ranks = shard_ranks}};
}

/// A piece with numbers of its own.
struct OwnedPiece {
  actors::StatePiece piece;
  std::vector<float> values;
};

inline std::vector<OwnedPiece> owned(std::span<const actors::StatePiece> pieces) {
  std::vector<OwnedPiece> out;
  for (const actors::StatePiece& piece : pieces)
    out.push_back({piece, {piece.data.begin(), piece.data.end()}});
  return out;
}

/// Views of all of them; the owner stays where it is.
inline std::vector<actors::StatePiece> views(const std::vector<std::vector<OwnedPiece>>& ranks) {
  std::vector<actors::StatePiece> out;
  for (const auto& rank : ranks)
    for (const OwnedPiece& owned : rank) {
      out.push_back(owned.piece);
      out.back().data = owned.values;
    }
  return out;
}

/// Every tensor whole, by name. Throws unless the pieces cover each exactly once.
inline std::map<std::string, std::vector<float>> assemble_state(
    std::span<const actors::StatePiece> pieces) {
  std::map<std::string, std::vector<float>> out;
  std::vector<actors::StateTarget> targets;
  for (const actors::StatePiece& piece : pieces) {
    const reshard::Box whole = actors::whole_box(piece.whole);
    const auto [place, fresh] = out.try_emplace(piece.name);
    if (!fresh) continue;
    place->second.resize(static_cast<std::size_t>(whole.elements()));
    targets.push_back({{piece.name, piece.whole, whole, place->second}, place->second});
  }
  const auto done = actors::fill_pieces(targets, pieces);
  if (!done) throw std::runtime_error(done.error().to_string());
  return out;
}

/// max |a − b| / max |b| over one kind of state (`weights/`, `adam_m/`, `adam_v/`).
inline double state_error(const std::map<std::string, std::vector<float>>& a,
                          const std::map<std::string, std::vector<float>>& b,
                          const std::string& prefix) {
  std::vector<double> left, right;
  for (const auto& [name, values] : a)
    if (name.starts_with(prefix)) left.insert(left.end(), values.begin(), values.end());
  for (const auto& [name, values] : b)
    if (name.starts_with(prefix)) right.insert(right.end(), values.begin(), values.end());
  return relative_error(left, right);
}

/// What the engines of a mesh are given.
struct MeshRun {
  actors::ModelConfig config;
  actors::TrainEngineOptions options = {};
  std::vector<Sample> samples = {};
};

/// `work(engine, share of its data-parallel coordinate, rank)` on every rank.
inline void run_mesh(
    const MeshRun& run, const ShardMesh& mesh,
    const std::function<void(actors::TrainEngine&, const Share&, int rank)>& work) {
  actors::TrainEngineOptions options = run.options;
  options.parallel = mesh.cut;
  on_ranks(mesh.ranks, [&](int rank, runtime::Collective& world) {
    const actors::MeshPlace place = actors::mesh_place(mesh.cut, rank, mesh.ranks);
    const auto engine = make_engine(run.config, options, &world);
    work(*engine, share_of(run.samples, place.dp, place.dp_size), rank);
  });
}

inline runtime::Metrics update_once(actors::TrainEngine& engine, const Share& share) {
  const auto checked = [](result<runtime::Metrics> done) {
    if (!done) throw std::runtime_error(done.error().to_string());
    return std::move(*done);
  };
  if (engine.options().head == actors::ModelHead::kLanguage)
    return checked(engine.update_policy(share.pack.view(), policy_update(share, "vanilla")));
  actors::ValueUpdate value;
  value.returns = share.returns;
  value.mask = share.mask;
  value.options.clip = 0;
  return checked(engine.update_value(share.pack.view(), value));
}

inline std::vector<float> outputs_of(actors::TrainEngine& engine, const Share& share) {
  if (engine.options().head == actors::ModelHead::kValue)
    return engine.values(share.pack.view()).value();
  return engine.log_probs(share.pack.view(), 0.9F).value().log_probs;
}

}  // namespace troupe::testing
