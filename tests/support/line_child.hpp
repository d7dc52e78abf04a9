#pragma once

// A child process of a test that is told what to do line by line, and answers so.
//
// **Threads:** one.
// **Invariants:** the destructor kills and reaps; every read has a deadline.

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

extern char** environ;

namespace troupe::test {

/// Lower-case hexadecimal; `-` stands for no bytes, so that a word is never empty.
inline std::string to_hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = bytes.empty() ? "-" : "";
  for (const std::byte byte : bytes) {
    text += kDigits[static_cast<std::size_t>(byte) >> 4];
    text += kDigits[static_cast<std::size_t>(byte) & 15];
  }
  return text;
}

inline std::vector<std::byte> from_hex(std::string_view text) {
  std::vector<std::byte> bytes;
  if (text == "-") return bytes;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(digit(text[i]) * 16 + digit(text[i + 1])));
  return bytes;
}

class LineChild {
 public:
  explicit LineChild(const std::vector<std::string>& command) {
    std::array<int, 2> to{};
    std::array<int, 2> from{};
    if (::pipe2(to.data(), O_CLOEXEC) != 0 || ::pipe2(from.data(), O_CLOEXEC) != 0)
      throw std::runtime_error("pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], 0);
    posix_spawn_file_actions_adddup2(&actions, from[1], 1);
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    const int failed = ::posix_spawn(&pid_, words[0], &actions, nullptr, words.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(to[0]);
    ::close(from[1]);
    in_ = to[1];
    out_ = from[0];
    if (failed != 0) throw std::runtime_error("cannot start " + command[0]);
  }
  ~LineChild() {
    ::close(in_);
    ::close(out_);
    signal(SIGCONT);
    signal(SIGKILL);
    reap();
  }
  LineChild(const LineChild&) = delete;
  LineChild& operator=(const LineChild&) = delete;

  void say(const std::string& line) {
    std::string_view left = pending_ = line + "\n";
    while (!left.empty()) {
      const ssize_t wrote = ::write(in_, left.data(), left.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) throw std::runtime_error("the child does not listen");
      left.remove_prefix(static_cast<std::size_t>(wrote));
    }
  }
  /// The next line of its output; throws when none comes in time.
  std::string hear(std::chrono::milliseconds within = std::chrono::seconds(30)) {
    const auto until = std::chrono::steady_clock::now() + within;
    for (;;) {
      if (const auto end = heard_.find('\n'); end != std::string::npos) {
        std::string line = heard_.substr(0, end);
        heard_.erase(0, end + 1);
        return line;
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          until - std::chrono::steady_clock::now());
      pollfd descriptor{.fd = out_, .events = POLLIN, .revents = 0};
      if (left.count() <= 0 || ::poll(&descriptor, 1, static_cast<int>(left.count())) <= 0)
        throw std::runtime_error("the child says nothing; it said: " + heard_);
      std::array<char, 65536> buffer;
      const ssize_t got = ::read(out_, buffer.data(), buffer.size());
      if (got <= 0) throw std::runtime_error("the child has ended");
      heard_.append(buffer.data(), static_cast<std::size_t>(got));
    }
  }
  std::string ask(const std::string& line) {
    say(line);
    return hear();
  }
  void signal(int number) {
    if (pid_ > 0) ::kill(pid_, number);
  }
  /// SIGSTOP, and returns when it has stopped: a signal takes its time.
  void stop() {
    signal(SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void reap() {
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  std::string pending_;
  std::string heard_;
};

/// Resident memory of this process, in MiB.
inline double resident_mib() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  long total = 0;
  long resident = 0;
  const int read = file != nullptr ? std::fscanf(file, "%ld %ld", &total, &resident) : 0;
  if (file != nullptr) std::fclose(file);
  return read == 2 ? static_cast<double>(resident) * static_cast<double>(::getpagesize()) / 1048576
                   : 0;
}

}  // namespace troupe::test
