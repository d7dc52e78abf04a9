#pragma once

// `ChildStart`: from a ProcessSpec to a running child. The part of ProcessTable that forks.
//
// Everything that allocates happens before the fork; between fork and exec the child makes system
// calls only, since other threads' locks are frozen in it. Failures of the child's own steps come
// back through a pipe that exec closes.
// Ownership: the caller owns the descriptors of a started child.
// **Threads:** call `start_child` on a thread that lives as long as the child may: the child is
// killed when that thread ends (PR_SET_PDEATHSIG).
// **Invariants:** a failed start leaves no child and no descriptor.

#include "runtime/base/result.hpp"
#include "runtime/cluster/process.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <utility>

namespace troupe::runtime {

/// A descriptor that closes itself.
class FileHandle {
 public:
  FileHandle() = default;
  explicit FileHandle(int file) : file_(file) {}
  FileHandle(FileHandle&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  FileHandle& operator=(FileHandle&& other) noexcept {
    if (this != &other) {
      reset();
      file_ = std::exchange(other.file_, -1);
    }
    return *this;
  }
  ~FileHandle() { reset(); }
  int get() const { return file_; }
  bool open() const { return file_ >= 0; }
  void reset();

 private:
  int file_ = -1;
};

struct StartedChild {
  int pid = 0;
  FileHandle pid_handle;             ///< pidfd: readable when the child is over
  FileHandle report;                 ///< closes at exec, or says why there was none
  std::array<FileHandle, 2> output;  ///< non-blocking; standard output and error
};

/// What a child writes to `report` when it cannot get as far as exec.
struct ChildFailure {
  std::int32_t step = 0;
  std::int32_t error = 0;
};

/// `cgroup_procs`: file to join, empty for none.
result<StartedChild> start_child(const ProcessSpec& spec, const std::string& cgroup_procs);

/// `exec /opt/rank: No such file or directory`
std::string child_failure_text(const ProcessSpec& spec, const ChildFailure& failure);

}  // namespace troupe::runtime
