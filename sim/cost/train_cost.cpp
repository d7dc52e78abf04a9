#include "sim/cost/train_cost.hpp"

#include "sim/cost/nearest.hpp"

#include <algorithm>
#include <cmath>

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

/// Matrices and attention of one dp rank, on all of its devices. Routed experts, whose matrices are
/// small and uneven, reach less than the others.
double TrainCost::flop_time(double tokens, double squares, bool backward) const {
  const double experts = 2 * tokens *
                         static_cast<double>(size_.expert_layers * size_.experts_per_token) *
                         static_cast<double>(size_.expert);
  const double attention = attention_flops_per_square(model_) * squares;
  const double others = forward_flops(model_, tokens, squares) - experts;
  double times = backward ? 3 : 1;
  double again = 0;
  if (backward && layout_.recompute == Recompute::kAll) {
    times = 4;
    again =
        -2 * static_cast<double>(size_.head) * tokens;  // layers are recomputed, the head is not
  }
  if (backward && layout_.recompute == Recompute::kAttention) again = attention;
  const double rate = device_.flops * constants_[Constant::kGemmShare] *
                      constants_[Constant::kTrainShare] * layout_.tp * layout_.pp;
  return (times * (others + experts / constants_[Constant::kExpertShare]) + again) / rate;
}

/// Norms, activations, residuals: what a layer keeps of a token (34·H bytes, Korthikanti et al.
/// 2205.05198) is written once and read once in each direction.
double TrainCost::activation_time(double tokens, bool backward) const {
  const double times = !backward ? 1 : layout_.recompute == Recompute::kAll ? 4 : 3;
  const double bytes = 2 * 34 * tokens * static_cast<double>(model_.shape.hidden) *
                       static_cast<double>(size_.layers) / layout_.tp / layout_.pp;
  return times * bytes / (device_.memory_rate * constants_[Constant::kWeightReadShare]);
}

/// Whole sequences fill a micro-batch: long ones leave more of it empty.
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
  const double micro =
      micro_batches(tokens * cp, static_cast<double>(work.sequences) * cp / layout_.dp / steps);
  time.compute = steps * flop_time(tokens, squares, backward);
  time.memory = steps * activation_time(tokens, backward);
  time.bubble = (time.compute + time.memory) * (pp - 1) / (micro * layout_.virtual_stages);
  // A recomputed forward pass talks as the first one did.
  const double directions = !backward ? 1 : layout_.recompute == Recompute::kAll ? 3 : 2;
  const double layers = static_cast<double>(size_.layers) / pp;
  const double message = tokens / micro * static_cast<double>(model_.shape.hidden) * 2;
  time.tensor_parallel =
      steps * micro * directions * 2 * layers * fabric_.all_reduce(layout_.tp, message);
  if (layout_.cp > 1) {
    const auto rows = static_cast<double>(model_.shape.q_rows() + model_.shape.kv_rows());
    const double exchanged = tokens / micro * 2 * rows * 2 / tp;
    time.tensor_parallel +=
        steps * micro * directions * layers * fabric_.all_to_all(layout_.cp, exchanged, layout_.tp);
  }
  if (layout_.ep > 1) {
    const double exchanged = message * static_cast<double>(size_.experts_per_token) / tp;
    time.experts = steps * micro * directions * 2 * static_cast<double>(size_.expert_layers) / pp *
                   fabric_.all_to_all(layout_.ep, exchanged);  // neighbours, whatever tp is
  }
  const double parameters = static_cast<double>(size_.parameters) / tp / pp;
  if (layout_.sharding == TrainSharding::kFsdp) {
    const double gathers =
        directions * fabric_.gather(layout_.dp, parameters * layout_.weight_bytes, layout_.tp);
    const double scatter =
        backward ? fabric_.gather(layout_.dp, parameters * layout_.gradient_bytes, layout_.tp) : 0;
    time.data_parallel =
        std::max(0.0, steps * micro * (gathers + scatter) - time.compute - time.memory);
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
    time.offload = (moved.weights + 2 * moved.optimizer) / device_.pcie_rate;
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
