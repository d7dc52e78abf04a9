#include "sim/cost/collective_cost.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

namespace troupe::sim {
namespace {

/// What collectives over so many nodes reach of what they reach over up to eight: SimAI's table of
/// 1 GiB, 0.90, 0.76, 0.56 and 0.31 of the adapter's rate (reference simulator.md §2.6).
double reached_over(int nodes) {
  constexpr std::array<std::pair<double, double>, 4> kReached{
      {{8, 1}, {16, 0.76 / 0.90}, {64, 0.56 / 0.90}, {128, 0.31 / 0.90}}};
  if (nodes <= kReached.front().first) return 1;
  for (std::size_t i = 1; i < kReached.size(); ++i) {
    const auto& [few, more] = kReached[i - 1];
    const auto& [many, less] = kReached[i];
    if (nodes > many) continue;
    return more + (less - more) * std::log(nodes / few) / std::log(many / few);
  }
  return kReached.back().second;
}

/// A hop's latency on this generation over an A100's: all-reduces of eight take 37 µs beside their
/// bytes on H100 and 80 on A100 (Vidur's profiles, reference simulator.md §2.6).
double latency_over_a100(const DeviceSpec& device) {
  return device.generation == "h100" ? 37.0 / 80 : 1;
}

}  // namespace

double ring_all_reduce_s(int ranks, double bytes, const Link& link) {
  if (ranks < 2) return 0;
  const double n = ranks;
  return 2 * (n - 1) * link.latency_s + 2 * (n - 1) / n * bytes / link.rate;
}

double tree_all_reduce_s(int ranks, double bytes, const Link& link) {
  if (ranks < 2) return 0;
  const auto depth = static_cast<double>(std::bit_width(static_cast<unsigned>(ranks - 1)));
  return 2 * depth * link.latency_s + 2 * bytes / link.rate;
}

double all_reduce_s(int ranks, double bytes, const Link& link) {
  return std::min(ring_all_reduce_s(ranks, bytes, link), tree_all_reduce_s(ranks, bytes, link));
}

double gather_s(int ranks, double bytes, const Link& link) {
  if (ranks < 2) return 0;
  const double n = ranks;
  return (n - 1) * link.latency_s + (n - 1) / n * bytes / link.rate;
}

double chain_broadcast_s(int hops, double bytes, double chunk, const Link& link) {
  if (hops < 1) return 0;
  const double first = std::min(chunk, bytes);
  return bytes / link.rate + hops * link.latency_s + (hops - 1) * first / link.rate;
}

Fabric::Fabric(const DeviceSpec& device, const Constants& constants)
    : inside_{constants[Constant::kNvlinkLatency] * latency_over_a100(device),
              constants[Constant::kNvlinkShare] *
                  (device.nvlink_rate > 0 ? device.nvlink_rate : device.pcie_rate)},
      nic_{constants[Constant::kNicLatency], constants[Constant::kNicShare] * device.nic_rate},
      domain_(device.nvlink_rate > 0 ? device.nvlink_domain : device.per_node) {}

Link Fabric::across(int sharing) const {
  return {nic_.latency_s, nic_.rate / std::max(1, sharing)};
}

Link Fabric::across(int sharing, int nodes) const {
  Link link = across(sharing);
  link.rate *= reached_over(nodes);
  return link;
}

int Fabric::ranks_inside(int ranks, int stride) const {
  return std::clamp(domain_ / std::max(1, stride), 1, std::max(1, ranks));
}

double Fabric::all_reduce(int ranks, double bytes, int stride) const {
  const int inside = ranks_inside(ranks, stride);
  if (inside >= ranks) return all_reduce_s(ranks, bytes, inside_);
  const int nodes = (ranks + inside - 1) / inside;
  // The other groups with the same stride send through the same adapter at the same time.
  const int sharing = std::min(domain_, inside * stride);
  const Link nic = across(sharing, nodes);
  const double by_parts =
      2 * gather_s(inside, bytes, inside_) + all_reduce_s(nodes, bytes / inside, nic);
  // One tree over all of them, whose branches between nodes share the bytes out.
  const double one_tree =
      tree_all_reduce_s(inside, bytes, inside_) + tree_all_reduce_s(nodes, bytes / inside, nic);
  return std::min(by_parts, one_tree);
}

double Fabric::gather(int ranks, double bytes, int stride) const {
  const int inside = ranks_inside(ranks, stride);
  if (inside >= ranks) return gather_s(ranks, bytes, inside_);
  const int nodes = (ranks + inside - 1) / inside;
  const int sharing = std::min(domain_, inside * stride);
  return gather_s(nodes, bytes / inside, across(sharing, nodes)) + gather_s(inside, bytes, inside_);
}

double Fabric::send(double bytes, int stride) const {
  const Link link = stride < domain_ ? inside_ : across(domain_);
  return link.latency_s + bytes / link.rate;
}

double Fabric::all_to_all(int ranks, double bytes_a_rank, int stride) const {
  const int inside = ranks_inside(ranks, stride);
  if (inside >= ranks) return gather_s(ranks, bytes_a_rank, inside_);
  const double abroad = static_cast<double>(ranks - inside) / ranks;
  const int sharing = std::min(domain_, inside * stride);
  const Link nic = across(sharing, (ranks + inside - 1) / inside);
  return (ranks - 1) * nic.latency_s +
         std::max(abroad * bytes_a_rank / nic.rate, (1 - abroad) * bytes_a_rank / inside_.rate);
}

}  // namespace troupe::sim
