#pragma once

// What the commands for clusters have in common: how the head is found and asked, tables, JSON.
//
// **Threads:** main thread.
// **Invariants:** every question has a deadline (`--timeout`); what a table shows is also in JSON,
// under the names that docs/cluster.md lists.

#include "apps/troupe/commands.hpp"
#include "placement/cluster_access.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/link/link_hub.hpp"
#include "runtime/wire/wire.hpp"

#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::apps {

struct ClusterOptions {
  placement::AccessOptions access;
  double timeout_s = 10;
  bool json = false;
};

/// --state, --token-file, --tls, --tls-name, --trusted-network.
void add_credential_options(CLI::App& command, placement::AccessOptions& access);
/// Those, --address, --timeout and, if wanted, --json.
void add_cluster_options(CLI::App& command, ClusterOptions& options, bool with_json);

/// One channel to the head, for a command that asks and ends.
class HeadClient {
 public:
  static result<std::unique_ptr<HeadClient>> connect(const ClusterOptions& options);
  ~HeadClient();
  HeadClient(const HeadClient&) = delete;
  HeadClient& operator=(const HeadClient&) = delete;

  template <class Answer, class Question>
  result<Answer> ask(std::string_view method, const Question& question) {
    TROUPE_TRY(auto bytes, runtime::encode_value(question));
    TROUPE_TRY(const auto reply,
               channel_->request(method, std::move(bytes), deadline_).wait(deadline_));
    return runtime::decode_value<Answer>(reply);
  }
  /// All pages of a list, or the first `limit` entries. `total` counts what matches.
  template <class Page, class Request>
  result<Page> list(std::string_view method, Request request, std::int32_t limit) {
    Page all;
    for (;;) {
      request.limit = std::min(limit - static_cast<std::int32_t>(all.entries.size()), 1000);
      TROUPE_TRY(Page page, (ask<Page, Request>(method, request)));
      all.total = page.total;
      for (auto& entry : page.entries) all.entries.push_back(std::move(entry));
      all.next = page.next;
      if (page.next.empty() || static_cast<std::int32_t>(all.entries.size()) >= limit) return all;
      request.after = page.next;
    }
  }

  const runtime::Ref<runtime::Channel>& channel() const { return channel_; }
  runtime::ActorSystem& system() { return system_; }
  runtime::LinkHub& hub() { return *hub_; }
  Deadline deadline() const { return deadline_; }

 private:
  HeadClient() = default;
  runtime::ActorSystem system_;
  std::unique_ptr<runtime::LinkHub> hub_;
  runtime::Ref<runtime::Channel> channel_;
  Deadline deadline_{};
};

/// Columns of text, as wide as they must be.
class Table {
 public:
  explicit Table(std::vector<std::string> heads) { rows_.push_back(std::move(heads)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::size_t size() const { return rows_.size() - 1; }
  std::string to_text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// `850 ms`, `12 s`, `3 m`, `2.5 h`, `4 d`.
std::string age_text(double seconds_old);

Duration to_duration(double seconds_long);

/// Prints JSON with two spaces of indentation, to standard output.
void print_json(const nlohmann::json& value);

}  // namespace troupe::apps
