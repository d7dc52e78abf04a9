#include "reshard/nccl/communicator.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace troupe::reshard::nccl {
namespace {

using runtime::completer;
using runtime::pending;

constexpr Duration kPollMost = std::chrono::milliseconds(1);
constexpr Duration kWatch = std::chrono::milliseconds(20);
/// An abort lets a call that is about to return do so; freeing below its feet is for those that
/// hang.
constexpr Duration kCallGrace = std::chrono::milliseconds(200);

}  // namespace

class Communicator::Impl {
 public:
  Impl(std::shared_ptr<const NcclLibrary> library, const CudaDevice& device,
       const CommunicatorOptions& options, std::unique_ptr<CudaHandle> stream,
       std::unique_ptr<CudaHandle> event)
      : library_(std::move(library)),
        device_(device),
        options_(options),
        stream_(std::move(stream)),
        event_(std::move(event)),
        core_(options.rank, options.abort_within) {
    driver_ = std::thread([this] { drive(); });
    watch_ = std::thread([this] { watch(); });
  }
  ~Impl() { close(); }

  pending<void> join(const Membership& membership, Deadline deadline);
  pending<void> submit(std::vector<Transfer> transfers, std::string what, Deadline deadline);
  void abort(Error cause) {
    std::unique_lock lock(mutex_);
    step(AbortWanted{std::move(cause)}, lock);
  }
  result<void> wait_idle(Deadline deadline);
  CommunicatorCore::State state() const {
    const std::lock_guard lock(mutex_);
    return core_.state();
  }
  bool stuck() const {
    const std::lock_guard lock(mutex_);
    return core_.stuck();
  }
  std::uint64_t epoch() const {
    const std::lock_guard lock(mutex_);
    return core_.epoch();
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  /// Steps the core and carries out what needs no call; calls are left to their threads.
  void step(const CommEvent& event, Lock& lock);
  void carry_out(const CommEffect& effect, std::vector<std::function<void()>>& after);
  void drive();
  /// Deadlines hold while the driver is inside a call that does not return.
  void watch();
  void tick_when_due(Lock& lock);
  void call(const CommEffect& effect, Lock& lock);
  CommEvent make_call(const CommEffect& effect);
  InitReturned init(const Membership& membership);
  SubmitReturned send_and_receive(std::uint64_t ticket);
  EventState look(std::uint64_t ticket, bool record);
  void abort_comm(std::uint64_t epoch);
  void close();

  std::shared_ptr<const NcclLibrary> library_;
  const CudaDevice& device_;
  CommunicatorOptions options_;
  std::unique_ptr<CudaHandle> stream_, event_;

  mutable std::mutex mutex_;  ///< guards all below but what belongs to the driver
  std::condition_variable changed_;
  CommunicatorCore core_;
  std::deque<CommEffect> calls_;  ///< for the driver
  bool calling_ = false;          ///< the driver is inside NCCL or CUDA
  std::uint64_t call_count_ = 0;
  bool closing_ = false;
  Membership membership_;
  std::int32_t nccl_rank_ = 0;
  std::vector<Transfer> transfers_;
  std::uint64_t next_ticket_ = 1;
  std::map<std::uint64_t, completer<void>> joins_, tickets_;
  Comm* comm_ = nullptr;
  bool abort_over_ = true;
  Duration pause_{};

  std::thread driver_, watch_;
  std::thread aborter_;                    ///< of the last abort
  std::vector<std::thread> old_aborters_;  ///< about to end; the driver joins them
};

pending<void> Communicator::Impl::join(const Membership& membership, Deadline deadline) {
  if (auto good = check_membership(membership); !good)
    return pending<void>::of(fail(std::move(good).error()));
  auto own = nccl_rank(membership, options_.rank);
  if (!own) return pending<void>::of(fail(std::move(own).error()));
  const DeviceMember& self = membership.members[static_cast<std::size_t>(*own)];
  if (self.bus_id != device_.bus_id())
    return pending<void>::of(fail(ErrorCode::kConflict,
                                  "rank {}: membership {}: is on gpu {}, listed on gpu {}",
                                  options_.rank, membership.epoch, device_.bus_id(), self.bus_id));
  auto [answer, end] = runtime::make_pending<void>();
  Lock lock(mutex_);
  if (joins_.contains(membership.epoch))
    return pending<void>::of(fail(ErrorCode::kConflict, "rank {}: is joining membership {} already",
                                  options_.rank, membership.epoch));
  joins_.emplace(membership.epoch, end);
  if (!core_.busy() && !core_.stuck() && membership.epoch > core_.epoch()) {
    membership_ = membership;
    nccl_rank_ = *own;
  }
  step(JoinWanted{membership.epoch, static_cast<std::int32_t>(membership.members.size()),
                  deadline.at},
       lock);
  return std::move(answer);
}

pending<void> Communicator::Impl::submit(std::vector<Transfer> transfers, std::string what,
                                         Deadline deadline) {
  auto [answer, end] = runtime::make_pending<void>();
  Lock lock(mutex_);
  const std::uint64_t ticket = next_ticket_++;
  tickets_.emplace(ticket, end);
  if (core_.state() == CommunicatorCore::State::kReady) transfers_ = std::move(transfers);
  step(SubmitWanted{ticket, std::move(what), deadline.at}, lock);
  return std::move(answer);
}

result<void> Communicator::Impl::wait_idle(Deadline deadline) {
  using State = CommunicatorCore::State;
  Lock lock(mutex_);
  const auto idle = [this] {
    const State state = core_.state();
    return (state == State::kIdle || state == State::kBroken || state == State::kReady) &&
           !calling_ && abort_over_;
  };
  if (changed_.wait_until(lock, deadline.at, idle)) return {};
  return fail(ErrorCode::kDeadline, "rank {}: membership {}: a call of nccl has not returned",
              options_.rank, core_.epoch());
}

void Communicator::Impl::step(const CommEvent& event, Lock& lock) {
  std::vector<std::function<void()>> after;
  for (const CommEffect& effect : core_.step(event, steady_now())) carry_out(effect, after);
  changed_.notify_all();
  if (after.empty()) return;
  // Completions run callers' code: never under the lock.
  lock.unlock();
  for (const auto& one : after) one();
  lock.lock();
}

void Communicator::Impl::carry_out(const CommEffect& effect,
                                   std::vector<std::function<void()>>& after) {
  const auto finish = [&](std::map<std::uint64_t, completer<void>>& waiting, std::uint64_t key,
                          const std::optional<Error>& error) {
    const auto place = waiting.find(key);
    if (place == waiting.end()) return;
    after.emplace_back([end = place->second, error] {
      end.complete(error ? result<void>(fail(*error)) : result<void>());
    });
    waiting.erase(place);
  };
  if (const auto* join = std::get_if<JoinDone>(&effect))
    return finish(joins_, join->epoch, join->error);
  if (const auto* done = std::get_if<TicketDone>(&effect))
    return finish(tickets_, done->ticket, done->error);
  pause_ = options_.poll;
  if (const auto* abort = std::get_if<CallAbort>(&effect)) {
    calls_.clear();
    abort_over_ = false;
    // The one before has returned, or the core would not have let anybody join again; its thread
    // may still want the lock.
    if (aborter_.joinable()) old_aborters_.push_back(std::move(aborter_));
    aborter_ = std::thread([this, epoch = abort->epoch] { abort_comm(epoch); });
    return;
  }
  // A look that nobody has got to yet needs no second one: the next tick asks again.
  const bool look =
      std::holds_alternative<PollAsync>(effect) || std::holds_alternative<QueryEvent>(effect);
  if (look && calls_.size() >= 2) return;
  calls_.push_back(effect);
}

void Communicator::Impl::abort_comm(std::uint64_t epoch) {
  Comm* comm = nullptr;
  {
    Lock lock(mutex_);
    changed_.wait_for(lock, kCallGrace, [this] { return !calling_; });
    comm = std::exchange(comm_, nullptr);
  }
  // Its code says nothing that could be acted on.
  const result<void> used = device_.use();
  if (used && comm != nullptr) library_->calls().comm_abort(comm);
  if (!used && comm != nullptr)
    log::error("communicator of epoch {}: not aborted, what it holds is lost: {}", epoch,
               used.error().to_string());
  Lock lock(mutex_);
  abort_over_ = true;
  step(AbortReturned{epoch}, lock);
}

void Communicator::Impl::drive() {
  Lock lock(mutex_);
  while (!closing_) {
    if (!old_aborters_.empty()) {
      std::vector<std::thread> over;
      over.swap(old_aborters_);
      lock.unlock();
      for (std::thread& one : over) one.join();
      lock.lock();
    }
    if (!calls_.empty()) {
      const CommEffect effect = calls_.front();
      calls_.pop_front();
      call(effect, lock);
      continue;
    }
    tick_when_due(lock);
  }
}

void Communicator::Impl::watch() {
  Lock lock(mutex_);
  while (!closing_) {
    if (!core_.busy()) {
      changed_.wait(lock, [this] { return closing_ || core_.busy(); });
      continue;
    }
    // By the clock and not by a bell: polls must not wake another thread each time.
    const std::uint64_t call = calling_ ? call_count_ : 0;
    changed_.wait_for(lock, kWatch, [this] { return closing_; });
    if (call != 0 && calling_ && call == call_count_) step(Tick{}, lock);
  }
}

void Communicator::Impl::tick_when_due(Lock& lock) {
  const auto wanted = [this] { return closing_ || !calls_.empty(); };
  if (!core_.busy()) {
    changed_.wait(lock, [&] { return wanted() || core_.busy(); });
    return;
  }
  const bool quiet = core_.state() == CommunicatorCore::State::kReady;
  const Duration pause = quiet ? options_.idle_poll : pause_;
  pause_ = std::min(pause_ * 2, kPollMost);
  if (changed_.wait_for(lock, pause, wanted)) return;
  const Duration before = pause_;
  step(Tick{}, lock);
  pause_ = before;  // polls alone are no news
}

void Communicator::Impl::call(const CommEffect& effect, Lock& lock) {
  using State = CommunicatorCore::State;
  if (core_.state() == State::kAborting || core_.state() == State::kBroken) {
    // Asked for before the abort; an init that never ran has nothing to abort.
    if (const auto* one = std::get_if<CallInit>(&effect))
      step(InitReturned{one->epoch, Code::kSuccess, "", false}, lock);
    return;
  }
  calling_ = true;
  ++call_count_;
  lock.unlock();
  const CommEvent event = make_call(effect);
  lock.lock();
  calling_ = false;
  const Duration before = pause_;
  step(event, lock);
  const bool poll =
      std::holds_alternative<PollAsync>(effect) || std::holds_alternative<QueryEvent>(effect);
  if (poll && calls_.empty()) pause_ = before;
}

CommEvent Communicator::Impl::make_call(const CommEffect& effect) {
  if (const auto* one = std::get_if<CallInit>(&effect)) {
    Membership membership;
    {
      const std::lock_guard lock(mutex_);
      membership = membership_;
    }
    return one->epoch == membership.epoch ? init(membership) : InitReturned{.epoch = one->epoch};
  }
  if (const auto* one = std::get_if<PollAsync>(&effect)) {
    Comm* comm = nullptr;
    {
      const std::lock_guard lock(mutex_);
      comm = comm_;
    }
    if (comm == nullptr) return AsyncState{.epoch = 0};
    Code state = Code::kSuccess;
    const Code code = library_->calls().comm_get_async_error(comm, &state);
    const Code worst = code != Code::kSuccess ? code : state;
    const bool bad = worst != Code::kSuccess && worst != Code::kInProgress;
    return AsyncState{one->epoch, worst, bad ? library_->text_of(worst, comm) : ""};
  }
  if (const auto* one = std::get_if<CallSubmit>(&effect)) return send_and_receive(one->ticket);
  if (const auto* one = std::get_if<RecordEvent>(&effect)) return look(one->ticket, true);
  return look(std::get<QueryEvent>(effect).ticket, false);
}

InitReturned Communicator::Impl::init(const Membership& membership) {
  InitReturned back{.epoch = membership.epoch};
  if (auto used = device_.use(); !used) {
    back.code = Code::kUnhandledCudaError;
    back.text = used.error().message;
    return back;
  }
  UniqueId id{};
  std::memcpy(id.internal.data(), membership.unique_id.data(), id.internal.size());
  Config config = config_for(library_->version());
  Comm* comm = nullptr;
  back.code = library_->calls().comm_init_rank_config(
      &comm, static_cast<int>(membership.members.size()), id, nccl_rank_, &config);
  if (back.code != Code::kSuccess && back.code != Code::kInProgress)
    back.text = library_->text_of(back.code, comm);
  back.comm = comm != nullptr;
  const std::lock_guard lock(mutex_);
  comm_ = comm;
  return back;
}

SubmitReturned Communicator::Impl::send_and_receive(std::uint64_t ticket) {
  Comm* comm = nullptr;
  std::vector<Transfer> transfers;
  {
    const std::lock_guard lock(mutex_);
    comm = comm_;
    transfers.swap(transfers_);
  }
  SubmitReturned back{.ticket = ticket};
  if (comm == nullptr) return back;  // aborted: the core no longer listens
  if (auto used = device_.use(); !used) {
    back.code = Code::kUnhandledCudaError;
    back.text = used.error().message;
    return back;
  }
  const Calls& calls = library_->calls();
  const auto keep = [&](Code code) {
    if (code == Code::kSuccess || code == Code::kInProgress) return;
    if (back.code == Code::kSuccess || back.code == Code::kInProgress) {
      back.code = code;
      back.text = library_->text_of(code, comm);
    }
  };
  keep(calls.group_start());
  for (const Transfer& one : transfers) {
    if (one.memory.empty()) continue;
    std::byte* data = one.memory.data();
    const std::size_t bytes = one.memory.size();
    keep(one.is_send ? calls.send(data, bytes, kUint8, one.peer, comm, stream_->get())
                     : calls.receive(data, bytes, kUint8, one.peer, comm, stream_->get()));
  }
  keep(calls.group_end());  // also after an error: a group must be closed
  return back;
}

EventState Communicator::Impl::look(std::uint64_t ticket, bool record) {
  EventState state{.ticket = ticket, .done = false, .error = {}};
  if (record) {
    if (auto recorded = device_.record(*event_, *stream_); !recorded) {
      state.error = std::move(recorded).error();
      return state;
    }
  }
  auto done = device_.done(*event_);
  if (!done)
    state.error = std::move(done).error();
  else
    state.done = *done;
  return state;
}

void Communicator::Impl::close() {
  Lock lock(mutex_);
  step(AbortWanted{Error{.code = ErrorCode::kAborted,
                         .message = fmt::format("rank {}: leaves", options_.rank),
                         .origin = {},
                         .causes = {}}},
       lock);
  using State = CommunicatorCore::State;
  const auto over = [this] {
    const State state = core_.state();
    return (state == State::kIdle || state == State::kBroken) && !calling_ && abort_over_;
  };
  const bool idle = changed_.wait_for(lock, options_.abort_within + kCallGrace, over);
  TROUPE_CHECK(idle,
               "rank {}: membership {}: a call of nccl has not returned: its memory can not "
               "be given back",
               options_.rank, core_.epoch());
  closing_ = true;
  changed_.notify_all();
  lock.unlock();
  driver_.join();
  watch_.join();
  if (aborter_.joinable()) aborter_.join();
  for (std::thread& one : old_aborters_) one.join();
}

result<std::unique_ptr<Communicator>> Communicator::create(
    std::shared_ptr<const NcclLibrary> library, const CudaDevice& device,
    const CommunicatorOptions& options) {
  TROUPE_TRY(auto stream, device.stream());
  TROUPE_TRY(auto event, device.event());
  return std::unique_ptr<Communicator>(new Communicator(std::make_unique<Impl>(
      std::move(library), device, options, std::move(stream), std::move(event))));
}

Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::~Communicator() = default;

pending<void> Communicator::join(const Membership& membership, Deadline deadline) {
  return impl_->join(membership, deadline);
}
pending<void> Communicator::submit(std::vector<Transfer> transfers, std::string what,
                                   Deadline deadline) {
  return impl_->submit(std::move(transfers), std::move(what), deadline);
}
void Communicator::abort(Error cause) { impl_->abort(std::move(cause)); }
result<void> Communicator::wait_idle(Deadline deadline) { return impl_->wait_idle(deadline); }
bool Communicator::ready() const { return impl_->state() == CommunicatorCore::State::kReady; }
bool Communicator::stuck() const { return impl_->stuck(); }
std::uint64_t Communicator::epoch() const { return impl_->epoch(); }

result<void> abort_all(std::span<Communicator* const> communicators, const Error& cause,
                       Deadline deadline) {
  for (Communicator* one : communicators) one->abort(cause);
  for (Communicator* one : communicators) TROUPE_TRY_VOID(one->wait_idle(deadline));
  return {};
}

}  // namespace troupe::reshard::nccl
