#pragma once

// What collectives cost on idle links: latency per hop and bytes per rate (alpha-beta), and the
// hierarchical form across nodes whose devices share one adapter.
//
// n ranks, S bytes, hop latency α, rate B per direction (reference simulator.md §2.3):
//   ring all-reduce 2(n−1)α + 2(n−1)/n·S/B; tree 2·⌈log2 n⌉·α + 2S/B; the smaller counts
//   all-gather, reduce-scatter, all-to-all (n−1)α + (n−1)/n·S/B, S the whole
//   chain broadcast S/B + hops·(α + chunk/B)
// Across nodes: reduce-scatter inside, all-reduce of S/g over the adapter that g ranks share,
// all-gather inside. Over many nodes adapters reach less of what they reach over a few.
// **Threads:** pure. Seconds and bytes throughout.
// **Invariants:** more bytes or a slower link never take less; one rank takes nothing.

#include "sim/cost/constants.hpp"
#include "sim/cost/device_spec.hpp"

namespace troupe::sim {

struct Link {
  double latency_s = 0;
  double rate = 0;  ///< bytes/s in each direction
};

double ring_all_reduce_s(int ranks, double bytes, const Link& link);
double tree_all_reduce_s(int ranks, double bytes, const Link& link);
double all_reduce_s(int ranks, double bytes, const Link& link);
/// All-gather or reduce-scatter to or from a whole of `bytes`; all-to-all of `bytes` a rank.
double gather_s(int ranks, double bytes, const Link& link);
double chain_broadcast_s(int hops, double bytes, double chunk, const Link& link);

/// The links of one kind of node, and collectives over ranks that lie `per_node` to a node.
class Fabric {
 public:
  Fabric(const DeviceSpec& device, const Constants& constants);

  /// Between devices of one NVLink domain, or of one node over PCIe.
  const Link& inside() const { return inside_; }
  /// Between nodes, when `sharing` devices of a node use the adapter at the same time.
  Link across(int sharing) const;
  /// The same for a collective over `nodes`.
  Link across(int sharing, int nodes) const;

  /// `stride`: devices between neighbours of the group (1: adjacent); decides how many share a
  /// node, and so an adapter.
  double all_reduce(int ranks, double bytes, int stride = 1) const;
  double gather(int ranks, double bytes, int stride = 1) const;
  /// One message to the device `stride` further on, while all its neighbours send theirs.
  double send(double bytes, int stride) const;
  double all_to_all(int ranks, double bytes_a_rank, int stride = 1) const;

  /// Ranks of such a group in one domain.
  int ranks_inside(int ranks, int stride) const;

 private:
  Link inside_;
  Link nic_;
  int domain_;
};

}  // namespace troupe::sim
