#pragma once

// `NodeReservationService`: a node's reservations, served to the head over `reserve.pass`.
//
//   auto service = NodeReservationService::create(spec, &listener);
//   table.add("reserve.", *service);              // of the channel to the head
//   … on_up: (*service)->attach(channel);         // each time that channel comes up
//
// **Threads:** every method from any thread. Passes are done on the link's I/O thread: they are
// short and touch memory only. The listener is called there too, in order, and must not block.
// **Invariants:** as NodeReservations. Bundles stay reserved while the head is away.

#include "placement/node_reservations.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/link/channel.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::placement {

/// Told of bundles, e.g. to end the processes of a released one.
class ReservationListener {
 public:
  virtual ~ReservationListener() = default;
  virtual void on_committed(const HeldBundle& bundle) = 0;
  /// Its devices may belong to somebody else from now on.
  virtual void on_released(const HeldBundle& bundle) = 0;
};

struct NodeReservationOptions {
  NodeSpec spec{};
  std::uint64_t incarnation = 0;  ///< of this process; 0: drawn from clock and process id
  Duration hello_within = std::chrono::seconds(5);
  ReservationListener* listener = nullptr;  ///< outlives the service
  /// The head refused the hello: e.g. another agent has this name.
  std::function<void(const Error&)> on_refused{};
};

class NodeReservationService final : public runtime::ChannelService,
                                     public std::enable_shared_from_this<NodeReservationService> {
 public:
  static result<std::shared_ptr<NodeReservationService>> create(NodeReservationOptions options);
  ~NodeReservationService() override;

  /// Introduces the node to the head at the other end; the session before is over.
  void attach(runtime::Ref<runtime::Channel> head);

  void on_request(runtime::Channel& channel, std::string_view method,
                  std::span<const std::byte> payload, Deadline deadline,
                  runtime::Responder responder) override;
  void on_down(runtime::Channel& channel, const Error& cause) override;

  /// Takes no new bundles, or does so again; tells the head.
  void set_draining(bool draining);
  /// A failed device loses its bundles; tells the head.
  result<void> set_device_failed(std::int32_t device, bool failed);

  /// What a bundle of a committed group has here: its devices, cores and network card.
  std::optional<HeldBundle> find(std::string_view group, std::int32_t bundle) const;
  std::vector<HeldBundle> held() const;
  NodeSpec spec() const;

 private:
  explicit NodeReservationService(NodeReservationOptions options, NodeReservations core);
  void say_hello(const runtime::Ref<runtime::Channel>& head, const NodeHello& hello);
  void say_hello_again();

  NodeReservationOptions options_;
  mutable std::mutex mutex_;  // guards core_ and head_
  NodeReservations core_;
  runtime::Ref<runtime::Channel> head_;
};

}  // namespace troupe::placement
