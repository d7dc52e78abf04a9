#include "sim/cost/train_cost.hpp"

#include "sim/cost/nearest.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

namespace troupe::sim {
namespace {

/// Bytes that an Adam step reads and writes for one parameter: master, two moments, gradient; then
/// master, moments and the weight.
constexpr double kAdamTraffic = 16 + 14;

std::int64_t nearest_divisor(std::int64_t number, std::int64_t wanted) {
  return nearest_that_fits(wanted, number,
                           [number](std::int64_t other) { return number % other == 0; });
}

}  // namespace

double packed_micro_batches(std::vector<double> tokens, double room) {
  std::sort(tokens.begin(), tokens.end(), std::greater<>());
  std::multiset<double> left;  // of each micro-batch that is not full
  double count = 0;
  for (const double length : tokens) {
    const auto found = left.lower_bound(length);
    if (found == left.end()) {
      count += std::max(1.0, std::ceil(length / room));
      if (length < room) left.insert(room - length);
      continue;
    }
    const double rest = *found - length;
    left.erase(found);
    if (rest > 0) left.insert(rest);
  }
  return count;
}

result<TrainCost> TrainCost::create(const ModelSpec& model, const DeviceSpec& device,
                                    const TrainLayout& layout, const Constants& constants) {
  TROUPE_TRY_VOID(model.validate());
  TROUPE_TRY_VOID(device.validate());
  const reshard::ModelShape& shape = model.shape;
  if (layout.tp < 1 || layout.pp < 1 || layout.dp < 1 || layout.cp < 1 || layout.ep < 1 ||
      layout.virtual_stages < 1 || layout.micro_batch_tokens < 1)
    return fail(ErrorCode::kInvalidArgument,
                "layout tp {} pp {} dp {} cp {} ep {}, {} virtual stages, micro-batches of {} "
                "tokens: wanted at least 1 of each",
                layout.tp, layout.pp, layout.dp, layout.cp, layout.ep, layout.virtual_stages,
                layout.micro_batch_tokens);
  if (layout.dp % layout.cp != 0)
    return fail(ErrorCode::kInvalidArgument,
                "model {}: {} ranks that share out a sequence do not divide data parallelism {}; "
                "the nearest that do are {}",
                model.name, layout.cp, layout.dp, nearest_divisor(layout.dp, layout.cp));
  if (shape.heads % layout.tp != 0)
    return fail(ErrorCode::kInvalidArgument,
                "model {}: tensor parallelism {} does not divide {} heads; the nearest that does "
                "is {}",
                model.name, layout.tp, shape.heads, nearest_divisor(shape.heads, layout.tp));
  const std::int64_t stages = static_cast<std::int64_t>(layout.pp) * layout.virtual_stages;
  if (stages > shape.layers)
    return fail(ErrorCode::kInvalidArgument, "model {}: {} stages of {} layers; at most {} fit",
                model.name, stages, shape.layers, shape.layers);
  const std::int64_t ends = layout.first_stage_layers + layout.last_stage_layers;
  if (layout.first_stage_layers < 0 || layout.last_stage_layers < 0 ||
      (ends > 0 && (layout.pp < 2 || ends + layout.pp - 2 > shape.layers)))
    return fail(
        ErrorCode::kInvalidArgument,
        "model {}: {} layers in the first stage and {} in the last of {}; wanted two stages "
        "or more, and at least one of {} layers for each other",
        model.name, layout.first_stage_layers, layout.last_stage_layers, layout.pp, shape.layers);
  if (shape.expert.experts == 0 ? layout.ep != 1 : shape.expert.experts % layout.ep != 0)
    return fail(ErrorCode::kInvalidArgument,
                "model {}: expert parallelism {} does not divide {} experts; the nearest that does "
                "is {}",
                model.name, layout.ep, shape.expert.experts,
                shape.expert.experts == 0 ? 1 : nearest_divisor(shape.expert.experts, layout.ep));
  if ((layout.dp * layout.tp) % layout.ep != 0)
    return fail(ErrorCode::kInvalidArgument,
                "model {}: expert parallelism {} does not divide the {} ranks of a stage",
                model.name, layout.ep, layout.dp * layout.tp);
  return TrainCost(model, device, layout, constants);
}

TrainCost::TrainCost(const ModelSpec& model, const DeviceSpec& device, const TrainLayout& layout,
                     const Constants& constants)
    : model_(model),
      size_(size_of(model)),
      device_(device),
      layout_(layout),
      constants_(constants),
      fabric_(device, constants) {}

/// Matrices and attention of one dp rank. Routed experts, whose matrices are small and uneven,
/// reach less than the others.
TrainCost::Parts TrainCost::flop_time(double tokens, double squares, bool backward) const {
  const double experts = 2 * tokens *
                         static_cast<double>(size_.expert_layers * size_.experts_per_token) *
                         static_cast<double>(size_.expert);
  const double head = 2 * tokens * static_cast<double>(size_.head);
  const double attention = attention_flops_per_square(model_) * squares;
  const double others = forward_flops(model_, tokens, squares) - experts - head - attention;
  const double uneven = layout_.ep > 1 ? constants_[Constant::kExpertUnevenness] : 1;
  const double share = constants_[Constant::kExpertShare] / uneven;
  const double times = !backward ? 1 : layout_.recompute == Recompute::kAll ? 4 : 3;
  // The backward kernel makes the scores again: 5 matrices for 2.
  const double times_attention = backward ? times + 0.5 : 1;
  const double rate = device_.flops * constants_[Constant::kGemmShare] *
                      constants_[Constant::kTrainShare] * layout_.tp;
  return {.layers = (times * (others + experts / share) +
                     times_attention * attention / constants_[Constant::kAttentionShare]) /
                    rate,
          .head = (backward ? 3 : 1) * head / rate};
}

/// Norms, activations, residuals: what a layer keeps of a token (34·H bytes, Korthikanti et al.
/// 2205.05198, 19·H of them in its MLP) is written once and read once in each direction. Routed
/// experts have each token k times: before and after their matrices and, where they are elsewhere,
/// once more on either side of the exchange. Logits are cast, and read for their maximum and sum;
/// their gradients are written, and read twice.
TrainCost::Parts TrainCost::activation_time(double tokens, bool backward) const {
  const double times = !backward ? 1 : layout_.recompute == Recompute::kAll ? 4 : 3;
  const auto hidden = static_cast<double>(model_.shape.hidden);
  const reshard::ExpertShape& expert = model_.shape.expert;
  const double chosen = static_cast<double>(size_.experts_per_token);
  const double uneven = layout_.ep > 1 ? constants_[Constant::kExpertUnevenness] : 1;
  const double routed =
      uneven * 2 * chosen * (2 * hidden + 3 * static_cast<double>(expert.intermediate)) +
      2 * 3 * static_cast<double>(expert.shared_intermediate);
  const double exchanged = layout_.ep > 1 ? uneven * 2 * 2 * chosen * hidden : 0;
  const double kept = static_cast<double>(size_.dense_layers()) * 34 * hidden +
                      static_cast<double>(size_.expert_layers) * (15 * hidden + routed + exchanged);
  const double logits =
      (backward ? 16 + 12 : 16) * static_cast<double>(size_.head) / hidden * tokens;
  const double rate = device_.memory_rate * constants_[Constant::kWeightReadShare] * layout_.tp;
  return {.layers = times * 2 * kept * tokens / rate, .head = logits / rate};
}

/// What the stage with most work takes of all layers' and the head's time, in one micro-batch or
/// all: the head is the last stage's.
double TrainCost::slowest_stage(double layers_s, double head_s) const {
  if (layout_.pp == 1) return layers_s + head_s;
  const auto layers = static_cast<double>(size_.layers);
  const double even = layers / layout_.pp;
  const double last = layout_.last_stage_layers > 0 ? layout_.last_stage_layers : even;
  const double first = layout_.first_stage_layers > 0 ? layout_.first_stage_layers : even;
  const double middle = layout_.pp > 2 ? (layers - first - last) / (layout_.pp - 2) : 0;
  return std::max(std::max(first, middle) * layers_s / layers, last * layers_s / layers + head_s);
}

/// Whole sequences of one length fill a micro-batch: long ones leave more of it empty.
double TrainCost::micro_batches(double tokens, double sequences) const {
  const double room = static_cast<double>(layout_.micro_batch_tokens) * layout_.cp;
  const double least = std::ceil(tokens / room);
  if (sequences <= 0) return least;
  const double fit = std::max(1.0, std::floor(room * sequences / tokens));
  return std::max(least, std::ceil(sequences / fit));
}

TrainTime TrainCost::passes(const TrainWork& work, bool backward) const {
  TrainTime time;
  if (work.tokens <= 0) return time;
  const double tp = layout_.tp;
  const double pp = layout_.pp;
  const double steps = backward ? static_cast<double>(work.optimizer_steps) : 1;
  // Of the dp rank with most work, in one optimizer step.
  const double share = work.unevenness / layout_.dp / steps;
  const double tokens = work.tokens * share;
  const double squares = work.squares * share;
  const double cp = layout_.cp;
  const double filled = work.micro_batches > 0
                            ? work.micro_batches * cp / layout_.dp / steps
                            : micro_batches(tokens * cp, static_cast<double>(work.sequences) * cp /
                                                             layout_.dp / steps);
  const double micro = std::max(1.0, std::ceil(filled - 1e-9));
  double run = tokens;
  if (layout_.micro_batches == MicroBatches::kFilled)
    run = std::max(tokens, micro / filled * work.tokens / layout_.dp / steps);
  if (layout_.micro_batches == MicroBatches::kPadded)
    run = std::max(tokens, micro * static_cast<double>(layout_.micro_batch_tokens));
  const Parts flops = flop_time(run, squares, backward);
  const Parts moved = activation_time(run, backward);
  time.compute = steps * (flops.layers + flops.head) / pp;
  time.memory = steps * (moved.layers + moved.head) / pp;
  const double slowest =
      steps * slowest_stage(flops.layers + moved.layers, flops.head + moved.head);
  const double mean = time.compute + time.memory;
  // The first micro-batch goes through all stages, the others leave one by one.
  time.stage_wait = slowest - mean;
  time.bubble = (pp * mean - slowest) / (micro * layout_.virtual_stages);
  // A recomputed forward pass talks as the first one did.
  const double directions = !backward ? 1 : layout_.recompute == Recompute::kAll ? 3 : 2;
  const double layers = static_cast<double>(size_.layers) / pp;
  const double message = run / micro * static_cast<double>(model_.shape.hidden) * 2;
  time.tensor_parallel =
      steps * micro * directions * 2 * layers * fabric_.all_reduce(layout_.tp, message);
  if (layout_.pp > 1)
    time.pipeline = steps * micro * (backward ? 2 : 1) * layout_.virtual_stages *
                    fabric_.send(message / tp, layout_.tp * layout_.dp);
  if (layout_.cp > 1) {
    const auto rows = static_cast<double>(model_.shape.q_rows() + model_.shape.kv_rows());
    const double exchanged = tokens / micro * 2 * rows * 2 / tp;
    time.tensor_parallel +=
        steps * micro * directions * layers * fabric_.all_to_all(layout_.cp, exchanged, layout_.tp);
  }
  if (layout_.ep > 1) {
    const double exchanged = message * static_cast<double>(size_.experts_per_token) / tp *
                             constants_[Constant::kExpertUnevenness];
    time.experts = steps * micro * directions * 2 * static_cast<double>(size_.expert_layers) / pp *
                   fabric_.all_to_all(layout_.ep, exchanged);  // neighbours, whatever tp is
  }
  const double parameters = static_cast<double>(size_.parameters) / tp / pp;
  if (layout_.sharding == TrainSharding::kFsdp) {
    const double gathers =
        directions * fabric_.gather(layout_.dp, parameters * layout_.weight_bytes, layout_.tp);
    const double scatter =
        backward ? fabric_.gather(layout_.dp, parameters * layout_.gradient_bytes, layout_.tp) : 0;
    time.data_parallel = std::max(0.0, steps * micro * (gathers + scatter) - mean);
  }
  return time;
}

double TrainCost::expert_parameters() const {
  return static_cast<double>(size_.expert_layers * size_.experts * size_.expert);
}

/// What one optimizer step reduces and gathers: everything but experts over all copies, experts
/// over those that hold the same ones.
double TrainCost::gradients_s() const {
  if (layout_.sharding == TrainSharding::kFsdp) return 0;  // with every micro-batch
  const auto reduced = [this](int ranks, double parameters, int stride) {
    const double gradients = parameters * layout_.gradient_bytes;
    if (layout_.sharding == TrainSharding::kNone)
      return fabric_.all_reduce(ranks, gradients, stride);
    return fabric_.gather(ranks, gradients, stride) +
           fabric_.gather(ranks, parameters * layout_.weight_bytes, stride);
  };
  const double experts = expert_parameters() / layout_.pp;
  const double others = static_cast<double>(size_.parameters) / layout_.pp - experts;
  if (layout_.ep == 1) return reduced(layout_.dp, (others + experts) / layout_.tp, layout_.tp);
  return reduced(layout_.dp, others / layout_.tp, layout_.tp) +
         reduced(layout_.dp * layout_.tp / layout_.ep, experts / layout_.ep, layout_.ep);
}

TrainTime TrainCost::forward(const TrainWork& work) const {
  TrainTime time = passes(work, false);
  if (work.tokens <= 0) return time;
  time.host = constants_[Constant::kPassHost];
  if (layout_.offload_idle) time.offload = memory(true).weights / device_.pcie_rate;
  return time;
}

TrainTime TrainCost::update(const TrainWork& work) const {
  TrainTime time = passes(work, true);
  const auto steps = static_cast<double>(work.optimizer_steps);
  const double parameters = static_cast<double>(size_.parameters) / layout_.tp / layout_.pp;
  time.data_parallel += steps * gradients_s();
  const double owned =
      layout_.sharding == TrainSharding::kNone ? parameters : parameters / layout_.dp;
  const double rate = layout_.offload_optimizer
                          ? device_.pcie_rate
                          : device_.memory_rate * constants_[Constant::kWeightReadShare];
  time.optimizer = steps * owned * kAdamTraffic / rate;
  time.host = steps * constants_[Constant::kMinibatchHost];
  if (layout_.offload_idle) {
    const TrainMemory moved = memory(false);
    const double rate_of_moments =
        layout_.offload_pinned ? device_.pcie_rate : constants_[Constant::kPageableRate];
    time.offload = moved.weights / device_.pcie_rate + 2 * moved.optimizer / rate_of_moments;
  }
  return time;
}

TrainMemory TrainCost::memory(bool frozen) const {
  TrainMemory memory;
  const double tp = layout_.tp;
  const double dp = layout_.dp;
  const double expert_weights = expert_parameters();
  const double others = static_cast<double>(size_.parameters) - expert_weights;
  // Experts are cut over ep instead of tp·dp copies.
  const double cut = layout_.pp;
  const double held = others / tp / cut + expert_weights / std::max(tp, double(layout_.ep)) / cut;
  const bool fsdp = layout_.sharding == TrainSharding::kFsdp;
  const double layer = held * layout_.pp / static_cast<double>(size_.layers);
  memory.weights =
      fsdp ? (held / dp + 2 * layer) * layout_.weight_bytes : held * layout_.weight_bytes;
  if (!frozen) {
    memory.gradients = (fsdp ? held / dp : held) * layout_.gradient_bytes;
    // Sharded over all copies: of experts there are fewer, of larger shards.
    const double shared = static_cast<double>(size_.parameters) / tp / cut / dp;
    const double owned = layout_.sharding == TrainSharding::kNone ? held : shared;
    memory.optimizer = layout_.offload_optimizer ? 0 : owned * layout_.optimizer_bytes;
  }
  const auto tokens = static_cast<double>(layout_.micro_batch_tokens);
  const auto hidden = static_cast<double>(model_.shape.hidden);
  const double layers = static_cast<double>(size_.layers) / layout_.pp;
  if (frozen) {
    memory.activations = 34 * tokens * hidden / tp;  // one layer at a time
  } else {
    const double a_layer =
        layout_.recompute == Recompute::kAll ? 2 * tokens * hidden : 34 * tokens * hidden / tp;
    const double interleaved =
        layout_.virtual_stages > 1
            ? 1 + (layout_.pp - 1.0) / (layout_.pp * static_cast<double>(layout_.virtual_stages))
            : 1;
    memory.activations = a_layer * layers * layout_.pp * interleaved;
    if (layout_.recompute == Recompute::kAll) memory.activations += 34 * tokens * hidden / tp;
  }
  memory.logits = 2 * 4 * tokens * static_cast<double>(model_.shape.vocab) / tp;
  return memory;
}

}  // namespace troupe::sim
