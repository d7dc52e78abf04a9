#include "actors/model/token_log_prob_chunks.hpp"

#include "actors/model/train_kernels.hpp"
#include "runtime/base/check.hpp"

#include <torch/types.h>

#include <algorithm>

namespace troupe::actors {

void check_log_prob_input(const at::Tensor& hidden, const at::Tensor& head,
                          const at::Tensor& targets, const TokenLogProbOptions& options) {
  TROUPE_CHECK(hidden.size(1) == head.size(1), "token log-prob: hidden is {} wide, head {}",
               hidden.size(1), head.size(1));
  TROUPE_CHECK(hidden.size(0) == targets.size(0), "token log-prob: {} rows, {} targets",
               hidden.size(0), targets.size(0));
  TROUPE_CHECK(options.temperature > 0 && options.chunk_tokens > 0,
               "token log-prob: temperature {} and chunk {} must be positive", options.temperature,
               options.chunk_tokens);
}

void for_each_logit_chunk(const at::Tensor& hidden, const at::Tensor& head,
                          std::int64_t chunk_tokens,
                          const std::function<void(std::int64_t, at::Tensor&)>& visit) {
  const std::int64_t tokens = hidden.size(0);
  const std::int64_t chunk = std::min(chunk_tokens, tokens);
  const at::Tensor logits = at::empty({chunk, head.size(0)}, hidden.options());
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t rows = std::min(chunk, tokens - begin);
    at::Tensor part = logits.narrow(0, 0, rows);
    at::mm_out(part, hidden.narrow(0, begin, rows), head.t());
    visit(begin, part);
  }
}

LogProbGradients log_prob_backward(const LogProbState& state, const TokenLogProbOptions& options,
                                   const at::Tensor& log_prob, const at::Tensor& entropy) {
  const at::Tensor& hidden = state.hidden;
  const at::Tensor& head = state.head;
  const at::Tensor log_prob_gradient =
      log_prob.defined() ? log_prob.contiguous() : at::zeros({hidden.size(0)}, hidden.options());
  const at::Tensor entropy_gradient = entropy.defined() ? entropy.contiguous() : at::Tensor();
  LogProbGradients out{.hidden = at::empty_like(hidden), .head = at::zeros_like(head)};
  for_each_logit_chunk(hidden, head, options.chunk_tokens,
                       [&](std::int64_t begin, at::Tensor& part) {
                         log_prob_rows_backward(
                             {part.size(0), head.size(0)}, part.data_ptr<float>(),
                             {.targets = state.targets.data_ptr<std::int64_t>() + begin,
                              .inverse_temperature = static_cast<float>(1.0 / options.temperature),
                              .log_sum_exp = state.log_sum_exp.data_ptr<float>() + begin,
                              .entropy = state.entropy.data_ptr<float>() + begin,
                              .log_prob_gradient = log_prob_gradient.data_ptr<float>() + begin,
                              .entropy_gradient = entropy_gradient.defined()
                                                      ? entropy_gradient.data_ptr<float>() + begin
                                                      : nullptr});
                         at::Tensor to = out.hidden.narrow(0, begin, part.size(0));
                         at::mm_out(to, part, head);
                         out.head.addmm_(part.t(), hidden.narrow(0, begin, part.size(0)));
                       });
  return out;
}

}  // namespace troupe::actors
