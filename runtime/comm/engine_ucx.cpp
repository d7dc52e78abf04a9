#include "runtime/comm/engine_ucx.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"

#include <algorithm>
#include <bit>

namespace troupe::runtime {
namespace {

constexpr std::size_t kArrivalsMax = std::size_t{1} << 16;
constexpr Duration kSweepEvery = std::chrono::milliseconds(100);

}  // namespace

TransportStatistics TransportCounters::read() const {
  return {.pulls = pulls,
          .pulls_failed = pulls_failed,
          .bytes_pulled = bytes_pulled,
          .bytes_direct = bytes_direct,
          .bytes_served = bytes_served,
          .requests = requests,
          .refused = refused,
          .late = late,
          .pulls_open = pulls_open,
          .pins_held = pins_held,
          .peers = peers,
          .buffers_orphaned = buffers_orphaned};
}

UcxEngine::UcxEngine(TransportOptions options, TransportAddress self, UcxWorker& worker,
                     TransportCounters& counters)
    : options_(std::move(options)),
      self_(std::move(self)),
      self_bytes_(encode_address(self_)),
      worker_(worker),
      counters_(counters),
      next_sweep_(steady_now() + kSweepEvery) {}

UcxEngine::~UcxEngine() = default;

result<void> UcxEngine::listen() {
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                     UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = kMessageId;
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  param.cb = &UcxEngine::on_message;
  param.arg = this;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_.handle(), &param);
  if (status != UCS_OK)
    return fail(ErrorCode::kInternal, "ucx: setting the message handler: {}", ucx_reason(status));
  return {};
}

bool UcxEngine::step(TimePoint now) {
  bool worked = worker_.progress() || !arrivals_.empty() || !broken_.empty();
  for (const Broken& one : std::exchange(broken_, {})) {
    const Peer* peer = known_peer(one.epoch);
    // Many operations may tell of one broken connection, and some of them late.
    if (peer == nullptr || peer->endpoint == nullptr || peer->connection != one.connection)
      continue;
    fail_peer(one.epoch,
              Error{.code = ErrorCode::kRankDead,
                    .message = fmt::format("connection lost: {}", ucx_reason(one.status)),
                    .origin = {},
                    .causes = {}},
              false);
  }
  for (std::size_t left = arrivals_.size(); left > 0; --left) {
    Arrival arrival = std::move(arrivals_.front());
    arrivals_.pop_front();
    dispatch(std::move(arrival));
  }
  worked = take_copies() || worked;
  finish_closes();
  expire(now);
  for (const std::uint64_t epoch : std::exchange(thirsty_, {})) {
    Peer* peer = known_peer(epoch);
    if (peer != nullptr && peer->endpoint != nullptr) pump(*peer);
  }
  return worked || !arrivals_.empty() || !broken_.empty();
}

TimePoint UcxEngine::next_due(TimePoint now) const {
  constexpr Duration kIdle = std::chrono::seconds(30);
  TimePoint due = now + kIdle;
  if (!deadlines_.empty()) due = std::min(due, deadlines_.begin()->first);
  const bool watching =
      !landings_.empty() || !answers_.empty() || !pulls_.empty() || !closes_.empty();
  if (watching) due = std::min(due, next_sweep_);
  return due;
}

void UcxEngine::expire(TimePoint now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const std::uint64_t number = deadlines_.begin()->second;
    const Pull& pull = pulls_.at(number);
    end_pull(number, fail(ErrorCode::kDeadline, "{}: {} of {} chunks came before the deadline",
                          peers_.at(pull.epoch)->address.name, pull.done, pull.chunks.size()));
  }
  if (now < next_sweep_) return;
  next_sweep_ = now + kSweepEvery;
  std::vector<std::uint64_t> stuck;
  for (auto& [number, landing] : landings_) {
    if (landing->orphaned || landing->expires > now) continue;
    landing->orphaned = true;
    counters_.buffers_orphaned.fetch_add(1);
    stuck.push_back(landing->epoch);
  }
  std::vector<std::uint64_t> unread;
  for (auto& [number, answer] : answers_) {
    if (answer->orphaned || answer->expires > now) continue;
    if (answer->places) {
      unread.push_back(number);
      continue;
    }
    answer->orphaned = true;
    stuck.push_back(answer->epoch);
  }
  for (const std::uint64_t number : unread) drop_answer(number);
  for (const std::uint64_t epoch : stuck)
    fail_peer(epoch,
              Error{.code = ErrorCode::kDeadline,
                    .message = "a transfer is stuck past its deadline",
                    .origin = {},
                    .causes = {}},
              true);
  check_processes();
}

/// UCX finds the death of a process on this host within its keepalive, and never while it is an
/// unreaped zombie. Its memory is gone at once.
void UcxEngine::check_processes() {
  std::vector<std::pair<std::uint64_t, Error>> dead;
  for (const auto& [epoch, peer] : peers_) {
    if (peer->lost || !peer->watched) continue;
    if (peer->pulls.empty() && peer->answers_open == 0) continue;
    result<void> alive = probe_directly(peer->address);
    if (!alive && alive.error().code == ErrorCode::kRankDead)
      dead.emplace_back(epoch, std::move(alive).error());
  }
  for (const auto& [epoch, error] : dead) fail_peer(epoch, error, true);
}

ucs_status_t UcxEngine::on_message(void* self, const void* head, std::size_t head_bytes, void* data,
                                   std::size_t bytes, const ucp_am_recv_param_t* param) {
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  return static_cast<UcxEngine*>(self)->receive({static_cast<const std::byte*>(head), head_bytes},
                                                data, bytes, rendezvous);
}

ucs_status_t UcxEngine::receive(std::span<const std::byte> head, void* data, std::size_t bytes,
                                bool rendezvous) {
  std::span<const std::byte> payload;
  if (!rendezvous && bytes > 0) payload = {static_cast<const std::byte*>(data), bytes};
  result<MessageHeader> header = open_message(options_.key, self_.epoch, head, bytes, payload);
  if (!header) {
    refuse(header.error());
    return UCS_OK;
  }
  bool admitted = false;
  if (Peer* peer = known_peer(header->from)) {
    if (peer->lost) {
      counters_.late.fetch_add(1);
      return UCS_OK;
    }
    if (!admit(*peer, *header)) return UCS_OK;
    admitted = true;
  } else if (header->type != MessageType::kRequest || (header->flags & kFlagIntroduced) == 0) {
    counters_.late.fetch_add(1);  // from somebody whom we have forgotten
    return UCS_OK;
  }
  if (header->type == MessageType::kData) {
    ucs_status_t verdict = UCS_OK;
    accept_data(*header, data, bytes, rendezvous, verdict);
    return verdict;
  }
  if (arrivals_.size() < kArrivalsMax) {
    arrivals_.push_back({*header, {payload.begin(), payload.end()}, admitted});
  } else {
    counters_.refused.fetch_add(1);
  }
  return UCS_OK;
}

bool UcxEngine::admit(Peer& peer, const MessageHeader& header) {
  if (peer.window.admit(header.sequence)) return true;
  refuse(Error{
      .code = ErrorCode::kCorrupt,
      .message = fmt::format("message {} of {} comes again", header.sequence, peer.address.name),
      .origin = {},
      .causes = {}});
  return false;
}

void UcxEngine::refuse(const Error& why) {
  const auto count = static_cast<std::uint64_t>(counters_.refused.fetch_add(1) + 1);
  // A flood must not fill the log: the 1st, 2nd, 4th, 8th, … are told.
  if (std::has_single_bit(count))
    log::warn("transport of {}: refused message {}: {}", options_.name, count, why.message);
}

void UcxEngine::dispatch(Arrival arrival) {
  if (arrival.header.type == MessageType::kRequest) return accept_request(std::move(arrival));
  Peer* peer = known_peer(arrival.header.from);
  if (peer == nullptr || peer->lost) return;
  switch (arrival.header.type) {
    case MessageType::kPlaces:
      return accept_places(*peer, arrival.header, arrival.payload);
    case MessageType::kError:
      return accept_error(*peer, arrival.header, arrival.payload);
    case MessageType::kDone:
      return unpin(arrival.header);
    case MessageType::kGoodbye:
      return fail_peer(arrival.header.from,
                       Error{.code = ErrorCode::kRankDead,
                             .message = "it has closed its transport",
                             .origin = {},
                             .causes = {}},
                       true);
    case MessageType::kRequest:
    case MessageType::kData:
      break;
  }
}

UcxEngine::Peer* UcxEngine::known_peer(std::uint64_t epoch) {
  const auto place = peers_.find(epoch);
  return place == peers_.end() ? nullptr : place->second.get();
}

result<UcxEngine::Peer*> UcxEngine::peer_of(const TransportAddress& address) {
  Peer* peer = known_peer(address.epoch);
  if (peer == nullptr) {
    if (address.lane_version != self_.lane_version)
      return fail(ErrorCode::kConflict, "{}: runs ucx {}, this process {}", address.name,
                  address.lane_version, self_.lane_version);
    auto fresh = std::make_unique<Peer>();
    fresh->address = address;
    peer = peers_.emplace(address.epoch, std::move(fresh)).first->second.get();
    counters_.peers.fetch_add(1);
  }
  if (peer->lost) {
    return fail(Error(*peer->lost)
                    .wrap(ErrorCode::kRankDead, fmt::format("{}: is gone", peer->address.name)));
  }
  if (peer->endpoint == nullptr) TROUPE_TRY_VOID(connect(*peer));
  return peer;
}

result<void> UcxEngine::connect(Peer& peer) {
  ++peer.connection;
  auto tag = std::make_unique<EndpointTag>();
  *tag = {.engine = this, .epoch = peer.address.epoch, .connection = peer.connection};
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  const bool same_host = !self_.host.empty() && self_.host == peer.address.host;
  const auto& lanes = same_host ? peer.address.lanes : peer.address.network_lanes;
  if (lanes.empty())
    return fail(ErrorCode::kUnsupported, "{}: is on another host and has no network lanes",
                peer.address.name);
  params.address = reinterpret_cast<const ucp_address_t*>(lanes.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxEngine::on_endpoint_error;
  params.err_handler.arg = tag.get();
  tags_.push_back(std::move(tag));
  const ucs_status_t status = ucp_ep_create(worker_.handle(), &params, &peer.endpoint);
  if (status != UCS_OK) {
    peer.endpoint = nullptr;
    return fail(ErrorCode::kRankDead, "{}: cannot be reached: {}", peer.address.name,
                ucx_reason(status));
  }
  if (peer.direct == Direct::kUnknown) look_at_process(peer);
  return {};
}

void UcxEngine::look_at_process(Peer& peer) {
  peer.direct = Direct::kNo;
  if (self_.host.empty() || self_.host != peer.address.host) return;
  const result<void> readable = probe_directly(peer.address);
  peer.watched = readable.has_value();
  if (!options_.direct_copy || options_.lanes == TransportLanes::kTcp) return;
  if (readable)
    peer.direct = Direct::kYes;
  else
    log::info("transport of {}: no direct copies, lanes instead: {}", options_.name,
              readable.error().message);
}

void UcxEngine::on_endpoint_error(void* tag, ucp_ep_h /*endpoint*/, ucs_status_t status) {
  const auto* who = static_cast<const EndpointTag*>(tag);
  who->engine->broken_.push_back({who->epoch, who->connection, status});
}

void UcxEngine::disconnect(Peer& peer) {
  if (peer.endpoint == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ucp_ep_h endpoint = std::exchange(peer.endpoint, nullptr);
  peer.knows_us = false;
  void* request = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) closes_.push_back(request);
}

void UcxEngine::finish_closes() {
  std::erase_if(closes_, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
}

void UcxEngine::fail_peer(std::uint64_t epoch, const Error& cause, bool fence) {
  Peer* peer = known_peer(epoch);
  if (peer == nullptr || peer->lost) return;
  if (fence) peer->lost = cause;
  log::info("transport of {}: {}: {}", options_.name, peer->address.name, cause.message);
  const std::vector<std::uint64_t> numbers(peer->pulls.begin(), peer->pulls.end());
  for (const std::uint64_t number : numbers)
    end_pull(number, fail(Error(cause).wrap(ErrorCode::kRankDead,
                                            fmt::format("{}: is gone", peer->address.name))));
  std::vector<std::uint64_t> pinned;
  for (const auto& [number, answer] : answers_) {
    if (answer->epoch == epoch && answer->places) pinned.push_back(number);
  }
  for (const std::uint64_t number : pinned) drop_answer(number);
  peer->answers_open -= static_cast<std::int32_t>(
      std::erase_if(waiting_, [epoch](const Waiting& one) { return one.epoch == epoch; }));
  disconnect(*peer);
}

void UcxEngine::lose(const TransportAddress& address, const Error& cause) {
  if (known_peer(address.epoch) != nullptr) return fail_peer(address.epoch, cause, true);
  auto fresh = std::make_unique<Peer>();
  fresh->address = address;
  fresh->lost = cause;
  peers_.emplace(address.epoch, std::move(fresh));
}

MessageHeader UcxEngine::stamp(Peer& peer, MessageHeader header) {
  header.from = self_.epoch;
  header.to = peer.address.epoch;
  header.sequence = ++peer.sequence;
  return header;
}

void UcxEngine::send(Peer& peer, MessageHeader header, std::vector<std::byte> payload) {
  if (peer.endpoint == nullptr) return;  // it failed; its pulls have been told
  auto message = std::make_unique<Send>();
  message->engine = this;
  message->number = ++last_number_;
  message->payload = std::move(payload);
  header.bytes = message->payload.size();
  message->head = seal_message(options_.key, stamp(peer, header), message->payload);
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &UcxEngine::on_sent;
  param.user_data = message.get();
  Send& kept = *sends_.emplace(message->number, std::move(message)).first->second;
  void* request = ucp_am_send_nbx(peer.endpoint, kMessageId, kept.head.data(), kept.head.size(),
                                  kept.payload.data(), kept.payload.size(), &param);
  if (UCS_PTR_IS_PTR(request)) return;
  if (UCS_PTR_IS_ERR(request))
    broken_.push_back({peer.address.epoch, peer.connection, UCS_PTR_STATUS(request)});
  sends_.erase(kept.number);
}

void UcxEngine::on_sent(void* request, ucs_status_t /*status*/, void* send) {
  // A failure also breaks the endpoint, whose callback tells.
  const auto* message = static_cast<const Send*>(send);
  message->engine->sends_.erase(message->number);
  ucp_request_free(request);
}

void UcxEngine::close(TimePoint until) {
  pool_.reset();
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, pull] : pulls_) numbers.push_back(number);
  for (const std::uint64_t number : numbers)
    end_pull(number, fail(ErrorCode::kAborted, "transport of {}: closed", options_.name));
  waiting_.clear();
  for (const auto& [epoch, peer] : peers_) {
    if (!peer->lost) send(*peer, {.type = MessageType::kGoodbye}, {});
  }
  const auto settle = [&](auto&& settled) {
    while (!settled() && steady_now() < until) {
      const std::uint64_t seen = worker_.wakes();
      if (worker_.progress()) continue;
      finish_closes();
      constexpr Duration kNap = std::chrono::milliseconds(5);
      worker_.wait(std::min(until, steady_now() + kNap), seen);
    }
  };
  settle([this] { return sends_.empty() && landings_.empty(); });
  for (const auto& [epoch, peer] : peers_) {
    peer->lost =
        Error{.code = ErrorCode::kAborted, .message = "closed", .origin = {}, .causes = {}};
    disconnect(*peer);
  }
  settle([this] { return closes_.empty(); });
}

}  // namespace troupe::runtime
