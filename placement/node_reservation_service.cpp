#include "placement/node_reservation_service.hpp"

#include "placement/protocol_codec.hpp"
#include "runtime/base/incarnation.hpp"
#include "runtime/base/log.hpp"
#include "runtime/task/when_done.hpp"

#include <chrono>
#include <utility>

namespace troupe::placement {

using runtime::Channel;
using runtime::Ref;
using runtime::Responder;

NodeReservationService::NodeReservationService(NodeReservationOptions options,
                                               NodeReservations core)
    : options_(std::move(options)), core_(std::move(core)) {}

NodeReservationService::~NodeReservationService() = default;

result<std::shared_ptr<NodeReservationService>> NodeReservationService::create(
    NodeReservationOptions options) {
  const std::uint64_t incarnation =
      options.incarnation != 0 ? options.incarnation : new_incarnation();
  TROUPE_TRY(auto core, NodeReservations::create(options.spec, incarnation));
  return std::shared_ptr<NodeReservationService>(
      new NodeReservationService(std::move(options), std::move(core)));
}

void NodeReservationService::attach(Ref<Channel> head) {
  NodeHello hello;
  {
    const std::lock_guard lock(mutex_);
    head_ = head;
    hello = core_.hello();
  }
  say_hello(head, hello);
}

void NodeReservationService::say_hello(const Ref<Channel>& head, const NodeHello& hello) {
  runtime::when_done<std::vector<std::byte>>(
      head->request("placement.hello", encode_hello(hello), Deadline::in(options_.hello_within)),
      [weak = weak_from_this(), head](const result<std::vector<std::byte>>& answer) {
        if (answer || head->failure()) return;  // a channel that is down will be dialled again
        const auto self = weak.lock();
        if (!self) return;
        log::warn("placement: the head refuses node {}: {}", self->options_.spec.name,
                  answer.error().to_string());
        if (self->options_.on_refused) self->options_.on_refused(answer.error());
        // Whoever keeps the channel dials again: the head may still believe in the agent before.
        head->close(answer.error());
      });
}

void NodeReservationService::say_hello_again() {
  Ref<Channel> head;
  NodeHello hello;
  {
    const std::lock_guard lock(mutex_);
    if (!head_) return;
    head = head_;
    hello = core_.hello();
  }
  say_hello(head, hello);
}

void NodeReservationService::on_request(Channel& channel, std::string_view method,
                                        std::span<const std::byte> payload, Deadline /*deadline*/,
                                        Responder responder) {
  if (method != "reserve.pass")
    return responder.reply(fail(ErrorCode::kNotFound, "node: no method '{}'", method));
  const auto pass = decode_pass(payload);
  if (!pass) return responder.reply(fail(pass.error()));
  ReservationChanges changes;
  std::optional<NodeReply> reply;
  {
    const std::lock_guard lock(mutex_);
    if (head_.get() != &channel)
      return responder.reply(fail(ErrorCode::kConflict,
                                  "node {}: a pass over a channel that is not the head's",
                                  options_.spec.name));
    reply = core_.step(*pass, steady_now(), changes);
  }
  for (const std::string& notice : changes.notices)
    log::warn("placement: node {}: {}", options_.spec.name, notice);
  if (options_.listener != nullptr) {
    for (const HeldBundle& bundle : changes.released) options_.listener->on_released(bundle);
    for (const HeldBundle& bundle : changes.committed) options_.listener->on_committed(bundle);
  }
  if (!reply)
    return responder.reply(fail(ErrorCode::kConflict, "node {}: pass {} of session {} is stale",
                                options_.spec.name, pass->number, pass->session));
  responder.reply(encode_reply(*reply));
}

void NodeReservationService::on_down(Channel& channel, const Error& /*cause*/) {
  Ref<Channel> gone;  // let go outside the lock
  const std::lock_guard lock(mutex_);
  if (head_.get() != &channel) return;
  gone = std::exchange(head_, nullptr);
  core_.session_over();
}

void NodeReservationService::set_draining(bool draining) {
  {
    const std::lock_guard lock(mutex_);
    core_.set_draining(draining);
  }
  say_hello_again();
}

result<void> NodeReservationService::set_device_failed(std::int32_t device, bool failed) {
  {
    const std::lock_guard lock(mutex_);
    TROUPE_TRY_VOID(core_.set_device_failed(device, failed));
  }
  say_hello_again();
  return {};
}

std::optional<HeldBundle> NodeReservationService::find(std::string_view group,
                                                       std::int32_t bundle) const {
  const std::lock_guard lock(mutex_);
  return core_.find(group, bundle);
}

std::vector<HeldBundle> NodeReservationService::held() const {
  std::vector<HeldBundle> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, bundle] : core_.held()) all.push_back(bundle);
  return all;
}

NodeSpec NodeReservationService::spec() const {
  const std::lock_guard lock(mutex_);
  return core_.spec();
}

}  // namespace troupe::placement
