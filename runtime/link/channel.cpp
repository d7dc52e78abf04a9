#include "runtime/link/channel.hpp"

#include "runtime/base/check.hpp"

#include <fmt/format.h>

namespace troupe::runtime {

std::string_view peer_role_name(PeerRole role) {
  switch (role) {
    case PeerRole::kHead:
      return "head";
    case PeerRole::kNode:
      return "node";
    case PeerRole::kController:
      return "controller";
    case PeerRole::kRank:
      return "rank";
    case PeerRole::kClient:
      return "client";
  }
  throw_check_failure(__FILE__, __LINE__, "role", fmt::format("peer role {}", int(role)));
}

std::string PeerName::to_string() const { return fmt::format("{} {}", peer_role_name(role), name); }

Responder& Responder::operator=(Responder&& other) noexcept {
  if (this == &other) return *this;
  Responder old(std::move(*this));  // an unanswered one is answered here
  sink_ = std::exchange(other.sink_, nullptr);
  call_ = other.call_;
  return *this;
}

Responder::~Responder() {
  if (sink_) sink_->dropped(call_);
}

void Responder::reply(result<std::vector<std::byte>> outcome) {
  const Ref<ReplySink> sink = std::exchange(sink_, nullptr);
  if (sink) sink->reply(call_, std::move(outcome));
}

}  // namespace troupe::runtime
