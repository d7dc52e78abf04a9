#pragma once

// Starts `cluster_child` through a ProcessTable and waits for what becomes of it.
//
// **Threads:** one test thread; callbacks come from the table's.

#include "runtime/cluster/process.hpp"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace troupe::runtime::testing {

/// Sanitizers reserve terabytes and keep freed memory for a while.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

inline std::vector<std::string> child(std::vector<std::string> words) {
  words.insert(words.begin(), TROUPE_CLUSTER_CHILD);
  return words;
}

/// May go before its process does.
class ProcessWatch {
 public:
  ProcessEvents events() {
    ProcessEvents events;
    events.on_started = [seen = seen_](int pid) {
      const std::lock_guard lock(seen->mutex);
      seen->pid = pid;
      seen->changed.notify_all();
    };
    events.on_output = [seen = seen_](OutputStream stream, std::string_view bytes) {
      const std::lock_guard lock(seen->mutex);
      (stream == OutputStream::kOut ? seen->output : seen->errors) += bytes;
      seen->changed.notify_all();
    };
    events.on_exit = [seen = seen_](const ProcessExit& exit) {
      const std::lock_guard lock(seen->mutex);
      seen->exit = exit;
      ++seen->exits;
      seen->changed.notify_all();
    };
    return events;
  }

  int pid() {
    wait_for([](const Seen& seen) { return seen.pid != 0 || seen.exit.has_value(); });
    const std::lock_guard lock(seen_->mutex);
    return seen_->pid;
  }
  ProcessExit exit(Duration span = std::chrono::seconds(10)) {
    EXPECT_TRUE(wait_for([](const Seen& seen) { return seen.exit.has_value(); }, span))
        << "no exit in time";
    const std::lock_guard lock(seen_->mutex);
    return seen_->exit.value_or(ProcessExit());
  }
  std::string wait_output(const std::string& wanted) {
    EXPECT_TRUE(wait_for([&](const Seen& seen) {
      return seen.output.find(wanted) != std::string::npos;
    })) << "no '"
        << wanted << "' in: " << output();
    return output();
  }
  /// The number after `word` in the output.
  int number_after(const std::string& word) {
    wait_for([&](const Seen& seen) {
      const auto at = seen.output.find(word + " ");
      return at != std::string::npos && seen.output.find('\n', at) != std::string::npos;
    });
    const std::string said = wait_output(word + " ");
    return std::stoi(said.substr(said.find(word + " ") + word.size() + 1));
  }
  std::string output() {
    const std::lock_guard lock(seen_->mutex);
    return seen_->output;
  }
  std::string errors() {
    const std::lock_guard lock(seen_->mutex);
    return seen_->errors;
  }
  int exits() {
    const std::lock_guard lock(seen_->mutex);
    return seen_->exits;
  }

 private:
  struct Seen {
    std::mutex mutex;
    std::condition_variable changed;
    int pid = 0;
    int exits = 0;
    std::string output;
    std::string errors;
    std::optional<ProcessExit> exit;
  };
  template <class Predicate>
  bool wait_for(Predicate over, Duration span = std::chrono::seconds(10)) {
    std::unique_lock lock(seen_->mutex);
    return seen_->changed.wait_for(lock, span, [&] { return over(*seen_); });
  }
  std::shared_ptr<Seen> seen_ = std::make_shared<Seen>();
};

inline std::size_t entries_of(const char* folder) {
  std::size_t count = 0;
  DIR* open = ::opendir(folder);
  while (::readdir(open) != nullptr) ++count;
  ::closedir(open);
  return count;
}
inline std::size_t open_files() { return entries_of("/proc/self/fd"); }
inline std::size_t threads() { return entries_of("/proc/self/task"); }

/// Exists and is not a zombie.
inline bool alive(int pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  std::FILE* file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return false;
  std::string text(512, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  const auto name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() && text[name_end + 2] != 'Z' &&
         text[name_end + 2] != 'X';
}

/// Looks every 5 ms.
inline bool becomes_true(const std::function<bool()>& condition,
                         Duration span = std::chrono::seconds(5)) {
  const auto end = std::chrono::steady_clock::now() + span;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

/// Children of this process, zombies included.
inline std::vector<int> own_children() {
  std::vector<int> pids;
  const std::string path = "/proc/self/task/" + std::to_string(::getpid()) + "/children";
  DIR* tasks = ::opendir("/proc/self/task");
  while (const dirent* entry = ::readdir(tasks)) {
    if (entry->d_name[0] == '.') continue;
    const std::string file = std::string("/proc/self/task/") + entry->d_name + "/children";
    if (std::FILE* open = std::fopen(file.c_str(), "r")) {
      for (int pid = 0; std::fscanf(open, "%d", &pid) == 1;) pids.push_back(pid);
      std::fclose(open);
    }
  }
  ::closedir(tasks);
  return pids;
}

}  // namespace troupe::runtime::testing
