#pragma once

// Cancellation: a `CancelSource` is held by who may call off work, its `CancelToken` by the work.
//
// Every coroutine runs under one token, inherited from its parent. Once it is cancelled, the wait
// it is in ends with kCancelled, and so does every later wait that is not already over. Code that
// must clean up after that awaits under `shielded` (when.hpp).
// **Threads:** any thread may cancel, copy tokens and ask.
// **Invariants:** the first reason stays.

#include "runtime/base/error.hpp"
#include "runtime/task/signal.hpp"

#include <functional>
#include <string>

namespace troupe::runtime {

class CancelState;

/// A kCancelled error with this message.
Error cancelled(std::string message);

/// Keeps a callback subscribed; destroying it unsubscribes (and does not wait for one that runs).
class CancelRegistration {
 public:
  CancelRegistration() = default;
  CancelRegistration(Ref<Signal> signal, Ref<Observer> observer)
      : signal_(std::move(signal)), observer_(std::move(observer)) {}
  CancelRegistration(CancelRegistration&&) noexcept = default;
  CancelRegistration& operator=(CancelRegistration&& other) noexcept;
  ~CancelRegistration() { reset(); }
  void reset();

 private:
  Ref<Signal> signal_;
  Ref<Observer> observer_;
};

/// Default-constructed: a token that is never cancelled.
class CancelToken {
 public:
  CancelToken() noexcept;
  explicit CancelToken(Ref<CancelState> state);
  CancelToken(const CancelToken&);
  CancelToken(CancelToken&&) noexcept;
  CancelToken& operator=(CancelToken) noexcept;
  ~CancelToken();

  bool cancelled() const;
  /// The error that cancelled waits end with; meaningful once `cancelled()`.
  Error reason() const;
  /// Calls `callback` once on cancellation, on the cancelling thread, or at once when that has
  /// happened already.
  CancelRegistration on_cancel(std::function<void(const Error&)> callback) const;
  /// The signal behind the token; null for the token that is never cancelled.
  Signal* signal() const;

 private:
  Ref<CancelState> state_;
};

/// Copies share one state. Dropping every source leaves the work running.
class CancelSource {
 public:
  CancelSource();
  /// A source that is also cancelled when `parent` is.
  explicit CancelSource(const CancelToken& parent);
  CancelSource(const CancelSource&);
  CancelSource(CancelSource&&) noexcept;
  CancelSource& operator=(CancelSource) noexcept;
  ~CancelSource();

  CancelToken token() const;
  bool cancelled() const;
  /// Cancels once; later calls do nothing. A reason that is not kCancelled or kDeadline becomes
  /// the cause of a kCancelled error.
  void cancel(Error reason = runtime::cancelled("cancelled by its owner")) const;

 private:
  Ref<CancelState> state_;
};

}  // namespace troupe::runtime
