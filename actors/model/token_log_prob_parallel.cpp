#include "actors/model/token_log_prob_parallel.hpp"

#include "actors/model/tensor_parallel_kernels.hpp"
#include "runtime/base/check.hpp"
#include "runtime/task/failure.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <vector>

namespace troupe::actors {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

static_assert(sizeof(LogitPart) == 4 * sizeof(double), "parts travel as f64");

std::int64_t* ids_of(const at::Tensor& tensor) { return tensor.data_ptr<std::int64_t>(); }

/// Columns of this shard; −1 where another rank has the target.
at::Tensor local_targets(const at::Tensor& targets, IndexRange rows) {
  const at::Tensor local = at::empty_like(targets);
  for (std::int64_t t = 0; t < targets.numel(); ++t) {
    const std::int64_t id = ids_of(targets)[t];
    ids_of(local)[t] = id >= rows.begin && id < rows.end ? id - rows.begin : -1;
  }
  return local;
}

/// Parts of all ranks, [R, T].
std::vector<LogitPart> exchange(const TensorGroup& group, std::vector<LogitPart>& mine) {
  std::vector<LogitPart> all(mine.size() * static_cast<std::size_t>(group.place.size));
  const auto doubles = [](std::vector<LogitPart>& parts) {
    return std::span<double>(reinterpret_cast<double*>(parts.data()), parts.size() * 4);
  };
  runtime::value_or_throw(group.ranks->all_gather(doubles(mine), doubles(all), group.deadline()));
  return all;
}

struct Node : torch::autograd::Function<Node> {
  static tensor_list forward(AutogradContext* context, const at::Tensor& hidden,
                             const at::Tensor& head, const at::Tensor& targets,
                             const TensorGroup* group, const TokenLogProbOptions& options) {
    const std::int64_t tokens = hidden.size(0);
    const std::int64_t chunk = std::min(options.chunk_tokens, tokens);
    const auto inverse = static_cast<float>(1.0 / options.temperature);
    std::vector<LogitPart> parts(static_cast<std::size_t>(tokens));
    {
      const at::Tensor logits = at::empty({chunk, head.size(0)}, hidden.options());
      for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
        const std::int64_t count = std::min(chunk, tokens - begin);
        at::Tensor part = logits.narrow(0, 0, count);
        at::mm_out(part, hidden.narrow(0, begin, count), head.t());
        logit_parts({count, head.size(0)}, part.data_ptr<float>(), ids_of(targets) + begin, inverse,
                    parts.data() + begin);
      }
    }
    const std::vector<LogitPart> all = exchange(*group, parts);
    const at::Tensor log_prob = at::empty({tokens}, hidden.options());
    const at::Tensor entropy = at::empty({tokens}, hidden.options());
    const at::Tensor log_sum_exp = at::empty({tokens}, hidden.options());
    merge_log_prob_rows(all, tokens,
                        {.targets = ids_of(targets),
                         .inverse_temperature = inverse,
                         .log_prob = log_prob.data_ptr<float>(),
                         .entropy = entropy.data_ptr<float>(),
                         .log_sum_exp = log_sum_exp.data_ptr<float>()});
    context->save_for_backward({hidden, head, targets, log_sum_exp, entropy});
    context->saved_data["group"] =
        static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(group));
    context->saved_data["temperature"] = options.temperature;
    context->saved_data["chunk"] = chunk;
    context->set_materialize_grads(false);
    return {log_prob, entropy};
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& group = *reinterpret_cast<const TensorGroup*>(
        static_cast<std::intptr_t>(context->saved_data["group"].toInt()));
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
      const std::int64_t count = std::min(chunk, tokens - begin);
      const at::Tensor inputs = hidden.narrow(0, begin, count);
      at::Tensor part = logits.narrow(0, 0, count);
      at::mm_out(part, inputs, head.t());
      logit_shard_backward(
          {count, head.size(0)}, part.data_ptr<float>(),
          {.targets = ids_of(saved[2]) + begin,
           .inverse_temperature =
               static_cast<float>(1.0 / context->saved_data["temperature"].toDouble()),
           .log_sum_exp = saved[3].data_ptr<float>() + begin,
           .entropy = saved[4].data_ptr<float>() + begin,
           .log_prob_gradient = log_prob_gradient.data_ptr<float>() + begin,
           .entropy_gradient =
               entropy_gradient.defined() ? entropy_gradient.data_ptr<float>() + begin : nullptr});
      at::Tensor to = hidden_gradient.narrow(0, begin, count);
      at::mm_out(to, part, head);
      head_gradient.addmm_(part.t(), inputs);
    }
    group.sum(hidden_gradient);
    return {hidden_gradient, head_gradient, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

TokenLogProb token_log_prob_parallel(const TensorGroup& group, IndexRange rows,
                                     const at::Tensor& hidden, const at::Tensor& head,
                                     const at::Tensor& targets,
                                     const TokenLogProbOptions& options) {
  TROUPE_CHECK(hidden.size(1) == head.size(1), "token log-prob: hidden is {} wide, head {}",
               hidden.size(1), head.size(1));
  TROUPE_CHECK(head.size(0) == rows.size(), "token log-prob: head has {} rows for {}..{}",
               head.size(0), rows.begin, rows.end);
  TROUPE_CHECK(hidden.size(0) == targets.size(0), "token log-prob: {} rows, {} targets",
               hidden.size(0), targets.size(0));
  TROUPE_CHECK(options.temperature > 0 && options.chunk_tokens > 0,
               "token log-prob: temperature {} and chunk {} must be positive", options.temperature,
               options.chunk_tokens);
  if (hidden.size(0) == 0) {
    const at::Tensor none = at::zeros({0}, hidden.options());
    return {.log_prob = none, .entropy = none};
  }
  const tensor_list out =
      Node::apply(hidden.contiguous(), head, local_targets(targets, rows), &group, options);
  return {.log_prob = out[0], .entropy = out[1]};
}

}  // namespace troupe::actors
