#include "sim/cost/decode_cost.hpp"

#include "sim/cost/nearest.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::sim {
namespace {

/// Devices that share one copy of a KV head: heads beyond the model's own are replicated; latent
/// caches are whole on every device.
double kv_shares(const reshard::ModelShape& shape, int tp) {
  if (shape.latent.kv_rank > 0) return 1;
  return static_cast<double>(std::min<std::int64_t>(tp, shape.kv_heads));
}

bool divides(const reshard::ModelShape& shape, int tp) {
  const bool kv = shape.latent.kv_rank > 0 || shape.kv_heads % tp == 0 || tp % shape.kv_heads == 0;
  return shape.heads % tp == 0 && kv && shape.intermediate % tp == 0 &&
         (shape.expert.experts == 0 || shape.expert.intermediate % tp == 0);
}

}  // namespace

result<DecodeCost> DecodeCost::create(const ModelSpec& model, const DeviceSpec& device,
                                      const EngineLayout& layout, const Constants& constants) {
  TROUPE_TRY_VOID(model.validate());
  TROUPE_TRY_VOID(device.validate());
  if (layout.tp < 1 || !divides(model.shape, layout.tp))
    return fail(ErrorCode::kInvalidArgument,
                "model {}: tensor parallelism {} does not divide its {} heads, {} kv heads and mlp "
                "width {}; the nearest that does is {}",
                model.name, layout.tp, model.shape.heads, model.shape.kv_heads,
                model.shape.intermediate,
                nearest_that_fits(std::max(1, layout.tp), 4095,
                                  [&](int tp) { return divides(model.shape, tp); }));
  if (!(layout.weight_bytes > 0) || !(layout.kv_bytes > 0))
    return fail(ErrorCode::kInvalidArgument,
                "model {}: {} bytes a weight and {} a KV element, wanted positive numbers",
                model.name, layout.weight_bytes, layout.kv_bytes);
  if (!(layout.memory_share >= 0 && layout.memory_share <= 1) || !(layout.reserved_bytes >= 0))
    return fail(ErrorCode::kInvalidArgument,
                "model {}: an engine with {} of the memory, {} bytes of it reserved; wanted a "
                "share of 0 to 1, and at least 0",
                model.name, layout.memory_share, layout.reserved_bytes);
  return DecodeCost(model, device, layout, constants);
}

DecodeCost::DecodeCost(const ModelSpec& model, const DeviceSpec& device, const EngineLayout& layout,
                       const Constants& constants)
    : model_(model),
      size_(size_of(model)),
      device_(device),
      layout_(layout),
      constants_(constants),
      fabric_(device, constants) {
  std::sort(layout_.captured.begin(), layout_.captured.end());
  const double tp = layout.tp;
  flops_ = device.flops * constants[Constant::kGemmShare];
  read_rate_ = device.memory_rate * constants[Constant::kWeightReadShare];
  weight_bytes_ = static_cast<double>(size_.parameters) * layout.weight_bytes / tp;
  kv_token_bytes_ = static_cast<double>(kv_elements_per_token(model)) * layout.kv_bytes /
                    kv_shares(model.shape, layout.tp);
  cached_token_s_ = kv_token_bytes_ / (device.memory_rate * constants[Constant::kKvReadShare]);
}

std::int64_t DecodeCost::padded(std::int64_t sequences) const {
  const auto at = std::lower_bound(layout_.captured.begin(), layout_.captured.end(), sequences);
  return at == layout_.captured.end() ? sequences : *at;
}

/// All layers and the head for `tokens` tokens that run together, without attention.
double DecodeCost::layer_s(double tokens) const {
  const double tp = layout_.tp;
  const auto dense =
      static_cast<double>(size_.layers * size_.attention + size_.dense_layers() * size_.dense_mlp +
                          size_.expert_layers * (size_.router + size_.shared_expert));
  double touched = 0;  // expert weights that are read: of those that some token chose
  double chosen = 0;   // multiplied by, per token
  if (size_.experts > 0) {
    const double share =
        static_cast<double>(size_.experts_per_token) / static_cast<double>(size_.experts);
    const auto all = static_cast<double>(size_.expert_layers * size_.experts * size_.expert);
    touched = all * (1 - std::pow(1 - share, tokens));
    chosen = all * share;
  }
  const double read = (dense + touched) * layout_.weight_bytes / tp / read_rate_;
  const double multiply = 2 * (dense + chosen) * tokens / tp / flops_;
  const auto head = static_cast<double>(size_.head);
  const double head_s =
      std::max(head * layout_.weight_bytes / tp / read_rate_, 2 * head * tokens / tp / flops_);
  const double message = 2 * tokens * static_cast<double>(model_.shape.hidden);
  return std::max(read, multiply) + head_s +
         2 * static_cast<double>(size_.layers) * fabric_.all_reduce(layout_.tp, message);
}

double DecodeCost::fixed_s(std::int64_t sequences) const {
  if (sequences == 0) return 0;
  if (!layout_.profile.empty()) return layout_.profile.step_s(sequences);
  // Layers of experts route, sort and multiply in as many kernels again.
  const auto kernels = static_cast<double>(size_.layers + size_.expert_layers);
  return layer_s(static_cast<double>(padded(sequences))) + constants_[Constant::kDecodeStepHost] +
         kernels * constants_[Constant::kLayerKernels] +
         constants_[Constant::kDecodeSequenceHost] * static_cast<double>(sequences);
}

double DecodeCost::steps_s(std::int64_t sequences, double cached, std::int64_t steps) const {
  const auto k = static_cast<double>(steps);
  const auto b = static_cast<double>(sequences);
  return k * fixed_s(sequences) + cached_token_s_ * (k * cached + b * k * (k - 1) / 2);
}

double DecodeCost::prefill_s(double tokens, double squares) const {
  if (tokens <= 0) return 0;
  return layer_s(tokens) + attention_flops_per_square(model_) * squares / layout_.tp / flops_ /
                               constants_[Constant::kAttentionShare];
}

result<std::int64_t> DecodeCost::kv_tokens() const {
  const double share =
      layout_.memory_share > 0 ? layout_.memory_share : constants_[Constant::kEngineMemoryShare];
  const double memory = device_.reported_bytes > 0 ? device_.reported_bytes : device_.memory_bytes;
  const auto room_at = [&](double tp, double token_bytes) {
    const double weights = static_cast<double>(size_.parameters) * layout_.weight_bytes / tp;
    const double room =
        memory * share - layout_.reserved_bytes - weights - constants_[Constant::kEngineWorkspace];
    return room * (1 - constants_[Constant::kKvFragmentation]) / token_bytes;
  };
  const double tokens = room_at(layout_.tp, kv_token_bytes_);
  if (tokens >= kKvBlockTokens)
    return static_cast<std::int64_t>(tokens) / kKvBlockTokens * kKvBlockTokens;
  constexpr int kMostRanks = 1024;
  int least = layout_.tp + 1;
  while (least < kMostRanks && (!divides(model_.shape, least) || room_at(least, 1) < 1)) ++least;
  return fail(
      ErrorCode::kResourceExhausted,
      "model {}: {:.1f} GB of weights and {:.1f} GB of workspace{} do not fit into {:.0f} % "
      "of {} with {:.0f} GB; {}",
      model_.name, weight_bytes_ / 1e9, constants_[Constant::kEngineWorkspace] / 1e9,
      layout_.reserved_bytes > 0
          ? fmt::format(", beside {:.1f} GB that others keep,", layout_.reserved_bytes / 1e9)
          : std::string(),
      100 * share, device_.name, memory / 1e9,
      least < kMostRanks ? fmt::format("the least tensor parallelism that does is {}", least)
                         : std::string("no tensor parallelism does"));
}

}  // namespace troupe::sim
