#pragma once

// `when_done`: a callback at the end of a pending, for services that must not block and run no
// coroutine.
//
// Ownership: the pending's state keeps the callback until it is over.
// **Threads:** the callback runs once, on the thread that completes the pending, or at once on this
// one when it is over already. It must not block.

#include "runtime/task/pending.hpp"

#include <functional>
#include <utility>

namespace troupe::runtime {

template <class T>
void when_done(pending<T> one, std::function<void(result<T>)> callback) {
  class Done final : public Observer {
   public:
    Done(Ref<PendingState<T>> state, std::function<void(result<T>)> callback)
        : state_(std::move(state)), callback_(std::move(callback)) {}
    void notify() noexcept override {
      // Exchanged: the signal may still hold this observer while the callback runs.
      const auto callback = std::exchange(callback_, nullptr);
      if (callback) callback(std::exchange(state_, nullptr)->take());
    }

   private:
    Ref<PendingState<T>> state_;
    std::function<void(result<T>)> callback_;
  };
  const Ref<PendingState<T>> state = one.shared();
  const auto done = make_ref<Done>(state, std::move(callback));
  if (!state->subscribe(done)) done->notify();
}

}  // namespace troupe::runtime
