#include "runtime/comm/transport_local.hpp"

#include "runtime/base/check.hpp"
#include "runtime/comm/pull_plan.hpp"

#include <algorithm>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <thread>

namespace troupe::runtime {

class LocalNetwork::Core {
 public:
  struct Process {
    std::string name;
    PullSource source;
    std::optional<Error> dead;
    bool stopped = false;
    TransportStatistics statistics;
  };
  struct Job {
    std::uint64_t reader = 0;
    std::uint64_t owner = 0;
    PullRequest request;
    Deadline deadline;
    completer<void> out;
  };

  Core() : thread_([this] { run(); }) {}
  ~Core() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  std::uint64_t add(std::string name, PullSource source) {
    const std::lock_guard lock(mutex_);
    processes_[++last_].name = std::move(name);
    processes_[last_].source = std::move(source);
    return last_;
  }
  void change(std::uint64_t id, const std::function<void(Process&)>& change) {
    {
      std::unique_lock lock(mutex_);
      change(processes_.at(id));
      // A source must not be called once its process is dead and perhaps destroyed.
      idle_.wait(lock, [&] { return serving_ != id; });
    }
    wake_.notify_all();
  }
  void push(Job job) {
    {
      const std::lock_guard lock(mutex_);
      processes_.at(job.reader).statistics.requests += 1;
      jobs_.push_back(std::move(job));
    }
    wake_.notify_all();
  }
  TransportStatistics statistics(std::uint64_t id) const {
    const std::lock_guard lock(mutex_);
    return processes_.at(id).statistics;
  }

 private:
  void run();
  /// How the job ends without being carried out; empty: it may be, or must wait.
  std::optional<Error> verdict(const Job& job) const;
  static result<std::int64_t> carry_out(const Job& job, const PullSource& source);

  mutable std::mutex mutex_;  ///< guards everything below but the thread
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::map<std::uint64_t, Process> processes_;
  std::list<Job> jobs_;
  std::uint64_t last_ = 0;
  std::uint64_t serving_ = 0;  ///< whose source is being called
  bool over_ = false;
  std::thread thread_;
};

namespace {

std::vector<std::byte> address_of(std::uint64_t id, const std::string& name) {
  TransportAddress address;
  address.name = name;
  address.epoch = id;
  return encode_address(address);
}

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalNetwork::Core> core, std::uint64_t id,
                 const std::string& name)
      : core_(std::move(core)), id_(id), address_(address_of(id, name)) {}
  ~LocalTransport() override {
    core_->change(id_, [](LocalNetwork::Core::Process& self) {
      self.source = nullptr;
      self.dead = Error{.code = ErrorCode::kRankDead,
                        .message = "it has closed its transport",
                        .origin = {},
                        .causes = {}};
    });
  }
  const std::vector<std::byte>& address() const override { return address_; }
  pending<void> pull(PullRequest request, Deadline deadline) override {
    auto [outcome, out] = make_pending<void>();
    const result<TransportAddress> owner = decode_address(request.owner);
    if (!owner) {
      out.fail(owner.error());
    } else {
      core_->push({id_, owner->epoch, std::move(request), deadline, out});
    }
    return std::move(outcome);
  }
  void peer_lost(const std::vector<std::byte>& address, Error cause) override {
    const result<TransportAddress> owner = decode_address(address);
    if (!owner) return;
    core_->change(owner->epoch, [&](LocalNetwork::Core::Process& peer) { peer.dead = cause; });
  }
  TransportStatistics statistics() const override { return core_->statistics(id_); }

 private:
  std::shared_ptr<LocalNetwork::Core> core_;
  std::uint64_t id_;
  std::vector<std::byte> address_;
};

}  // namespace

std::optional<Error> LocalNetwork::Core::verdict(const Job& job) const {
  const auto place = processes_.find(job.owner);
  if (place == processes_.end())
    return Error{.code = ErrorCode::kRankDead, .message = "nobody", .origin = {}, .causes = {}};
  const Process& owner = place->second;
  if (owner.dead)
    return Error(*owner.dead).wrap(ErrorCode::kRankDead, fmt::format("{}: is gone", owner.name));
  if (job.deadline.passed())
    return Error{.code = ErrorCode::kDeadline,
                 .message = fmt::format("{}: no answer before the deadline", owner.name),
                 .origin = {},
                 .causes = {}};
  return std::nullopt;
}

result<std::int64_t> LocalNetwork::Core::carry_out(const Job& job, const PullSource& source) {
  std::int64_t bytes = 0;
  for (const PullPart& part : job.request.parts) {
    TROUPE_TRY(const Pinned pinned, source(part.column, part.first_row, part.rows));
    std::vector<std::byte> all;
    for (const auto& span : pinned.spans) all.insert(all.end(), span.begin(), span.end());
    if (all.size() != part.into.size())
      return fail(ErrorCode::kConflict, "column {}: {} bytes, wanted {}", part.column.value,
                  all.size(), part.into.size());
    const std::span<std::byte> targets[] = {part.into};
    scatter_bytes(all, targets);
    bytes += static_cast<std::int64_t>(all.size());
  }
  return bytes;
}

void LocalNetwork::Core::run() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    const auto ready = std::find_if(jobs_.begin(), jobs_.end(), [this](const Job& job) {
      return verdict(job) || !processes_.at(job.owner).stopped;
    });
    if (ready == jobs_.end()) {
      constexpr auto kLook = std::chrono::milliseconds(5);
      if (jobs_.empty())
        wake_.wait(lock);
      else
        wake_.wait_for(lock, kLook);
      continue;
    }
    Job job = std::move(*ready);
    jobs_.erase(ready);
    result<std::int64_t> outcome{0};
    if (std::optional<Error> error = verdict(job)) {
      outcome = fail(*std::move(error));
    } else if (const PullSource source = processes_.at(job.owner).source) {
      serving_ = job.owner;
      lock.unlock();
      outcome = carry_out(job, source);
      lock.lock();
      serving_ = 0;
      idle_.notify_all();
    } else {
      outcome = fail(ErrorCode::kNotFound, "{}: serves no columns", processes_.at(job.owner).name);
    }
    TransportStatistics& reader = processes_.at(job.reader).statistics;
    ++(outcome ? reader.pulls : reader.pulls_failed);
    if (outcome) reader.bytes_pulled += *outcome;
    if (outcome) processes_.at(job.owner).statistics.bytes_served += *outcome;
    lock.unlock();
    job.out.complete(outcome ? result<void>() : fail(std::move(outcome).error()));
    lock.lock();
  }
}

LocalNetwork::LocalNetwork() : core_(std::make_shared<Core>()) {}
LocalNetwork::~LocalNetwork() = default;

std::unique_ptr<Transport> LocalNetwork::open(std::string name, PullSource source) {
  const std::uint64_t id = core_->add(name, std::move(source));
  return std::make_unique<LocalTransport>(core_, id, name);
}

void LocalNetwork::kill(const std::vector<std::byte>& address) {
  const auto owner = decode_address(address);
  TROUPE_CHECK(owner.has_value(), "local network: {}", owner.error().message);
  core_->change(owner->epoch, [](Core::Process& process) {
    process.dead =
        Error{.code = ErrorCode::kRankDead, .message = "killed", .origin = {}, .causes = {}};
  });
}

void LocalNetwork::stop(const std::vector<std::byte>& address) {
  const auto owner = decode_address(address);
  TROUPE_CHECK(owner.has_value(), "local network: {}", owner.error().message);
  core_->change(owner->epoch, [](Core::Process& process) { process.stopped = true; });
}

void LocalNetwork::go_on(const std::vector<std::byte>& address) {
  const auto owner = decode_address(address);
  TROUPE_CHECK(owner.has_value(), "local network: {}", owner.error().message);
  core_->change(owner->epoch, [](Core::Process& process) { process.stopped = false; });
}

}  // namespace troupe::runtime
