#pragma once

// Sends any bytes as an active message to a transport, as whoever reaches its port could.
//
// **Threads:** one.

#include "runtime/comm/transport_wire.hpp"
#include "runtime/comm/worker_ucx.hpp"

#include <chrono>
#include <span>
#include <stdexcept>
#include <vector>

namespace troupe::runtime {

class Forger {
 public:
  Forger(TransportLanes lanes, const std::vector<std::byte>& victim)
      : worker_(*UcxWorker::open(lanes, lanes == TransportLanes::kTcp ? "lo" : "",
                                 std::chrono::milliseconds(500))) {
    const TransportAddress address = *decode_address(victim);
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(address.lanes.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
    if (ucp_ep_create(worker_->handle(), &params, &endpoint_) != UCS_OK)
      throw std::runtime_error("forger cannot connect");
  }
  ~Forger() {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    finish(ucp_ep_close_nbx(endpoint_, &param));
  }
  Forger(const Forger&) = delete;
  Forger& operator=(const Forger&) = delete;

  void send(std::span<const std::byte> head, std::span<const std::byte> payload) {
    constexpr unsigned kMessageId = 7;
    ucp_request_param_t param{};
    finish(ucp_am_send_nbx(endpoint_, kMessageId, head.data(), head.size(), payload.data(),
                           payload.size(), &param));
  }

 private:
  void finish(void* request) {
    if (!UCS_PTR_IS_PTR(request)) return;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (ucp_request_check_status(request) == UCS_INPROGRESS &&
           std::chrono::steady_clock::now() < until)
      worker_->progress();
    ucp_request_free(request);
  }
  std::unique_ptr<UcxWorker> worker_;
  ucp_ep_h endpoint_ = nullptr;
};

}  // namespace troupe::runtime
