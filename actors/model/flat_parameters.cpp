#include "actors/model/flat_parameters.hpp"

#include "runtime/base/check.hpp"

#include <torch/torch.h>

#include <map>

namespace troupe::actors {
namespace {

constexpr std::int64_t kAlignment = 16;  // floats: one cache line

}  // namespace

FlatParameters::FlatParameters(std::span<const ParameterGroup> groups,
                               std::span<const TensorShape> canonical, bool trainable)
    : trainable_(trainable) {
  std::map<std::string, std::int64_t, std::less<>> offset_of;
  std::vector<std::vector<std::int64_t>> leaf_shapes;
  std::int64_t end = 0;
  for (const ParameterGroup& group : groups) {
    end = (end + kAlignment - 1) / kAlignment * kAlignment;
    leaf_offsets_.push_back(end);
    std::vector<std::int64_t> shape = group.front().shape;
    shape[0] = 0;
    for (const TensorShape& tensor : group) {
      TROUPE_CHECK(offset_of.emplace(tensor.name, end).second, "parameters: {} is there twice",
                   tensor.name);
      shape[0] += tensor.shape[0];
      end += tensor.element_count();
    }
    leaf_shapes.push_back(std::move(shape));
  }
  TROUPE_CHECK(offset_of.size() == canonical.size(), "parameters: {} tensors in groups, {} wanted",
               offset_of.size(), canonical.size());

  weights_ = torch::zeros({end}, torch::kFloat32);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::int64_t count = 1;
    for (const std::int64_t extent : leaf_shapes[g]) count *= extent;
    at::Tensor leaf = weights_.narrow(0, leaf_offsets_[g], count).view(leaf_shapes[g]).detach();
    leaf.set_requires_grad(trainable);
    leaves_.push_back(std::move(leaf));
  }
  const float* base = weights_.data_ptr<float>();
  for (const TensorShape& tensor : canonical) {
    const auto found = offset_of.find(tensor.name);
    TROUPE_CHECK(found != offset_of.end(), "parameters: no group holds {}", tensor.name);
    segments_.push_back({tensor.name, tensor.shape, found->second, tensor.element_count()});
    tensors_.push_back({tensor.name,
                        tensor.shape,
                        {base + found->second, static_cast<std::size_t>(tensor.element_count())}});
  }
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
