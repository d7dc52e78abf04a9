#include "actors/model/token_log_prob.hpp"

#include "actors/model/token_log_prob_chunks.hpp"
#include "actors/model/train_kernels.hpp"

#include <torch/autograd.h>
#include <torch/types.h>

namespace troupe::actors {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct TokenLogProbNode : torch::autograd::Function<TokenLogProbNode> {
  static tensor_list forward(AutogradContext* context, const at::Tensor& hidden,
                             const at::Tensor& head, const at::Tensor& targets,
                             const TokenLogProbOptions& options) {
    const std::int64_t tokens = hidden.size(0);
    const at::Tensor log_prob = at::empty({tokens}, hidden.options());
    const at::Tensor entropy = at::empty({tokens}, hidden.options());
    const at::Tensor log_sum_exp = at::empty({tokens}, hidden.options());
    for_each_logit_chunk(
        hidden, head, options.chunk_tokens, [&](std::int64_t begin, at::Tensor& part) {
          log_prob_rows({part.size(0), head.size(0)}, part.data_ptr<float>(),
                        {.targets = targets.data_ptr<std::int64_t>() + begin,
                         .inverse_temperature = static_cast<float>(1.0 / options.temperature),
                         .log_prob = log_prob.data_ptr<float>() + begin,
                         .entropy = entropy.data_ptr<float>() + begin,
                         .log_sum_exp = log_sum_exp.data_ptr<float>() + begin});
        });
    context->save_for_backward({hidden, head, targets, log_sum_exp, entropy});
    context->saved_data["temperature"] = options.temperature;
    context->saved_data["chunk"] = options.chunk_tokens;
    context->set_materialize_grads(false);
    return {log_prob, entropy};
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const LogProbGradients found =
        log_prob_backward({saved[0], saved[1], saved[2], saved[3], saved[4]},
                          {.temperature = context->saved_data["temperature"].toDouble(),
                           .chunk_tokens = context->saved_data["chunk"].toInt()},
                          gradients[0], gradients[1]);
    return {found.hidden, found.head, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

TokenLogProb token_log_prob(const at::Tensor& hidden, const at::Tensor& head,
                            const at::Tensor& targets, const TokenLogProbOptions& options) {
  check_log_prob_input(hidden, head, targets, options);
  if (hidden.size(0) == 0) {
    const at::Tensor none = at::zeros({0}, hidden.options());
    return {.log_prob = none, .entropy = none};
  }
  const tensor_list out = TokenLogProbNode::apply(hidden.contiguous(), head, targets, options);
  return {.log_prob = out[0], .entropy = out[1]};
}

}  // namespace troupe::actors
