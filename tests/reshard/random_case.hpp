#pragma once

// Random models, meshes and box partitions, small enough to be run number by number.
// **Threads:** one.

#include "reshard/rosters.hpp"
#include "runtime/base/rng.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace troupe::reshard::testing {

struct Case {
  std::string text;
  Roster source;
  Roster target;
  PlanOptions options;
};

class CaseMaker {
 public:
  explicit CaseMaker(std::uint64_t seed) : rng_(seed) {}

  /// A model, a trainer's mesh and a rollout's mesh; sometimes back, or between two trainers.
  Case model_case() {
    const ModelShape shape = random_shape();
    Case made;
    const std::int64_t direction = below(6);
    numbers_.ranks_per_node = static_cast<std::int32_t>(one_of({1, 2, 3, 4, 8}));
    const Roster train = some_train(shape, {.ranks_per_node = numbers_.ranks_per_node});
    if (direction == 0) {
      made = {.text = "train to train",
              .source = train,
              .target = some_train(shape, second(train)),
              .options = {}};
    } else {
      const bool stored_head = shape.tied && !shape.value_head && direction > 1 && below(4) == 0;
      const Roster rollout = some_rollout(shape, stored_head, second(train));
      if (direction == 1)
        made = {.text = "rollout to train", .source = rollout, .target = train, .options = {}};
      else
        made = {.text = "train to rollout", .source = train, .target = rollout, .options = {}};
      if (stored_head)
        made.options.aliases.push_back({"lm_head.weight", "model.embed_tokens.weight"});
    }
    finish(made);
    return made;
  }

  /// Tensors that both sides cut into random rectangles; whole replicas and doubled boxes too.
  Case box_case() {
    Case made{.text = "boxes", .source = {}, .target = {}, .options = {}};
    const std::int64_t tensors = 1 + below(4);
    for (std::int64_t t = 0; t < tensors; ++t)
      made.source.tensors.push_back({.name = "t" + std::to_string(t),
                                     .dtype = one_of_types(),
                                     .rows = 1 + below(9),
                                     .cols = 1 + below(9),
                                     .layer = static_cast<std::int32_t>(below(3))});
    made.target.tensors = made.source.tensors;
    rng_shuffle(made.target.tensors);
    numbers_.ranks_per_node = static_cast<std::int32_t>(1 + below(4));
    scatter_boxes(made.source, 0);
    scatter_boxes(made.target, below(2) == 0 ? 0 : static_cast<std::int32_t>(1 + below(8)));
    finish(made);
    return made;
  }

 private:
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(bound)));
  }
  std::int64_t one_of(std::initializer_list<std::int64_t> values) {
    return *(values.begin() + below(static_cast<std::int64_t>(values.size())));
  }
  DType one_of_types() {
    return static_cast<DType>(
        one_of({static_cast<std::int64_t>(DType::kF32), static_cast<std::int64_t>(DType::kBf16),
                static_cast<std::int64_t>(DType::kF64), static_cast<std::int64_t>(DType::kF8)}));
  }
  template <class T>
  void rng_shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i)
      std::swap(items[i - 1], items[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
  }

  ModelShape random_shape() {
    ModelShape shape{.vocab = 3 + below(20),
                     .hidden = 2 + below(5),
                     .intermediate = 8 * (1 + below(2)),
                     .layers = 1 + below(4),
                     .heads = 8,
                     .kv_heads = one_of({1, 2, 4, 8}),
                     .head_dim = 1 + below(3)};
    if (below(4) == 0) shape.heads = shape.kv_heads * one_of({1, 3, 7});
    shape.tied = below(2) == 0;
    shape.qkv_bias = below(2) == 0;
    shape.o_bias = below(3) == 0;
    shape.mlp_bias = below(3) == 0;
    shape.qk_norm = below(2) == 0;
    shape.value_head = below(8) == 0;
    shape.dtype = one_of_types();
    if (below(3) == 0)
      shape.expert = {.experts = one_of({4, 8}),
                      .intermediate = 8,
                      .shared_intermediate = 8 * below(2),
                      .dense_layers = below(2),
                      .router_bias = below(2) == 0};
    if (below(6) == 0)
      shape.latent = {
          .q_rank = below(2) * 3, .kv_rank = 2, .nope_dim = 2, .rope_dim = 1, .v_dim = 3};
    return shape;
  }

  /// Draws until the model admits the mesh; tp 1 always does.
  Roster some_train(const ModelShape& shape, const RankNumbers& numbers) {
    while (true) {
      TrainMesh mesh{.tp = one_of({1, 1, 2, 4, 8}),
                     .dp = 1 + below(4),
                     .pp = 1 + below(std::min<std::int64_t>(shape.layers, 3))};
      if (mesh.ranks() > 16) continue;
      mesh.style = static_cast<CutStyle>(below(3));
      mesh.vocab_multiple = below(2) == 0 ? 0 : mesh.tp * (1 + below(4));
      const bool is_virtual = mesh.pp > 1 && shape.layers >= 2 * mesh.pp && below(2) == 0;
      mesh.stages = *even_stages(shape.layers, mesh.pp, is_virtual ? 2 : 1);
      if (mesh.pp == 2 && shape.layers > 2 && below(2) == 0)
        mesh.stages = *uneven_stages(shape.layers, 2, {.first_layers = 1});
      mesh.shard = static_cast<ShardStyle>(below(3));
      mesh.flat_alignment = one_of({1, 4, 8});
      if (mesh.dp % 2 == 0 && below(2) == 0) mesh.shard_ranks = 2;
      if (mesh.shard != ShardStyle::kWhole) {
        mesh.expert_tp = mesh.tp;
      } else if (shape.expert.experts > 0) {
        mesh.ep = one_of({1, 2, 4});
        mesh.expert_tp = one_of({1, 2});
      }
      mesh.storage = {.alignment = one_of({1, 4}), .buffer_per_tensor = below(2) == 0};
      const auto roster = train_roster(shape, mesh, numbers);
      if (roster) return *roster;
    }
  }

  Roster some_rollout(const ModelShape& shape, bool stored_head, const RankNumbers& numbers) {
    while (true) {
      RolloutMesh mesh{.replicas = 1 + below(3),
                       .dp = one_of({1, 1, 2}),
                       .tp = one_of({1, 2, 4, 8}),
                       .stored_head = stored_head};
      if (mesh.ranks() > 16) continue;
      mesh.expert_parallel = below(2) == 0;
      mesh.expert_order = below(2) == 0 ? ExpertOrder::kLinear : ExpertOrder::kRoundRobin;
      mesh.vocab_multiple = below(2) == 0 ? 0 : 8;
      mesh.storage = {.alignment = one_of({1, 4}), .buffer_per_tensor = below(2) == 0};
      const auto roster = rollout_roster(shape, mesh, numbers);
      if (roster) return *roster;
    }
  }

  /// The other side begins on the same rank, on a later node, or in the middle.
  RankNumbers second(const Roster& first_side) {
    const std::int64_t nodes = first_side.ranks.back().node + 1;
    const auto node = static_cast<std::int32_t>(one_of({0, nodes, below(nodes + 1)}));
    return {.first_rank = node * numbers_.ranks_per_node,
            .first_node = node,
            .ranks_per_node = numbers_.ranks_per_node};
  }

  void cut(const Box& box, int depth, std::vector<Box>& parts) {
    if (depth == 0 || box.elements() == 1 || below(4) == 0) {
      parts.push_back(box);
      return;
    }
    Box a = box;
    Box b = box;
    if (box.cols() == 1 || (box.rows() > 1 && below(2) == 0))
      a.row_end = b.row_begin = box.row_begin + 1 + below(box.rows() - 1);
    else
      a.col_end = b.col_begin = box.col_begin + 1 + below(box.cols() - 1);
    cut(a, depth - 1, parts);
    cut(b, depth - 1, parts);
  }

  /// Each part of each tensor to one to three ranks, at strides wider than the box.
  void scatter_boxes(Roster& roster, std::int32_t first_rank) {
    const std::int64_t ranks = 1 + below(6);
    for (std::int64_t r = 0; r < ranks; ++r) {
      const auto rank = first_rank + static_cast<std::int32_t>(r);
      roster.ranks.push_back(
          {.rank = rank,
           .node = rank / numbers_.ranks_per_node,
           .segments = {},
           .buffer_elements = std::vector<std::int64_t>(roster.tensors.size(), 0)});
    }
    for (std::size_t t = 0; t < roster.tensors.size(); ++t) {
      std::vector<Box> parts;
      cut(whole(roster.tensors[t]), 4, parts);
      for (const Box& box : parts) {
        std::vector<std::size_t> order;
        for (std::size_t r = 0; r < roster.ranks.size(); ++r) order.push_back(r);
        rng_shuffle(order);
        order.resize(std::min<std::size_t>(order.size(), static_cast<std::size_t>(1 + below(3))));
        for (const std::size_t r : order) {
          std::int64_t& size = roster.ranks[r].buffer_elements[t];
          const std::int64_t stride = box.cols() + below(3);
          roster.ranks[r].segments.push_back({.tensor = static_cast<std::int32_t>(t),
                                              .box = box,
                                              .buffer = static_cast<std::int32_t>(t),
                                              .offset = size + below(2),
                                              .row_stride = stride});
          size += 1 + box.rows() * stride;
        }
      }
    }
  }

  void finish(Case& made) {
    made.options.cell_bytes_max = one_of({1, 7, 64, 1024, 1 << 20});
    made.options.relay = static_cast<RelayMode>(below(3));
    rng_shuffle(made.source.ranks);
    rng_shuffle(made.target.ranks);
    made.text +=
        fmt::format(", {} to {} ranks, {} per node, cells of {} bytes, relay {}",
                    made.source.ranks.size(), made.target.ranks.size(), numbers_.ranks_per_node,
                    made.options.cell_bytes_max, static_cast<int>(made.options.relay));
  }

  Rng rng_;
  RankNumbers numbers_;
};

}  // namespace troupe::reshard::testing
