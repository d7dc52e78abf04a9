// Proves that every call ends, whatever happens: 200 seeds of random calls on random groups with
// random delays, errors, failed CHECKs, collectives, deadlines, cancellations, aborts, kills, dropped
// pendings and destruction at a random moment. After each seed no call is left, each call ended in
// one allowed way with an error that names the group, and every worker is destroyed. The seed is
// printed on failure; TROUPE_CHAOS_SEEDS and TROUPE_CHAOS_FROM choose others.

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/comm/collective.hpp"
#include "runtime/group/worker_group.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace troupe::runtime {
namespace {

using namespace std::chrono_literals;
using Ints = std::vector<int>;

/// What one rank does in one call; drawn per rank by the test.
struct Deed {
  int microseconds = 0;
  bool error = false;
  bool crash = false;
  bool bug = false;
};

struct Unruly {
  Unruly(WorkerContext& own, std::atomic<int>& counter) : context(own), live(counter) { ++live; }
  ~Unruly() { --live; }

  result<Ints> scatter_work(const Ints& rows, const Deed& deed) {
    TROUPE_TRY_VOID(act(deed));
    return rows;
  }
  result<double> collective_work(const Deed& deed) {
    TROUPE_TRY_VOID(act(deed));
    std::vector<double> one{1};
    TROUPE_TRY_VOID(context.collective().all_reduce(one, ReduceOp::kSum, context.deadline()));
    return one[0];
  }
  void quiet_work(const Deed& deed) {
    if (auto done = act(deed); !done) throw Failure(done.error());
  }
  result<void> act(const Deed& deed) {
    std::this_thread::sleep_for(std::chrono::microseconds(deed.microseconds));
    context.progress();
    if (deed.crash) throw std::runtime_error("crash");
    TROUPE_CHECK(!deed.bug, "bug");
    if (deed.error) return fail(ErrorCode::kIo, "error");
    return {};
  }
  static constexpr auto methods() {
    return std::tuple{
        method<&Unruly::scatter_work>("scatter_work", args(scatter, per_rank), returns(concat)),
        method<&Unruly::collective_work>("collective_work", args(per_rank), returns(first))
            .phase("work"),
        method<&Unruly::quiet_work>("quiet_work", args(per_rank), returns(none)),
    };
  }
  WorkerContext& context;
  std::atomic<int>& live;
};

const std::set<ErrorCode> kAllowed{ErrorCode::kIo,        ErrorCode::kInternal,
                                   ErrorCode::kDeadline,  ErrorCode::kCancelled,
                                   ErrorCode::kAborted,   ErrorCode::kRankDead};

class Chaos {
 public:
  explicit Chaos(std::uint64_t seed) : rng_(seed) {}

  void run() {
    build();
    const auto steps = 5 + rng_.below(40);
    for (std::uint64_t i = 0; i < steps; ++i) step();
    if (rng_.below(3) == 0) {
      group_.reset();
      finish();
    } else {
      finish();
      check_usable();
      group_.reset();
    }
    ASSERT_EQ(live_.load(), 0) << "a worker is left";
  }

 private:
  void build() {
    GroupOptions options;
    options.name = "chaos";
    const int dp = 1 + static_cast<int>(rng_.below(3));
    const int tp = 1 + static_cast<int>(rng_.below(2));
    options.mesh = Mesh::create({{"dp", dp}, {"tp", tp}}).value();
    options.call_deadline = 10s;
    options.shutdown_wait = 10s;
    options.route = rng_.below(2) == 0 ? CallRoute::kDirect : CallRoute::kShells;
    for (int rank = 0; rank < options.mesh.size(); ++rank) {
      lanes_.push_back(std::make_unique<OrderedLane>());
      options.lanes.push_back(lanes_.back().get());
    }
    deadly_ = rng_.below(4) == 0;
    auto made = WorkerGroup<Unruly>::create(system_, options, [this](WorkerContext& context) {
      return std::make_unique<Unruly>(context, live_);
    });
    ASSERT_TRUE(made) << made.error().to_string();
    group_.emplace(std::move(*made));
  }

  std::vector<Deed> deeds() {
    std::vector<Deed> per_rank_deeds(static_cast<std::size_t>(group_->size()));
    for (Deed& deed : per_rank_deeds) {
      deed.microseconds = static_cast<int>(rng_.below(300));
      deed.error = rng_.below(25) == 0;
      deed.crash = deadly_ && rng_.below(60) == 0;
      deed.bug = deadly_ && rng_.below(60) == 0;
    }
    return per_rank_deeds;
  }

  CallOptions call_options() {
    CallOptions options;
    if (rng_.below(8) == 0) options.within(std::chrono::microseconds(rng_.below(1500)));
    if (rng_.below(4) == 0) options.under(source_.token());
    return options;
  }

  template <class T>
  void keep(pending<T> one, std::vector<pending<T>>& kept) {
    switch (rng_.below(8)) {
      case 0:
        one.forget();
        return;
      case 1:
        one.cancel();
        break;
      default:
        break;
    }
    kept.push_back(std::move(one));
  }

  void step() {
    const auto choice = rng_.below(20);
    if (choice < 6) {
      Ints rows(rng_.below(9), 1);
      keep(group_->call_with<&Unruly::scatter_work>(call_options(), rows, deeds()), scattered_);
    } else if (choice < 13) {
      keep(group_->call_with<&Unruly::collective_work>(call_options(), deeds()), collective_);
    } else if (choice < 16) {
      keep(group_->call_with<&Unruly::quiet_work>(call_options(), deeds()), quiet_);
    } else if (choice == 16) {
      std::this_thread::sleep_for(std::chrono::microseconds(rng_.below(1000)));
    } else if (choice == 17 && rng_.below(4) == 0) {
      group_->abort(Error{.code = ErrorCode::kAborted, .message = "x", .origin = {}, .causes = {}});
    } else if (choice == 18 && deadly_ && rng_.below(10) == 0) {
      group_->kill(RankId{static_cast<int>(rng_.below(static_cast<std::uint64_t>(group_->size())))},
                   Error{.code = ErrorCode::kRankDead, .message = "k", .origin = {}, .causes = {}});
    } else if (choice == 19 && rng_.below(10) == 0) {
      source_.cancel();
    }
  }

  /// Well before the deadline of 10 s, or says what the ranks do instead.
  template <class T>
  void expect_soon(const pending<T>& one) {
    const auto end = std::chrono::steady_clock::now() + 5s;
    while (!one.ready() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(50us);
    if (one.ready()) return;
    std::string text;
    if (group_) {
      const auto status = group_->status().value_or(std::vector<RankStatus>{});
      for (const RankStatus& rank : status) text += rank.to_string() + "\n";
    }
    ADD_FAILURE() << "a call waits for its deadline:\n" << text;
  }

  template <class T>
  void finish_all(std::vector<pending<T>>& kept) {
    for (auto& one : kept) {
      expect_soon(one);
      const auto outcome = one.wait(Deadline::in(30s));
      if (outcome) continue;
      const Error& error = outcome.error();
      EXPECT_TRUE(kAllowed.contains(error.code)) << error.to_string();
      EXPECT_EQ(error.message.find("not over at the deadline of wait"), std::string::npos);
      if (error.code != ErrorCode::kCancelled) {
        EXPECT_EQ(error.origin.group, "chaos") << error.to_string();
      }
    }
    kept.clear();
  }

  void finish() {
    finish_all(scattered_);
    finish_all(collective_);
    finish_all(quiet_);
  }

  /// A group that is not dead must still work, communicators included.
  void check_usable() {
    const std::vector<Deed> calm(static_cast<std::size_t>(group_->size()));
    // It comes behind every abort in the shells' mailboxes: none arrives in the call that follows.
    ASSERT_TRUE(group_->status());
    const auto sum = group_->call<&Unruly::collective_work>(calm).wait();
    if (group_->dead_cause()) {
      EXPECT_FALSE(sum);
    } else {
      ASSERT_TRUE(sum) << sum.error().to_string();
      EXPECT_EQ(*sum, group_->size());
    }
    EXPECT_EQ(group_->calls_open(), 0U);
  }

  Rng rng_;
  std::atomic<int> live_{0};
  std::vector<std::unique_ptr<OrderedLane>> lanes_;
  ActorSystem system_;
  std::optional<WorkerGroup<Unruly>> group_;
  CancelSource source_;
  bool deadly_ = false;
  std::vector<pending<Ints>> scattered_;
  std::vector<pending<double>> collective_;
  std::vector<pending<void>> quiet_;
};

TEST(Chaos, EveryCallEndsAndNothingIsLeft) {
  const char* const wanted = std::getenv("TROUPE_CHAOS_SEEDS");
  const std::uint64_t seeds = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 200;
  const char* const from = std::getenv("TROUPE_CHAOS_FROM");
  const std::uint64_t first_seed = from != nullptr ? std::strtoull(from, nullptr, 10) : 1;
  log::set_up(log::Level::kOff);
  for (std::uint64_t seed = first_seed; seed < first_seed + seeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto begin = std::chrono::steady_clock::now();
    Chaos(seed).run();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 8s) << "something waited for a deadline";
  }
  log::set_up(log::Level::kInfo);
}

}  // namespace
}  // namespace troupe::runtime
