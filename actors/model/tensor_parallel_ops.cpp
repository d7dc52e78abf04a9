#include "actors/model/tensor_parallel_ops.hpp"

#include "actors/model/torch_compat.hpp"
#include "actors/model/train_kernels.hpp"
#include "runtime/base/check.hpp"
#include "runtime/task/failure.hpp"

#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>

namespace troupe::actors {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::tensor_list;
using torch_compat::maybe;
using torch_compat::MaybeTensor;

// Autograd's context carries integers, not our pointers.
std::int64_t pack(const TensorGroup& group) {
  return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(&group));
}
const TensorGroup& group_of(AutogradContext* context) {
  return *reinterpret_cast<const TensorGroup*>(
      static_cast<std::intptr_t>(context->saved_data["group"].toInt()));
}

struct ColumnParallelLinear : Function<ColumnParallelLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const MaybeTensor& bias, const TensorGroup* group,
                            std::int64_t kv_row_begin) {
    context->save_for_backward({x, weight});
    context->saved_data["bias"] = bias.has_value();
    context->saved_data["group"] = pack(*group);
    context->saved_data["kv_row_begin"] = kv_row_begin;
    return bias ? at::addmm(*bias, x, weight.t()) : at::mm(x, weight.t());
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const TensorGroup& group = group_of(context);
    const std::int64_t kv_begin = context->saved_data["kv_row_begin"].toInt();
    const at::Tensor gradient = gradients[0].contiguous();
    const at::Tensor x_gradient = at::mm(gradient, saved[1]);
    group.sum(x_gradient);
    const at::Tensor weight_gradient = at::mm(gradient.t(), saved[0]);
    at::Tensor bias_gradient;
    if (context->saved_data["bias"].toBool()) bias_gradient = gradient.sum(0);
    if (kv_begin >= 0 && group.kv_ranks != nullptr) {
      const std::int64_t copies = weight_gradient.size(0) - kv_begin;
      group.sum_kv(weight_gradient.narrow(0, kv_begin, copies));
      if (bias_gradient.defined()) group.sum_kv(bias_gradient.narrow(0, kv_begin, copies));
    }
    return {x_gradient, weight_gradient, bias_gradient, at::Tensor(), at::Tensor()};
  }
};

struct RowParallelLinear : Function<RowParallelLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const MaybeTensor& bias, const TensorGroup* group) {
    context->save_for_backward({x, weight});
    context->saved_data["bias"] = bias.has_value();
    at::Tensor out = at::mm(x, weight.t());
    group->sum(out);
    if (bias) out.add_(*bias);
    return out;
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor gradient = gradients[0].contiguous();
    return {at::mm(gradient, saved[1]), at::mm(gradient.t(), saved[0]),
            context->saved_data["bias"].toBool() ? gradient.sum(0) : at::Tensor(), at::Tensor()};
  }
};

struct VocabularyRows : Function<VocabularyRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& shard,
                            const at::Tensor& index, const TensorGroup* group, IndexRange rows) {
    const at::Tensor out = at::zeros({index.size(0), shard.size(1)}, shard.options());
    const std::int64_t width = shard.size(1);
    const auto* ids = index.data_ptr<std::int64_t>();
    for (std::int64_t t = 0; t < index.size(0); ++t)
      if (ids[t] >= rows.begin && ids[t] < rows.end)
        std::copy_n(shard.data_ptr<float>() + (ids[t] - rows.begin) * width, width,
                    out.data_ptr<float>() + t * width);
    group->sum(out);  // one term of each sum is not 0, so the rows keep their bits
    context->save_for_backward({index});
    context->saved_data["begin"] = rows.begin;
    context->saved_data["end"] = rows.end;
    return out;
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const at::Tensor index = context->get_saved_variables()[0];
    const std::int64_t begin = context->saved_data["begin"].toInt();
    const std::int64_t end = context->saved_data["end"].toInt();
    const at::Tensor out_gradient = gradients[0].contiguous();
    const std::int64_t width = out_gradient.size(1);
    const at::Tensor gradient = at::zeros({end - begin, width}, out_gradient.options());
    const auto* ids = index.data_ptr<std::int64_t>();
    for (std::int64_t t = 0; t < index.size(0); ++t) {
      const std::int64_t row = ids[t] - begin;
      if (ids[t] >= begin && ids[t] < end)
        scatter_add_rows(width, out_gradient.data_ptr<float>() + t * width, &row, 1,
                         gradient.data_ptr<float>());
    }
    return {gradient, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct SharedOverHeads : Function<SharedOverHeads> {
  static tensor_list forward(AutogradContext* context, const at::Tensor& first,
                             const at::Tensor& second, const TensorGroup* group) {
    context->saved_data["group"] = pack(*group);
    return {first.clone(), second.clone()};
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const at::Tensor both = at::cat({gradients[0], gradients[1]});
    group_of(context).sum(both);
    const std::int64_t first = gradients[0].size(0);
    return {both.narrow(0, 0, first), both.narrow(0, first, both.size(0) - first), at::Tensor()};
  }
};

}  // namespace

void TensorGroup::sum_over(runtime::Collective& group, const at::Tensor& tensor) const {
  TROUPE_CHECK(tensor.is_contiguous(), "tensor group: {} numbers that are not dense",
               tensor.numel());
  runtime::value_or_throw(group.all_reduce(
      std::span<float>(tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())),
      runtime::ReduceOp::kSum, deadline()));
}

at::Tensor column_parallel_linear(const TensorGroup& group, const at::Tensor& x,
                                  const at::Tensor& weight, const at::Tensor& bias,
                                  std::int64_t kv_row_begin) {
  TROUPE_CHECK(x.dim() == 2 && x.size(1) == weight.size(1),
               "column-parallel linear: x is {} wide, weight takes {}", x.size(-1), weight.size(1));
  return ColumnParallelLinear::apply(x, weight, maybe(bias), &group, kv_row_begin);
}

at::Tensor row_parallel_linear(const TensorGroup& group, const at::Tensor& x,
                               const at::Tensor& weight, const at::Tensor& bias) {
  TROUPE_CHECK(x.dim() == 2 && x.size(1) == weight.size(1),
               "row-parallel linear: x is {} wide, weight takes {}", x.size(-1), weight.size(1));
  return RowParallelLinear::apply(x, weight, maybe(bias), &group);
}

at::Tensor vocabulary_parallel_rows(const TensorGroup& group, IndexRange rows,
                                    const at::Tensor& shard, const at::Tensor& index) {
  TROUPE_CHECK(shard.size(0) == rows.size(), "vocabulary-parallel rows: {} rows for {}..{}",
               shard.size(0), rows.begin, rows.end);
  return VocabularyRows::apply(shard, index, &group, rows);
}

WeightPair shared_over_heads(const TensorGroup& group, const at::Tensor& first,
                             const at::Tensor& second) {
  const tensor_list out = SharedOverHeads::apply(first, second, &group);
  return {.first = out[0], .second = out[1]};
}

}  // namespace troupe::actors
