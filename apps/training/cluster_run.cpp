#include "apps/training/cluster_run.hpp"

#include "apps/training/async_keys.hpp"
#include "apps/training/config_seconds.hpp"
#include "apps/training/train_settings.hpp"
#include "placement/cluster_client.hpp"
#include "runtime/group/cluster_job.hpp"

#include <unistd.h>

#include <cctype>
#include <chrono>
#include <utility>

namespace troupe::apps {
namespace {

using runtime::Config;

constexpr Duration kTurnsWithin = std::chrono::seconds(2);

/// A name that jobs may have, and that no other process of this cluster takes by accident.
std::string job_name(const std::string& run) {
  constexpr std::size_t kShownMax = 80;
  std::string name = run.substr(0, kShownMax);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '_' && c != '-')
      c = '-';
  }
  return fmt::format("{}-{}", name, ::getpid());
}

/// The error of a library as one of the key that asked for it.
template <class T>
result<T> of_key(const Config& config, std::string_view key, result<T> value) {
  if (value) return value;
  return config.refuse(key, "{}", value.error().message);
}

result<placement::ClusterAccess> access(const Config& config) {
  placement::AccessOptions options;
  options.address = config.get<std::string>("cluster.address");
  options.token_file = config.get<std::string>("cluster.token_file");
  options.tls = config.get<std::string>("cluster.tls");
  options.trusted_network = config.get<bool>("cluster.trusted_network");
  return placement::resolve_access(options);
}

result<placement::GroupWish> wish(const Config& config, const std::string& name) {
  placement::GroupWish wish;
  wish.request.name = name;
  placement::Bundle bundle;
  bundle.resources.gpu = placement::Amount::whole(1);
  TROUPE_TRY(
      bundle.resources.cpu,
      placement::parse_amount(config.get<double>("cluster.cpus_per_gpu"), "cluster.cpus_per_gpu"));
  bundle.resources.memory = mebibytes(config.get<std::int64_t>("cluster.memory_mb_per_gpu"));
  wish.request.bundles.assign(static_cast<std::size_t>(all_devices(config)), bundle);
  TROUPE_TRY(wish.request.strategy,
             of_key(config, "cluster.strategy",
                    placement::parse_strategy(config.get<std::string>("cluster.strategy"))));
  TROUPE_TRY(wish.request.level,
             of_key(config, "cluster.level",
                    placement::parse_level(config.get<std::string>("cluster.level"))));
  wish.request.per_domain_max = config.get<int>("cluster.max_per_domain");
  wish.request.priority = config.get<int>("cluster.priority");
  // The run itself goes on from a checkpoint, on devices that it asks for anew.
  wish.terms.repair = placement::RepairPolicy::kFailGroup;
  wish.terms.feasible_within = seconds_of(config, "cluster.join_wait_s");
  return wish;
}

}  // namespace

Error explain_devices(const Config& config, Error cause) {
  const ErrorCode code = cause.code;
  const std::string key = streams(config) ? "trainer.rollout_devices" : "trainer.n_gpus_per_node";
  const int value =
      streams(config) ? rollout_devices(config) : config.get<int>("trainer.n_gpus_per_node");
  return std::move(cause).wrap(
      code,
      fmt::format("{}: {} = {}: the run wants {} devices: trainer.nnodes ({}) × "
                  "trainer.n_gpus_per_node ({}) + trainer.rollout_devices ({}) + "
                  "trainer.evaluation_devices ({})",
                  config.place(key), key, value, all_devices(config),
                  config.get<int>("trainer.nnodes"), config.get<int>("trainer.n_gpus_per_node"),
                  rollout_devices(config), evaluation_devices(config)));
}

struct ClusterRun::Parts {
  std::unique_ptr<placement::ClusterClient> client;
  std::unique_ptr<placement::ClusterPool> pool;
  std::unique_ptr<runtime::ClusterJob> job;
};

ClusterRun::ClusterRun(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

ClusterRun::~ClusterRun() {
  parts_->job.reset();
  parts_->pool.reset();
}

result<std::unique_ptr<ClusterRun>> ClusterRun::open(runtime::ActorSystem& system,
                                                     const Config& config,
                                                     ClusterRunOptions options) {
  auto parts = std::make_unique<Parts>();
  placement::ClusterClientOptions client;
  TROUPE_TRY(client.access, access(config));
  client.job = job_name(options.name);
  client.command = "troupe train, " + run_folder(config);
  client.listen_host = config.get<std::string>("cluster.listen");
  client.on_stop = std::move(options.on_stop);
  const std::string name = client.job;
  TROUPE_TRY(parts->client, placement::ClusterClient::open(system, std::move(client)));
  TROUPE_TRY(auto wanted, wish(config, name));
  auto pool = parts->client->create_pool(std::move(wanted),
                                         Deadline::in(seconds_of(config, "cluster.wait_s")));
  if (!pool && pool.error().root_cause().code == ErrorCode::kResourceExhausted)
    return fail(explain_devices(config, std::move(pool).error()));
  TROUPE_TRY(parts->pool, std::move(pool));
  runtime::ClusterJobOptions job;
  job.job = name;
  job.listen_host = parts->client->listen_host();
  job.command = std::move(options.rank_command);
  TROUPE_TRY(parts->job, runtime::ClusterJob::open(system, &parts->client->hub(),
                                                   parts->client->launcher(), std::move(job)));
  return std::unique_ptr<ClusterRun>(new ClusterRun(std::move(parts)));
}

std::unique_ptr<actors::WorldPlace> ClusterRun::place(const actors::WorldOptions& options) {
  return actors::make_cluster_place({.job = parts_->job.get(),
                                     .reservation = parts_->pool->name(),
                                     .bundles = {},
                                     .lanes = parts_->pool->lanes()},
                                    options);
}

void ClusterRun::record_turns(runtime::Trace& trace) {
  parts_->client->record_turns(trace, Deadline::in(kTurnsWithin));
}

std::string ClusterRun::describe() const {
  std::string lines;
  for (const placement::BundlePlacement& bundle : parts_->pool->placements())
    lines += (lines.empty() ? "" : "\n") + placement::to_string(bundle);
  return lines;
}

}  // namespace troupe::apps
