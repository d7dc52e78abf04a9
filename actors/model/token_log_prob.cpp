#include "actors/model/token_log_prob.hpp"

#include "actors/model/train_kernels.hpp"
#include "runtime/base/check.hpp"

#include <torch/torch.h>

#include <algorithm>

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
    const std::int64_t chunk = std::min(options.chunk_tokens, tokens);
    const at::Tensor logits = at::empty({chunk, head.size(0)}, hidden.options());
    for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
      const std::int64_t rows = std::min(chunk, tokens - begin);
      at::Tensor part = logits.narrow(0, 0, rows);
      at::mm_out(part, hidden.narrow(0, begin, rows), head.t());
      log_prob_rows({rows, head.size(0)}, part.data_ptr<float>(),
                    {.targets = targets.data_ptr<std::int64_t>() + begin,
                     .inverse_temperature = static_cast<float>(1.0 / options.temperature),
                     .log_prob = log_prob.data_ptr<float>() + begin,
                     .entropy = entropy.data_ptr<float>() + begin,
                     .log_sum_exp = log_sum_exp.data_ptr<float>() + begin});
    }
    context->save_for_backward({hidden, head, targets, log_sum_exp, entropy});
    context->saved_data["temperature"] = options.temperature;
    context->saved_data["chunk"] = chunk;
    context->set_materialize_grads(false);
    return {log_prob, entropy};
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& hidden = saved[0];
    const at::Tensor& head = saved[1];
    const std::int64_t tokens = hidden.size(0);
    const std::int64_t chunk = context->saved_data["chunk"].toInt();
    const at::Tensor log_prob_gradient =
        gradients[0].defined() ? gradients[0].contiguous() : at::zeros({tokens}, hidden.options());
    const at::Tensor entropy_gradient =
        gradients[1].defined() ? gradients[1].contiguous() : at::Tensor();
    const at::Tensor hidden_gradient = at::empty_like(hidden);
    at::Tensor head_gradient = at::zeros_like(head);
    const at::Tensor logits = at::empty({chunk, head.size(0)}, hidden.options());
    for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
      const std::int64_t rows = std::min(chunk, tokens - begin);
      const at::Tensor inputs = hidden.narrow(0, begin, rows);
      at::Tensor part = logits.narrow(0, 0, rows);
      at::mm_out(part, inputs, head.t());
      log_prob_rows_backward(
          {rows, head.size(0)}, part.data_ptr<float>(),
          {.targets = saved[2].data_ptr<std::int64_t>() + begin,
           .inverse_temperature =
               static_cast<float>(1.0 / context->saved_data["temperature"].toDouble()),
           .log_sum_exp = saved[3].data_ptr<float>() + begin,
           .entropy = saved[4].data_ptr<float>() + begin,
           .log_prob_gradient = log_prob_gradient.data_ptr<float>() + begin,
           .entropy_gradient =
               entropy_gradient.defined() ? entropy_gradient.data_ptr<float>() + begin : nullptr});
      at::Tensor to = hidden_gradient.narrow(0, begin, rows);
      at::mm_out(to, part, head);
      head_gradient.addmm_(part.t(), inputs);
    }
    return {hidden_gradient, head_gradient, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

TokenLogProb token_log_prob(const at::Tensor& hidden, const at::Tensor& head,
                            const at::Tensor& targets, const TokenLogProbOptions& options) {
  TROUPE_CHECK(hidden.size(1) == head.size(1), "token log-prob: hidden is {} wide, head {}",
               hidden.size(1), head.size(1));
  TROUPE_CHECK(hidden.size(0) == targets.size(0), "token log-prob: {} rows, {} targets",
               hidden.size(0), targets.size(0));
  TROUPE_CHECK(options.temperature > 0 && options.chunk_tokens > 0,
               "token log-prob: temperature {} and chunk {} must be positive", options.temperature,
               options.chunk_tokens);
  if (hidden.size(0) == 0) {
    const at::Tensor none = at::zeros({0}, hidden.options());
    return {.log_prob = none, .entropy = none};
  }
  const tensor_list out = TokenLogProbNode::apply(hidden.contiguous(), head, targets, options);
  return {.log_prob = out[0], .entropy = out[1]};
}

}  // namespace troupe::actors
