// Proves that ledger and dispatcher together keep their promise in a whole run: whatever dies,
// fails or is cancelled, and wherever the run crashes and is restored from saved state, every group
// that was issued is trained exactly once or named in exactly one cancellation record, and no group
// is used later than the bound. Random options; the seed is printed.

#include "actors/pacing/staleness_ledger.hpp"
#include "tests/actors/pacing/dispatcher_world.hpp"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>

namespace troupe::actors {
namespace {

using testing::DispatcherWorld;
using testing::WorldOptions;

class PacedRun {
 public:
  explicit PacedRun(std::uint64_t seed)
      : rng_(seed),
        options_(ledger_options(rng_)),
        ledger_(StalenessLedger::create(options_).value()) {
    world_options_.dispatch.group_size = static_cast<std::int32_t>(1 + rng_.below(3));
    world_options_.dispatch.new_tokens_max = 60;
    world_options_.dispatch.longest_first = rng_.below(2) == 0;
    world_options_.dispatch.samples_extra = static_cast<std::int32_t>(rng_.below(2));
    world_options_.dispatch.repack_below = static_cast<std::int64_t>(rng_.below(4));
    world_options_.dispatch.hedge_after = std::chrono::seconds(rng_.below(2) * 5);
    world_options_.dispatch.drop_zero_variance =
        world_options_.dispatch.group_size > 1 && rng_.below(2) == 0;
    world_options_.dispatch.refills_max = 1'000'000;
    world_options_.issues = false;
    start_world();
  }

  void run() {
    int turns = 0;
    while (ledger_.steps_trained() < options_.steps_max) {
      ASSERT_LT(++turns, 20'000) << ledger_.explain() << "; "
                                 << world_->dispatcher().explain(world_->now());
      turn();
      if (::testing::Test::HasFatalFailure()) return;
    }
    cancelled(ledger_.close(false));
    ASSERT_TRUE(ledger_.drained()) << ledger_.explain();
    world_->drain();
    if (::testing::Test::HasFatalFailure()) return;
    // Trained and cancelled: apart, and together all.
    ASSERT_EQ(trained_.size() + records_.size(), ledger_.issued());
    for (const std::uint64_t group : trained_) ASSERT_FALSE(records_.contains(group)) << group;
    ASSERT_EQ(static_cast<std::int64_t>(trained_.size()),
              options_.steps_max * options_.groups_per_step);
  }
  std::int64_t crashes() const { return crashes_; }
  std::int64_t cancelled_count() const { return static_cast<std::int64_t>(records_.size()); }

 private:
  static LedgerOptions ledger_options(Rng& rng) {
    LedgerOptions options{.groups_per_step = static_cast<std::int64_t>(1 + rng.below(4)),
                          .lead_max = static_cast<std::int64_t>(rng.below(4)),
                          .policy = static_cast<StalePolicy>(rng.below(3)),
                          .steps_max = 8,
                          .barren_groups_max = 1'000'000};
    if (rng.below(3) == 0) options.groups_extra = static_cast<std::int64_t>(rng.below(3));
    if (rng.below(3) == 0)
      options.open_max = options.groups_per_step + static_cast<std::int64_t>(rng.below(4));
    return options;
  }
  void start_world() {
    world_ = std::make_unique<DispatcherWorld>(rng_.next(), world_options_);
    told_.clear();
    for (const auto& [group, open] : ledger_.open_groups())
      if (open.stage == GroupStage::kRunning) world_->issue_as(group);
  }

  void turn() {
    while (ledger_.free_groups() > 0) {
      const auto ticket = ledger_.issue({.prompt_id = 7, .epoch = 0, .position = 0}).value();
      world_->issue_as(ticket.group);
    }
    world_->chaos(6);
    listen();
    use();
    if (rng_.below(200) == 0) crash();
    ledger_.check_invariants();
  }
  /// What the dispatcher said since the last turn, to the ledger.
  void listen() {
    for (const auto& [group, one] : world_->complete()) {
      if (!told_.insert(group).second || !ledger_.open_groups().contains(group)) continue;
      const WeightVersion begun = ledger_.open_groups().at(group).ticket.issued_at;
      const VersionSpan span{.oldest = begun, .newest = ledger_.published_version()};
      const auto record = ledger_.finish(group, {&span, 1}).value();
      if (record) cancelled({*record});
    }
    for (const auto& [group, reason] : world_->dropped())
      if (told_.insert(group).second && ledger_.open_groups().contains(group))
        cancelled({ledger_.cancel(group, reason).value()});
  }
  void cancelled(const std::vector<CancelRecord>& records) {
    for (const CancelRecord& record : records) {
      ASSERT_TRUE(records_.emplace(record.group, record.reason).second) << "named twice";
      if (world_->open().contains(record.group))
        world_->send(GroupCancelled{record.group, record.reason});
      told_.insert(record.group);
    }
  }
  void use() {
    const auto taken = ledger_.take(static_cast<std::int64_t>(rng_.below(3)));
    cancelled(taken.cancelled);
    for (const TakenGroup& one : taken.groups) {
      const std::int64_t bound = *ledger_.effective().age;
      if (options_.policy == StalePolicy::kWait) {
        ASSERT_LE(one.lead_used, bound);
      }
      if (options_.policy == StalePolicy::kDrop) {
        ASSERT_LE(one.age, bound);
      }
      step_.insert(one.ticket.group);
    }
    if (!ledger_.end_step()) return;
    for (const std::uint64_t group : step_)
      ASSERT_TRUE(trained_.insert(group).second) << "trained twice";
    step_.clear();
    cancelled(ledger_.published(WeightVersion{ledger_.steps_trained()}).value());
  }
  /// All processes die; ledger state is all there is.
  void crash() {
    ++crashes_;
    const LedgerState state = LedgerState::from_bytes(ledger_.save().to_bytes().value()).value();
    ledger_ = StalenessLedger::restore(options_, state).value();
    step_.clear();  // the step under way did not end
    start_world();
  }

  Rng rng_;
  LedgerOptions options_;
  StalenessLedger ledger_;
  WorldOptions world_options_{};
  std::unique_ptr<DispatcherWorld> world_;
  std::set<std::uint64_t> told_;
  std::set<std::uint64_t> step_;
  std::set<std::uint64_t> trained_;
  std::map<std::uint64_t, CancelReason> records_;
  std::int64_t crashes_ = 0;
};

TEST(PacedRun, TrainsEveryGroupOnceOrNamesItOnceWhateverDies) {
  std::int64_t crashes = 0;
  std::int64_t cancelled = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    PacedRun run(seed);
    run.run();
    if (HasFatalFailure()) return;
    crashes += run.crashes();
    cancelled += run.cancelled_count();
  }
  EXPECT_GT(crashes, 8);
  EXPECT_GT(cancelled, 40);
}

}  // namespace
}  // namespace troupe::actors
