#include "apps/troupe/cluster_command.hpp"
#include "apps/troupe/cluster_json.hpp"
#include "placement/protocol_codec.hpp"

#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <string>

namespace troupe::apps {

using placement::GroupKey;
using placement::GroupStatus;
using placement::GroupView;

namespace {

struct ExplainOptions {
  ClusterOptions cluster;
  std::string group;
};

/// A number names an id; a group whose name is a number is found by its id only.
GroupKey key_of(const std::string& text) {
  GroupKey key;
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, key.id.value);
  if (code == std::errc() && stop == end) return key;
  key.id = {};
  key.name = text;
  return key;
}

struct Explanation {
  GroupView group;
  std::string text;
};

result<Explanation> explain(const ExplainOptions& options) {
  TROUPE_TRY(const auto head, HeadClient::connect(options.cluster));
  const std::vector<GroupKey> keys{key_of(options.group)};
  const auto ask = [&](std::string_view method) {
    return head->channel()
        ->request(method, placement::encode_keys(keys), head->deadline())
        .wait(head->deadline());
  };
  Explanation explanation;
  TROUPE_TRY(const auto view, ask("placement.view"));
  TROUPE_TRY(explanation.group, placement::decode_view(view));
  TROUPE_TRY(const auto text, ask("placement.explain"));
  explanation.text.assign(reinterpret_cast<const char*>(text.data()), text.size());
  return explanation;
}

int exit_code(GroupStatus status) {
  if (status == GroupStatus::kActive) return kExitDone;
  return status == GroupStatus::kInfeasible ? kExitInfeasible : kExitUnhealthy;
}

}  // namespace

Command add_explain(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "explain",
      "why a placement group waits and what would let it run; exit code 0 active, 3 "
      "waiting, 4 can never fit");
  const auto options = std::make_shared<ExplainOptions>();
  command->add_option("group", options->group, "its name or number")->required();
  add_cluster_options(*command, options->cluster, true);
  return [options]() -> int {
    const auto explanation = explain(*options);
    if (!explanation) return exit_with(explanation.error());
    const GroupView& group = explanation->group;
    if (options->cluster.json) {
      nlohmann::json printed = to_json(group);
      printed["explanation"] = explanation->text;
      print_json(printed);
    } else {
      fmt::print("group {} ({}): {}, {} bundles, {} old\n{}\n", group.id.value, group.name,
                 placement::group_status_name(group.status), group.bundles,
                 age_text(seconds(group.age)), explanation->text);
    }
    return exit_code(group.status);
  };
}

}  // namespace troupe::apps
