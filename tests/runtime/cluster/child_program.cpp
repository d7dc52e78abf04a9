// What the tests of the process table, the launchers and the agent start: a program that ends,
// prints, eats or hangs as it is told. Usage: cluster_child VERB [ARGUMENT]… ; verbs run in turn.

#include "runtime/cluster/process.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

void say(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(1, text.data() + at, text.size() - at);
    if (written <= 0) return;
    at += static_cast<std::size_t>(written);
  }
}

void sleep_for_ever() {
  for (;;) ::pause();
}

void say_files() {
  std::string text = "files";
  DIR* folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] != '.' && std::stoi(entry->d_name) != ::dirfd(folder))
      text += std::string(" ") + entry->d_name;
  }
  ::closedir(folder);
  say(text + "\n");
}

void say_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof set, &set);
  std::string text = "cores";
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) text += " " + std::to_string(core);
  }
  say(text + "\n");
}

void say_signals() {
  sigset_t set;
  ::sigprocmask(SIG_SETMASK, nullptr, &set);
  std::string text = "blocked";
  std::string ignored = " ignored";
  for (int signal = 1; signal < NSIG; ++signal) {
    if (::sigismember(&set, signal) == 1) text += " " + std::to_string(signal);
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN)
      ignored += " " + std::to_string(signal);
  }
  say(text + ignored + "\n");
}

void say_secret(const char* variable) {
  const char* path = std::getenv(variable);
  if (path == nullptr) return say("no secret\n");
  const int file = ::open(path, O_RDONLY);
  std::string text(4096, '\0');
  const ssize_t got = ::read(file, text.data(), text.size());
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  say("secret " + text + "\n");
}

void eat(std::size_t mebibytes) {
  std::vector<std::unique_ptr<char[]>> kept;
  for (std::size_t i = 0; i < mebibytes; ++i) {
    kept.push_back(std::make_unique<char[]>(1 << 20));
    std::memset(kept.back().get(), 1, 1 << 20);
  }
}

/// Prints about as fast as a pipe takes it.
void flood(double seconds, const std::string& line) {
  std::string block;
  for (int i = 0; block.size() < (64 << 10); ++i) block += line + " " + std::to_string(i) + "\n";
  const auto end =
      std::chrono::steady_clock::now() +
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  std::size_t written = 0;
  while (std::chrono::steady_clock::now() < end) {
    say(block);
    written += block.size();
  }
  say("flooded " + std::to_string(written) + "\n");
}

/// A process table of its own with one child that sleeps, as an agent has.
void be_a_parent(const char* self) {
  auto table = troupe::runtime::ProcessTable::open();
  troupe::runtime::ProcessSpec spec;
  spec.name = "grandchild";
  spec.command = {self, "sleep"};
  troupe::runtime::ProcessEvents events;
  events.on_started = [](int pid) { say("grandchild " + std::to_string(pid) + "\n"); };
  const auto key = (*table)->spawn(std::move(spec), std::move(events));
  if (key) sleep_for_ever();
}

void fork_sleeper(bool leave_group) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (leave_group) ::setsid();
    ::alarm(20);  // whatever a test does wrong, it does not stay
    sleep_for_ever();
  }
  say("sleeper " + std::to_string(pid) + "\n");
}

int run(const std::vector<std::string>& words, const char* self) {
  for (std::size_t at = 1; at < words.size(); ++at) {
    const std::string& verb = words[at];
    const auto next = [&]() -> std::string { return at + 1 < words.size() ? words[++at] : ""; };
    if (verb == "exit") return std::stoi(next());
    if (verb == "raise") ::raise(std::stoi(next()));
    if (verb == "sleep") sleep_for_ever();
    if (verb == "wait") std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(next())));
    if (verb == "say") say(next() + "\n");
    if (verb == "partial") say(next());
    if (verb == "error") {
      const std::string text = next() + "\n";
      if (::write(2, text.data(), text.size()) < 0) return 1;
    }
    if (verb == "binary") say(std::string("\x00\xff\xfe\x1b[31m caf\xc3\xa9\n", 15));
    if (verb == "flood") {
      const double seconds = std::stod(next());
      flood(seconds, next());
    }
    if (verb == "eat") eat(static_cast<std::size_t>(std::stoi(next())));
    if (verb == "files") say_files();
    if (verb == "cores") say_cores();
    if (verb == "signals") say_signals();
    if (verb == "secret") say_secret(next().c_str());
    if (verb == "variable") {
      const std::string name = next();
      const char* value = std::getenv(name.c_str());
      say(name + "=" + (value != nullptr ? value : "(none)") + "\n");
    }
    if (verb == "input") say("input " + std::to_string(::getchar()) + "\n");
    if (verb == "folder") {
      std::string folder(4096, '\0');
      say(std::string("folder ") + ::getcwd(folder.data(), folder.size()) + "\n");
    }
    if (verb == "ignore") ::signal(std::stoi(next()), SIG_IGN);
    if (verb == "fork") fork_sleeper(false);
    if (verb == "escape") fork_sleeper(true);
    if (verb == "parent") be_a_parent(self);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const struct rlimit no_core { 0, 0 };
  ::setrlimit(RLIMIT_CORE, &no_core);
  return run(std::vector<std::string>(argv, argv + argc), argv[0]);
}
