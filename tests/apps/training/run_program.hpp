#pragma once

// Runs the `troupe` program as a child process, to its end or until it is killed.
// **Threads:** one object, one thread.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace troupe::testing {

class Program {
 public:
  /// Starts `troupe` with these arguments; output goes to `log`.
  Program(std::vector<std::string> arguments, const std::filesystem::path& log) {
    arguments.insert(arguments.begin(), std::string(TROUPE_BINARY_DIR) + "/apps/troupe");
    std::vector<char*> words;
    for (std::string& word : arguments) words.push_back(word.data());
    words.push_back(nullptr);
    child_ = ::fork();
    if (child_ == 0) {
      if (std::freopen(log.c_str(), "a", stdout) == nullptr) std::_Exit(126);
      ::dup2(1, 2);
      ::execv(words[0], words.data());
      std::_Exit(127);
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (child_ > 0) kill();
  }

  /// Exit code; 128 + signal when it was killed.
  int wait() {
    int status = 0;
    ::waitpid(child_, &status, 0);
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  /// Sends `signal` as soon as `reached` says so; false when it ended by itself before.
  bool signal_when(int signal, const std::function<bool()>& reached) {
    if (!wait_until(reached)) return false;
    ::kill(child_, signal);
    return true;
  }

  /// Kills it as soon as `reached` says so; false when it ended by itself before.
  bool kill_when(const std::function<bool()>& reached) {
    if (!wait_until(reached)) return false;
    kill();
    return true;
  }

 private:
  bool wait_until(const std::function<bool()>& reached) {
    while (!reached()) {
      int status = 0;
      if (::waitpid(child_, &status, WNOHANG) == child_) {
        child_ = -1;
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  void kill() {
    ::kill(child_, SIGKILL);
    wait();
  }

  ::pid_t child_ = -1;
};

}  // namespace troupe::testing
