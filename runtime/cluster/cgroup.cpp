#include "runtime/cluster/cgroup.hpp"

#include "runtime/base/log.hpp"
#include "runtime/cluster/host_inventory.hpp"
#include "runtime/cluster/small_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <sstream>

namespace troupe::runtime {
namespace {

struct Mount {
  std::string root;
  std::string point;
  std::vector<std::string> controllers;  // of v1
  bool v2 = false;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

/// proc(5): `36 35 98:0 ROOT POINT options - TYPE source super-options`.
std::vector<Mount> cgroup_mounts(const std::string& proc_folder) {
  std::vector<Mount> mounts;
  for (const std::string& line :
       split(read_small_file(proc_folder + "/self/mountinfo").value_or(""), '\n')) {
    const auto parts = split(line, ' ');
    const auto dash = std::find(parts.begin(), parts.end(), "-");
    if (parts.size() < 6 || parts.end() - dash < 4) continue;
    const std::string& type = dash[1];
    if (type != "cgroup" && type != "cgroup2") continue;
    mounts.push_back({.root = parts[3],
                      .point = parts[4],
                      .controllers = split(dash[3], ','),
                      .v2 = type == "cgroup2"});
  }
  return mounts;
}

/// Where `path` of the hierarchy lies below the mount, which may show only a part of it.
std::string below(const Mount& mount, const std::string& path) {
  std::string rest = path;
  if (mount.root != "/" && rest.starts_with(mount.root)) rest = rest.substr(mount.root.size());
  while (!rest.empty() && rest.back() == '/') rest.pop_back();
  // Inside a container the path may be that of the host, which is not mounted here.
  const std::string folder = mount.point + rest;
  struct stat info {};
  return ::stat(folder.c_str(), &info) == 0 ? folder : mount.point;
}

/// The smallest of what `read` says for the folder and its ancestors up to the mount.
template <class T>
std::optional<T> least(const CgroupFolder& place,
                       const std::function<std::optional<T>(const std::string&)>& read) {
  std::optional<T> found;
  std::string folder = place.folder;
  while (folder.size() >= place.mount.size()) {
    if (const auto here = read(folder); here && (!found || *here < *found)) found = here;
    const auto slash = folder.rfind('/');
    if (slash == std::string::npos || slash == 0) break;
    folder.resize(slash);
  }
  return found;
}

result<void> write_file(const std::string& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return fail(ErrorCode::kIo, "{}: {}", path, std::strerror(errno));
  const ssize_t written = ::write(file, text.data(), text.size());
  const int error = errno;
  ::close(file);
  if (written != static_cast<ssize_t>(text.size()))
    return fail(ErrorCode::kIo, "{}: writing {}: {}", path, text, std::strerror(error));
  return {};
}

}  // namespace

std::optional<std::int64_t> keyed_number(const std::string& text, const std::string& key) {
  for (const std::string& line : split(text, '\n')) {
    if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == ' ')
      return parse_whole(std::string_view(line).substr(key.size() + 1));
  }
  return std::nullopt;
}

Cgroups Cgroups::of_this_process(const std::string& proc_folder) {
  Cgroups cgroups;
  const auto mounts = cgroup_mounts(proc_folder);
  for (const std::string& line :
       split(read_small_file(proc_folder + "/self/cgroup").value_or(""), '\n')) {
    // `4:memory:/path`; the unified hierarchy is `0::/path`.
    const auto first_colon = line.find(':');
    const auto second = line.find(':', first_colon == std::string::npos ? 0 : first_colon + 1);
    if (first_colon == std::string::npos || second == std::string::npos) continue;
    const std::string names = line.substr(first_colon + 1, second - first_colon - 1);
    const std::string path = line.substr(second + 1);
    for (const std::string& name :
         names.empty() ? std::vector<std::string>{""} : split(names, ',')) {
      const auto mount = std::find_if(mounts.begin(), mounts.end(), [&name](const Mount& one) {
        if (name.empty()) return one.v2;
        return !one.v2 && std::find(one.controllers.begin(), one.controllers.end(), name) !=
                              one.controllers.end();
      });
      if (mount == mounts.end()) continue;
      cgroups.folders_.emplace_back(
          name,
          CgroupFolder{.mount = mount->point, .folder = below(*mount, path), .v2 = mount->v2});
    }
  }
  return cgroups;
}

std::optional<CgroupFolder> Cgroups::folder_of(const std::string& controller) const {
  for (const std::string& wanted : {controller, std::string()}) {
    for (const auto& [name, folder] : folders_) {
      if (name == wanted) return folder;
    }
  }
  return std::nullopt;
}

std::optional<Bytes> Cgroups::memory_max() const {
  const auto place = folder_of("memory");
  if (!place) return std::nullopt;
  const std::string file = place->v2 ? "/memory.max" : "/memory.limit_in_bytes";
  const auto bytes = least<std::int64_t>(*place, [&file](const std::string& folder) {
    return read_number_file(folder + file);  // v2 says `max` for none
  });
  // v1 says "none" with a number near 2^63.
  if (!bytes || *bytes >= std::int64_t{1} << 60) return std::nullopt;
  return Bytes{*bytes};
}

std::optional<double> Cgroups::cpus_max() const {
  const auto place = folder_of("cpu");
  if (!place) return std::nullopt;
  return least<double>(*place, [&place](const std::string& folder) -> std::optional<double> {
    std::optional<std::int64_t> quota;
    std::optional<std::int64_t> period;
    if (place->v2) {
      const auto parts = split(read_small_file(folder + "/cpu.max").value_or(""), ' ');
      if (parts.size() != 2) return std::nullopt;
      quota = parse_whole(parts[0]);  // `max` for none
      period = parse_whole(parts[1]);
    } else {
      quota = read_number_file(folder + "/cpu.cfs_quota_us");  // -1 for none
      period = read_number_file(folder + "/cpu.cfs_period_us");
    }
    if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
    return static_cast<double>(*quota) / static_cast<double>(*period);
  });
}

std::optional<std::vector<int>> Cgroups::cpuset() const {
  const auto place = folder_of("cpuset");
  if (!place) return std::nullopt;
  for (const char* file : {"/cpuset.cpus.effective", "/cpuset.effective_cpus", "/cpuset.cpus"}) {
    const auto text = read_small_file(place->folder + file);
    if (!text || text->empty()) continue;
    if (auto cores = parse_cpu_list(*text)) return std::move(*cores);
  }
  return std::nullopt;
}

std::optional<std::int64_t> Cgroups::oom_kills() const {
  const auto place = folder_of("memory");
  if (!place) return std::nullopt;
  const auto text =
      read_small_file(place->folder + (place->v2 ? "/memory.events" : "/memory.oom_control"));
  return text ? keyed_number(*text, "oom_kill") : std::nullopt;
}

result<std::unique_ptr<ChildCgroup>> ChildCgroup::create(const std::string& parent,
                                                         const std::string& name,
                                                         std::optional<Bytes> memory_max) {
  const std::string folder = parent + "/" + name;
  if (::mkdir(folder.c_str(), 0755) != 0)
    return fail(ErrorCode::kIo, "cgroup {}: {}", folder, std::strerror(errno));
  std::unique_ptr<ChildCgroup> made(new ChildCgroup(folder));
  if (memory_max)
    TROUPE_TRY_VOID(write_file(folder + "/memory.max", std::to_string(memory_max->value)));
  return made;
}

ChildCgroup::~ChildCgroup() {
  if (::rmdir(folder_.c_str()) != 0)
    log::debug("cgroup {}: not removed: {}", folder_, std::strerror(errno));
}

std::int64_t ChildCgroup::oom_kills() const {
  const auto text = read_small_file(folder_ + "/memory.events");
  return text ? keyed_number(*text, "oom_kill").value_or(0) : 0;
}

void ChildCgroup::kill_all() const {
  // Absent before Linux 5.14; then only the process group is killed.
  if (const auto killed = write_file(folder_ + "/cgroup.kill", "1"); !killed)
    log::debug("{}", killed.error().to_string());
}

}  // namespace troupe::runtime
