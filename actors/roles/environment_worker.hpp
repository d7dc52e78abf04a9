#pragma once

// The environment rank: answers turns of samples at their environments.
//
// **Ownership:** borrows tokenizer and registry; both outlive it.
// **Threads:** the engine thread of its rank only.
// **Invariants:** one answer a turn, in order; a call ends by its deadline, as far as environments
// heed theirs (commands in a sandbox do).

#include "actors/environment/environment_server.hpp"
#include "actors/loops/environment_role.hpp"
#include "runtime/group/dispatch.hpp"
#include "runtime/group/worker_context.hpp"
#include "runtime/observe/metrics.hpp"
#include "runtime/wire/wire.hpp"

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace troupe::actors {

/// What one call of `turn` gives.
struct EnvironmentReply {
  std::vector<EnvironmentAnswer> answers{};
  runtime::Metrics metrics{};

  bool operator==(const EnvironmentReply&) const = default;
  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{field("answers", &EnvironmentReply::answers),
                      field("metrics", &EnvironmentReply::metrics)};
  }
};

class EnvironmentWorker {
 public:
  /// Errors of `EnvironmentServer::create`.
  static result<std::unique_ptr<EnvironmentWorker>> create(runtime::WorkerContext& context,
                                                           const Tokenizer& tokenizer,
                                                           const EnvironmentRegistry& environments,
                                                           EnvironmentOptions options);

  result<EnvironmentReply> turn(const std::vector<EnvironmentTurn>& turns);

  static constexpr auto methods() {
    using namespace runtime;
    return std::tuple{
        method<&EnvironmentWorker::turn>("turn", args(broadcast), returns(runtime::first))};
  }

 private:
  EnvironmentWorker(runtime::WorkerContext& context, EnvironmentServer server)
      : context_(context), server_(std::move(server)) {}

  runtime::WorkerContext& context_;
  EnvironmentServer server_;
};

}  // namespace troupe::actors

namespace troupe::runtime {

template <>
struct WireFields<actors::EnvironmentTurn> {
  static constexpr auto fields() {
    using T = actors::EnvironmentTurn;
    return std::tuple{field("group", &T::group), field("sample_index", &T::sample_index),
                      field("response", &T::response), field("state", &T::state),
                      field("row", &T::row)};
  }
};

template <>
struct WireFields<actors::EnvironmentAnswer> {
  static constexpr auto fields() {
    using T = actors::EnvironmentAnswer;
    return std::tuple{field("tokens", &T::tokens), field("state", &T::state),
                      field("done", &T::done), field("score", &T::score),
                      field("failure", &T::failure)};
  }
};

}  // namespace troupe::runtime
