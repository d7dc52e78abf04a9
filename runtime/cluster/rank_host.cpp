#include "runtime/cluster/rank_host.hpp"

#include "runtime/base/log.hpp"
#include "runtime/base/network.hpp"
#include "runtime/cluster/node_protocol.hpp"
#include "runtime/comm/lane_interfaces.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/group/rank_server.hpp"
#include "runtime/link/dialler.hpp"
#include "runtime/link/link_hub.hpp"
#include "runtime/link/service_table.hpp"
#include "runtime/link/token_file.hpp"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

namespace troupe::runtime {
namespace {

constexpr Duration kDialWithin = std::chrono::seconds(30);
/// What the engine may take to end when its controller says so, and when that is gone.
constexpr Duration kEngineWithin = std::chrono::milliseconds(1500);
constexpr Duration kProgressEvery = std::chrono::milliseconds(500);

std::string environment(std::string_view name) {
  const char* const value = std::getenv(std::string(name).c_str());
  return value == nullptr ? "" : value;
}

/// What the agent may ask of the rank, known only after the channel is up.
class AgentService final : public ChannelService {
 public:
  void set(std::shared_ptr<ServiceTable> table) {
    const std::lock_guard lock(mutex_);
    table_ = std::move(table);
  }
  void on_request(Channel& channel, std::string_view method, std::span<const std::byte> payload,
                  Deadline deadline, Responder responder) override {
    if (const auto table = get())
      return table->on_request(channel, method, payload, deadline, std::move(responder));
    responder.reply(fail(ErrorCode::kNotFound, "rank: no method '{}' yet", method));
  }
  void on_notify(Channel& channel, std::string_view method,
                 std::span<const std::byte> payload) override {
    if (const auto table = get()) table->on_notify(channel, method, payload);
  }
  void on_down(Channel& channel, const Error& cause) override {
    if (const auto table = get()) table->on_down(channel, cause);
  }

 private:
  std::shared_ptr<ServiceTable> get() {
    const std::lock_guard lock(mutex_);
    return table_;
  }
  std::mutex mutex_;  // guards table_
  std::shared_ptr<ServiceTable> table_;
};

/// Tells the agent's watchdog that the rank is getting on, or what it is in.
class ProgressNotes : public std::enable_shared_from_this<ProgressNotes> {
 public:
  ProgressNotes(ActorSystem& system, Ref<Channel> agent)
      : system_(system), agent_(std::move(agent)) {}
  void start(RankServer& server) {
    const std::lock_guard lock(mutex_);
    server_ = &server;
    again();
  }
  void stop() {
    const std::lock_guard lock(mutex_);
    server_ = nullptr;
  }

 private:
  void again() {
    system_.timer().add(steady_now() + kProgressEvery,
                        [self = shared_from_this()] { self->tell(); });
  }
  void tell() {
    const std::lock_guard lock(mutex_);
    if (server_ == nullptr || agent_->failure()) return;
    const RankStatus status = server_->status();
    RankProgress progress;
    progress.steps = static_cast<std::uint64_t>(status.calls_done + status.progress);
    progress.doing = status.busy ? status.method : "";
    if (!status.waits_for.empty()) progress.doing += ", waits for " + status.waits_for;
    if (auto payload = encode_value(progress)) {
      // The agent notices by itself when the channel is down.
      (void)agent_->notify(kRankProgress, std::move(*payload));
    }
    again();
  }

  ActorSystem& system_;
  const Ref<Channel> agent_;
  std::mutex mutex_;  // guards server_
  RankServer* server_ = nullptr;
};

result<LinkOptions> link_options(const RankRecord& record) {
  LinkOptions options;
  options.self = PeerName{PeerRole::kRank, record.peer_name()};
  if (const std::string file = environment(kTokenFileVariable); !file.empty()) {
    TROUPE_TRY(options.token, read_token_file(file));
  }
  if (const std::string folder = environment(kTlsFolderVariable); !folder.empty()) {
    const std::string name = environment(kTlsNameVariable);
    options.tls = TlsFiles::in_folder(folder, name.empty() ? "rank" : name);
  }
  return options;
}

/// All that a rank process consists of, in the order of its making.
struct RankProcess {
  RankRecord record;
  std::unique_ptr<ActorSystem> system;
  std::unique_ptr<LinkHub> hub;
  std::shared_ptr<AgentService> agent_service = std::make_shared<AgentService>();
  Ref<Channel> agent;
  AgentParts agent_parts;
  std::shared_ptr<ProgressNotes> notes;
  std::unique_ptr<RankServer> server;
  Ref<Channel> controller;

  result<void> open(const RankPrograms& programs, const std::string& json);
  result<void> dial_agent(const RankPrograms& programs);
};

result<void> RankProcess::dial_agent(const RankPrograms& programs) {
  if (record.agent.empty()) return {};
  const Deadline deadline = Deadline::in(kDialWithin);
  TROUPE_TRY(agent, hub->connect(record.agent, agent_service, deadline).wait(deadline));
  if (programs.agent_parts()) {
    TROUPE_TRY(agent_parts, programs.agent_parts()(agent, record));
  }
  auto table = std::make_shared<ServiceTable>();
  for (auto& [prefix, service] : agent_parts.services)
    TROUPE_TRY_VOID(table->add(prefix, std::move(service)));
  agent_service->set(std::move(table));
  notes = std::make_shared<ProgressNotes>(*system, agent);
  return {};
}

result<void> RankProcess::open(const RankPrograms& programs, const std::string& json) {
  TROUPE_TRY(record, RankRecord::from_json(json));
  TROUPE_TRY(LinkOptions options, link_options(record));
  system = std::make_unique<ActorSystem>();
  TROUPE_TRY(hub, LinkHub::open(*system, std::move(options)));
  TROUPE_TRY_VOID(dial_agent(programs));
  RankServerOptions serving;
  serving.record = record;
  serving.programs = &programs;
  serving.device_lanes = agent_parts.lanes;
  TROUPE_TRY(serving.lanes, lanes_of_environment());
  TROUPE_TRY(const auto dialled, parse_host_port(record.controller));
  TROUPE_TRY(serving.host, local_address_towards(dialled.host, dialled.port));
  server = std::make_unique<RankServer>(std::move(serving));
  const Deadline deadline = Deadline::in(kDialWithin);
  TROUPE_TRY(controller,
             hub->connect(record.controller, server->service(), deadline).wait(deadline));
  if (controller->peer().role != PeerRole::kController) {
    return fail(ErrorCode::kConflict, "{} is {}, not a controller", record.controller,
                controller->peer().to_string());
  }
  return {};
}

int code_of(const RankOutcome& outcome) {
  switch (outcome.end) {
    case RankEnd::kClosed:
      return 0;
    case RankEnd::kRefused:
      return kRankConfigCode;
    case RankEnd::kControllerLost:
      return kRankControllerCode;
    case RankEnd::kDied:
      break;
  }
  return kRankDeathCode;
}

}  // namespace

int run_rank(const RankPrograms& programs) {
  // A peer that went away is told by an error of the write.
  std::signal(SIGPIPE, SIG_IGN);
  RankProcess process;
  auto opened = process.open(programs, environment(kRankRecordVariable));
  if (!opened) {
    log::error("rank: {}", opened.error().to_string());
    return kRankConfigCode;
  }
  if (process.notes) process.notes->start(*process.server);
  const RankOutcome outcome = process.server->serve(process.controller, kEngineWithin);
  if (process.notes) process.notes->stop();
  const int code = code_of(outcome);
  if (outcome.end != RankEnd::kClosed) log::error("rank: {}", outcome.cause.to_string());
  if (!outcome.engine_ended) {
    log::warn("rank: {}: its engine did not end; the process ends without it",
              process.server->status().to_string());
    // Destructors would wait for the engine, or take from it what it uses.
    _exit(code);
  }
  return code;
}

std::optional<int> maybe_run_rank(const RankPrograms& programs) {
  if (environment(kRankRecordVariable).empty()) return std::nullopt;
  return run_rank(programs);
}

}  // namespace troupe::runtime
