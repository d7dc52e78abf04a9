#include "sim/cost/constants.hpp"

#include "runtime/config/suggest.hpp"

#include <fmt/format.h>

#include <vector>

namespace troupe::sim {
namespace {

// Sources: "Vidur": shares computed from its MIT-licensed operator profiles; "SimAI": its shipped
// efficiency tables; both in reference simulator.md §2.6. "priors": no measurement at hand.
constexpr std::array<ConstantInfo, kConstants> kTable{{
    {"gemm_share", 0.74, 0.5, 0.85, "of peak", "Vidur: A100 and H100 at 2,048 tokens and more"},
    {"weight_read_share", 0.78, 0.4, 0.92, "of HBM rate", "Vidur: 32 tokens and fewer"},
    {"kv_read_share", 0.7, 0.4, 0.9, "of HBM rate", "priors"},
    {"train_share", 0.81, 0.4, 0.95, "of the GEMM rate",
     "Megatron MFU 41-48 % on H100, with activations in memory beside it"},
    {"attention_share", 0.6, 0.3, 1, "of the GEMM rate",
     "FlashAttention 2: 0.62 of an A100's peak, 0.35 of an H100's (2307.08691, 2407.08608); 3: up "
     "to "
     "0.75; GEMMs 0.74"},
    {"expert_share", 0.5, 0.15, 0.9, "of the GEMM rate",
     "H20: MFU 0.31-0.40 of a 30B-A3B (verl); H100: 9,102 tokens/s of it, 5,630-5,993 of a "
     "gpt-oss-120b (Megatron Bridge)"},
    {"expert_unevenness", 1.25, 1, 2.5, "of the mean of ranks",
     "priors: usual capacity factors; routers are not balanced in RL"},
    {"decode_step_host", 1.0e-3, 2e-4, 1e-2, "s", "with captured graphs; 3-8 ms without"},
    {"layer_kernels", 3.5e-5, 5e-6, 1e-4, "s a layer",
     "Vidur: 4 matrices of a 7B at TP 8 reach 0.51 of the rate that large ones reach 0.78 of, 17 "
     "µs; "
     "7 other kernels of 2.5 µs"},
    {"decode_sequence_host", 2.0e-5, 5e-6, 2e-4, "s",
     "20 µs; 100 µs in engines of 2024, reference §2.2"},
    {"nvlink_share", 0.7, 0.4, 0.9, "of the rate", "Vidur: A100 62 %, H100 82 %; SimAI 0.69"},
    {"nic_share", 0.8, 0.3, 0.95, "of the rate", "SimAI: 0.92 at 2 nodes, 0.76 at 16"},
    {"nvlink_latency", 5.7e-6, 1e-6, 2e-5, "s a hop of an A100",
     "Vidur: 80 µs for the 14 hops of eight A100; 37 on H100"},
    {"nic_latency", 1.5e-5, 3e-6, 5e-5, "s a hop", "priors"},
    {"iteration_host", 5.0, 0, 30, "s a step", "fixed software costs, reference §7"},
    {"minibatch_host", 0.3, 0, 3, "s an optimizer step", "priors"},
    {"pass_host", 1.0, 0, 10, "s a forward pass", "priors: batches are split, sent and gathered"},
    {"transition_host", 3.0, 0, 10, "s", "fit of HybridFlow figure 14, reference §1.4"},
    {"controller_rate", 4.0e8, 1e8, 5e9, "bytes/s",
     "measured: one thread with torch.save, pickle and copies, 0.39 GB/s out and 0.67 back"},
    {"pageable_rate", 4.0e9, 1e9, 3e10, "bytes/s",
     "1.7-2.2 GB/s into fresh pages, measured on a host; 6-12 GB/s back"},
    {"engine_memory_share", 0.85, 0.4, 0.95, "of HBM", "engines' usual setting 0.6-0.9"},
    {"engine_workspace", 3.0e9, 1e9, 8e9, "bytes", "2-4 GB; graphs are captured beside the share"},
    {"kv_fragmentation", 0.05, 0, 0.1, "of the pool", "3-8 %"},
}};

}  // namespace

std::span<const ConstantInfo, kConstants> constant_table() { return kTable; }

const ConstantInfo& info_of(Constant constant) {
  return kTable[static_cast<std::size_t>(constant)];
}

result<Constant> constant_from_name(std::string_view name) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kConstants; ++i) {
    if (kTable[i].name == name) return static_cast<Constant>(i);
    names.emplace_back(kTable[i].name);
  }
  const auto near = runtime::nearest_name(name, names);
  return fail(ErrorCode::kNotFound, "no constant {}{}", name,
              near ? fmt::format(", did you mean {}?", *near)
                   : fmt::format(", there are {}", fmt::join(names, ", ")));
}

Constants::Constants() {
  for (std::size_t i = 0; i < kConstants; ++i) values_[i] = kTable[i].prior;
}

result<void> Constants::set(Constant constant, double value) {
  const ConstantInfo& info = info_of(constant);
  if (!(value >= info.low && value <= info.high))
    return fail(ErrorCode::kInvalidArgument, "constant {}: {}, wanted {} to {} {}", info.name,
                value, info.low, info.high, info.unit);
  values_[static_cast<std::size_t>(constant)] = value;
  return {};
}

}  // namespace troupe::sim
