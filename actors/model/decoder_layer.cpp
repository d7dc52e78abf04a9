#include "actors/model/decoder_layer.hpp"

#include "actors/model/row_ops_torch.hpp"

#include <torch/autograd.h>
#include <torch/types.h>

namespace troupe::actors {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

std::int64_t pack(const void* pointer) {
  return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(pointer));
}

template <class T>
T& unpack(const c10::IValue& value) {
  return *reinterpret_cast<T*>(static_cast<std::intptr_t>(value.toInt()));
}

at::Tensor summed_layer(const LayerSource& source, const LayerContext& context,
                        const LayerInput& input, const at::Tensor& x) {
  const Residual out = decoder_layer(source, context, input, {x, at::Tensor()});
  return out.x + out.delta;
}

struct RecomputedLayer : torch::autograd::Function<RecomputedLayer> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const LayerInput& input,
                            const LayerSource& source, const LayerContext* layer) {
    context->save_for_backward({x, input.sequences.offsets, input.sequences.prefixes, input.rows});
    context->saved_data["parameters"] = pack(source.parameters);
    context->saved_data["unit"] = static_cast<std::int64_t>(source.unit);
    context->saved_data["layer"] = pack(layer);
    return summed_layer(source, *layer, input, x);  // autograd calls this without grad mode
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::AutoGradMode with_gradients(true);
    const at::Tensor x = saved[0].detach().set_requires_grad(true);
    const LayerSource source{
        .parameters = &unpack<FlatParameters>(context->saved_data["parameters"]),
        .unit = static_cast<std::size_t>(context->saved_data["unit"].toInt()),
        .keep = true};
    const at::Tensor out =
        summed_layer(source, unpack<const LayerContext>(context->saved_data["layer"]),
                     {.sequences = {saved[1], saved[2]}, .rows = saved[3]}, x);
    torch::autograd::backward({out}, {gradients[0]});
    return {x.grad(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

constexpr std::int64_t kNoCopies = -1;

/// A product whose output rows are cut over the tensor-parallel ranks.
at::Tensor split_product(const LayerContext& context, const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& bias, std::int64_t kv_row_begin) {
  if (context.tensor == nullptr) return linear(x, weight, bias);
  return column_parallel_linear(*context.tensor, x, weight, bias, kv_row_begin);
}

/// A product whose inputs are cut; the bias comes once, after the sum.
at::Tensor joined_product(const LayerContext& context, const at::Tensor& x,
                          const at::Tensor& weight, const at::Tensor& bias) {
  if (context.tensor == nullptr) return linear(x, weight, bias);
  return row_parallel_linear(*context.tensor, x, weight, bias);
}

}  // namespace

LayerWeights layer_weights(const UnitLease& lease, const LayerParts& parts) {
  std::size_t next = 0;
  const auto leaf = [&lease, &next] { return lease[next++]; };
  const auto leaf_if = [&leaf](bool there) { return there ? leaf() : at::Tensor(); };
  LayerWeights layer;
  layer.input_norm = leaf();
  layer.qkv = leaf();
  layer.qkv_bias = leaf_if(parts.qkv_bias);
  layer.q_norm = leaf_if(parts.qk_norm);
  layer.k_norm = leaf_if(parts.qk_norm);
  layer.o = leaf();
  layer.o_bias = leaf_if(parts.o_bias);
  layer.mlp_norm = leaf();
  layer.gate_up = leaf();
  layer.gate_up_bias = leaf_if(parts.mlp_bias);
  layer.down = leaf();
  layer.down_bias = leaf_if(parts.mlp_bias);
  return layer;
}

Residual decoder_layer(const LayerWeights& weights, const LayerContext& context,
                       const LayerInput& input, const Residual& in) {
  const ResidualNorm first = add_rms_norm(in.x, in.delta, weights.input_norm, context.eps);
  at::Tensor qkv = split_product(context, first.normed, weights.qkv, weights.qkv_bias,
                                 context.shape.heads * context.shape.head_dim);
  if (weights.q_norm.defined()) {
    const WeightPair norms =
        context.tensor == nullptr
            ? WeightPair{weights.q_norm, weights.k_norm}
            : shared_over_heads(*context.tensor, weights.q_norm, weights.k_norm);
    qkv = head_norm(qkv, norms.first, norms.second, context.shape, context.eps);
  }
  at::Tensor mixed = packed_attention(qkv, input.sequences, context.shape, *context.rotary);
  at::Tensor x = first.sum;
  if (input.rows.defined()) {
    mixed = select_rows(mixed, input.rows);
    x = select_rows(x, input.rows);
  }
  const at::Tensor attended = joined_product(context, mixed, weights.o, weights.o_bias);
  const ResidualNorm second = add_rms_norm(x, attended, weights.mlp_norm, context.eps);
  const at::Tensor active = swiglu(
      split_product(context, second.normed, weights.gate_up, weights.gate_up_bias, kNoCopies));
  return {.x = second.sum,
          .delta = joined_product(context, active, weights.down, weights.down_bias)};
}

Residual decoder_layer(const LayerSource& source, const LayerContext& context,
                       const LayerInput& input, const Residual& in) {
  const UnitLease lease = source.parameters->lease(source.unit, source.keep);
  Residual out = decoder_layer(layer_weights(lease, context.parts), context, input, in);
  at::Tensor* const outputs[] = {&out.x, &out.delta};
  lease.watch(outputs);
  return out;
}

at::Tensor decoder_layer_recomputed(const LayerSource& source, const LayerContext& context,
                                    const LayerInput& input, const at::Tensor& x) {
  return RecomputedLayer::apply(x, input, source, &context);
}

}  // namespace troupe::actors
