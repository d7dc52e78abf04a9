#include "runtime/group/actor_system.hpp"

#include "runtime/caf.hpp"
#include "runtime/group/messages.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <map>
#include <thread>

#if defined(__SANITIZE_THREAD__)
// A distribution's CAF is not instrumented, so ThreadSanitizer does not see how its mailboxes order
// sender and receiver. Accesses made from inside CAF are left out; what a message hands to our own
// threads is ordered by `Rank::fence` besides.
extern "C" const char* __tsan_default_suppressions() {
  return "race:^caf::\nrace:libcaf_core.so\n";
}
#endif

namespace troupe::runtime {

struct CallTimer::State {
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::map<Id, std::function<void()>> entries;
  std::uint64_t last = 0;
  bool stop = false;
  std::thread thread;

  void run() {
    std::unique_lock lock(mutex);
    while (!stop) {
      if (entries.empty()) {
        changed.wait(lock);
        continue;
      }
      const TimePoint first = entries.begin()->first.first;
      if (first > steady_now()) {
        changed.wait_until(lock, first);
        continue;
      }
      auto callback = std::move(entries.begin()->second);
      entries.erase(entries.begin());
      lock.unlock();
      callback();
      callback = nullptr;
      lock.lock();
    }
  }
};

CallTimer::CallTimer() : state_(std::make_unique<State>()) {
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

CallTimer::~CallTimer() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

CallTimer::Id CallTimer::add(TimePoint at, std::function<void()> callback) {
  bool first = false;
  Id id;
  {
    const std::lock_guard lock(state_->mutex);
    id = {at, ++state_->last};
    const auto place = state_->entries.emplace(id, std::move(callback)).first;
    first = place == state_->entries.begin();
  }
  if (first) state_->changed.notify_all();
  return id;
}

bool CallTimer::remove(const Id& id) {
  std::function<void()> dropped;  // destroyed after the lock
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->entries.find(id);
  if (found == state_->entries.end()) return false;
  dropped = std::move(found->second);
  state_->entries.erase(found);
  return true;
}

bool ActorSystem::Native::configure(caf::actor_system_config& config,
                                    const ActorSystemOptions& options) {
#if TROUPE_CAF_1
  static const bool once = [] {
    caf::init_global_meta_objects<caf::id_block::troupe>();
    caf::core::init_global_meta_objects();
    return true;
  }();
  config.set("caf.scheduler.policy", "sharing");
  config.set("caf.scheduler.max-threads", options.threads);
  return once;
#else
  config.set("scheduler.policy", caf::atom("sharing"));
  config.set("scheduler.max-threads", options.threads);
  return true;
#endif
}

ActorSystem::ActorSystem(const ActorSystemOptions& options)
    : native_(std::make_unique<Native>(options)) {}

ActorSystem::~ActorSystem() = default;

std::string ActorSystem::caf_version() {
#if TROUPE_CAF_1
  return fmt::format("{}.{}.{}", CAF_VERSION_MAJOR, CAF_VERSION_MINOR, CAF_VERSION_PATCH);
#else
  return fmt::format("{}.{}.{}", CAF_MAJOR_VERSION, CAF_MINOR_VERSION, CAF_PATCH_VERSION);
#endif
}

}  // namespace troupe::runtime
