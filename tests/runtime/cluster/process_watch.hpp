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
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace troupe::runtime::testing {

inline std::vector<std::string> child(std::vector<std::string> words) {
  words.insert(words.begin(), TROUPE_CLUSTER_CHILD);
  return words;
}

class ProcessWatch {
 public:
  ProcessEvents events() {
    ProcessEvents events;
    events.on_started = [this](int pid) {
      const std::lock_guard lock(mutex_);
      pid_ = pid;
      changed_.notify_all();
    };
    events.on_output = [this](OutputStream stream, std::string_view bytes) {
      const std::lock_guard lock(mutex_);
      (stream == OutputStream::kOut ? output_ : errors_) += bytes;
      changed_.notify_all();
    };
    events.on_exit = [this](const ProcessExit& exit) {
      const std::lock_guard lock(mutex_);
      exit_ = exit;
      ++exits_;
      changed_.notify_all();
    };
    return events;
  }

  template <class Predicate>
  bool wait_for(Predicate over, Duration span = std::chrono::seconds(10)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, span, over);
  }
  int pid() {
    wait_for([this] { return pid_ != 0 || exit_.has_value(); });
    return pid_;
  }
  ProcessExit exit(Duration span = std::chrono::seconds(10)) {
    EXPECT_TRUE(wait_for([this] { return exit_.has_value(); }, span)) << "no exit in time";
    return exit_.value_or(ProcessExit());
  }
  std::string wait_output(const std::string& wanted) {
    EXPECT_TRUE(wait_for([&] { return output_.find(wanted) != std::string::npos; }))
        << "no '" << wanted << "' in: " << output_;
    return output_;
  }
  /// The number after `word` in the output.
  int number_after(const std::string& word) {
    wait_output(word + " ");
    wait_for([&] { return output_.find('\n', output_.find(word)) != std::string::npos; });
    return std::stoi(output_.substr(output_.find(word) + word.size() + 1));
  }
  std::string output() {
    const std::lock_guard lock(mutex_);
    return output_;
  }
  std::string errors() {
    const std::lock_guard lock(mutex_);
    return errors_;
  }
  int exits() {
    const std::lock_guard lock(mutex_);
    return exits_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int pid_ = 0;
  int exits_ = 0;
  std::string output_;
  std::string errors_;
  std::optional<ProcessExit> exit_;
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
