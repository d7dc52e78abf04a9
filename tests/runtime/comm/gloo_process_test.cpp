// Proves that collectives between processes survive what processes do: killed with SIGKILL in the
// middle of an operation, stopped with SIGSTOP, or aborted from outside. Peers end with an error
// that names the rank, soon, and never hang. Ranks are forked children; seeds are printed.

#include "runtime/base/rng.hpp"
#include "runtime/comm/collective_gloo.hpp"
#include "tests/support/test_files.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <sstream>
#include <thread>

namespace troupe::runtime {
namespace {

Deadline in_ms(int count) { return Deadline::in(std::chrono::milliseconds(count)); }

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// A rendezvous in a folder: one file a key.
class FolderRendezvous final : public RendezvousStore {
 public:
  explicit FolderRendezvous(std::filesystem::path folder) : folder_(std::move(folder)) {}
  result<void> set(const std::string& key, std::string value) override {
    const auto file = path(key);
    const auto beside = file.string() + "." + std::to_string(::getpid());
    testing::write_file(beside, value);
    std::filesystem::rename(beside, file);
    return {};
  }
  result<std::string> get(const std::string& key, Deadline deadline) override {
    for (;;) {
      if (std::filesystem::exists(path(key))) return testing::read_file(path(key));
      if (deadline.passed()) return fail(ErrorCode::kDeadline, "{}: not there", key);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

 private:
  std::filesystem::path path(std::string key) const {
    for (char& c : key) c = c == '/' ? '_' : c;
    return folder_ / key;
  }
  std::filesystem::path folder_;
};

/// What a rank that outlived the group says: code, named rank, time, message.
struct Ending {
  int code = -1;
  int rank = -1;
  std::int64_t at_ms = 0;
  std::string message;
};

class GlooProcesses : public ::testing::Test {
 protected:
  ~GlooProcesses() override { end_all(); }

  /// Kills all ranks and forgets what they wrote.
  void end_all() {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
    children_.clear();
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
      std::filesystem::remove(entry.path());
  }

  /// Forks `size` ranks that run `body` until it fails, and write how it ended.
  void start(int size, const std::function<result<void>(Collective&, int)>& body,
             Duration stall_wait = std::chrono::milliseconds(500)) {
    for (int rank = 0; rank < size; ++rank) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) run_child(rank, size, body, stall_wait);
      children_.push_back(child);
    }
    for (int rank = 0; rank < size; ++rank) ASSERT_TRUE(appears(file("up", rank)));
  }

  [[noreturn]] void run_child(int rank, int size,
                              const std::function<result<void>(Collective&, int)>& body,
                              Duration stall_wait) {
    GlooGroupOptions options{.name = "policy", .rank = rank, .size = size};
    options.stall_wait = stall_wait;
    options.answer_wait = std::chrono::milliseconds(1500);
    auto store = std::make_shared<FolderRendezvous>(folder_.path());
    auto group = make_gloo_collective(options, store, in_ms(20000));
    if (!group) ::_exit(3);
    std::ofstream(file("up", rank)) << "up";
    result<void> done;
    for (int step = 0; done; ++step) done = body(**group, step);
    std::ostringstream text;
    text << static_cast<int>(done.error().code) << ' '
         << (done.error().origin.rank ? done.error().origin.rank->value : -1) << ' ' << now_ms()
         << ' ' << done.error().to_string();
    (void)FolderRendezvous(folder_.path()).set("end" + std::to_string(rank), text.str());
    // Stays, so that its leaving is not what others see.
    std::this_thread::sleep_for(std::chrono::seconds(8));
    ::_exit(0);
  }

  bool appears(const std::filesystem::path& path) const {
    const Deadline deadline = in_ms(20000);
    while (!std::filesystem::exists(path)) {
      if (deadline.passed()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }
  std::filesystem::path file(const std::string& what, int rank) const {
    return folder_ / (what + std::to_string(rank));
  }
  Ending ending(int rank) const {
    Ending end;
    if (!appears(file("end", rank))) return end;
    std::istringstream text(testing::read_file(file("end", rank)));
    text >> end.code >> end.rank >> end.at_ms;
    std::getline(text, end.message);
    return end;
  }

  testing::TemporaryFolder folder_;
  std::vector<pid_t> children_;
};

/// Busy with everything, most of the time with payload.
result<void> busy_step(Collective& group, int step) {
  std::vector<float> data(200000, 1.0F);
  TROUPE_TRY_VOID(group.all_reduce(data, ReduceOp::kSum, in_ms(20000)));
  if (step % 3 != 0) return {};
  auto parts = group.all_gather_bytes(std::as_bytes(std::span(data).first(1000)), in_ms(20000));
  if (!parts) return fail(parts.error());
  return group.barrier(in_ms(20000));
}

TEST_F(GlooProcesses, AKilledRankIsNamedWithinMoments) {
  for (const int victim : {0, 2}) {
    start(3, busy_step);
    std::this_thread::sleep_for(std::chrono::milliseconds(50 + 13 * victim));
    const std::int64_t killed_at = now_ms();
    ::kill(children_[static_cast<std::size_t>(victim)], SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const Ending end = ending(rank);
      EXPECT_EQ(end.code, static_cast<int>(ErrorCode::kRankDead)) << end.message;
      EXPECT_EQ(end.rank, victim) << end.message;
      EXPECT_LT(end.at_ms - killed_at, 1500) << "rank " << rank;
    }
    end_all();
  }
}

TEST_F(GlooProcesses, AStoppedRankIsNamedAtTheDeadline) {
  start(3, [](Collective& group, int step) -> result<void> {
    std::vector<float> data(20000, 1.0F);
    // Before it is stopped rank 1 is late by itself, so that the others wait for it to come.
    if (group.rank() == 1 && step == 3) ::raise(SIGSTOP);
    return group.all_reduce(data, ReduceOp::kSum, step < 3 ? in_ms(20000) : in_ms(700));
  });
  for (const int rank : {0, 2}) {
    const Ending end = ending(rank);
    EXPECT_EQ(end.code, static_cast<int>(ErrorCode::kDeadline)) << end.message;
    EXPECT_EQ(end.rank, 1) << end.message;
    EXPECT_NE(end.message.find("missing rank 1"), std::string::npos) << end.message;
  }
}

TEST_F(GlooProcesses, AStoppedMeetingPlaceIsNamedToo) {
  start(3, [](Collective& group, int step) -> result<void> {
    if (group.rank() == 0 && step == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // peers hear of step 2 first
      ::raise(SIGSTOP);
    }
    return group.barrier(step < 3 ? in_ms(20000) : in_ms(300));
  });
  for (const int rank : {1, 2}) {
    const Ending end = ending(rank);
    EXPECT_EQ(end.code, static_cast<int>(ErrorCode::kDeadline)) << end.message;
    EXPECT_EQ(end.rank, 0) << end.message;
  }
}

TEST_F(GlooProcesses, ARankStoppedAtARandomMomentNeverHangsItsPeers) {
  const auto seed = static_cast<std::uint64_t>(::getpid());
  Rng rng(seed);
  start(3, [](Collective& group, int) -> result<void> {
    std::vector<float> data(300000, 1.0F);
    return group.all_reduce(data, ReduceOp::kSum, in_ms(1000));
  });
  std::this_thread::sleep_for(std::chrono::microseconds(20000 + rng.below(30000)));
  ::kill(children_[1], SIGSTOP);
  for (const int rank : {0, 2}) {
    const Ending end = ending(rank);
    EXPECT_EQ(end.code, static_cast<int>(ErrorCode::kDeadline)) << end.message << ", seed " << seed;
  }
}

TEST_F(GlooProcesses, APartThatFailsInPayloadEndsTheWholeForRanksOutsideIt) {
  const auto seed = static_cast<std::uint64_t>(::getpid());
  Rng rng(seed);
  int in_payload = 0;
  for (int attempt = 0; attempt < 5 && in_payload == 0; ++attempt) {
    // Ranks 0 and 1 are busy in a part of the group; rank 2 waits for both in the whole.
    start(3, [this](Collective& group, int) -> result<void> {
      auto part = group.split(group.rank() == 2 ? 1 : 0, 0, in_ms(20000));
      if (!part) return fail(part.error());
      if (group.rank() == 2) return group.barrier(in_ms(20000));
      std::vector<float> data(3000000, 1.0F);
      for (;;) {
        TROUPE_TRY_VOID((*part)->all_reduce(data, ReduceOp::kSum, in_ms(1000)));
        std::ofstream(file("busy", group.rank())) << "busy";
      }
    });
    ASSERT_TRUE(appears(file("busy", 1)));
    std::this_thread::sleep_for(std::chrono::microseconds(30000 + rng.below(30000)));
    ::kill(children_[1], SIGSTOP);
    const Ending first = ending(0);
    EXPECT_EQ(first.code, static_cast<int>(ErrorCode::kDeadline)) << first.message;
    // Stopped before it came to an operation it leaves the part's connections good.
    if (first.message.find("stands still") != std::string::npos) {
      ++in_payload;
      const Ending outside = ending(2);
      EXPECT_EQ(outside.code, static_cast<int>(ErrorCode::kDeadline)) << outside.message;
      EXPECT_LT(outside.at_ms - first.at_ms, 1500) << outside.message << ", seed " << seed;
    }
    end_all();
  }
  EXPECT_EQ(in_payload, 1) << "no stop fell into payload, seed " << seed;
}

TEST(GlooAbort, EndsWaitingOperationsFromAnyThread) {
  auto store = std::make_shared<LocalRendezvous>();
  std::vector<std::unique_ptr<Collective>> handles(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const GlooGroupOptions options{.name = "policy", .rank = rank, .size = 2};
      handles[static_cast<std::size_t>(rank)] =
          std::move(*make_gloo_collective(options, store, in_ms(20000)));
    });
  }
  for (auto& thread : threads) thread.join();
  for (int waiting = 0; waiting < 2; ++waiting) {
    std::atomic<std::int64_t> aborted_at{0};
    std::int64_t ended_at = 0;
    Collective& handle = *handles[static_cast<std::size_t>(waiting)];
    std::thread waiter([&] {
      const auto done = handle.barrier(in_ms(20000));
      ended_at = now_ms();
      ASSERT_FALSE(done);
      EXPECT_EQ(done.error().root_cause().message, "rank 1 was killed by signal 9");
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    aborted_at = now_ms();
    handle.abort(Error{ErrorCode::kRankDead, "rank 1 was killed by signal 9", {}, {}});
    waiter.join();
    EXPECT_LT(ended_at - aborted_at.load(), 500);
    std::vector<std::thread> both;
    for (auto& one : handles)
      both.emplace_back([&one, waiting] { EXPECT_TRUE(one->rebuild(waiting + 1, in_ms(20000))); });
    for (auto& thread : both) thread.join();
  }
}

}  // namespace
}  // namespace troupe::runtime
