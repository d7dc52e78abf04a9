#pragma once

// Two channels of one process that lead to each other: for tests and for a head, agent and
// controller that share a process.
//
// They behave as a socket's two ends: the same matching, order, deadlines and bounds, with encoded
// envelopes between; only the transport, its heartbeats and its handshake are absent.
// **Threads:** callbacks of both ends run on one thread, which all pairs of the process share.
// **Invariants:** as Channel; closing either end takes both down. Until then both ends stay, also
// when nobody refers to them: close one when done.

#include "runtime/link/channel.hpp"
#include "runtime/link/link_options.hpp"

#include <memory>
#include <utility>

namespace troupe::runtime {

struct ChannelPairOptions {
  PeerName first{PeerRole::kClient, "first"};    ///< how the second end sees the first
  PeerName second{PeerRole::kClient, "second"};  ///< and the other way round
  std::size_t frame_bytes_max = std::size_t{1} << 20;
  std::size_t queue_bytes_max = std::size_t{64} << 20;
  std::size_t requests_max = std::size_t{1} << 16;
};

/// `a` serves what arrives at the first channel, `b` what arrives at the second.
std::pair<Ref<Channel>, Ref<Channel>> make_channel_pair(std::shared_ptr<ChannelService> a,
                                                        std::shared_ptr<ChannelService> b,
                                                        const ChannelPairOptions& options = {});

}  // namespace troupe::runtime
