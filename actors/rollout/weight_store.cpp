#include "actors/rollout/weight_store.hpp"

#include "runtime/base/check.hpp"

namespace troupe::actors {

WeightStore::WeightStore(const ModelConfig& config, const ModelShare& share, WeightMemory memory)
    : share_(share), memory_(memory), slots_(weight_slots(config, share)) {
  for (std::size_t i = 0; i < slots_.size(); ++i) slot_of_.emplace(slots_[i].name, i);
  if (!in_place()) active_ = 1;  // so that the first update fills set 0
}

result<void> WeightStore::check_serving(std::string_view what) const {
  switch (state_) {
    case State::kServing:
      return {};
    case State::kEmpty:
      return fail(ErrorCode::kConflict, "rollout engine: {} without weights", what);
    case State::kAsleep:
      return fail(ErrorCode::kConflict,
                  "rollout engine: {} while the weights sleep; wake them, then update them", what);
    case State::kAwake:
      return fail(ErrorCode::kConflict,
                  "rollout engine: {} before the weights that woke were updated", what);
    case State::kTorn:
      return fail(ErrorCode::kConflict,
                  "rollout engine: {} while the weights are torn: version {} was overwritten by an "
                  "update to {} that is not committed; a whole update is needed",
                  what, version_.value, torn_by_.value);
  }
  return {};
}

result<void> WeightStore::begin(WeightVersion version) {
  if (pending_)
    return fail(ErrorCode::kConflict,
                "rollout engine: update to version {} while one to version {} is open",
                version.value, pending_->value);
  if (state_ == State::kAsleep)
    return fail(ErrorCode::kConflict,
                "rollout engine: update to version {} while the weights sleep; wake them first",
                version.value);
  allocate_target();
  if (!coverage_) coverage_.emplace(slots_);
  coverage_->clear();
  pending_ = version;
  return {};
}

void WeightStore::allocate_target() {
  std::unique_ptr<PackedWeights>& set = sets_[target()];
  if (!set) set = std::make_unique<PackedWeights>(share_);
}

result<void> WeightStore::write(std::string_view tensor, const reshard::Box& box, const float* data,
                                std::int64_t row_stride) {
  const auto place = [&] { return fmt::format("{} {}", tensor, reshard::box_text(box)); };
  if (!pending_)
    return fail(ErrorCode::kConflict, "rollout engine: {}: written outside of an update", place());
  const auto found = slot_of_.find(tensor);
  if (found == slot_of_.end())
    return fail(ErrorCode::kNotFound, "rollout engine: {}: the model has no such tensor{}", place(),
                tensor == "lm_head.weight" ? "; its head is model.embed_tokens.weight" : "");
  const WeightSlot& slot = slots_[found->second];
  if (box.empty() || slot.held.empty() || !slot.held.contains(box))
    return fail(ErrorCode::kInvalidArgument, "rollout engine: {}: rank {} holds {}", place(),
                share_.rank, reshard::box_text(slot.held));
  if (row_stride < box.cols() && box.rows() > 1)
    return fail(ErrorCode::kInvalidArgument, "rollout engine: {}: row stride {}, wanted ≥ {}",
                place(), row_stride, box.cols());
  if (const auto taken = coverage_->claim(found->second, box))
    return fail(ErrorCode::kConflict, "rollout engine: {}: {} was written before in this update",
                place(), reshard::box_text(*taken));
  if (in_place() && (state_ == State::kServing || state_ == State::kTorn)) {
    state_ = State::kTorn;
    torn_by_ = *pending_;
  }
  sets_[target()]->write(slot, box, data, row_stride);
  return {};
}

result<void> WeightStore::check_complete() const {
  if (!pending_) return fail(ErrorCode::kConflict, "rollout engine: commit without an open update");
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const std::int64_t missing = coverage_->missing(i);
    if (missing == 0) continue;
    return fail(ErrorCode::kConflict,
                "rollout engine: update to version {}: {}: {} of {} numbers of {} are missing, the "
                "first at {}",
                pending_->value, slots_[i].name, missing, slots_[i].held.elements(),
                reshard::box_text(slots_[i].held), reshard::box_text(coverage_->first_missing(i)));
  }
  return {};
}

void WeightStore::commit() {
  TROUPE_CHECK(pending_.has_value(), "weight store: commit without an open update");
  active_ = target();
  version_ = *pending_;
  state_ = State::kServing;
  pending_.reset();
}

void WeightStore::drop(State state) {
  pending_.reset();
  for (auto& set : sets_) set.reset();
  coverage_.reset();
  state_ = state;
}

result<void> WeightStore::wake() {
  if (state_ != State::kAsleep) return {};
  allocate_target();
  state_ = State::kAwake;
  return {};
}

Bytes WeightStore::bytes() const {
  Bytes total;
  for (const auto& set : sets_)
    if (set) total.value += set->bytes().value;
  return total;
}

}  // namespace troupe::actors
