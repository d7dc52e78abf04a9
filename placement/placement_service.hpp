#pragma once

// `PlacementService`: placement groups on the head. Serves controllers (`placement.session`,
// `create`, `remove`, `resize`, `view`, `explain`, `list`) and node agents (`placement.hello`) over
// their channels, and keeps the ledger.
//
//   auto service = PlacementService::open({.ledger = folder / "placement.ledger"});
//   table.add("placement.", *service);
//
// One thread at a time drives a PlacementCore: it takes everything that arrived meanwhile as one
// batch, so that a busy head makes larger passes, not more of them. It is a thread of the service,
// but a small request or reply of a head that has nothing else to do is handled by the thread that
// brings it: two changes of thread would take longer.
// **Threads:** every method from any thread; callbacks of channels never wait.
// **Invariants:** the inbox is bounded: what does not fit is answered kResourceExhausted. When the
// ledger fails nothing is answered but that error, `on_failure` is called once, and the process
// should end: a restarted head replays what is durable.

#include "placement/placement_core.hpp"
#include "runtime/link/channel.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::placement {

struct PlacementServiceOptions {
  std::filesystem::path ledger;  ///< its folder is made
  CoreOptions core{};
  std::size_t inbox_max = 65'536;
  std::uint64_t seed = 0;  ///< of backoff jitter; 0: from the clock
  std::function<void(const Error&)> on_failure{};
};

class PlacementService final : public runtime::ChannelService {
 public:
  /// Replays the ledger and starts. kCorrupt names the place of the damage; kAlreadyExists when
  /// another head uses the ledger.
  static result<std::shared_ptr<PlacementService>> open(PlacementServiceOptions options);
  /// Stops the thread; requests that are open are answered kAborted.
  ~PlacementService() override;

  void on_request(runtime::Channel& channel, std::string_view method,
                  std::span<const std::byte> payload, Deadline deadline,
                  runtime::Responder responder) override;
  void on_down(runtime::Channel& channel, const Error& cause) override;

  /// For the head's own status, without a channel. They wait for the driver's thread.
  result<GroupPage> list(const ListGroups& list, Deadline deadline);
  result<std::string> explain(const GroupKey& group, Deadline deadline);
  result<GroupView> view(const GroupKey& group, Deadline deadline);
  result<void> remove(const GroupKey& group, Deadline deadline);
  result<std::vector<NodeView>> nodes(Deadline deadline);
  /// Why it serves no more; empty while it does.
  std::optional<Error> failure() const;

 private:
  class Impl;
  explicit PlacementService(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;  // shared with answers that are still to come
};

}  // namespace troupe::placement
