#pragma once

// One sandboxed command: its pipes, its notices, and its end.
//
// **Ownership:** owns the process tree, its pipes and its temporary folder; `end` (or destruction)
// leaves none of them behind.
// **Threads:** one at a time.
// **Invariants:** descriptors do not block; after `end` nothing of the tree runs, or an error was
// logged that names it.

#include "actors/sandbox/helper_protocol.hpp"
#include "actors/sandbox/sandbox_pool.hpp"
#include "runtime/base/file.hpp"

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

namespace troupe::actors::sandbox {

/// What the helper has said so far.
struct Notices {
  std::optional<NoticeRecord> refused{};    ///< also kNoCommand
  std::optional<std::int64_t> isolation{};  ///< bits, once it is ready
  std::optional<Limit> over_limit{};
  std::optional<int> status{};  ///< of the command
  bool closed = false;          ///< nothing more will come
};

class SandboxProcess {
 public:
  static result<std::unique_ptr<SandboxProcess>> start(const SandboxOptions& options, bool isolate);
  ~SandboxProcess();
  SandboxProcess(const SandboxProcess&) = delete;
  SandboxProcess& operator=(const SandboxProcess&) = delete;

  const Descriptor& input() const { return input_; }
  const Descriptor& output() const { return output_; }
  const Descriptor& errors() const { return errors_; }
  const Descriptor& control() const { return control_; }
  void close_input() { input_.close(); }

  /// Reads what the helper has said. Never blocks.
  const Notices& hear();
  /// Waits until the helper is ready, refuses or is gone: all come within milliseconds.
  const Notices& wait_ready(Deadline deadline);
  /// Tells the helper what the command may use from now on.
  void set_budget(Duration cpu, bool busy);

  /// Kills the whole tree, reaps it and removes its folder. What the helper said is complete then,
  /// unless it was the one that hung.
  const Notices& end();

 private:
  explicit SandboxProcess(std::string name) : name_(std::move(name)) {}
  result<void> spawn(const SandboxOptions& options, bool isolate);
  bool reaped_within(Duration span);

  std::string name_;
  std::string folder_;
  Descriptor input_;
  Descriptor output_;
  Descriptor errors_;
  Descriptor control_;
  Descriptor exited_;  // pidfd
  pid_t helper_ = -1;
  Notices notices_;
};

/// In words: what could not be set up.
Error refusal_error(const std::string& name, const NoticeRecord& record,
                    const SandboxOptions& options);

}  // namespace troupe::actors::sandbox
