#include "runtime/task/cancel.hpp"

#include <optional>
#include <utility>

namespace troupe::runtime {

class CancelState final : public Signal {
 public:
  void cancel(Error reason) {
    std::vector<Ref<Observer>> observers;
    {
      const std::lock_guard lock(mutex_);
      if (done()) return;
      reason_ = std::move(reason);
      observers = raise_locked();
    }
    notify_all(observers);
  }
  Error reason() const {
    const std::lock_guard lock(mutex_);
    return reason_.value_or(runtime::cancelled("not cancelled"));
  }
  /// Follows `parent` from now on; before the state is shared.
  void follow(const CancelToken& parent);

 private:
  ~CancelState() override;

  std::optional<Error> reason_;  // guarded by mutex_
  class Link;
  Ref<Link> link_;
  Ref<Signal> parent_;
};

/// From a parent to a child that it does not keep alive.
class CancelState::Link final : public Observer {
 public:
  Link(CancelToken parent, CancelState* child) : parent_(std::move(parent)), child_(child) {}
  void notify() noexcept override {
    Ref<CancelState> child;
    {
      const std::lock_guard lock(mutex_);
      if (child_ != nullptr && child_->try_add_ref()) child = Ref<CancelState>::adopt(child_);
    }
    if (child) child->cancel(parent_.reason());
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    child_ = nullptr;
  }

 private:
  CancelToken parent_;
  std::mutex mutex_;  // guards child_
  CancelState* child_;
};

void CancelState::follow(const CancelToken& parent) {
  if (parent.signal() == nullptr) return;
  link_ = make_ref<Link>(parent, this);
  parent_ = Ref<Signal>(parent.signal());
  if (!parent_->subscribe(link_)) link_->notify();
}

CancelState::~CancelState() {
  if (!link_) return;
  link_->forget();
  parent_->unsubscribe(link_.get());
}

namespace {

class CallbackObserver final : public Observer {
 public:
  CallbackObserver(CancelToken token, std::function<void(const Error&)> callback)
      : token_(std::move(token)), callback_(std::move(callback)) {}
  void notify() noexcept override {
    callback_(token_.reason());
    callback_ = nullptr;
  }

 private:
  CancelToken token_;
  std::function<void(const Error&)> callback_;
};

}  // namespace

Error cancelled(std::string message) {
  return Error{
      .code = ErrorCode::kCancelled, .message = std::move(message), .origin = {}, .causes = {}};
}

CancelRegistration& CancelRegistration::operator=(CancelRegistration&& other) noexcept {
  if (this != &other) {
    reset();
    signal_ = std::move(other.signal_);
    observer_ = std::move(other.observer_);
  }
  return *this;
}

void CancelRegistration::reset() {
  if (signal_ && observer_) signal_->unsubscribe(observer_.get());
  signal_ = nullptr;
  observer_ = nullptr;
}

CancelToken::CancelToken() noexcept = default;
CancelToken::CancelToken(Ref<CancelState> state) : state_(std::move(state)) {}
CancelToken::CancelToken(const CancelToken&) = default;
CancelToken::CancelToken(CancelToken&&) noexcept = default;
CancelToken& CancelToken::operator=(CancelToken other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
CancelToken::~CancelToken() = default;

bool CancelToken::cancelled() const { return state_ && state_->done(); }
Error CancelToken::reason() const {
  return state_ ? state_->reason() : runtime::cancelled("not cancelled");
}
Signal* CancelToken::signal() const { return state_.get(); }

CancelRegistration CancelToken::on_cancel(std::function<void(const Error&)> callback) const {
  if (!state_) return {};
  Ref<Observer> observer = make_ref<CallbackObserver>(*this, std::move(callback));
  if (!state_->subscribe(observer)) {
    observer->notify();
    return {};
  }
  return CancelRegistration(state_, std::move(observer));
}

CancelSource::CancelSource() : state_(make_ref<CancelState>()) {}
CancelSource::CancelSource(const CancelToken& parent) : CancelSource() { state_->follow(parent); }
CancelSource::CancelSource(const CancelSource&) = default;
CancelSource::CancelSource(CancelSource&&) noexcept = default;
CancelSource& CancelSource::operator=(CancelSource other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
CancelSource::~CancelSource() = default;

CancelToken CancelSource::token() const { return CancelToken(state_); }
bool CancelSource::cancelled() const { return state_->done(); }
void CancelSource::cancel(Error reason) const {
  if (reason.code != ErrorCode::kCancelled && reason.code != ErrorCode::kDeadline)
    reason = std::move(reason).wrap(ErrorCode::kCancelled, "cancelled because of another failure");
  state_->cancel(std::move(reason));
}

}  // namespace troupe::runtime
