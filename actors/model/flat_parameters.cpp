#include "actors/model/flat_parameters.hpp"

#include "actors/model/sharded_parameters.hpp"
#include "runtime/base/check.hpp"

#include <torch/types.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace troupe::actors {
namespace {

constexpr std::int64_t kAlignment = 16;  // floats: one cache line

std::int64_t count_of(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::span<float> floats_of(at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

/// Numbers [begin, begin + target.size()) of the box that `local` is, from the whole tensor.
void copy_run(const LocalTensor& local, std::int64_t begin, std::span<const float> whole,
              std::span<float> target) {
  const bool is_matrix = local.shape.size() > 1;
  const std::int64_t cols = is_matrix ? local.shape[1] : 1;
  const std::int64_t stride = is_matrix ? local.whole[1] : 1;
  auto left = static_cast<std::int64_t>(target.size());
  float* to = target.data();
  while (left > 0) {
    const std::int64_t row = begin / cols;
    const std::int64_t col = begin % cols;
    const std::int64_t from = (local.row_begin + row) * stride + local.col_begin + col;
    // Whole rows lie together in the tensor as well, unless the box is narrower than it.
    const std::int64_t count = cols == stride ? left : std::min(left, cols - col);
    std::copy_n(whole.data() + from, count, to);
    begin += count;
    to += count;
    left -= count;
  }
}

}  // namespace

FlatParameters::FlatParameters(std::span<const ParameterUnit> units,
                               std::span<const TensorShape> canonical, bool trainable,
                               const ParameterShards* shards)
    : shards_(shards), trainable_(trainable) {
  if (shards != nullptr) {
    ranks_ = shards->ranks;
    rank_ = shards->rank;
  }
  place(units, canonical);
  cut();
}

FlatParameters::~FlatParameters() = default;

void FlatParameters::place(std::span<const ParameterUnit> units,
                           std::span<const TensorShape> canonical) {
  struct Place {
    const LocalTensor* tensor;
    std::int64_t offset;
  };
  std::map<std::string, Place, std::less<>> places;
  const bool cut_units = ranks_ > 1 && shards_->weights;
  for (const ParameterUnit& unit : units) {
    const std::int64_t begin = elements_;
    unit_begins_.push_back(leaf_shapes_.size());
    for (const ParameterGroup& group : unit) {
      elements_ = round_up(elements_, kAlignment);
      leaf_offsets_.push_back(elements_);
      std::vector<std::int64_t> shape = group.front().shape;
      shape[0] = 0;
      for (const LocalTensor& tensor : group) {
        TROUPE_CHECK(places.emplace(tensor.name, Place{&tensor, elements_}).second,
                     "parameters: {} is there twice", tensor.name);
        shape[0] += tensor.shape[0];
        elements_ += count_of(tensor.shape);
      }
      leaf_shapes_.push_back(std::move(shape));
    }
    if (cut_units) elements_ = begin + round_up(elements_ - begin, kAlignment * ranks_);
    unit_places_.push_back({.offset = begin, .count = elements_ - begin});
  }
  unit_begins_.push_back(leaf_shapes_.size());
  if (ranks_ > 1) elements_ = round_up(elements_, kAlignment * ranks_);
  TROUPE_CHECK(places.size() == canonical.size(), "parameters: {} tensors in units, {} wanted",
               places.size(), canonical.size());
  for (const TensorShape& tensor : canonical) {
    const auto found = places.find(tensor.name);
    TROUPE_CHECK(found != places.end(), "parameters: no unit holds {}", tensor.name);
    const auto& [local, offset] = found->second;
    segments_.push_back({tensor.name, local->shape, offset, count_of(local->shape), *local});
  }
}

void FlatParameters::cut() {
  shard_elements_ = elements_ / ranks_;
  const bool cut_weights = ranks_ > 1 && shards_->weights;
  weights_ = torch::zeros({cut_weights ? shard_elements_ : elements_}, torch::kFloat32);
  if (!cut_weights) {
    for (std::size_t g = 0; g < leaf_shapes_.size(); ++g) {
      const std::int64_t count = count_of(leaf_shapes_[g]);
      at::Tensor leaf = weights_.narrow(0, leaf_offsets_[g], count).view(leaf_shapes_[g]).detach();
      leaf.set_requires_grad(trainable_);
      leaves_.push_back(std::move(leaf));
    }
    const float* base = weights_.data_ptr<float>();
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      const ParameterSegment& segment = segments_[s];
      tensors_.push_back({segment.name,
                          segment.shape,
                          {base + segment.offset, static_cast<std::size_t>(segment.count)}});
      weight_runs_.push_back({s, 0, segment.count, segment.offset, segment.offset});
    }
    add_runs(rank_ * shard_elements_, (rank_ + 1) * shard_elements_, rank_ * shard_elements_, 0);
    return;
  }
  std::vector<ShardedUnit> sharded;
  std::int64_t stored = 0;
  for (std::size_t u = 0; u < unit_places_.size(); ++u) {
    const UnitPlace& place = unit_places_[u];
    const std::int64_t part = place.count / ranks_;
    const std::int64_t begin = place.offset + rank_ * part;
    add_runs(begin, begin + part, stored, stored);
    ShardedUnit unit{.count = place.count, .shard_offset = stored, .leaves = {}};
    for (std::size_t g = unit_begins_[u]; g < unit_begins_[u + 1]; ++g)
      unit.leaves.push_back(
          {leaf_offsets_[g] - place.offset, leaf_shapes_[g], count_of(leaf_shapes_[g])});
    sharded.push_back(std::move(unit));
    stored += part;
  }
  std::ranges::sort(runs_, {}, &ParameterRun::segment);
  weight_runs_ = runs_;
  sharded_ =
      std::make_unique<ShardedParameters>(*this, *shards_, std::move(sharded), floats_of(weights_));
}

/// Adds what of the segments lies in [begin, end) of the buffers before they are cut.
void FlatParameters::add_runs(std::int64_t begin, std::int64_t end, std::int64_t weight_offset,
                              std::int64_t shard_offset) {
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    const ParameterSegment& segment = segments_[s];
    const std::int64_t from = std::max(begin, segment.offset);
    const std::int64_t to = std::min(end, segment.offset + segment.count);
    if (from < to)
      runs_.push_back({.segment = s,
                       .begin = from - segment.offset,
                       .count = to - from,
                       .weight_offset = weight_offset + from - begin,
                       .shard_offset = shard_offset + from - begin});
  }
}

UnitLease FlatParameters::lease(std::size_t unit, bool keep) {
  if (sharded_) return UnitLease(sharded_->gather(unit, trainable_), keep);
  const std::size_t begin = unit_begins_[unit];
  return UnitLease(std::span(leaves_).subspan(begin, unit_begins_[unit + 1] - begin));
}

const ParameterSegment* FlatParameters::find(std::string_view name) const {
  for (const ParameterSegment& segment : segments_)
    if (segment.name == name) return &segment;
  return nullptr;
}

result<void> FlatParameters::set_weights(std::span<const NamedTensor> whole) {
  std::unordered_map<std::string_view, const NamedTensor*> by_name;
  for (const NamedTensor& tensor : whole)
    if (!by_name.emplace(tensor.name, &tensor).second)
      return fail(ErrorCode::kInvalidArgument, "weights: tensor {} is there twice", tensor.name);
  for (const ParameterSegment& segment : segments_) {
    const std::vector<std::int64_t>& wanted = segment.tensor.whole;
    const auto found = by_name.find(segment.name);
    if (found == by_name.end())
      return fail(ErrorCode::kNotFound, "weights: tensor {} {} is missing", segment.name,
                  shape_text(wanted));
    const NamedTensor& tensor = *found->second;
    if (tensor.shape != wanted)
      return fail(ErrorCode::kInvalidArgument, "weights: tensor {} has shape {}, wanted {}",
                  segment.name, shape_text(tensor.shape), shape_text(wanted));
    if (static_cast<std::int64_t>(tensor.data.size()) != count_of(wanted))
      return fail(ErrorCode::kInvalidArgument, "weights: tensor {} holds {} numbers, wanted {}",
                  segment.name, tensor.data.size(), count_of(wanted));
  }
  for (const ParameterRun& run : weight_runs_) {
    const ParameterSegment& segment = segments_[run.segment];
    copy_run(segment.tensor, run.begin, by_name.at(segment.name)->data,
             weights().subspan(static_cast<std::size_t>(run.weight_offset),
                               static_cast<std::size_t>(run.count)));
  }
  return {};
}

std::span<float> FlatParameters::weights() { return floats_of(weights_); }

std::span<float> FlatParameters::gradients() { return floats_of(gradients_); }

std::span<float> FlatParameters::shard_gradients() {
  return floats_of(gradient_shard_.defined() ? gradient_shard_ : gradients_);
}

std::size_t FlatParameters::gradient_elements() const {
  std::int64_t count = 0;
  for (const at::Tensor* buffer : {&gradients_, &gradient_shard_})
    if (buffer->defined()) count += buffer->numel();
  return static_cast<std::size_t>(count);
}

void FlatParameters::zero_gradients() {
  TROUPE_CHECK(trainable_, "parameters: a frozen model has no gradients");
  if (gradients_.defined()) {
    gradients_.zero_();
    return;
  }
  gradients_ = torch::zeros_like(weights_);
  if (updates_are_cut() && !weights_are_cut())
    gradient_shard_ = torch::zeros({shard_elements_}, torch::kFloat32);
  // A gradient that is defined beforehand is added to in place, so it stays inside the buffer.
  for (std::size_t g = 0; g < leaves_.size(); ++g)
    leaves_[g].mutable_grad() =
        gradients_.narrow(0, leaf_offsets_[g], leaves_[g].numel()).view(leaves_[g].sizes());
}

void FlatParameters::release_gradients() {
  for (at::Tensor& leaf : leaves_) leaf.mutable_grad() = at::Tensor();
  gradients_ = at::Tensor();
  gradient_shard_ = at::Tensor();
}

result<void> FlatParameters::reduce_gradients() {
  if (!updates_are_cut() || weights_are_cut()) return {};
  return shards_->group->reduce_scatter(gradients(), shard_gradients(), runtime::ReduceOp::kSum,
                                        Deadline::in(shards_->timeout));
}

result<void> FlatParameters::gather_weights() {
  if (!updates_are_cut() || weights_are_cut()) return {};
  const std::span<float> whole = weights();
  return shards_->group->all_gather(
      std::span<const float>(whole.subspan(static_cast<std::size_t>(rank_ * shard_elements_),
                                           static_cast<std::size_t>(shard_elements_))),
      whole, Deadline::in(shards_->timeout));
}

result<void> FlatParameters::take_failure() {
  if (!failure_) return {};
  return fail(*std::exchange(failure_, std::nullopt));
}

void FlatParameters::note(Error error) {
  if (!failure_) failure_ = std::move(error);
}

std::int64_t FlatParameters::gathered_bytes() const {
  return sharded_ ? sharded_->pool().held() * static_cast<std::int64_t>(sizeof(float)) : 0;
}

std::int64_t FlatParameters::gathered_bytes_peak() const {
  return sharded_ ? sharded_->pool().peak() * static_cast<std::int64_t>(sizeof(float)) : 0;
}

void FlatParameters::trim() {
  if (sharded_) sharded_->pool().trim();
}

}  // namespace troupe::actors
