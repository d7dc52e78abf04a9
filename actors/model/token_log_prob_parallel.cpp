#include "actors/model/token_log_prob_parallel.hpp"

#include "actors/model/tensor_parallel_kernels.hpp"
#include "actors/model/token_log_prob_chunks.hpp"
#include "runtime/base/check.hpp"
#include "runtime/task/failure.hpp"

#include <torch/autograd.h>
#include <torch/types.h>

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
std::vector<LogitPart> exchange_parts(const TensorGroup& group, std::vector<LogitPart>& mine) {
  std::vector<LogitPart> all(mine.size() * static_cast<std::size_t>(group.place.size));
  const auto doubles = [](std::vector<LogitPart>& parts) {
    return std::span<double>(reinterpret_cast<double*>(parts.data()), parts.size() * 4);
  };
  runtime::value_or_throw(group.ranks->all_gather(doubles(mine), doubles(all), group.deadline()));
  return all;
}

struct ParallelNode : torch::autograd::Function<ParallelNode> {
  static tensor_list forward(AutogradContext* context, const at::Tensor& hidden,
                             const at::Tensor& head, const at::Tensor& targets,
                             const TensorGroup* group, const TokenLogProbOptions& options) {
    const std::int64_t tokens = hidden.size(0);
    const auto inverse = static_cast<float>(1.0 / options.temperature);
    std::vector<LogitPart> parts(static_cast<std::size_t>(tokens));
    for_each_logit_chunk(hidden, head, options.chunk_tokens,
                         [&](std::int64_t begin, at::Tensor& part) {
                           logit_parts({part.size(0), head.size(0)}, part.data_ptr<float>(),
                                       ids_of(targets) + begin, inverse, parts.data() + begin);
                         });
    const std::vector<LogitPart> all = exchange_parts(*group, parts);
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
    context->saved_data["chunk"] = options.chunk_tokens;
    context->set_materialize_grads(false);
    return {log_prob, entropy};
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& group = *reinterpret_cast<const TensorGroup*>(
        static_cast<std::intptr_t>(context->saved_data["group"].toInt()));
    const LogProbGradients found =
        log_prob_backward({saved[0], saved[1], saved[2], saved[3], saved[4]},
                          {.temperature = context->saved_data["temperature"].toDouble(),
                           .chunk_tokens = context->saved_data["chunk"].toInt()},
                          gradients[0], gradients[1]);
    group.sum(found.hidden);
    return {found.hidden, found.head, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

TokenLogProb token_log_prob_parallel(const TensorGroup& group, IndexRange rows,
                                     const at::Tensor& hidden, const at::Tensor& head,
                                     const at::Tensor& targets,
                                     const TokenLogProbOptions& options) {
  check_log_prob_input(hidden, head, targets, options);
  TROUPE_CHECK(head.size(0) == rows.size(), "token log-prob: head has {} rows for {}..{}",
               head.size(0), rows.begin, rows.end);
  if (hidden.size(0) == 0) {
    const at::Tensor none = at::zeros({0}, hidden.options());
    return {.log_prob = none, .entropy = none};
  }
  const tensor_list out =
      ParallelNode::apply(hidden.contiguous(), head, local_targets(targets, rows), &group, options);
  return {.log_prob = out[0], .entropy = out[1]};
}

}  // namespace troupe::actors
