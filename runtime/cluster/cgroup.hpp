#pragma once

// Control groups, v1 and v2: the limits that this process lives under, kills by the kernel for lack
// of memory, and (v2, on request) a group of its own for a child process.
//
// **Threads:** `Cgroups` is a plain value; its readers touch files only. `ChildCgroup` has one
// owner.
// **Invariants:** limits of all ancestors count; unreadable files mean "no limit known".

#include "runtime/base/result.hpp"
#include "runtime/base/units.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

/// One controller's folder of this process, and where its hierarchy is mounted.
struct CgroupFolder {
  std::string mount;   ///< `/sys/fs/cgroup`
  std::string folder;  ///< `/sys/fs/cgroup/system.slice/troupe.service`
  bool v2 = false;
  bool operator==(const CgroupFolder&) const = default;
};

/// `self/cgroup` and `self/mountinfo` below `proc_folder`, put together.
class Cgroups {
 public:
  static Cgroups of_this_process(const std::string& proc_folder = "/proc");

  std::optional<Bytes> memory_max() const;
  /// CPU time per time, from quota and period.
  std::optional<double> cpus_max() const;
  std::optional<std::vector<int>> cpuset() const;
  /// How often the kernel has killed for memory in this process's group.
  std::optional<std::int64_t> oom_kills() const;
  /// `memory`, `cpu` or `cpuset`; the unified hierarchy serves all that v1 does not.
  std::optional<CgroupFolder> folder_of(const std::string& controller) const;

 private:
  std::vector<std::pair<std::string, CgroupFolder>> folders_;  ///< by controller; "" is v2
};

/// A v2 group for one child: its memory limit, its kills, and a way to kill all that is in it.
class ChildCgroup {
 public:
  /// Makes `parent/name`. kIo names the file that refused.
  static result<std::unique_ptr<ChildCgroup>> create(const std::string& parent,
                                                     const std::string& name,
                                                     std::optional<Bytes> memory_max);
  /// Removes the folder; logs when it cannot.
  ~ChildCgroup();
  ChildCgroup(const ChildCgroup&) = delete;
  ChildCgroup& operator=(const ChildCgroup&) = delete;

  /// Writing `0` to this file moves the writer in.
  std::string procs_file() const { return folder_ + "/cgroup.procs"; }
  std::int64_t oom_kills() const;
  /// Kills whatever is still in it, also what left its process group.
  void kill_all() const;

 private:
  explicit ChildCgroup(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_;
};

/// `key value` lines, as in memory.events and memory.oom_control; empty when the key is not there.
std::optional<std::int64_t> keyed_number(const std::string& text, const std::string& key);

}  // namespace troupe::runtime
