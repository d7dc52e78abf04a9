#include "actors/roles/turnstile.hpp"

namespace troupe::actors {

/// A place in line. What was handed to it goes on to the next when nobody takes it up.
class Turnstile::Waiter {
 public:
  explicit Waiter(Turnstile& turnstile) : turnstile_(turnstile) {
    auto ends = runtime::make_pending<void>();
    turn_ = std::move(ends.first);
    state_ = turn_.shared();
    turnstile_.waiting_.push_back(std::move(ends.second));
  }
  ~Waiter() {
    state_->cancel(runtime::cancelled("turnstile: left the line"));
    if (!taken_ && !state_->error()) turnstile_.leave();
  }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  runtime::pending<void> turn() { return std::move(turn_); }
  Pass take() {
    taken_ = true;
    return Pass(&turnstile_);
  }

 private:
  Turnstile& turnstile_;
  runtime::pending<void> turn_;
  runtime::Ref<runtime::PendingState<void>> state_;
  bool taken_ = false;
};

runtime::task<Turnstile::Pass> Turnstile::enter() {
  if (!occupied_) {
    occupied_ = true;
    co_return Pass(this);
  }
  Waiter waiter(*this);
  co_await waiter.turn();
  co_return waiter.take();
}

void Turnstile::leave() {
  while (!waiting_.empty()) {
    const runtime::completer<void> next = std::move(waiting_.front());
    waiting_.pop_front();
    if (next.complete({})) return;  // still occupied: by the next
  }
  occupied_ = false;
}

}  // namespace troupe::actors
