#include "apps/troupe/cluster_command.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace troupe::apps {

using runtime::Channel;
using runtime::PeerName;
using runtime::PeerRole;
using runtime::Responder;

namespace {

/// A command answers nothing that the head may ask.
class NoService final : public runtime::ChannelService {
 public:
  void on_request(Channel& /*channel*/, std::string_view method,
                  std::span<const std::byte> /*payload*/, Deadline /*deadline*/,
                  Responder responder) override {
    responder.reply(fail(ErrorCode::kNotFound, "a command has no method '{}'", method));
  }
};

/// Columns that a text takes: continuation bytes of UTF-8 take none.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

void add_credential_options(CLI::App& command, placement::AccessOptions& access) {
  command.add_option("--state", access.state,
                     "folder of the head on this host; default TROUPE_STATE or ~/.troupe");
  command.add_option("--token-file", access.token_file,
                     "the cluster's join token; default TROUPE_TOKEN_FILE or STATE/token");
  command.add_option("--tls", access.tls,
                     "folder of certificates (troupe cert make); default TROUPE_TLS, or no TLS");
  command.add_option("--tls-name", access.tls_name, "which certificate of that folder: NAME.pem");
  command.add_flag("--trusted-network", access.trusted_network,
                   "listen beyond loopback without certificates");
}

void add_cluster_options(CLI::App& command, ClusterOptions& options, bool with_json) {
  command.add_option("--address", options.access.address,
                     "host:port of the head; default TROUPE_ADDRESS or STATE/address");
  add_credential_options(command, options.access);
  command.add_option("--timeout", options.timeout_s, "seconds for the whole command")
      ->check(number_within(0.001, 86400.0))
      ->capture_default_str();
  if (with_json) command.add_flag("--json", options.json, "print JSON");
}

result<std::unique_ptr<HeadClient>> HeadClient::connect(const ClusterOptions& options) {
  TROUPE_TRY(const auto access, placement::resolve_access(options.access));
  std::unique_ptr<HeadClient> client(new HeadClient);
  client->deadline_ = Deadline::in(to_duration(options.timeout_s));
  const PeerName self{PeerRole::kClient, "troupe-" + std::to_string(::getpid())};
  TROUPE_TRY(client->hub_, runtime::LinkHub::open(client->system_, access.link(self)));
  auto channel = client->hub_
                     ->connect(access.address, std::make_shared<NoService>(), client->deadline_,
                               PeerName{PeerRole::kHead, "head"})
                     .wait(client->deadline_);
  if (!channel) {
    const ErrorCode code = channel.error().code;
    return fail(std::move(channel).error().wrap(
        code, fmt::format("the head at {} cannot be reached", access.address)));
  }
  client->channel_ = std::move(*channel);
  return client;
}

HeadClient::~HeadClient() {
  if (!channel_) return;
  channel_->close(Error{
      .code = ErrorCode::kCancelled, .message = "the command is done", .origin = {}, .causes = {}});
}

std::string Table::to_text() const {
  std::vector<std::size_t> widths(rows_[0].size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size() && i < widths.size(); ++i)
      widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      line += row[i];
      line.append(widths[i] - width_of(row[i]) + 2, ' ');
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    text += line + "\n";
  }
  return text;
}

std::string age_text(double seconds_old) {
  if (seconds_old < 1) return fmt::format("{:.0f} ms", std::max(0.0, seconds_old * 1000));
  if (seconds_old < 120) return fmt::format("{:.0f} s", seconds_old);
  if (seconds_old < 7200) return fmt::format("{:.0f} m", seconds_old / 60);
  if (seconds_old < 172800) return fmt::format("{:.1f} h", seconds_old / 3600);
  return fmt::format("{:.0f} d", seconds_old / 86400);
}

Duration to_duration(double seconds_long) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds_long));
}

void print_json(const nlohmann::json& value) {
  // Names and messages of others may hold anything: what is no UTF-8 is replaced.
  fmt::print("{}\n", value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace troupe::apps
