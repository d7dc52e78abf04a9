#include "actors/roles/group_rollout.hpp"

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "actors/roles/select_present.hpp"
#include "actors/roles/settled.hpp"
#include "runtime/base/log.hpp"
#include "runtime/task/failure.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace troupe::actors {

using runtime::Batch;
using runtime::Failure;
using runtime::task;
using runtime::value_or_throw;

namespace {

/// Rows that one replica is asked for.
struct Piece {
  std::int64_t first_row = 0;  ///< in the whole batch
  Batch rows;
};

/// At most `count` pieces of about as many rows each.
std::vector<Piece> pieces_of(const Piece& whole, std::int64_t count) {
  count = std::clamp<std::int64_t>(whole.rows.rows(), 1, count);
  std::vector<Piece> pieces;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = whole.rows.rows() * i / count;
    const std::int64_t end = whole.rows.rows() * (i + 1) / count;
    pieces.push_back(
        {whole.first_row + begin, value_or_throw(whole.rows.slice(begin, end - begin))});
  }
  return pieces;
}

}  // namespace

task<Batch> GroupRollout::generate(Batch prompts, SamplingOptions sampling) {
  Batch needed = select_present(
      prompts, {column::kPrompts, column::kPromptIds, column::kGroup, column::kSampleIndex});
  Batch generated;
  if (replicas_.options().survive)
    generated = co_await generate_anywhere(std::move(needed), std::move(sampling));
  else
    generated = co_await replicas_.group(0).call<&RolloutWorker::generate>(std::move(needed),
                                                                           std::move(sampling));
  value_or_throw(prompts.merge(generated));
  co_return prompts;
}

task<Batch> GroupRollout::generate_anywhere(Batch needed, SamplingOptions sampling) {
  std::map<std::int64_t, Batch> done;  // by first row
  std::vector<Piece> wanted;
  wanted.push_back({0, std::move(needed)});
  std::optional<Error> last_loss;
  while (!wanted.empty()) {
    const std::vector<int> serving = replicas_.serving();
    if (serving.empty()) {
      Error none{.code = ErrorCode::kRankDead,
                 .message = "generate: no rollout replica serves",
                 .origin = {},
                 .causes = {}};
      if (last_loss) none = Error(*last_loss).wrap(none.code, none.message);
      throw Failure(std::move(none));
    }
    std::vector<Piece> pieces;
    for (const Piece& piece : std::exchange(wanted, {})) {
      for (Piece& one : pieces_of(piece, static_cast<std::int64_t>(serving.size())))
        pieces.push_back(std::move(one));
    }
    std::vector<runtime::pending<Batch>> calls;
    for (std::size_t i = 0; i < pieces.size(); ++i)
      calls.push_back(replicas_.group(serving[i % serving.size()])
                          .call<&RolloutWorker::generate>(pieces[i].rows, sampling));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const int replica = serving[i % serving.size()];
      auto generated = co_await settled(std::move(calls[i]));
      if (generated) {
        done.emplace(pieces[i].first_row, std::move(*generated));
        continue;
      }
      if (replicas_.state(replica) == RolloutReplicas::State::kServing)
        throw Failure(std::move(generated).error());
      last_loss = std::move(generated).error();
      log::warn("generate: {} rows go to other replicas", pieces[i].rows.rows());
      wanted.push_back(std::move(pieces[i]));
    }
  }
  std::vector<Batch> parts;
  for (auto& [row, part] : done) parts.push_back(std::move(part));
  co_return value_or_throw(Batch::concat(parts));
}

task<void> GroupRollout::sleep(bool publication_follows) {
  if (!level_) co_return;
  const SleepLevel level = publication_follows ? *level_ : SleepLevel::kKv;
  co_await replicas_.group(0).call<&RolloutWorker::sleep>(level);
}

}  // namespace troupe::actors
