#pragma once

// `Turnstile`: lets one coroutine through at a time, in order of coming.
//
//   const Turnstile::Pass pass = co_await turnstile.enter();
//
// **Ownership:** outlives its passes and those who wait.
// **Threads:** the executor's thread.
// **Invariants:** one pass at a time; a waiter that is cancelled, or destroyed, holds nobody up.
// How long a pass is held is bounded by what its holder waits for.

#include "runtime/task/pending.hpp"
#include "runtime/task/task.hpp"

#include <deque>
#include <utility>

namespace troupe::actors {

class Turnstile {
 public:
  /// Held while its owner is inside. Move-only.
  class Pass {
   public:
    explicit Pass(Turnstile* in) : in_(in) {}
    Pass(Pass&& other) noexcept : in_(std::exchange(other.in_, nullptr)) {}
    Pass& operator=(Pass&&) = delete;
    ~Pass() {
      if (in_ != nullptr) in_->leave();
    }

   private:
    Turnstile* in_;
  };

  Turnstile() = default;
  Turnstile(const Turnstile&) = delete;
  Turnstile& operator=(const Turnstile&) = delete;

  runtime::task<Pass> enter();
  bool occupied() const { return occupied_; }

 private:
  class Waiter;
  void leave();

  bool occupied_ = false;
  std::deque<runtime::completer<void>> waiting_;
};

}  // namespace troupe::actors
