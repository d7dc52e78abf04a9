#pragma once

// The only file that includes CAF. It gives 0.17.6 (what Debian and Ubuntu ship) and 1.x (what
// upstream ships) one spelling: typed signatures, send, request, delay, monitor, configuration.
//
// For sources only: no public header includes this one. Stay inside what it offers; CAF's streams,
// metrics, logging, configuration files, clocks and test classes differ between the versions.
// Versions are told apart by `TROUPE_CAF_1`, since CAF_VERSION is wrong in the releases 1.0.0 to
// 1.1.0 (it expands to 64): see docs/caf.md.
// **Threads:** handlers run on scheduler threads, one at a time per actor, and must not block.
// **Invariants:** whoever monitors an actor holds a strong handle to it (on 1.1 an actor that only
// a monitor knows of may be reclaimed before the callback).

#include "runtime/base/clock.hpp"
#include "runtime/group/actor_system.hpp"

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wdeprecated-copy"
#endif
#include <caf/all.hpp>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#include <functional>
#include <map>
#include <utility>

#if CAF_MAJOR_VERSION >= 1 || CAF_VERSION >= 1800
#define TROUPE_CAF_1 1
#else
#define TROUPE_CAF_1 0
#endif

/// A type that travels between actors of this process only, by value, and is never serialised.
#if TROUPE_CAF_1
#define TROUPE_CAF_LOCAL_TYPE(block, type) CAF_ADD_TYPE_ID(block, (type))
#else
#define TROUPE_CAF_LOCAL_TYPE(block, type)
#endif

namespace troupe::runtime {

/// One message of a typed actor: `Signature<int, status_atom>` takes the atom and answers an int.
#if TROUPE_CAF_1
template <class R, class... A>
struct SignatureOf {
  using type = caf::result<R>(A...);
};
#else
template <class R, class... A>
struct SignatureOf {
  using type = typename caf::replies_to<A...>::template with<R>;
};
template <class... A>
struct SignatureOf<void, A...> {
  using type = caf::reacts_to<A...>;
};
#endif
template <class R, class... A>
using Signature = typename SignatureOf<R, A...>::type;

/// From inside an actor, without an answer.
template <class Self, class Target, class... A>
void send(Self* self, const Target& target, A&&... message) {
#if TROUPE_CAF_1
  self->mail(std::forward<A>(message)...).send(target);
#else
  self->send(target, std::forward<A>(message)...);
#endif
}

/// From any thread, without an answer.
template <class Target, class... A>
void send_from_outside(const Target& target, A&&... message) {
#if TROUPE_CAF_1
  caf::anon_mail(std::forward<A>(message)...).send(target);
#else
  caf::anon_send(target, std::forward<A>(message)...);
#endif
}

/// As send, after `delay`.
template <class Self, class Target, class... A>
void send_later(Self* self, const Target& target, Duration delay, A&&... message) {
#if TROUPE_CAF_1
  self->mail(std::forward<A>(message)...).delay(delay).send(target);
#else
  self->delayed_send(target, delay, std::forward<A>(message)...);
#endif
}

/// A request that is answered within `limit` or ends with an error: `.then(ok, error)` in an actor,
/// `.receive(ok, error)` from a scoped one. There is no form without a limit.
template <class Self, class Target, class... A>
auto request(Self& self, const Target& target, Duration limit, A&&... message) {
#if TROUPE_CAF_1
  return self->mail(std::forward<A>(message)...).request(target, limit);
#else
  return self->request(target, limit, std::forward<A>(message)...);
#endif
}

/// Ends an actor from any thread.
template <class Handle>
void stop_actor(const Handle& handle) {
  caf::anon_send_exit(handle, caf::exit_reason::user_shutdown);
}

/// Calls back when an actor it watches has ended. One per monitoring actor, made in its own body.
class Monitor {
 public:
  template <class Self, class Handle>
  void watch(Self* self, const Handle& target, std::function<void()> gone) {
#if TROUPE_CAF_1
    self->monitor(target, [gone = std::move(gone)](const caf::error&) { gone(); });
#else
    if (callbacks_->empty()) {
      self->set_down_handler([table = callbacks_](const caf::down_msg& down) {
        const auto found = table->find(down.source);
        if (found == table->end()) return;
        const auto callback = std::move(found->second);
        table->erase(found);
        callback();
      });
    }
    callbacks_->emplace(caf::actor_cast<caf::actor_addr>(target), std::move(gone));
    self->monitor(target);
#endif
  }

#if !TROUPE_CAF_1
 private:
  // Shared with the handler, which lives as long as the actor.
  std::shared_ptr<std::map<caf::actor_addr, std::function<void()>>> callbacks_ =
      std::make_shared<std::map<caf::actor_addr, std::function<void()>>>();
#endif
};

struct ActorSystem::Native {
  explicit Native(const ActorSystemOptions& options)
      : prepared(configure(config, options)), system(config) {}

  /// Puts the options in before the system starts.
  static bool configure(caf::actor_system_config& config, const ActorSystemOptions& options);

  caf::actor_system_config config;
  bool prepared;
  caf::actor_system system;
};

}  // namespace troupe::runtime
