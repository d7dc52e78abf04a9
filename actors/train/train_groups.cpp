#include "actors/train/train_groups.hpp"

namespace troupe::actors {

MeshPlace mesh_place(const ParallelOptions& parallel, int rank, int ranks) {
  MeshPlace place{.pp_size = parallel.pp, .tp_size = parallel.tp};
  place.dp_size = ranks / (parallel.pp * parallel.tp);
  place.tp = rank % place.tp_size;
  place.dp = rank / place.tp_size % place.dp_size;
  place.pp = rank / place.tp_size / place.dp_size;
  return place;
}

TrainGroups::TrainGroups(runtime::Collective* world, const ModelConfig& model,
                         const ParallelOptions& parallel, Duration timeout)
    : world_(world),
      place_(world == nullptr ? MeshPlace{} : mesh_place(parallel, world->rank(), world->size())),
      kv_copies_(kv_copies(model, {.rank = place_.tp, .size = place_.tp_size})),
      tied_ends_(model.tie_embeddings && place_.pp_size > 1),
      timeout_(timeout),
      tensor_{.place = {.rank = place_.tp, .size = place_.tp_size}, .timeout = timeout} {}

result<void> TrainGroups::refresh() {
  if (!place_.cut() || epoch_ == world_->epoch()) return {};
  const auto cut = [this](bool wanted, int colour,
                          std::unique_ptr<runtime::Collective>& group) -> result<void> {
    group.reset();
    if (!wanted) return {};
    TROUPE_TRY(group, world_->split(colour, world_->rank(), deadline()));
    return {};
  };
  const MeshPlace& p = place_;
  const int column = p.dp * p.tp_size + p.tp;  // of the ranks that differ in pp only
  const int row = p.pp * p.dp_size + p.dp;     // of those that differ in tp only
  TROUPE_TRY_VOID(cut(p.dp_size > 1, p.pp * p.tp_size + p.tp, dp_));
  TROUPE_TRY_VOID(cut(p.tp_size > 1, row, tp_));
  TROUPE_TRY_VOID(cut(kv_copies_ > 1, row * p.tp_size + p.tp / kv_copies_, kv_));
  TROUPE_TRY_VOID(cut(p.pp_size > 1, column, pp_));
  TROUPE_TRY_VOID(cut(p.pp_size > 1, column, pp_back_));
  TROUPE_TRY_VOID(cut(true, p.dp, replica_));
  const bool at_end = p.pp == 0 || p.pp + 1 == p.pp_size;
  TROUPE_TRY_VOID(cut(tied_ends_, at_end ? column : -1, ends_));
  tensor_.ranks = tp_.get();
  tensor_.kv_ranks = kv_.get();
  epoch_ = world_->epoch();
  return {};
}

runtime::Collective* TrainGroups::dp() const { return place_.cut() ? dp_.get() : world_; }

void TrainGroups::abort(const Error& cause) const {
  if (world_ != nullptr && !world_->failure()) world_->abort(cause);
}

}  // namespace troupe::actors
