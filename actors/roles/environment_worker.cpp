#include "actors/roles/environment_worker.hpp"

namespace troupe::actors {

result<std::unique_ptr<EnvironmentWorker>> EnvironmentWorker::create(
    runtime::WorkerContext& context, const Tokenizer& tokenizer,
    const EnvironmentRegistry& environments, EnvironmentOptions options) {
  TROUPE_TRY(EnvironmentServer server,
             EnvironmentServer::create(tokenizer, environments, std::move(options)));
  return std::unique_ptr<EnvironmentWorker>(new EnvironmentWorker(context, std::move(server)));
}

result<EnvironmentReply> EnvironmentWorker::turn(const std::vector<EnvironmentTurn>& turns) {
  const auto waiting = context_.waiting_for("environments");
  TROUPE_TRY(std::vector<EnvironmentAnswer> answers, server_.turn(turns, context_.deadline()));
  return EnvironmentReply{.answers = std::move(answers), .metrics = server_.take_metrics()};
}

}  // namespace troupe::actors
