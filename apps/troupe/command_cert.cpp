#include "apps/troupe/commands.hpp"
#include "runtime/link/certificate.hpp"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

namespace troupe::apps {
namespace {

struct CertOptions {
  std::string out;
  bool authority = false;
  std::string name;
  std::vector<std::string> hosts;
  int days = 0;
};

int make(const CertOptions& options) {
  if (options.authority == !options.name.empty()) {
    return exit_usage(Error{.code = ErrorCode::kConfig,
                            .message = "cert make: give --authority, or --name and --host",
                            .origin = {},
                            .causes = {}});
  }
  if (options.authority) {
    const auto made = runtime::make_authority(options.out, options.days > 0 ? options.days : 3650);
    if (!made) return exit_with(made.error());
    fmt::print("{0}/authority.pem\n{0}/authority.key (keep it where certificates are made)\n",
               options.out);
    return kExitDone;
  }
  std::vector<std::string> hosts = options.hosts;
  for (const char* own : {"localhost", "127.0.0.1", "::1"}) hosts.emplace_back(own);
  const auto made = runtime::make_certificate(options.out, options.name, hosts,
                                              options.days > 0 ? options.days : 365);
  if (!made) {
    const bool wrong_words = made.error().code == ErrorCode::kInvalidArgument;
    return wrong_words ? exit_usage(made.error()) : exit_with(made.error());
  }
  fmt::print("{}\n{}\n", made->certificate, made->key);
  return kExitDone;
}

}  // namespace

Command add_cert(CLI::App& app) {
  CLI::App* command = app.add_subcommand("cert", "certificates of a private authority, for TLS");
  command->require_subcommand(1);
  CLI::App* sub = command->add_subcommand("make", "make the authority, or a certificate of it");
  const auto options = std::make_shared<CertOptions>();
  sub->add_option("--out", options->out, "folder for the files")->required();
  sub->add_flag("--authority", options->authority, "make authority.pem and authority.key");
  sub->add_option("--name", options->name, "make NAME.pem and NAME.key");
  sub->add_option("--host", options->hosts,
                  "names and addresses under which others dial it; localhost is added");
  sub->add_option("--days", options->days, "valid for; default 3650 and 365")
      ->check(CLI::Range(1, 36500));
  return [options] { return make(*options); };
}

}  // namespace troupe::apps
