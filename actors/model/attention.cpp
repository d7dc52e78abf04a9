#include "actors/model/attention.hpp"

#include "runtime/base/check.hpp"

#include <torch/autograd.h>
#include <torch/types.h>

#include <cmath>

namespace troupe::actors {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

std::span<const std::int64_t> view(const at::Tensor& indices) {
  if (!indices.defined()) return {};
  return {indices.data_ptr<std::int64_t>(), static_cast<std::size_t>(indices.numel())};
}

AttentionInputs inputs_of(const at::Tensor& qkv, const at::Tensor& offsets,
                          const at::Tensor& prefixes, const AttentionShape& shape) {
  const float* q = qkv.data_ptr<float>();
  const float* k = q + shape.heads * shape.head_dim;
  return {.q = q,
          .k = k,
          .v = k + shape.kv_heads * shape.head_dim,
          .row = qkv.size(1),
          .offsets = view(offsets),
          .prefixes = view(prefixes)};
}

struct PackedAttention : torch::autograd::Function<PackedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv,
                            const SequenceLayout& layout, const AttentionShape& shape,
                            const RotaryTable* table) {
    const std::int64_t tokens = qkv.size(0);
    const at::Tensor out = at::empty({tokens, shape.heads * shape.head_dim}, qkv.options());
    const at::Tensor log_sum_exp = at::empty({shape.heads, tokens}, qkv.options());
    AttentionScratch scratch;
    attention_forward(shape, *table, inputs_of(qkv, layout.offsets, layout.prefixes, shape),
                      out.data_ptr<float>(), log_sum_exp.data_ptr<float>(), scratch);
    context->save_for_backward({qkv, layout.offsets, layout.prefixes, out, log_sum_exp});
    context->saved_data["heads"] = shape.heads;
    context->saved_data["kv_heads"] = shape.kv_heads;
    context->saved_data["head_dim"] = shape.head_dim;
    // Borrowed; see the header. Autograd's context carries integers, not our pointers.
    context->saved_data["table"] =
        static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(table));
    return out;
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const AttentionShape shape{.heads = context->saved_data["heads"].toInt(),
                               .kv_heads = context->saved_data["kv_heads"].toInt(),
                               .head_dim = context->saved_data["head_dim"].toInt()};
    const auto* table = reinterpret_cast<const RotaryTable*>(
        static_cast<std::intptr_t>(context->saved_data["table"].toInt()));
    const at::Tensor out_gradient = gradients[0].contiguous();
    const at::Tensor qkv_gradient = at::empty_like(saved[0]);
    float* q = qkv_gradient.data_ptr<float>();
    float* k = q + shape.heads * shape.head_dim;
    AttentionScratch scratch;
    attention_backward(shape, *table, inputs_of(saved[0], saved[1], saved[2], shape),
                       {.out = saved[3].data_ptr<float>(),
                        .log_sum_exp = saved[4].data_ptr<float>(),
                        .out_gradient = out_gradient.data_ptr<float>(),
                        .q = q,
                        .k = k,
                        .v = k + shape.kv_heads * shape.head_dim},
                       scratch);
    return {qkv_gradient, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor packed_attention(const at::Tensor& qkv, const SequenceLayout& layout,
                            const AttentionShape& shape, const RotaryTable& table) {
  const std::int64_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  TROUPE_CHECK(qkv.dim() == 2 && qkv.size(1) == width, "attention: qkv is {} wide, wanted {}",
               qkv.size(-1), width);
  TROUPE_CHECK(view(layout.offsets).back() == qkv.size(0),
               "attention: offsets end at {}, qkv has {} rows", view(layout.offsets).back(),
               qkv.size(0));
  return PackedAttention::apply(qkv, layout, shape, &table);
}

void extend_rotary(RotaryTable& table, std::span<const double> frequencies,
                   std::int64_t positions) {
  if (positions <= table.positions) return;
  const std::size_t total = static_cast<std::size_t>(positions) * frequencies.size();
  table.cosine.reserve(total);
  table.sine.reserve(total);
  for (std::int64_t p = table.positions; p < positions; ++p)
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(p) * frequency;
      table.cosine.push_back(static_cast<float>(std::cos(angle)));
      table.sine.push_back(static_cast<float>(std::sin(angle)));
    }
  table.positions = positions;
}

}  // namespace troupe::actors
