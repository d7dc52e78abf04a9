#include "apps/troupe/cluster_command.hpp"
#include "placement/host_node.hpp"
#include "placement/node_reservation_service.hpp"
#include "runtime/base/log.hpp"
#include "runtime/cluster/cgroup.hpp"
#include "runtime/cluster/lanes.hpp"
#include "runtime/cluster/node_agent.hpp"
#include "runtime/group/rank_launcher.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troupe::apps {

using placement::HeldBundle;
using placement::NodeReservationService;
using runtime::LaneService;
using runtime::NodeAgent;
using runtime::NodeAgentOptions;

namespace {

struct NodeCommandOptions {
  ClusterOptions cluster;  ///< of it: address (`--join`), credentials
  std::string name;
  std::string listen;
  std::string announce;
  int devices = -1;
  double device_memory_gb = 16;
  double cpus = 0;
  double memory_gb = 0;
  std::string topology;
  std::vector<std::string> labels;
  std::string cgroup;
  double join_within_s = 30;
  double grace_s = 5;
};

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "node";
  return std::string(name.data()).substr(0, runtime::kJobNameMax);
}

result<runtime::HostInventory> discover(const NodeCommandOptions& options) {
  runtime::InventoryOptions wanted;
  if (options.devices >= 0) wanted.devices_simulated = options.devices;
  const auto gibibytes_of = [](double amount) {
    return Bytes{static_cast<std::int64_t>(amount * 1024.0 * 1024.0 * 1024.0)};
  };
  wanted.simulated_device_memory = gibibytes_of(options.device_memory_gb);
  if (options.cpus > 0) wanted.cpus = options.cpus;
  if (options.memory_gb > 0) wanted.memory = gibibytes_of(options.memory_gb);
  wanted.topology_file = options.topology;
  for (const std::string& label : options.labels) {
    const std::size_t equals = label.find('=');
    if (equals == 0 || equals == std::string::npos)
      return fail(ErrorCode::kConfig, "--label '{}': wanted NAME=VALUE", label);
    wanted.labels[label.substr(0, equals)] = label.substr(equals + 1);
  }
  return runtime::discover_host(wanted);
}

/// Ties the agent to what lies above and beside it: reservations decide where ranks run, and whose
/// devices are gone is told to both.
class NodeServices final : public placement::ReservationListener {
 public:
  result<void> open(runtime::ActorSystem& system, const runtime::HostInventory& inventory,
                    const std::string& name) {
    inventory_ = inventory;
    TROUPE_TRY(auto spec, placement::node_of_host(inventory, name));
    placement::NodeReservationOptions options;
    options.spec = std::move(spec);
    options.listener = this;
    options.on_refused = [name](const Error& cause) {
      log::error("node {}: the head refuses its devices: {}", name, cause.to_string());
    };
    TROUPE_TRY(reservations_, NodeReservationService::create(std::move(options)));
    runtime::LaneServiceOptions lanes;
    for (const runtime::HostDevice& device : inventory.devices)
      lanes.device_capacity.push_back(Bytes{device.memory_bytes});
    lanes_ = LaneService::make(system, std::move(lanes));
    return {};
  }

  void join(NodeAgentOptions& agent) {
    agent.services = {{"reserve.", reservations_}, {"lane.", lanes_}, {"memory.", lanes_}};
    agent.place = [this](const runtime::RankStart& start) { return place(start); };
    agent.head_up = [this](const runtime::Ref<runtime::Channel>& head,
                           const runtime::NodeRegistered&) {
      reservations_->attach(head);
      const std::scoped_lock lock(mutex_);
      joined_ = true;
      changed_.notify_all();
    };
    agent.rank_over = [this](const runtime::RankExit& exit) {
      lanes_->rank_gone(fmt::format("{}/{}/{}", exit.job, exit.group, exit.rank.value), exit.cause);
    };
    agent.job_over = [this](const std::string& job) {
      lanes_->job_gone(job, Error{.code = ErrorCode::kAborted,
                                  .message = fmt::format("job {} is over here", job),
                                  .origin = {},
                                  .causes = {}});
    };
  }

  void set_agent(NodeAgent* agent) {
    const std::scoped_lock lock(mutex_);
    agent_ = agent;
  }
  void drain() { reservations_->set_draining(true); }
  /// Waits for the first registration; false at the deadline or when told to stop.
  bool wait_joined(Deadline deadline, const std::atomic<bool>& stop) {
    std::unique_lock lock(mutex_);
    while (!joined_ && !deadline.passed() && !stop)
      changed_.wait_for(lock, std::chrono::milliseconds(100));
    return joined_;
  }

  void on_committed(const HeldBundle& /*bundle*/) override {}
  void on_released(const HeldBundle& bundle) override {
    const std::scoped_lock lock(mutex_);
    if (agent_ == nullptr) return;
    agent_->revoke(bundle.name, Error{.code = ErrorCode::kAborted,
                                      .message = fmt::format("bundle {} of group {} was given up",
                                                             bundle.placement.bundle, bundle.name),
                                      .origin = {},
                                      .causes = {}});
  }

 private:
  result<runtime::RankPlace> place(const runtime::RankStart& start) {
    const auto held = reservations_->find(start.reservation, start.bundle);
    if (!held) {
      return fail(ErrorCode::kNotFound, "group '{}': this node holds no bundle {} of it",
                  start.reservation, start.bundle);
    }
    return placement::rank_place_on(inventory_, held->placement);
  }

  runtime::HostInventory inventory_;
  std::shared_ptr<NodeReservationService> reservations_;
  std::shared_ptr<LaneService> lanes_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  NodeAgent* agent_ = nullptr;
  bool joined_ = false;
};

result<runtime::ListenAddress> listen_address(const NodeCommandOptions& options,
                                              const std::string& head) {
  TROUPE_TRY(const std::string host, placement::local_address_towards(head));
  return placement::parse_listen(options.listen, {.host = host, .port = 0});
}

/// Wrong tokens, certificates and names show at once; a head that is only away does not: then what
/// was in the way is returned.
result<std::optional<Error>> try_head(runtime::LinkHub& hub, const std::string& head,
                                      Deadline deadline) {
  class Nothing final : public runtime::ChannelService {
   public:
    void on_request(runtime::Channel&, std::string_view, std::span<const std::byte>, Deadline,
                    runtime::Responder responder) override {
      responder.reply(fail(ErrorCode::kUnsupported, "not registered yet"));
    }
  };
  const auto channel = hub.connect(head, std::make_shared<Nothing>(), deadline).wait(deadline);
  if (channel) {
    (*channel)->close(
        Error{.code = ErrorCode::kCancelled, .message = "only looked", .origin = {}, .causes = {}});
    return std::optional<Error>{};
  }
  const ErrorCode code = channel.error().code;
  if (code == ErrorCode::kIo || code == ErrorCode::kDeadline)
    return std::optional<Error>(channel.error());
  return fail(channel.error());
}

/// Ranks shall run in groups below `folder`: one is made and removed to see that they can.
result<void> check_cgroup(const std::string& folder) {
  if (folder.empty()) return {};
  const auto made = runtime::ChildCgroup::create(folder, fmt::format("troupe-probe-{}", ::getpid()),
                                                 std::nullopt);
  if (!made) return fail(ErrorCode::kConfig, "--cgroup {}: {}", folder, made.error().message);
  if (::access((*made)->procs_file().c_str(), F_OK) != 0)
    return fail(ErrorCode::kConfig, "--cgroup {}: no folder of cgroup v2 (no cgroup.procs in it)",
                folder);
  return {};
}

result<int> run_node(const NodeCommandOptions& options, const std::atomic<bool>& stop) {
  TROUPE_TRY(const auto access, placement::resolve_access(options.cluster.access));
  const std::string name = options.name.empty() ? host_name() : options.name;
  TROUPE_TRY(const auto inventory, discover(options));
  TROUPE_TRY_VOID(check_cgroup(options.cgroup));
  TROUPE_TRY(const auto listen, listen_address(options, access.address));
  const std::string& reached = options.announce.empty() ? listen.host : options.announce;
  TROUPE_TRY(auto link, access.listening_link({runtime::PeerRole::kNode, name}, reached));
  runtime::ActorSystem system;
  TROUPE_TRY(const auto hub, runtime::LinkHub::open(system, std::move(link)));
  const Deadline join_by = Deadline::in(to_duration(options.join_within_s));
  TROUPE_TRY(const std::optional<Error> away, try_head(*hub, access.address, join_by));
  NodeServices services;
  TROUPE_TRY_VOID(services.open(system, inventory, name));
  NodeAgentOptions agent_options;
  agent_options.name = name;
  agent_options.inventory = inventory;
  agent_options.listen_host = listen.host;
  agent_options.listen_port = listen.port;
  agent_options.announced_host = options.announce;
  agent_options.head = access.address;
  agent_options.cgroup_parent = options.cgroup;
  agent_options.version = "0.1.0";
  if (hub->options().tls.enabled()) {
    // Ranks dial with the certificate of their node.
    const std::filesystem::path certificate(hub->options().tls.certificate);
    agent_options.rank_environment = {
        {std::string(runtime::kTlsFolderVariable), certificate.parent_path().string()},
        {std::string(runtime::kTlsNameVariable), certificate.stem().string()}};
  }
  services.join(agent_options);
  TROUPE_TRY(const auto agent, NodeAgent::open(system, hub.get(), std::move(agent_options)));
  services.set_agent(agent.get());
  fmt::print("node {} at {} with {}\n", name, agent->address(), to_text(inventory));
  std::fflush(stdout);
  const bool joined = services.wait_joined(join_by, stop);
  const auto leave = [&](const std::string& why) {
    log::info("node {}: stopping: {}", name, why);
    services.drain();
    agent->drain(to_duration(options.grace_s), why);
    const auto drained = agent->wait_drained(Deadline::in(to_duration(options.grace_s + 5)));
    services.set_agent(nullptr);
    return drained;
  };
  if (!joined && !stop) {
    services.set_agent(nullptr);
    return fail(ErrorCode::kDeadline, "node {}: the head at {} did not take it on in {} s{}", name,
                access.address, options.join_within_s,
                away ? fmt::format("; at first: {}", away->to_string()) : "");
  }
  TROUPE_TRY_VOID(leave(agent->wait_stop([&] { return stop.load(); })));
  return kExitDone;
}

}  // namespace

Command add_node(CLI::App& app, const std::atomic<bool>& stop) {
  CLI::App* command = app.add_subcommand("node", "run the agent of this host and join a cluster");
  const auto options = std::make_shared<NodeCommandOptions>();
  command->add_option("--join", options->cluster.access.address,
                      "host:port of the head; default TROUPE_ADDRESS or STATE/address");
  add_credential_options(*command, options->cluster.access);
  command->add_option("--name", options->name, "unique in the cluster; default the host's name");
  command->add_option("--listen", options->listen,
                      "HOST:PORT for controllers and ranks; default the address towards the head "
                      "and any port");
  command->add_option("--announce", options->announce, "host under which others reach this one");
  command
      ->add_option("--devices", options->devices,
                   "offer this many simulated devices instead of the GPUs found")
      ->check(CLI::Range(0, 1024));
  command->add_option("--device-memory-gb", options->device_memory_gb, "of a simulated device")
      ->check(number_within(0.001, 1e6))
      ->capture_default_str();
  command->add_option("--cpus", options->cpus, "offer this many instead of the cores found")
      ->check(number_within(0.001, 16384.0));
  command->add_option("--memory-gb", options->memory_gb, "offer this much instead of that found")
      ->check(number_within(0.001, 1e6));
  command->add_option("--topology", options->topology, "JSON file; see docs/node_agent.md");
  command->add_option("--label", options->labels, "NAME=VALUE, for selectors; also `rack`");
  command->add_option("--cgroup", options->cgroup, "cgroup v2 folder under which ranks run");
  command->add_option("--join-within", options->join_within_s, "seconds for the first registration")
      ->check(number_within(0.001, 1e7))
      ->capture_default_str();
  command->add_option("--grace", options->grace_s, "seconds for ranks to end when it stops")
      ->check(number_within(0.0, 3600.0))
      ->capture_default_str();
  return [options, &stop]() -> int {
    const auto code = run_node(*options, stop);
    return code ? *code : exit_with(code.error());
  };
}

}  // namespace troupe::apps
