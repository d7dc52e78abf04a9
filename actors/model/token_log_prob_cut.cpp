#include "actors/model/token_log_prob_cut.hpp"

#include "actors/algorithm/row_cut.hpp"
#include "actors/model/token_log_prob_chunks.hpp"
#include "runtime/base/check.hpp"
#include "runtime/task/failure.hpp"

#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace troupe::actors {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

std::span<const float> floats_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

/// The chunk's logits [rows, V/tp] of all ranks side by side, [rows, V].
at::Tensor whole_logits(const CutHead& where, const at::Tensor& part) {
  if (where.group == nullptr) return part;
  const auto parts = runtime::value_or_throw(
      where.group->ranks->all_gather_variable<float>(floats_of(part), where.group->deadline()));
  std::vector<at::Tensor> columns;
  for (const std::vector<float>& mine : parts) {
    const at::Tensor column =
        torch::empty({static_cast<std::int64_t>(mine.size())}, part.options());
    std::copy(mine.begin(), mine.end(), column.data_ptr<float>());
    columns.push_back(column.view({part.size(0), -1}));
  }
  return at::cat(columns, 1);
}

/// What a row's forward leaves for its backward; the same on all ranks of a cut head.
struct RowResult {
  RowCut cut;
  float log_prob = 0;
  float log_sum_exp = 0;  ///< of kept logits / temperature
};

RowResult row_forward(RowCutter& cutter, std::span<const float> logits, std::int64_t target,
                      double inverse) {
  RowResult row{.cut = cutter.cut(logits)};
  const auto wanted = static_cast<std::size_t>(target);
  const float best = *std::ranges::max_element(logits);  // always kept
  double sum = 0;
  for (std::size_t v = 0; v < logits.size(); ++v)
    if (v == wanted || row.cut.keeps(logits[v], static_cast<std::int64_t>(v)))
      sum += std::exp((double{logits[v]} - double{best}) * inverse);
  const double log_sum = std::log(sum);
  row.log_prob = static_cast<float>((double{logits[wanted]} - double{best}) * inverse - log_sum);
  row.log_sum_exp = static_cast<float>(double{best} * inverse + log_sum);
  return row;
}

/// What backward is told of each token, [T] each.
struct SavedRows {
  std::span<const std::int64_t> targets;
  std::span<const float> cut_logits;
  std::span<const std::int64_t> cut_ids;
  std::span<const float> log_sum_exp;
  std::span<const float> gradient;
};

/// Replaces the logits of token `t`, whose first column is id `first`, by d loss / d logit.
void row_backward(const SavedRows& rows, std::size_t t, std::int64_t first, double inverse,
                  std::span<float> logits) {
  const RowCut cut{.logit = rows.cut_logits[t], .id = static_cast<std::int32_t>(rows.cut_ids[t])};
  const double upstream = double{rows.gradient[t]} * inverse;
  for (std::size_t v = 0; v < logits.size(); ++v) {
    const std::int64_t id = first + static_cast<std::int64_t>(v);
    const bool target = id == rows.targets[t];
    if (!target && !cut.keeps(logits[v], id)) {
      logits[v] = 0;
      continue;
    }
    const double p = std::exp(double{logits[v]} * inverse - double{rows.log_sum_exp[t]});
    logits[v] = static_cast<float>(upstream * ((target ? 1.0 : 0.0) - p));
  }
}

struct Node : torch::autograd::Function<Node> {
  static tensor_list forward(AutogradContext* context, const at::Tensor& hidden,
                             const at::Tensor& head, const at::Tensor& targets,
                             const TokenLogProbOptions& options, const SamplingTransform& transform,
                             const CutHead& where) {
    const std::int64_t tokens = hidden.size(0);
    const at::Tensor log_prob = at::empty({tokens}, hidden.options());
    const at::Tensor log_sum_exp = at::empty({tokens}, hidden.options());
    const at::Tensor cut_logits = at::empty({tokens}, hidden.options());
    const at::Tensor cut_ids = at::empty({tokens}, targets.options());
    RowCutter cutter(transform);
    for_each_logit_chunk(
        hidden, head, options.chunk_tokens, [&](std::int64_t begin, at::Tensor& part) {
          const at::Tensor logits = whole_logits(where, part);
          const auto width = static_cast<std::size_t>(logits.size(1));
          for (std::int64_t r = 0; r < logits.size(0); ++r) {
            const std::int64_t t = begin + r;
            const RowResult row = row_forward(
                cutter, floats_of(logits).subspan(static_cast<std::size_t>(r) * width, width),
                targets.data_ptr<std::int64_t>()[t], 1.0 / options.temperature);
            log_prob.data_ptr<float>()[t] = row.log_prob;
            log_sum_exp.data_ptr<float>()[t] = row.log_sum_exp;
            cut_logits.data_ptr<float>()[t] = row.cut.logit;
            cut_ids.data_ptr<std::int64_t>()[t] = row.cut.id;
          }
        });
    context->save_for_backward({hidden, head, targets, log_sum_exp, cut_logits, cut_ids});
    context->saved_data["group"] =
        static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(where.group));
    context->saved_data["first"] = where.group == nullptr ? std::int64_t{0} : where.rows.begin;
    context->saved_data["temperature"] = options.temperature;
    context->saved_data["chunk"] = options.chunk_tokens;
    return {log_prob};
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& hidden = saved[0];
    const at::Tensor& head = saved[1];
    const at::Tensor gradient = gradients[0].contiguous();
    const auto ids_of = [](const at::Tensor& tensor) {
      return std::span<const std::int64_t>(tensor.data_ptr<std::int64_t>(),
                                           static_cast<std::size_t>(tensor.numel()));
    };
    const SavedRows rows{.targets = ids_of(saved[2]),
                         .cut_logits = floats_of(saved[4]),
                         .cut_ids = ids_of(saved[5]),
                         .log_sum_exp = floats_of(saved[3]),
                         .gradient = floats_of(gradient)};
    const std::int64_t first = context->saved_data["first"].toInt();
    const double inverse = 1.0 / context->saved_data["temperature"].toDouble();
    const at::Tensor hidden_gradient = at::empty_like(hidden);
    const at::Tensor head_gradient = at::zeros_like(head);
    for_each_logit_chunk(
        hidden, head, context->saved_data["chunk"].toInt(),
        [&](std::int64_t begin, at::Tensor& part) {
          const auto width = static_cast<std::size_t>(part.size(1));
          for (std::int64_t r = 0; r < part.size(0); ++r)
            row_backward(rows, static_cast<std::size_t>(begin + r), first, inverse,
                         {part.data_ptr<float>() + static_cast<std::size_t>(r) * width, width});
          at::Tensor to = hidden_gradient.narrow(0, begin, part.size(0));
          at::mm_out(to, part, head);
          head_gradient.addmm_(part.t(), hidden.narrow(0, begin, part.size(0)));
        });
    const auto* group = reinterpret_cast<const TensorGroup*>(
        static_cast<std::intptr_t>(context->saved_data["group"].toInt()));
    if (group != nullptr) group->sum(hidden_gradient);
    return {hidden_gradient, head_gradient, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor processed_log_prob(const at::Tensor& hidden, const at::Tensor& head,
                              const at::Tensor& targets, const TokenLogProbOptions& options,
                              const SamplingTransform& transform, const CutHead& where) {
  check_log_prob_input(hidden, head, targets, options);
  TROUPE_CHECK(transform.temperature == options.temperature,
               "processed log-prob: temperature {} of sampling, {} of log-probs",
               transform.temperature, options.temperature);
  if (hidden.size(0) == 0) return at::zeros({0}, hidden.options());
  return Node::apply(hidden.contiguous(), head, targets, options, transform, where)[0];
}

}  // namespace troupe::actors
