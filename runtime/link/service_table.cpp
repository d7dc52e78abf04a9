#include "runtime/link/service_table.hpp"

#include "runtime/base/log.hpp"

#include <algorithm>

namespace troupe::runtime {

result<void> ServiceTable::add(std::string prefix, std::shared_ptr<ChannelService> service) {
  if (service == nullptr)
    return fail(ErrorCode::kInvalidArgument, "service table: null service for '{}'", prefix);
  for (const auto& entry : services_) {
    if (entry.first == prefix)
      return fail(ErrorCode::kAlreadyExists, "service table: prefix '{}' is taken", prefix);
  }
  services_.emplace_back(std::move(prefix), std::move(service));
  return {};
}

ChannelService* ServiceTable::find(std::string_view method) const {
  const std::pair<std::string, std::shared_ptr<ChannelService>>* best = nullptr;
  for (const auto& entry : services_) {
    if (!method.starts_with(entry.first)) continue;
    if (best == nullptr || entry.first.size() > best->first.size()) best = &entry;
  }
  return best == nullptr ? nullptr : best->second.get();
}

void ServiceTable::on_request(Channel& channel, std::string_view method,
                              std::span<const std::byte> payload, Deadline deadline,
                              Responder responder) {
  if (ChannelService* service = find(method)) {
    service->on_request(channel, method, payload, deadline, std::move(responder));
    return;
  }
  responder.reply(fail(ErrorCode::kNotFound, "{}: no service has a method '{}'",
                       channel.peer().to_string(), method));
}

void ServiceTable::on_notify(Channel& channel, std::string_view method,
                             std::span<const std::byte> payload) {
  if (ChannelService* service = find(method)) {
    service->on_notify(channel, method, payload);
    return;
  }
  log::warn("{}: notice '{}' of {} bytes: no service takes it", channel.peer().to_string(), method,
            payload.size());
}

void ServiceTable::on_down(Channel& channel, const Error& cause) {
  std::vector<ChannelService*> told;  // a service under two prefixes is told once
  for (const auto& entry : services_) {
    ChannelService* const service = entry.second.get();
    if (std::find(told.begin(), told.end(), service) != told.end()) continue;
    told.push_back(service);
    service->on_down(channel, cause);
  }
}

}  // namespace troupe::runtime
