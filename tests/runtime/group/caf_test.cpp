// Proves that runtime/caf.hpp means the same on 0.17.6 and on 1.x: one set of tests over its typed
// actors, sends, delays, requests with limits, and monitors of several targets. scripts/check_caf1
// runs it against 1.x.

#include "runtime/caf.hpp"

#include "runtime/group/messages.hpp"
#include "runtime/task/pending.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace troupe::runtime {
namespace {

using namespace std::chrono_literals;

using Echo = caf::typed_actor<Signature<StatusMessage, status_atom>,
                              Signature<std::int64_t, heartbeat_atom>,
                              Signature<void, abort_atom, ErrorMessage>,
                              Signature<void, kill_atom, ErrorMessage>>;
using Watcher = caf::typed_actor<Signature<void, watch_atom>>;

/// What actors of a test tell it.
struct Notes {
  std::mutex mutex;  // guards lines
  std::vector<std::string> lines;
  void add(std::string line) {
    const std::lock_guard lock(mutex);
    lines.push_back(std::move(line));
  }
  std::vector<std::string> wait_for(std::size_t count) {
    for (int i = 0; i < 5000; ++i) {
      {
        const std::lock_guard lock(mutex);
        if (lines.size() >= count) return lines;
      }
      std::this_thread::sleep_for(1ms);
    }
    const std::lock_guard lock(mutex);
    return lines;
  }
};

Echo::behavior_type echo(Echo::pointer self, const std::shared_ptr<Notes>& notes, int id) {
  return {
      [id](status_atom) {
        StatusMessage message;
        message.status.rank = RankId{id};
        message.status.method = "a method name that is longer than any small string";
        return message;
      },
      [id](heartbeat_atom) { return std::int64_t{id} * 10; },
      [notes](abort_atom, const ErrorMessage& message) { notes->add(message.error.message); },
      [self, notes](kill_atom, const ErrorMessage&) { self->quit(caf::exit_reason::kill); },
  };
}

ErrorMessage text(std::string message) {
  return ErrorMessage{Error{
      .code = ErrorCode::kIo, .message = std::move(message), .origin = {}, .causes = {}}};
}

TEST(Caf, MessagesOfOneSenderArriveInOrder) {
  ActorSystem system;
  auto notes = std::make_shared<Notes>();
  const Echo actor = system.native().system.spawn(echo, notes, 1);
  for (int i = 0; i < 100; ++i) send_from_outside(actor, abort_atom_v, text(std::to_string(i)));
  const auto lines = notes->wait_for(100);
  ASSERT_EQ(lines.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(lines[static_cast<std::size_t>(i)], std::to_string(i));
  stop_actor(actor);
}

TEST(Caf, RequestsAreAnsweredWithTheirType) {
  ActorSystem system;
  const Echo actor = system.native().system.spawn(echo, std::make_shared<Notes>(), 4);
  caf::scoped_actor self(system.native().system);
  RankStatus seen;
  request(self, actor, 5s, status_atom_v)
      .receive([&](const StatusMessage& message) { seen = message.status; },
               [](const caf::error&) { FAIL() << "no answer"; });
  EXPECT_EQ(seen.rank, RankId{4});
  EXPECT_EQ(seen.method, "a method name that is longer than any small string");
  std::int64_t beat = 0;
  request(self, actor, 5s, heartbeat_atom_v)
      .receive([&](std::int64_t value) { beat = value; },
               [](const caf::error&) { FAIL() << "no answer"; });
  EXPECT_EQ(beat, 40);
  stop_actor(actor);
}

TEST(Caf, ARequestToAnActorThatEndedIsAnErrorWithinItsLimit) {
  ActorSystem system;
  const Echo actor = system.native().system.spawn(echo, std::make_shared<Notes>(), 1);
  send_from_outside(actor, kill_atom_v, text("go"));
  caf::scoped_actor self(system.native().system);
  const auto begin = std::chrono::steady_clock::now();
  bool failed = false;
  for (int i = 0; i < 100 && !failed; ++i) {  // it may answer before it ends
    request(self, actor, 200ms, heartbeat_atom_v)
        .receive([](std::int64_t) {}, [&](const caf::error&) { failed = true; });
  }
  EXPECT_TRUE(failed);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
}

Watcher::behavior_type watcher(Watcher::pointer self, const std::shared_ptr<Notes>& notes,
                               const std::vector<Echo>& targets,
                               const std::shared_ptr<Monitor>& monitor) {
  for (std::size_t i = 0; i < targets.size(); ++i)
    monitor->watch(self, targets[i], [notes, i] { notes->add("gone " + std::to_string(i)); });
  send_later(self, Watcher(self), 20ms, watch_atom_v);
  return {[self, notes, targets](watch_atom) {
    notes->add("tick");
    // Inside an actor a request goes on by callbacks.
    request(self, targets[0], 5s, heartbeat_atom_v)
        .then([notes](std::int64_t value) { notes->add("beat " + std::to_string(value)); },
              [notes](const caf::error&) { notes->add("no beat"); });
    send(self, targets[0], abort_atom_v, text("sent"));
  }};
}

TEST(Caf, ActorsDelaySendAndRequestAmongEachOther) {
  ActorSystem system;
  auto notes = std::make_shared<Notes>();
  auto& actors = system.native().system;
  const std::vector<Echo> targets{actors.spawn(echo, notes, 3)};
  const auto begin = std::chrono::steady_clock::now();
  const Watcher actor = actors.spawn(watcher, notes, targets, std::make_shared<Monitor>());
  auto lines = notes->wait_for(3);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 20ms);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0], "tick");
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines, (std::vector<std::string>{"beat 30", "sent", "tick"}));
  stop_actor(actor);
  stop_actor(targets[0]);
}

TEST(Caf, AMonitorTellsOncePerTargetWhichEnded) {
  ActorSystem system;
  auto notes = std::make_shared<Notes>();
  auto quiet = std::make_shared<Notes>();
  auto& actors = system.native().system;
  std::vector<Echo> targets;
  for (int i = 0; i < 3; ++i) targets.push_back(actors.spawn(echo, quiet, i));
  const Watcher actor = actors.spawn(watcher, notes, targets, std::make_shared<Monitor>());
  ASSERT_EQ(notes->wait_for(2).size(), 2U);
  send_from_outside(targets[2], kill_atom_v, text("go"));
  ASSERT_EQ(notes->wait_for(3).back(), "gone 2");
  stop_actor(targets[0]);
  ASSERT_EQ(notes->wait_for(4).back(), "gone 0");
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(notes->wait_for(4).size(), 4U);
  stop_actor(actor);
  stop_actor(targets[1]);
}

}  // namespace
}  // namespace troupe::runtime
