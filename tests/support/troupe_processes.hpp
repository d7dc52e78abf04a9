#pragma once

// The `troupe` program as child processes: heads, nodes and commands of a cluster on this machine.
//
// **Ownership:** a `Process` kills its child; a `TestCluster` owns its processes and a folder.
// **Threads:** one object, one thread.

#include "tests/support/test_files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace troupe::testing {

inline std::string troupe_program() { return std::string(TROUPE_BINARY_DIR) + "/apps/troupe"; }

/// Looks at `holds` every 10 ms for at most `limit`.
inline bool eventually(std::chrono::milliseconds limit, const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < end) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return holds();
}

class Process {
 public:
  using Environment = std::map<std::string, std::string>;

  Process(const std::vector<std::string>& words, const Environment& environment,
          std::filesystem::path out, std::filesystem::path err)
      : out_(std::move(out)), err_(std::move(err)) {
    std::vector<char*> pointers;
    std::vector<std::string> copies = words;
    for (std::string& word : copies) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    child_ = ::fork();
    if (child_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    redirect(out_, 1);
    redirect(err_, 2);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::execvp(pointers[0], pointers.data());
    std::_Exit(127);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (child_ <= 0) return;
    ::kill(child_, SIGCONT);
    signal(SIGKILL);
    (void)wait(std::chrono::seconds(5));
  }

  ::pid_t pid() const { return child_; }
  void signal(int number) const {
    if (child_ > 0) ::kill(child_, number);
  }
  /// Exit code, 128 + signal, or -1 when it has not ended by then.
  int wait(std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    int status = 0;
    if (child_ <= 0) return code_;
    if (!eventually(limit, [&] { return ::waitpid(child_, &status, WNOHANG) == child_; }))
      return -1;
    child_ = -1;
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return code_;
  }
  std::string out() const { return read_file(out_); }
  std::string err() const { return read_file(err_); }
  bool says(std::string_view text,
            std::chrono::milliseconds limit = std::chrono::seconds(15)) const {
    return eventually(limit, [&] {
      return std::filesystem::exists(out_) && out().find(text) != std::string::npos;
    });
  }

 private:
  static void redirect(const std::filesystem::path& file, int descriptor) {
    const int opened = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (opened < 0 || ::dup2(opened, descriptor) < 0) std::_Exit(126);
  }

  std::filesystem::path out_;
  std::filesystem::path err_;
  ::pid_t child_ = -1;
  int code_ = -1;
};

/// What a command printed, and its exit code.
struct Said {
  int code = -1;
  std::string out;
  std::string err;
  nlohmann::json json() const { return nlohmann::json::parse(out, nullptr, false); }
};

class TestCluster {
 public:
  /// `security`: options that every command gets, e.g. `--tls`.
  explicit TestCluster(std::vector<std::string> security = {}) : security_(std::move(security)) {
    environment_["TROUPE_STATE"] = (folder_ / "state").string();
    environment_["OMP_NUM_THREADS"] = "1";
    ::unsetenv("TROUPE_ADDRESS");
    ::unsetenv("TROUPE_TOKEN_FILE");
    ::unsetenv("TROUPE_TLS");
  }

  /// Starts a process of `troupe` and keeps it under `name`.
  Process& start(const std::string& name, std::vector<std::string> words) {
    words.insert(words.begin(), troupe_program());
    for (const std::string& word : security_) words.push_back(word);
    return start_program(name, words);
  }
  Process& start_program(const std::string& name, const std::vector<std::string>& words) {
    processes_[name] = nullptr;
    processes_[name] = std::make_unique<Process>(words, environment_, folder_ / (name + ".out"),
                                                 folder_ / (name + ".err"));
    return *processes_[name];
  }
  /// A head at any port, or at the one that it had before.
  Process& start_head() {
    Process& head =
        start("head", {"head", "--listen", address_.empty() ? "127.0.0.1:0" : address_});
    const auto file = std::filesystem::path(environment_["TROUPE_STATE"]) / "address";
    EXPECT_TRUE(eventually(std::chrono::seconds(10), [&] {
      return ask({"list", "nodes"}).code == 0;
    })) << head.err();
    if (address_.empty() && std::filesystem::exists(file)) {
      address_ = read_file(file);
      address_.pop_back();
    }
    return head;
  }
  Process& start_node(const std::string& name, int devices,
                      const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"node",   "--name", name, "--devices", std::to_string(devices),
                                   "--cpus", "8"};
    words.insert(words.end(), more.begin(), more.end());
    return start(name, words);
  }
  Said ask(std::vector<std::string> words) {
    words.insert(words.begin(), troupe_program());
    for (const std::string& word : security_) words.push_back(word);
    const std::string name = "ask" + std::to_string(++asked_);
    Process process(words, environment_, folder_ / (name + ".out"), folder_ / (name + ".err"));
    Said said;
    said.code = process.wait();
    said.out = process.out();
    said.err = process.err();
    return said;
  }
  /// The state that the head gives a node; empty when it does not know it.
  std::string state_of(const std::string& node) {
    for (const auto& entry :
         ask({"list", "nodes", "--json"}).json().value("nodes", nlohmann::json::array()))
      if (entry["name"] == node) return entry["state"];
    return {};
  }
  bool nodes_up(int count) {
    return ask({"status", "--nodes", std::to_string(count), "--timeout", "15", "--json"}).code != 1;
  }
  Process& operator[](const std::string& name) { return *processes_.at(name); }
  void forget(const std::string& name) { processes_.erase(name); }
  const TemporaryFolder& folder() const { return folder_; }
  const std::string& address() const { return address_; }
  void set(const std::string& variable, const std::string& value) {
    environment_[variable] = value;
  }

 private:
  TemporaryFolder folder_;
  std::vector<std::string> security_;
  Process::Environment environment_;
  std::string address_;
  int asked_ = 0;
  std::map<std::string, std::unique_ptr<Process>> processes_;
};

}  // namespace troupe::testing
