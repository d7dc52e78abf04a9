#include "runtime/comm/transport.hpp"

#include <sys/random.h>

#include <cerrno>

namespace troupe::runtime {

result<SessionKey> make_session_key() {
  SessionKey key;
  if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size()))
    return fail(ErrorCode::kIo, "session key: {}", system_message(errno));
  return key;
}

result<void> pull_and_wait(Transport& transport, PullRequest request, Deadline deadline) {
  // The transport ends the pull at its deadline by itself; the slack only keeps the two from
  // racing for who says so.
  constexpr Duration kSlack = std::chrono::seconds(5);
  return transport.pull(std::move(request), deadline).wait(Deadline{deadline.at + kSlack});
}

}  // namespace troupe::runtime
