#pragma once

// Transfers over shared links: max-min fair rates, recomputed when a flow starts or ends.
//
// A flow crosses a path of links {device port, switch, PCIe, adapter, spine}; all that cross a link
// share its capacity, and no flow can get more without a slower or equal one getting less. Alpha-
// beta costs cannot show eight devices behind one adapter; this does.
// **Ownership:** borrows listeners. **Threads:** one.
// **Invariants (`check_rates`):** no link carries more than its capacity; each flow has a link that
// is full and on which no flow is faster (which determines the rates); bytes sent are bytes asked.
// **Cost:** a change recomputes the flows that share links with it, directly or through others:
// O(links touched × flows touched).

#include "runtime/base/result.hpp"
#include "sim/engine/simulation.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace troupe::sim {

struct LinkId {
  std::uint32_t index = 0;
  bool operator==(const LinkId&) const = default;
};

class FlowListener {
 public:
  virtual ~FlowListener() = default;
  virtual void on_sent(Simulation& simulation, std::uint64_t flow) = 0;
};

class SharedLinks : public Process {
 public:
  /// `rate` bytes/s; kInvalidArgument naming link and rate unless positive and finite.
  result<LinkId> add_link(std::string name, double rate);

  /// Sends `bytes` over `path` (no link twice) after `latency_s`; `listener` hears of the end with
  /// the number returned here. An empty path takes the latency only.
  std::uint64_t send(Simulation& simulation, const std::vector<LinkId>& path, double bytes,
                     double latency_s, FlowListener& listener);
  /// Stops a flow; bytes that were left. Nothing when it has ended.
  double cancel(Simulation& simulation, std::uint64_t flow);
  /// A link gets another rate, e.g. when it degrades.
  result<void> set_rate(Simulation& simulation, LinkId link, double rate);

  void on_event(Simulation& simulation, const Event& event) override;
  std::string_view name_of(std::uint32_t kind) const override {
    return kind == kBegin ? "flow begins" : "flow ends";
  }

  double rate_of(std::uint64_t flow) const;
  double bytes_sent(LinkId link) const {
    return links_[link.index].sent;
  }  ///< up to the last event
  double rate(LinkId link) const { return links_[link.index].rate; }
  const std::string& name_of(LinkId link) const { return links_[link.index].name; }
  std::size_t flows() const { return flows_.size(); }
  void check_rates() const;

 private:
  enum Kind : std::uint32_t { kBegin, kEnd };
  struct Flow {
    std::vector<std::uint32_t> path{};
    double left = 0;
    double rate = 0;
    TimePoint since{};
    FlowListener* listener = nullptr;
    EventId end{};
    bool started = false;
  };
  struct SharedLink {
    std::string name{};
    double rate = 0;
    double sent = 0;
    std::vector<std::uint64_t> flows{};  ///< started ones that cross it, rising
  };

  void progress(Flow& flow, TimePoint now);
  void join(std::uint64_t number, const Flow& flow);
  void leave(std::uint64_t number, const Flow& flow);
  void share_out(Simulation& simulation, const std::vector<std::uint32_t>& touched);

  std::vector<SharedLink> links_;
  std::map<std::uint64_t, Flow> flows_;
  std::uint64_t last_ = 0;
};

}  // namespace troupe::sim
