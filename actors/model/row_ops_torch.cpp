#include "actors/model/row_ops_torch.hpp"

#include "actors/model/torch_compat.hpp"
#include "actors/model/train_kernels.hpp"
#include "runtime/base/check.hpp"

#include <torch/autograd.h>
#include <torch/types.h>

namespace troupe::actors {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::tensor_list;

using torch_compat::maybe;
using torch_compat::MaybeTensor;

const float* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr<float>() : nullptr;
}

RowShape shape_of(const at::Tensor& matrix) { return {matrix.size(0), matrix.size(1)}; }

struct Linear : Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const MaybeTensor& bias) {
    context->save_for_backward({x, weight});
    context->saved_data["bias"] = bias.has_value();
    return bias ? at::addmm(*bias, x, weight.t()) : at::mm(x, weight.t());
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor gradient = gradients[0].contiguous();
    return {at::mm(gradient, saved[1]), at::mm(gradient.t(), saved[0]),
            context->saved_data["bias"].toBool() ? gradient.sum(0) : at::Tensor()};
  }
};

struct AddRmsNorm : Function<AddRmsNorm> {
  static tensor_list forward(AutogradContext* context, const at::Tensor& x,
                             const MaybeTensor& maybe_delta, const at::Tensor& weight, double eps) {
    const at::Tensor delta = maybe_delta.value_or(at::Tensor());
    const at::Tensor sum = delta.defined() ? at::empty_like(x) : x;
    const at::Tensor out = at::empty_like(x);
    const at::Tensor inverse = at::empty({x.size(0)}, x.options());
    rms_norm_forward(shape_of(x), {.x = data_of(x),
                                   .delta = data_of(delta),
                                   .weight = data_of(weight),
                                   .eps = static_cast<float>(eps),
                                   .sum = delta.defined() ? sum.data_ptr<float>() : nullptr,
                                   .out = out.data_ptr<float>(),
                                   .inverse_rms = inverse.data_ptr<float>()});
    context->save_for_backward({sum, weight, inverse});
    context->saved_data["delta"] = delta.defined();
    context->set_materialize_grads(false);
    // An input handed back as an output needs no second node: the caller keeps using x.
    return delta.defined() ? tensor_list{out, sum} : tensor_list{out};
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const bool has_delta = context->saved_data["delta"].toBool();
    const at::Tensor sum_gradient =
        has_delta && gradients[1].defined() ? gradients[1].contiguous() : at::Tensor();
    if (!gradients[0].defined())
      return {sum_gradient, has_delta ? sum_gradient : at::Tensor(), at::Tensor(), at::Tensor()};
    const at::Tensor out_gradient = gradients[0].contiguous();
    const at::Tensor x_gradient = at::empty_like(saved[0]);
    const at::Tensor weight_gradient = at::zeros_like(saved[1]);
    rms_norm_backward(shape_of(saved[0]), {.x = data_of(saved[0]),
                                           .weight = data_of(saved[1]),
                                           .inverse_rms = data_of(saved[2]),
                                           .out_gradient = data_of(out_gradient),
                                           .sum_gradient = data_of(sum_gradient),
                                           .x_gradient = x_gradient.data_ptr<float>(),
                                           .weight_gradient = weight_gradient.data_ptr<float>()});
    return {x_gradient, has_delta ? x_gradient : at::Tensor(), weight_gradient, at::Tensor()};
  }
};

HeadNormShape head_norm_shape(const at::Tensor& qkv, const AttentionShape& shape, double eps) {
  return {.tokens = qkv.size(0),
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .eps = static_cast<float>(eps)};
}

struct HeadNorm : Function<HeadNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv,
                            const at::Tensor& q_weight, const at::Tensor& k_weight,
                            const AttentionShape& shape, double eps) {
    const at::Tensor out = at::empty_like(qkv);
    const at::Tensor inverse =
        at::empty({qkv.size(0), shape.heads + shape.kv_heads}, qkv.options());
    head_norm_forward(head_norm_shape(qkv, shape, eps), data_of(qkv), data_of(q_weight),
                      data_of(k_weight), out.data_ptr<float>(), inverse.data_ptr<float>());
    context->save_for_backward({qkv, q_weight, k_weight, inverse});
    context->saved_data["heads"] = shape.heads;
    context->saved_data["kv_heads"] = shape.kv_heads;
    context->saved_data["eps"] = eps;
    return out;
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const AttentionShape shape{.heads = context->saved_data["heads"].toInt(),
                               .kv_heads = context->saved_data["kv_heads"].toInt(),
                               .head_dim = saved[1].size(0)};
    const at::Tensor out_gradient = gradients[0].contiguous();
    const at::Tensor qkv_gradient = at::empty_like(saved[0]);
    const at::Tensor q_gradient = at::zeros_like(saved[1]);
    const at::Tensor k_gradient = at::zeros_like(saved[2]);
    head_norm_backward(head_norm_shape(saved[0], shape, context->saved_data["eps"].toDouble()),
                       {.qkv = data_of(saved[0]),
                        .q_weight = data_of(saved[1]),
                        .k_weight = data_of(saved[2]),
                        .inverse_rms = data_of(saved[3]),
                        .out_gradient = data_of(out_gradient),
                        .qkv_gradient = qkv_gradient.data_ptr<float>(),
                        .q_weight_gradient = q_gradient.data_ptr<float>(),
                        .k_weight_gradient = k_gradient.data_ptr<float>()});
    return {qkv_gradient, q_gradient, k_gradient, at::Tensor(), at::Tensor()};
  }
};

struct SwiGlu : Function<SwiGlu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up) {
    const at::Tensor out = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
    swiglu_forward(shape_of(out), data_of(gate_up), out.data_ptr<float>());
    context->save_for_backward({gate_up});
    return out;
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor out_gradient = gradients[0].contiguous();
    const at::Tensor gradient = at::empty_like(saved[0]);
    swiglu_backward(shape_of(out_gradient), data_of(saved[0]), data_of(out_gradient),
                    gradient.data_ptr<float>());
    return {gradient};
  }
};

struct SelectRows : Function<SelectRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& source,
                            const at::Tensor& index) {
    const std::int64_t width = source.size(1);
    const at::Tensor out = at::empty({index.size(0), width}, source.options());
    gather_rows(width, data_of(source), index.data_ptr<std::int64_t>(), index.size(0),
                out.data_ptr<float>());
    context->save_for_backward({index});
    context->saved_data["rows"] = source.size(0);
    return out;
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const at::Tensor index = context->get_saved_variables()[0];
    const at::Tensor out_gradient = gradients[0].contiguous();
    const std::int64_t width = out_gradient.size(1);
    const at::Tensor gradient =
        at::zeros({context->saved_data["rows"].toInt(), width}, out_gradient.options());
    scatter_add_rows(width, data_of(out_gradient), index.data_ptr<std::int64_t>(), index.size(0),
                     gradient.data_ptr<float>());
    return {gradient, at::Tensor()};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  TROUPE_CHECK(x.dim() == 2 && x.size(1) == weight.size(1), "linear: x is {} wide, weight takes {}",
               x.size(-1), weight.size(1));
  return Linear::apply(x, weight, maybe(bias));
}

ResidualNorm add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                          double eps) {
  TROUPE_CHECK(x.size(1) == weight.size(0), "rms norm: x is {} wide, weight {}", x.size(1),
               weight.size(0));
  const tensor_list out = AddRmsNorm::apply(x, maybe(delta), weight, eps);
  return {.sum = delta.defined() ? out[1] : x, .normed = out[0]};
}

at::Tensor head_norm(const at::Tensor& qkv, const at::Tensor& q_weight, const at::Tensor& k_weight,
                     const AttentionShape& shape, double eps) {
  return HeadNorm::apply(qkv, q_weight, k_weight, shape, eps);
}

at::Tensor swiglu(const at::Tensor& gate_up) { return SwiGlu::apply(gate_up); }

at::Tensor select_rows(const at::Tensor& source, const at::Tensor& index) {
  return SelectRows::apply(source, index);
}

}  // namespace troupe::actors
