#include "runtime/cluster/process_launcher.hpp"

#include <cstdio>
#include <utility>

namespace troupe::runtime {
namespace {

void print_to_standard_error(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace

result<std::unique_ptr<ProcessLauncher>> ProcessLauncher::open(ProcessLauncherOptions options) {
  if (!options.print) options.print = print_to_standard_error;
  RankProcessesOptions ranks;
  ranks.token = options.token;
  ranks.environment = options.environment;
  ranks.limit_address_space = options.limit_address_space;
  ranks.processes = options.processes;
  ranks.logs.limits = options.log_limits;
  const auto print = options.print;
  std::unique_ptr<ProcessLauncher> made(new ProcessLauncher(std::move(options)));
  auto sink = [print](const std::string& /*job*/, const LogBatch& batch) {
    print(to_text(batch));
    return true;
  };
  TROUPE_TRY(made->processes_, RankProcesses::open(std::move(ranks), std::move(sink)));
  return made;
}

ProcessLauncher::~ProcessLauncher() = default;

pending<void> ProcessLauncher::launch(const RankLaunch& launch,
                                      std::function<void(Error)> on_exit) {
  RankPlace place;
  if (options_.place) {
    auto found = options_.place(launch);
    if (!found) return pending<void>::of(fail(std::move(found).error()));
    place = std::move(*found);
  }
  const Name name(launch.group, launch.rank);
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = ++launches_;
    if (!ranks_.emplace(name, Entry{.launch = number}).second)
      return pending<void>::of(fail(ErrorCode::kAlreadyExists, "{} rank {}: it runs already",
                                    launch.group, launch.rank.value));
  }
  auto [started, producer] = make_pending<void>();
  RankProcesses::Events events;
  events.on_started = [this, name, end = producer](int pid) {
    {
      const std::lock_guard lock(mutex_);
      ranks_[name].pid = pid;
    }
    end.complete({});
  };
  events.on_exit = [this, name, end = producer,
                    on_exit = std::move(on_exit)](const DeathReport& report) {
    {
      const std::lock_guard lock(mutex_);
      ranks_.erase(name);
    }
    // A launch that failed, or was cancelled before, has no exit to tell.
    const bool ran = report.pid != 0;
    if (!ran) return void(end.fail(report.to_error()));
    if (on_exit) on_exit(report.to_error());
  };
  auto key = processes_->start(launch, place, std::move(events));
  if (!key) {
    const std::lock_guard lock(mutex_);
    ranks_.erase(name);
    return pending<void>::of(fail(std::move(key).error()));
  }
  bool stop_now = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = ranks_.find(name);
    if (found != ranks_.end() && found->second.launch == number) {
      found->second.key = *key;
      stop_now = found->second.stop_asked;
    }
  }
  if (stop_now) processes_->stop(*key, options_.stop_grace, "its launcher was told to", true);
  return std::move(started);
}

void ProcessLauncher::stop(const std::string& group, RankId rank) {
  RankProcesses::Key key = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = ranks_.find(Name(group, rank));
    if (found == ranks_.end()) return;
    found->second.stop_asked = true;
    key = found->second.key;
  }
  if (key != 0) processes_->stop(key, options_.stop_grace, "its launcher was told to", true);
}

int ProcessLauncher::pid_of(const std::string& group, RankId rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = ranks_.find(Name(group, rank));
  return found == ranks_.end() ? 0 : found->second.pid;
}

}  // namespace troupe::runtime
