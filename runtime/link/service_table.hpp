#pragma once

// `ServiceTable`: several services behind one channel, told apart by the prefix of the method.
//
// Head and agents take their parts this way: `add("placement.", service)` gets every method that
// starts with `placement.`; the longest matching prefix wins.
// **Threads:** services are added before the table serves its first channel; then as any service.
// **Invariants:** a request that no prefix matches is answered kNotFound; a notice that no prefix
// matches is logged. Every service in the table is told of `on_down`, in the order of adding.

#include "runtime/link/channel.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troupe::runtime {

class ServiceTable final : public ChannelService {
 public:
  /// kAlreadyExists when the prefix is taken, kInvalidArgument for a null service.
  result<void> add(std::string prefix, std::shared_ptr<ChannelService> service);

  void on_request(Channel& channel, std::string_view method, std::span<const std::byte> payload,
                  Deadline deadline, Responder responder) override;
  void on_notify(Channel& channel, std::string_view method,
                 std::span<const std::byte> payload) override;
  void on_down(Channel& channel, const Error& cause) override;

 private:
  ChannelService* find(std::string_view method) const;
  std::vector<std::pair<std::string, std::shared_ptr<ChannelService>>> services_;
};

}  // namespace troupe::runtime
