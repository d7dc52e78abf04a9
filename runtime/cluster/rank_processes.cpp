#include "runtime/cluster/rank_processes.hpp"

#include "runtime/cluster/small_file.hpp"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace troupe::runtime {
namespace {

constexpr std::size_t kDetailsMax = 32;

std::string field_of(const std::string& status, const std::string& name) {
  const auto at = status.find(name + ":");
  if (at == std::string::npos) return {};
  const auto begin = status.find_first_not_of(" \t", at + name.size() + 1);
  if (begin == std::string::npos) return {};
  return status.substr(begin, status.find('\n', begin) - begin);
}

/// A bare name is looked for beside this program first: an agent and its ranks are of one build.
std::string beside_this_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  std::error_code failure;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", failure);
  const std::string sibling = (self.parent_path() / name).string();
  return !failure && ::access(sibling.c_str(), X_OK) == 0 ? sibling : name;
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text.substr(0, 300);
}

}  // namespace

bool is_stopped(int pid, const std::string& proc_folder) {
  const auto stat = read_small_file(fmt::format("{}/{}/stat", proc_folder, pid));
  // `pid (name) S …`, where the name may hold anything.
  const std::size_t end = stat ? stat->rfind(')') : std::string::npos;
  if (end == std::string::npos || end + 2 >= stat->size()) return false;
  const char state = (*stat)[end + 2];
  return state == 'T' || state == 't';
}

std::vector<std::string> describe_threads(int pid, std::size_t threads_max,
                                          const std::string& proc_folder) {
  std::vector<std::string> lines;
  std::error_code error;
  const std::string folder = fmt::format("{}/{}/task", proc_folder, pid);
  std::size_t threads = 0;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (threads++ >= threads_max) continue;
    const std::string thread = at->path().string();
    const std::string status = read_small_file(thread + "/status").value_or("");
    std::string line = fmt::format("thread {} {}: {}", at->path().filename().string(),
                                   field_of(status, "Name"), field_of(status, "State"));
    const std::string wchan = read_small_file(thread + "/wchan").value_or("");
    if (!wchan.empty() && wchan != "0") line += ", waits in " + wchan;
    const std::string stack = read_small_file(thread + "/stack").value_or("");
    if (!stack.empty()) line += ", kernel stack " + one_line(stack);
    lines.push_back(std::move(line));
  }
  if (threads > threads_max)
    lines.push_back(fmt::format("and {} more threads", threads - threads_max));
  return lines;
}

RankProcesses::RankProcesses(RankProcessesOptions options, LogForwarder::Sink sink)
    : options_(std::move(options)),
      logs_(std::make_unique<LogForwarder>(options_.logs, std::move(sink))) {}

RankProcesses::~RankProcesses() = default;

result<std::unique_ptr<RankProcesses>> RankProcesses::open(RankProcessesOptions options,
                                                           LogForwarder::Sink sink) {
  std::unique_ptr<RankProcesses> made(new RankProcesses(std::move(options), std::move(sink)));
  TROUPE_TRY(made->table_, ProcessTable::open(made->options_.processes));
  return made;
}

ProcessSpec RankProcesses::spec_of(const RankLaunch& launch, const RankPlace& place) const {
  ProcessSpec spec;
  spec.name = fmt::format("{} rank {}", launch.group, launch.rank.value);
  spec.command = launch.command;
  if (!spec.command.empty()) spec.command.front() = beside_this_program(spec.command.front());
  spec.environment = options_.environment;
  // Ranks are many to a host; a library's own threads would fight over its cores.
  spec.environment.emplace("OMP_NUM_THREADS", "1");
  for (const auto& [name, value] : launch.environment) spec.environment[name] = value;
  // What placement and the launcher decide is not for the launch to change.
  RankRecord record = RankRecord::of(launch);
  record.agent = options_.agent;
  record.node = options_.node;
  record.devices = place.devices;
  spec.environment[std::string(kRankRecordVariable)] = record.to_json();
  if (options_.devices_by_place || !place.visible.empty() || !place.devices.empty())
    spec.environment["CUDA_VISIBLE_DEVICES"] = fmt::format("{}", fmt::join(place.visible, ","));
  spec.environment_removed.emplace_back(kTokenFileVariable);
  spec.environment.erase(std::string(kTokenFileVariable));
  if (!options_.token.empty()) {
    spec.secret_variable = kTokenFileVariable;
    spec.secret = options_.token;
  }
  spec.cores = place.cores;
  spec.cgroup_parent = options_.cgroup_parent;
  spec.memory_max = place.memory_max;
  if (options_.limit_address_space && options_.cgroup_parent.empty())
    spec.address_space_max = place.memory_max;
  return spec;
}

result<RankProcesses::Key> RankProcesses::start(const RankLaunch& launch, const RankPlace& place,
                                                Events events) {
  auto entry = std::make_shared<Entry>();
  entry->report.job = launch.job;
  entry->report.group = launch.group;
  entry->report.rank = launch.rank;
  entry->report.node = options_.node;
  entry->log = logs_->open(launch.job, launch.group, launch.rank);

  // The table's thread may be quicker than this one: the entry is under its key before it looks.
  const std::lock_guard lock(mutex_);
  auto key_of = std::make_shared<Key>(0);
  ProcessEvents watch;
  watch.on_started = [this, entry, on_started = events.on_started](int pid) {
    {
      const std::lock_guard guard(mutex_);
      entry->report.pid = pid;
    }
    if (on_started) on_started(pid);
  };
  watch.on_output = [this, log = entry->log](OutputStream stream, std::string_view bytes) {
    logs_->feed(log, stream == OutputStream::kOut ? 0 : 1, bytes);
  };
  watch.on_exit = [this, entry, key_of,
                   on_exit = std::move(events.on_exit)](const ProcessExit& exit) {
    auto lines = logs_->close(entry->log);
    DeathReport report;
    {
      const std::lock_guard guard(mutex_);
      entries_.erase(*key_of);
      entry->report.exit = exit;
      entry->report.last_lines = std::move(lines);
      report = entry->report;
    }
    if (on_exit) on_exit(report);
  };
  auto key = table_->spawn(spec_of(launch, place), std::move(watch));
  if (!key) {
    logs_->close(entry->log);
    return fail(std::move(key).error());
  }
  *key_of = *key;
  entries_.emplace(*key, std::move(entry));
  return *key;
}

void RankProcesses::stop(Key key, Duration grace, const std::string& reason, bool asked) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end()) return;
    if (!std::exchange(found->second->stopping, true)) found->second->report.asked = asked;
  }
  table_->stop(key, grace, reason);
}

void RankProcesses::add_detail(Key key, std::string line) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second->report.details.size() >= kDetailsMax) return;
  found->second->report.details.push_back(std::move(line));
}

}  // namespace troupe::runtime
