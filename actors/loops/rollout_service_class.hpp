#pragma once

// The rollout service of a loop: it keeps replicas, rewards and environments busy in the
// background, as far as the staleness ledger allows, and hands out finished groups.
//
//   auto service = value_or_throw(RolloutService<W>::open(cast, options, prompts));
//   co_await service->start();
//   StepGroups step = co_await service->take_step();   // … learn …
//   metrics.merge(service->end_step());                // … publish …
//   service->published(cast.weights.version());
//
// Decisions are the book's (rollout_book.hpp); here are its coroutines: one pump per replica, which
// advances it slice by slice while it has work, calls of rewards and environments, revivals, and a
// clock. A replica that is lost gives its samples, as far as they got, to the others.
// **Ownership:** owns the book and all background work; borrows the cast.
// **Threads:** controller's thread, inside its executor; one coroutine (the loop) calls it.
// **Invariants:** every wait ends: by news, by an error, or by the watchdog, which names what
// nothing moves on; `take_…` never gives a group twice; a version is announced only after its
// publication succeeded.

#include "actors/loops/background.hpp"
#include "actors/loops/cast.hpp"
#include "actors/loops/rollout_book.hpp"
#include "actors/loops/rollout_metrics.hpp"
#include "runtime/base/log.hpp"
#include "runtime/task/deadline.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

struct ServiceOptions {
  RolloutOptions rollout{};

  std::int64_t slice_steps = 64;                      ///< engine steps of a slice
  Duration slice = std::chrono::milliseconds(20);     ///< a slice ends behind so much time
  Duration advance_within = std::chrono::minutes(5);  ///< or the replica counts as lost
  std::int32_t revives_max = 3;                       ///< of each replica
  Duration revive_within = std::chrono::minutes(2);
  bool lend = false;  ///< use replicas on the trainer's devices while the trainer waits
  Duration recall_within = std::chrono::seconds(30);  ///< or the lent replica counts as lost

  std::int64_t score_rows_max = 64;       ///< samples of one call of the reward role
  std::int64_t scores_in_flight_max = 4;  ///< such calls at a time
  Duration score_within = std::chrono::minutes(5);
  std::int64_t turn_rows_max = 64;  ///< samples of one call of the environment role
  std::int64_t turns_in_flight_max = 16;
  Duration turn_within = std::chrono::minutes(5);
  std::int32_t calls_max = 5;                             ///< of one question that fails
  Duration retry_after = std::chrono::milliseconds(100);  ///< doubles, up to 64 times

  Duration no_progress_within = std::chrono::minutes(10);  ///< then a wait ends by an error
  Duration tick_every = std::chrono::milliseconds(50);     ///< deadlines are looked at so often
  /// Looked at as often; once it says true, the trainer waits for nothing any more: waits for
  /// groups throw kCancelled, samples that a publication waits for are given back.
  std::function<bool()> stop{};

  result<void> check() const;
};

/// Waits between calls of one question that fails: each twice the last, up to 64 times the first.
class RetryPauses {
 public:
  explicit RetryPauses(Duration first) : next_(first), longest_(first * 64) {}
  runtime::Sleep next() {
    return runtime::sleep_for(std::exchange(next_, std::min(next_ * 2, longest_)));
  }

 private:
  Duration next_;
  const Duration longest_;
};

/// What a step, or a part of one, trains on. Empty: the data is over.
struct StepGroups {
  runtime::Batch prompts{};  ///< one row a group
  runtime::Batch batch{};    ///< what generating and scoring them at once would have made
  std::vector<TakenGroup> groups{};
};

/// The next prompts, any number ≥ 1 of rows; empty: the data is over.
using PromptSource = std::function<result<std::optional<runtime::Batch>>()>;

template <World W>
class RolloutService {
 public:
  /// `state`: of `save`; empty: a new run. kInvalidArgument, kUnsupported or kCorrupt say why not.
  static result<std::unique_ptr<RolloutService>> open(Cast<W>& cast, const ServiceOptions& options,
                                                      PromptSource prompts,
                                                      std::span<const std::byte> state = {});

  /// Joins the replicas and begins. Weights of version `ledger().steps_trained()` serve by then.
  runtime::task<void> start();
  /// All groups of the step; fewer in the last step of the data, none behind it.
  runtime::task<StepGroups> take_step();
  /// At least `least` (as far as the step wants them) and at most `most` groups of the step.
  runtime::task<StepGroups> take_some(std::int64_t least, std::int64_t most);
  /// Groups that the step under way still needs.
  std::int64_t wanted() const { return book_.wanted(); }
  /// What was taken is trained. Metrics of the step (rollout_metrics.hpp) and `rollout/*`,
  /// `reward/*` of what ran meanwhile.
  runtime::Metrics end_step();
  /// What was taken may be taken again.
  void abandon_step() { book_.abandon_step(); }
  /// `stop` said so.
  bool told_to_stop() const { return told_to_stop_; }
  /// Until nothing generates, or nobody is left who could.
  runtime::task<void> quiesce();
  /// All replicas serve `version`; revived ones join.
  void published(WeightVersion version);
  /// Everything that generates gives back what it has, and nothing starts until `resume`.
  runtime::task<void> pause();
  void resume();
  /// Ends all background work. What was not trained is given up, with records.
  runtime::task<void> stop();

  /// Everything that a resumed run needs besides weights and the data's cursor.
  result<std::vector<std::byte>> save() const;

  const RolloutBook& book() const { return book_; }
  const StalenessLedger& ledger() const { return book_.ledger(); }
  const ServiceOptions& options() const { return options_; }

 private:
  struct Pump {
    std::uint64_t life = 0;  ///< tells it from others of the same replica
    Bell bell{};
    bool lent = false;
    bool held = false;
    TimePoint since{};                      ///< counted up to here
    std::optional<TimePoint> call_since{};  ///< of the slice under way
    std::optional<TimePoint> busy_since{};  ///< the same, counted up to here
  };
  /// Looks whether anything moved since it was made or last moved.
  struct Watch {
    std::uint64_t seen = 0;
    TimePoint since{};
  };

  RolloutService(Cast<W>& cast, const ServiceOptions& options, RolloutBook book,
                 PromptSource prompts)
      : cast_(cast),
        options_(options),
        book_(std::move(book)),
        prompts_(std::move(prompts)),
        buffer_(book_.take_unissued()) {}

  TimePoint now() const { return cast_.world.clock().now(); }
  void changed();
  void refill();
  result<bool> issue_one();
  void refresh_replicas(bool after_publication);
  void begin_revival(RankId replica);
  void join(const ReplicaInfo& info);
  void lost(RankId replica, const Error& error);
  void count_time(Pump& pump);
  void lend();
  runtime::task<void> recall(bool lent_only);
  runtime::task<bool> revive_all_lost();
  runtime::task<void> wait_for_change(Watch& watch, std::string what);
  Error no_progress(const std::string& what, TimePoint since) const;
  void throw_failure() const;
  result<StepGroups> groups_of(RolloutBook::Taken taken);

  runtime::task<void> pump(RankId replica, std::uint64_t life);
  Pump* find_pump(RankId replica, std::uint64_t life);
  runtime::task<void> revive(RankId replica);
  runtime::task<void> score(std::vector<ScoreJob> jobs, std::int32_t call);
  runtime::task<void> ask_turns(std::vector<EnvironmentJob> jobs);
  runtime::task<void> run_scores(std::vector<ScoreJob> jobs);
  runtime::task<void> tick();
  result<void> take_scores(const std::vector<ScoreJob>& jobs, runtime::Batch scores);

  /// The value of `work`, or its error, also when it takes too long.
  template <class T>
  static runtime::task<result<T>> bounded(runtime::task<T> work, TimePoint until) {
    auto in_time = runtime::with_deadline(std::move(work), Deadline{until});
    auto outcome = runtime::as_result(std::move(in_time));
    result<T> got = co_await std::move(outcome);
    co_return got;
  }

  Cast<W>& cast_;
  const ServiceOptions options_;
  RolloutBook book_;
  PromptSource prompts_;
  runtime::Batch buffer_;          ///< prompts that were read
  std::int64_t buffer_begin_ = 0;  ///< those before are issued
  bool data_over_ = false;

  Bell bell_;
  std::map<RankId, std::unique_ptr<Pump>> pumps_;  ///< of live replicas
  std::set<RankId> lost_;                          ///< and not made anew
  std::map<RankId, std::int32_t> revived_;         ///< wait for a publication; how many came since
  std::map<RankId, std::int32_t> revivals_;
  std::int64_t reviving_ = 0;
  std::uint64_t lives_ = 0;
  std::int64_t scores_in_flight_ = 0;
  std::int64_t turns_in_flight_ = 0;
  bool waits_ = false;  ///< the trainer, for groups
  bool paused_ = false;
  bool stopping_ = false;
  bool told_to_stop_ = false;
  std::optional<Error> failure_;  ///< of background work
  std::optional<Error> last_loss_;

  RolloutMark mark_;
  runtime::Metrics gathered_;  ///< of replicas and rewards in this step
  TimePoint step_begin_{};
  Duration waited_for_groups_{0};
  Duration waited_for_samples_{0};  ///< that a publication waits for
  Duration alive_{0};               ///< of replicas, summed
  Duration busy_{0};
  std::unique_ptr<BackgroundTasks> background_;  ///< last: its tasks use the rest
};

}  // namespace troupe::actors
