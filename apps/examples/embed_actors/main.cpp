// Embeds the actors: a worker class of one's own, its dispatch declarations, and a loop over it.
// Four ranks on a 2 × 2 mesh (data × tensor parallel) score words and vote on a threshold.

#include "runtime/comm/collective.hpp"
#include "runtime/group/worker_group.hpp"
#include "runtime/task/executor.hpp"

#include <cstdio>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::runtime;

using Words = std::vector<std::string>;

class Scorer {
 public:
  explicit Scorer(WorkerContext& context) : context_(context) {}

  /// One score per word: its length, weighted.
  std::vector<double> score(const Words& words, double weight) {
    std::vector<double> scores;
    for (const std::string& word : words)
      scores.push_back(weight * static_cast<double>(word.size()));
    return scores;
  }

  /// The mean over all ranks of a number that each rank was given; all ranks compute it together.
  result<double> vote(double own) {
    std::vector<double> sum{own};
    TROUPE_TRY_VOID(context_.collective().all_reduce(sum, ReduceOp::kSum, context_.deadline()));
    return sum[0] / context_.size();
  }

  /// Fails on one rank; the error names it.
  result<int> fragile(int bad_rank) {
    if (context_.rank().value == bad_rank) return fail(ErrorCode::kIo, "my disk is full");
    return context_.coordinate("dp");
  }

  static constexpr auto methods() {
    return std::tuple{method<&Scorer::score>("score", args(scatter, broadcast), returns(concat)),
                      method<&Scorer::vote>("vote", args(per_rank), returns(first)),
                      method<&Scorer::fragile>("fragile", args(broadcast), returns(reduce(kSum)))};
  }

 private:
  WorkerContext& context_;
};

task<int> main_loop(WorkerGroup<Scorer>& scorers) {
  const Words words{"a", "troupe", "of", "actors", "plays"};
  auto scores = scorers.call<&Scorer::score>(words, 0.5);  // both are running
  auto threshold = scorers.call<&Scorer::vote>(std::vector<double>{1, 2, 3, 4});
  const std::vector<double> values = co_await std::move(scores);
  const double limit = co_await std::move(threshold);
  for (std::size_t i = 0; i < words.size(); ++i)
    std::printf("%-6s %.1f%s\n", words[i].c_str(), values[i], values[i] >= limit ? " *" : "");
  const result<int> lost = co_await as_result(scorers.call<&Scorer::fragile>(2));
  std::printf("%s\n", lost ? "no error?" : lost.error().to_string().c_str());
  co_return lost ? 1 : 0;
}

int main() {
  ActorSystem system;
  GroupOptions options;
  options.name = "scorer";
  options.mesh = Mesh::create({{"dp", 2}, {"tp", 2}}).value();
  auto scorers = WorkerGroup<Scorer>::create(system, options);
  if (!scorers) return std::puts(scorers.error().to_string().c_str()), 1;
  Executor executor;
  return executor.run(main_loop(*scorers)).value_or(1);
}
