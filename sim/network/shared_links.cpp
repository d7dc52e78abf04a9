#include "sim/network/shared_links.hpp"

#include "runtime/base/check.hpp"
#include "sim/engine/duration.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace troupe::sim {
namespace {

result<void> check_rate(const std::string& name, double rate) {
  if (rate > 0 && std::isfinite(rate)) return {};
  return fail(ErrorCode::kInvalidArgument, "link {}: {} bytes/s, wanted a positive number", name,
              rate);
}

}  // namespace

result<LinkId> SharedLinks::add_link(std::string name, double rate) {
  TROUPE_TRY_VOID(check_rate(name, rate));
  SharedLink link;
  link.name = std::move(name);
  link.rate = rate;
  links_.push_back(std::move(link));
  return LinkId{static_cast<std::uint32_t>(links_.size() - 1)};
}

std::uint64_t SharedLinks::send(Simulation& simulation, const std::vector<LinkId>& path,
                                double bytes, double latency_s, FlowListener& listener) {
  TROUPE_CHECK(bytes >= 0 && latency_s >= 0, "flow of {} bytes after {} s", bytes, latency_s);
  Flow flow;
  for (const LinkId link : path) {
    TROUPE_CHECK(link.index < links_.size(), "flow over link {} of {}", link.index, links_.size());
    flow.path.push_back(link.index);
  }
  flow.left = bytes;
  flow.listener = &listener;
  const std::uint64_t number = ++last_;
  flow.end = simulation.after(to_duration(latency_s), *this, kBegin, number);
  flows_.emplace(number, std::move(flow));
  return number;
}

double SharedLinks::cancel(Simulation& simulation, std::uint64_t number) {
  const auto found = flows_.find(number);
  if (found == flows_.end()) return 0;
  Flow flow = std::move(found->second);
  simulation.cancel(flow.end);
  progress(flow, simulation.now());
  flows_.erase(found);
  if (flow.started) {
    leave(number, flow);
    share_out(simulation, flow.path);
  }
  return flow.left;
}

result<void> SharedLinks::set_rate(Simulation& simulation, LinkId link, double rate) {
  TROUPE_TRY_VOID(check_rate(links_[link.index].name, rate));
  links_[link.index].rate = rate;
  share_out(simulation, {link.index});
  return {};
}

void SharedLinks::on_event(Simulation& simulation, const Event& event) {
  const auto found = flows_.find(event.argument);
  Flow& flow = found->second;
  if (event.kind == kBegin && !flow.path.empty() && flow.left > 0) {
    flow.started = true;
    flow.since = simulation.now();
    join(event.argument, flow);
    share_out(simulation, flow.path);
    return;
  }
  progress(flow, simulation.now());
  for (const std::uint32_t link : flow.path) links_[link].sent += flow.left;  // rounding of ns
  const Flow ended = std::move(flow);
  flows_.erase(found);
  if (ended.started) {
    leave(event.argument, ended);
    share_out(simulation, ended.path);
  }
  ended.listener->on_sent(simulation, event.argument);
}

void SharedLinks::progress(Flow& flow, TimePoint now) {
  if (!flow.started) return;
  const double sent = std::min(flow.left, flow.rate * seconds(now - flow.since));
  flow.left -= sent;
  flow.since = now;
  for (const std::uint32_t link : flow.path) links_[link].sent += sent;
}

void SharedLinks::join(std::uint64_t number, const Flow& flow) {
  for (const std::uint32_t link : flow.path) {
    auto& flows = links_[link].flows;
    flows.insert(std::lower_bound(flows.begin(), flows.end(), number), number);
  }
}

void SharedLinks::leave(std::uint64_t number, const Flow& flow) {
  for (const std::uint32_t link : flow.path) std::erase(links_[link].flows, number);
}

/// Progressive filling over everything that is connected to the links `touched`.
void SharedLinks::share_out(Simulation& simulation, const std::vector<std::uint32_t>& touched) {
  std::set<std::uint32_t> links(touched.begin(), touched.end());
  std::set<std::uint64_t> open;
  std::vector<std::uint32_t> to_look(links.begin(), links.end());
  while (!to_look.empty()) {
    const std::uint32_t link = to_look.back();
    to_look.pop_back();
    for (const std::uint64_t number : links_[link].flows) {
      if (!open.insert(number).second) continue;
      for (const std::uint32_t next : flows_.at(number).path) {
        if (links.insert(next).second) to_look.push_back(next);
      }
    }
  }
  const std::set<std::uint64_t> changed = open;
  struct Room {
    double left;
    std::int64_t flows;
  };
  std::map<std::uint32_t, Room> room;
  for (const std::uint32_t link : links) {
    if (!links_[link].flows.empty())
      room[link] = {links_[link].rate, static_cast<std::int64_t>(links_[link].flows.size())};
  }
  std::map<std::uint64_t, double> rates;
  while (!open.empty()) {
    double least = std::numeric_limits<double>::infinity();
    std::uint32_t narrow = 0;
    for (const auto& [link, left] : room) {
      const double share = left.left / static_cast<double>(left.flows);
      if (left.flows > 0 && share < least) {
        least = share;
        narrow = link;
      }
    }
    for (const std::uint64_t number : links_[narrow].flows) {
      if (open.erase(number) == 0) continue;
      rates[number] = least;
      for (const std::uint32_t link : flows_.at(number).path) {
        room[link].left = std::max(0.0, room[link].left - least);
        --room[link].flows;
      }
    }
  }
  for (const std::uint64_t number : changed) {
    Flow& flow = flows_.at(number);
    if (flow.rate == rates[number] && simulation.pending(flow.end)) continue;
    progress(flow, simulation.now());
    simulation.cancel(flow.end);
    flow.rate = rates[number];
    flow.end = simulation.after(to_duration(flow.left / flow.rate), *this, kEnd, number,
                                EventClass::kRelease);
  }
}

double SharedLinks::rate_of(std::uint64_t flow) const {
  const auto found = flows_.find(flow);
  return found == flows_.end() ? 0 : found->second.rate;
}

void SharedLinks::check_rates() const {
  std::vector<double> load(links_.size(), 0);
  std::vector<double> fastest(links_.size(), 0);
  for (const auto& [number, flow] : flows_) {
    for (const std::uint32_t link : flow.path) {
      if (!flow.started) continue;
      load[link] += flow.rate;
      fastest[link] = std::max(fastest[link], flow.rate);
    }
  }
  for (std::size_t link = 0; link < links_.size(); ++link)
    TROUPE_CHECK(load[link] <= links_[link].rate * (1 + 1e-9), "link {} carries {} of {} bytes/s",
                 links_[link].name, load[link], links_[link].rate);
  for (const auto& [number, flow] : flows_) {
    if (!flow.started) continue;
    const bool limited = std::any_of(flow.path.begin(), flow.path.end(), [&](std::uint32_t link) {
      return load[link] >= links_[link].rate * (1 - 1e-9) &&
             flow.rate >= fastest[link] * (1 - 1e-9);
    });
    TROUPE_CHECK(limited, "flow {} at {} bytes/s has no full link on which it is fastest", number,
                 flow.rate);
  }
}

}  // namespace troupe::sim
