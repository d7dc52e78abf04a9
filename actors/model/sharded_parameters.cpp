#include "actors/model/sharded_parameters.hpp"

#include "actors/model/torch_compat.hpp"
#include "runtime/base/check.hpp"

#include <torch/autograd.h>
#include <torch/custom_class.h>
#include <torch/types.h>

#include <algorithm>
#include <utility>

namespace troupe::actors {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::tensor_list;
using torch_compat::MaybeTensor;

/// Lets an autograd node own a unit.
struct UnitCapsule : torch::CustomClassHolder {
  explicit UnitCapsule(std::shared_ptr<GatheredUnit> held) : unit(std::move(held)) {}
  std::shared_ptr<GatheredUnit> unit;
};

void keep_unit(AutogradContext* context, const std::shared_ptr<GatheredUnit>& unit) {
  context->saved_data["unit"] = c10::IValue::make_capsule(c10::make_intrusive<UnitCapsule>(unit));
}

GatheredUnit& unit_of(AutogradContext* context) {
  const auto capsule = context->saved_data["unit"].toCapsule();
  return *static_cast<UnitCapsule*>(capsule.get())->unit;
}

/// Leaves of a gathered unit; backward sums their gradients over the ranks and ends the unit.
struct GatherNode : Function<GatherNode> {
  static tensor_list forward(AutogradContext* context, const at::Tensor&,
                             const std::shared_ptr<GatheredUnit>& unit) {
    context->set_materialize_grads(false);
    keep_unit(context, unit);
    return unit->make_leaves();
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    GatheredUnit& unit = unit_of(context);
    unit.release();
    unit.reduce(gradients);
    return {at::Tensor(), at::Tensor()};
  }
};

struct WatchNode : Function<WatchNode> {
  static tensor_list forward(AutogradContext* context, const at::Tensor& x, const MaybeTensor& y,
                             const std::shared_ptr<GatheredUnit>& unit) {
    context->set_materialize_grads(false);
    keep_unit(context, unit);
    return y.has_value() ? tensor_list{x, *y} : tensor_list{x};
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    unit_of(context).fetch();
    return {gradients[0], gradients.size() > 1 ? gradients[1] : at::Tensor(), at::Tensor()};
  }
};

std::int64_t largest_layer(std::span<const ShardedUnit> units) {
  // A unit of one leaf is the embedding, a norm or the head: too large to keep, or too small.
  std::int64_t largest = 0;
  for (const ShardedUnit& unit : units)
    if (unit.leaves.size() > 1) largest = std::max(largest, unit.count);
  return largest;
}

}  // namespace

float* BufferPool::take(std::int64_t count) {
  Memory memory;
  if (const auto found = idle_.find(count); found != idle_.end()) {
    memory = std::move(found->second);
    idle_.erase(found);
    idle_count_ -= count;
  } else {
    memory = Memory(new float[static_cast<std::size_t>(count)]);
    held_ += count;
    peak_ = std::max(peak_, held_);
  }
  float* const buffer = memory.get();
  used_.emplace(buffer, Used{std::move(memory), count});
  return buffer;
}

void BufferPool::give(float* buffer) {
  const auto found = used_.find(buffer);
  TROUPE_CHECK(found != used_.end(), "buffer pool: a buffer that was not taken is given back");
  const std::int64_t count = found->second.count;
  if (idle_count_ + count <= idle_max_) {
    idle_.emplace(count, std::move(found->second.memory));
    idle_count_ += count;
  } else {
    held_ -= count;
  }
  used_.erase(found);
}

void BufferPool::trim() {
  held_ -= idle_count_;
  idle_count_ = 0;
  idle_.clear();
}

ShardedParameters::ShardedParameters(FlatParameters& owner, const ParameterShards& shards,
                                     std::vector<ShardedUnit> units, std::span<float> weights)
    : owner_(owner),
      shards_(shards),
      ranks_(shards.ranks),
      units_(std::move(units)),
      weights_(weights),
      anchor_(torch::zeros({1}, torch::kFloat32)),
      pool_(2 * largest_layer(units_)) {
  anchor_.set_requires_grad(true);
}

std::shared_ptr<GatheredUnit> ShardedParameters::gather(std::size_t unit, bool trainable) {
  auto gathered = std::make_shared<GatheredUnit>(*this, units_[unit]);
  gathered->fetch();
  if (trainable && at::GradMode::is_enabled())
    gathered->leaves = GatherNode::apply(anchor_, gathered);
  else
    gathered->leaves = gathered->make_leaves();
  return gathered;
}

GatheredUnit::GatheredUnit(ShardedParameters& store, const ShardedUnit& unit)
    : store_(store),
      unit_(unit),
      storage_(c10::Storage::use_byte_size_t(),
               static_cast<std::size_t>(unit.count) * sizeof(float),
               at::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)), nullptr, false) {}

void GatheredUnit::fetch() {
  if (buffer_ != nullptr) return;
  buffer_ = store_.pool_.take(unit_.count);
  const auto part = static_cast<std::size_t>(store_.part_of(unit_));
  const std::span<float> whole(buffer_, static_cast<std::size_t>(unit_.count));
  const auto done = store_.shards_.group->all_gather(
      store_.weights_.subspan(static_cast<std::size_t>(unit_.shard_offset), part), whole,
      Deadline::in(store_.shards_.timeout));
  if (!done) {
    std::ranges::fill(whole, 0.0F);  // the pass goes on with numbers, to its end
    store_.owner_.note(done.error());
  }
  storage_.unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(buffer_, c10::Device(c10::DeviceType::CPU)));
}

void GatheredUnit::release() {
  if (buffer_ == nullptr) return;
  storage_.unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)));
  store_.pool_.give(buffer_);
  buffer_ = nullptr;
}

std::vector<at::Tensor> GatheredUnit::make_leaves() const {
  std::vector<at::Tensor> out;
  for (const LeafPlace& place : unit_.leaves) {
    // Not views in autograd's sense: they are what backward asks gradients of.
    at::Tensor leaf = at::empty({0}, torch::kFloat32);
    std::vector<std::int64_t> strides(place.shape.size(), 1);
    for (std::size_t d = strides.size() - 1; d > 0; --d)
      strides[d - 1] = strides[d] * place.shape[d];
    leaf.set_(storage_, place.offset, place.shape, strides);
    out.push_back(std::move(leaf));
  }
  return out;
}

void GatheredUnit::reduce(std::span<const at::Tensor> gradients) {
  BufferPool& pool = store_.pool_;
  float* const whole = pool.take(unit_.count);
  std::int64_t end = 0;
  for (std::size_t i = 0; i < unit_.leaves.size(); ++i) {
    const LeafPlace& place = unit_.leaves[i];
    std::fill(whole + end, whole + place.offset, 0.0F);
    end = place.offset + place.count;
    if (!gradients[i].defined()) {
      std::fill(whole + place.offset, whole + end, 0.0F);
      continue;
    }
    const at::Tensor gradient = gradients[i].contiguous();
    std::copy_n(gradient.data_ptr<float>(), place.count, whole + place.offset);
  }
  std::fill(whole + end, whole + unit_.count, 0.0F);
  const std::int64_t part = store_.part_of(unit_);
  float* const mine = pool.take(part);
  const auto done = store_.shards_.group->reduce_scatter(
      std::span<const float>(whole, static_cast<std::size_t>(unit_.count)),
      std::span<float>(mine, static_cast<std::size_t>(part)), runtime::ReduceOp::kSum,
      Deadline::in(store_.shards_.timeout));
  if (done) {
    float* const sum = store_.owner_.gradients().data() + unit_.shard_offset;
    for (std::int64_t i = 0; i < part; ++i) sum[i] += mine[i];
  } else {
    store_.owner_.note(done.error());
  }
  pool.give(mine);
  pool.give(whole);
}

void watch_unit(const std::shared_ptr<GatheredUnit>& unit, std::span<at::Tensor* const> outputs) {
  if (!at::GradMode::is_enabled()) return;
  TROUPE_CHECK(outputs.size() == 1 || outputs.size() == 2, "watch: {} outputs, wanted 1 or 2",
               outputs.size());
  at::Tensor& x = *outputs[0];
  const bool two = outputs.size() == 2 && outputs[1]->defined();
  if (!x.requires_grad()) return;
  const tensor_list same =
      WatchNode::apply(x, two ? MaybeTensor(*outputs[1]) : MaybeTensor(), unit);
  x = same[0];
  if (two) *outputs[1] = same[1];
}

UnitLease::UnitLease(std::shared_ptr<GatheredUnit> gathered, bool keep)
    : leaves_(gathered->leaves), gathered_(std::move(gathered)), keep_(keep) {}

UnitLease::~UnitLease() {
  if (!gathered_) return;
  // The graph keeps the unit and its leaves; this end of it must not, for it would be a cycle.
  gathered_->leaves.clear();
  if (!keep_) gathered_->release();
}

void UnitLease::watch(std::span<at::Tensor* const> outputs) const {
  if (gathered_) watch_unit(gathered_, outputs);
}

}  // namespace troupe::actors
