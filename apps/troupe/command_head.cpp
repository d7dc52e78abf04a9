#include "apps/troupe/cluster_command.hpp"
#include "apps/troupe/head_state.hpp"
#include "placement/placement_service.hpp"
#include "runtime/base/log.hpp"
#include "runtime/cluster/head.hpp"
#include "runtime/link/dialler.hpp"
#include "runtime/link/token_file.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

namespace troupe::apps {

using placement::kHeadPort;
using runtime::ListenAddress;

namespace {

struct HeadCommandOptions {
  placement::AccessOptions access;
  std::string listen;
  std::string announce;
  std::string cluster = "troupe";
};

/// The token that others must have; the head's own file is made on its first start.
result<std::string> head_token(const placement::AccessOptions& access) {
  const char* named = std::getenv("TROUPE_TOKEN_FILE");
  std::string path = access.token_file;
  if (path.empty() && named != nullptr) path = named;
  if (path.empty()) path = placement::token_file(placement::state_folder(access));
  return runtime::read_or_make_token_file(path);
}

result<runtime::LinkOptions> head_link(const HeadCommandOptions& options, const std::string& host) {
  // Its own token file comes first, since resolving looks for it.
  TROUPE_TRY(const std::string token, head_token(options.access));
  TROUPE_TRY(const auto access, placement::resolve_credentials(options.access));
  const std::string& reached = options.announce.empty() ? host : options.announce;
  TROUPE_TRY(auto link, access.listening_link({runtime::PeerRole::kHead, "head"}, reached));
  link.token = token;
  return link;
}

/// Refuses what `LinkHub::listen` would, before a folder, a token and a ledger are made for it.
result<void> may_listen(const placement::AccessOptions& access, const ListenAddress& listen) {
  const char* tls = std::getenv("TROUPE_TLS");
  const bool with_tls = !access.tls.empty() || (tls != nullptr && *tls != '\0');
  if (with_tls || access.trusted_network) return {};
  return runtime::check_loopback({listen.host, listen.port});
}

/// What others dial; commands of this host, if nothing else is said.
std::string dialled(ListenAddress address, const std::string& announce) {
  if (!announce.empty()) address.host = announce;
  if (address.host == "0.0.0.0") address.host = "127.0.0.1";
  if (address.host == "::") address.host = "::1";
  return address.to_string();
}

result<int> run_head(const HeadCommandOptions& options, const std::atomic<bool>& stop) {
  TROUPE_TRY(const auto listen,
             placement::parse_listen(options.listen, {.host = "127.0.0.1", .port = kHeadPort}));
  TROUPE_TRY_VOID(may_listen(options.access, listen));
  TROUPE_TRY(HeadState state, HeadState::take(placement::state_folder(options.access)));
  TROUPE_TRY(auto link, head_link(options, listen.host));
  runtime::ActorSystem system;
  TROUPE_TRY(const auto hub, runtime::LinkHub::open(system, std::move(link)));
  runtime::HeadOptions head_options;
  head_options.host = listen.host;
  head_options.port = listen.port;
  head_options.cluster = options.cluster;
  runtime::HeadServer head(system, std::move(head_options));
  std::atomic<bool> ledger_failed{false};
  placement::PlacementServiceOptions service;
  service.ledger = state.ledger_path();
  service.on_failure = [&](const Error& cause) {
    log::error("the ledger fails, so the head ends: {}", cause.to_string());
    ledger_failed = true;
    head.request_stop("the ledger fails");
  };
  TROUPE_TRY(const auto placement, placement::PlacementService::open(std::move(service)));
  TROUPE_TRY_VOID(head.add_service("placement.", placement));
  TROUPE_TRY(const ListenAddress address, head.start(*hub));
  const std::string where = dialled(address, options.announce);
  TROUPE_TRY_VOID(state.publish(where));
  fmt::print("head {} with state in {}\n", address.to_string(), state.folder());
  fmt::print("join with: troupe node --join {}\n", where);
  std::fflush(stdout);
  const std::string why = head.wait_stop([&] { return stop.load(); });
  log::info("head: stopping: {}", why);
  return ledger_failed ? kExitFailed : kExitDone;
}

}  // namespace

Command add_head(CLI::App& app, const std::atomic<bool>& stop) {
  CLI::App* command = app.add_subcommand("head", "run the head of a cluster");
  const auto options = std::make_shared<HeadCommandOptions>();
  command->add_option(
      "--listen", options->listen,
      fmt::format("HOST:PORT, HOST or :PORT; default 127.0.0.1:{}; port 0 takes any", kHeadPort));
  command->add_option("--announce", options->announce, "host under which others reach this one");
  command->add_option("--cluster", options->cluster, "name, for messages")->capture_default_str();
  add_credential_options(*command, options->access);
  return [options, &stop]() -> int {
    const auto code = run_head(*options, stop);
    return code ? *code : exit_with(code.error());
  };
}

}  // namespace troupe::apps
