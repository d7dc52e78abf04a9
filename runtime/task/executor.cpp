#include "runtime/task/executor.hpp"

#include "runtime/task/virtual_clock.hpp"

namespace troupe::runtime {
namespace {

class Callback final : public Runnable {
 public:
  explicit Callback(std::function<void()> callback) : callback_(std::move(callback)) {}
  void notify() noexcept override {}
  void run() override { callback_(); }

 private:
  std::function<void()> callback_;
};

}  // namespace

Executor::Executor(const Clock* clock)
    : core_(make_ref<ExecutorCore>(clock != nullptr ? clock : &steady_, nullptr)) {}

Executor::Executor(VirtualClock& clock) : core_(make_ref<ExecutorCore>(&clock, &clock)) {}

Executor::~Executor() { core_->close(); }

bool Executor::post(std::function<void()> callback) {
  return core_->post(make_ref<Callback>(std::move(callback)));
}

void Executor::drive(const Signal* over, TimePoint end) {
  TROUPE_CHECK(!running_, "executor: run was called from one of its own coroutines");
  running_ = true;
  const struct Reset {
    bool& running;
    ~Reset() { running = false; }
  } reset{running_};
  while (over == nullptr || !over->done()) {
    if (!core_->run_one() && !core_->wait(end)) return;
    if (over == nullptr && clock().now() >= end) return;
  }
}

void Executor::drive_root(const Signal& over, RootId id) {
  try {
    drive(&over, TimePoint::max());
  } catch (...) {
    core_->destroy_root(id);
    throw;
  }
}

void Executor::run_ready() {
  while (core_->run_one()) {
  }
}

void Executor::run_for(Duration span) { drive(nullptr, clock().now() + span); }

}  // namespace troupe::runtime
