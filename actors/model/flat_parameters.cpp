#include "actors/model/flat_parameters.hpp"

#include "runtime/base/check.hpp"

#include <torch/torch.h>

#include <map>

namespace troupe::actors {
namespace {

constexpr std::int64_t kAlignment = 16;  // floats: one cache line

std::int64_t count_of(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

}  // namespace

void UnitLease::watch(std::span<at::Tensor* const>) const {}  // whole leaves are always there

FlatParameters::FlatParameters(std::span<const ParameterUnit> units,
                               std::span<const TensorShape> canonical, bool trainable)
    : trainable_(trainable) {
  struct Place {
    const LocalTensor* tensor;
    std::int64_t offset;
  };
  std::map<std::string, Place, std::less<>> places;
  std::vector<std::vector<std::int64_t>> leaf_shapes;
  std::int64_t end = 0;
  for (const ParameterUnit& unit : units) {
    unit_begins_.push_back(leaf_shapes.size());
    for (const ParameterGroup& group : unit) {
      end = (end + kAlignment - 1) / kAlignment * kAlignment;
      leaf_offsets_.push_back(end);
      std::vector<std::int64_t> shape = group.front().shape;
      shape[0] = 0;
      for (const LocalTensor& tensor : group) {
        TROUPE_CHECK(places.emplace(tensor.name, Place{&tensor, end}).second,
                     "parameters: {} is there twice", tensor.name);
        shape[0] += tensor.shape[0];
        end += count_of(tensor.shape);
      }
      leaf_shapes.push_back(std::move(shape));
    }
  }
  unit_begins_.push_back(leaf_shapes.size());
  TROUPE_CHECK(places.size() == canonical.size(), "parameters: {} tensors in units, {} wanted",
               places.size(), canonical.size());

  weights_ = torch::zeros({end}, torch::kFloat32);
  for (std::size_t g = 0; g < leaf_shapes.size(); ++g) {
    const std::int64_t count = count_of(leaf_shapes[g]);
    at::Tensor leaf = weights_.narrow(0, leaf_offsets_[g], count).view(leaf_shapes[g]).detach();
    leaf.set_requires_grad(trainable);
    leaves_.push_back(std::move(leaf));
  }
  const float* base = weights_.data_ptr<float>();
  for (const TensorShape& tensor : canonical) {
    const auto found = places.find(tensor.name);
    TROUPE_CHECK(found != places.end(), "parameters: no unit holds {}", tensor.name);
    const auto& [local, offset] = found->second;
    const std::int64_t count = count_of(local->shape);
    segments_.push_back({tensor.name, local->shape, offset, count, *local});
    tensors_.push_back(
        {tensor.name, local->shape, {base + offset, static_cast<std::size_t>(count)}});
  }
}

UnitLease FlatParameters::lease(std::size_t unit) {
  const std::size_t begin = unit_begins_[unit];
  return UnitLease(std::span(leaves_).subspan(begin, unit_begins_[unit + 1] - begin));
}

const ParameterSegment* FlatParameters::find(std::string_view name) const {
  for (const ParameterSegment& segment : segments_)
    if (segment.name == name) return &segment;
  return nullptr;
}

std::span<float> FlatParameters::weights() {
  return {weights_.data_ptr<float>(), static_cast<std::size_t>(weights_.numel())};
}

std::span<float> FlatParameters::gradients() {
  if (!gradients_.defined()) return {};
  return {gradients_.data_ptr<float>(), static_cast<std::size_t>(gradients_.numel())};
}

void FlatParameters::zero_gradients() {
  TROUPE_CHECK(trainable_, "parameters: a frozen model has no gradients");
  if (gradients_.defined()) {
    gradients_.zero_();
    return;
  }
  gradients_ = torch::zeros_like(weights_);
  // A gradient that is defined beforehand is added to in place, so it stays inside the buffer.
  for (std::size_t g = 0; g < leaves_.size(); ++g)
    leaves_[g].mutable_grad() =
        gradients_.narrow(0, leaf_offsets_[g], leaves_[g].numel()).view(leaves_[g].sizes());
}

void FlatParameters::release_gradients() {
  for (at::Tensor& leaf : leaves_) leaf.mutable_grad() = at::Tensor();
  gradients_ = at::Tensor();
}

}  // namespace troupe::actors
