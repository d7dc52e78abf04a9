#pragma once

// Services and small helpers for the tests of links.
//
// **Threads:** `EchoService` counts with atomics; it is used from the I/O thread and read by tests.

#include "runtime/link/channel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace troupe::runtime::link_test {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline std::vector<std::byte> bytes_of(std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}
inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Looks until `over` or five seconds have passed.
inline bool soon(const std::function<bool()>& over, Duration within = seconds(5)) {
  const Deadline deadline = Deadline::in(within);
  while (!deadline.passed()) {
    if (over()) return true;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return over();
}

/// Methods: echo, fail, throw, drop, hold (kept until released), late (answered by another thread).
class EchoService : public ChannelService {
 public:
  void on_request(Channel&, std::string_view method, std::span<const std::byte> payload, Deadline,
                  Responder responder) override {
    ++requests;
    if (method == "echo") {
      responder.reply(std::vector<std::byte>(payload.begin(), payload.end()));
    } else if (method == "fail") {
      responder.reply(fail(ErrorCode::kNotFound, "no such thing: {}", text_of(payload)));
    } else if (method == "throw") {
      throw std::runtime_error("the handler broke");
    } else if (method == "hold") {
      const std::lock_guard lock(mutex_);
      held_.push_back(std::move(responder));
    } else if (method == "big") {
      responder.reply(std::vector<std::byte>(std::size_t{2} << 20));
    }  // drop: the responder ends here
  }
  /// Notices wait, and with them the I/O thread, until the gate is open.
  void gate() { shut = true; }
  void open_gate() { shut = false; }
  void on_notify(Channel&, std::string_view, std::span<const std::byte> payload) override {
    while (shut) std::this_thread::sleep_for(milliseconds(1));
    {
      const std::lock_guard lock(mutex_);
      notices_.push_back(text_of(payload));
    }
    ++notices;
  }
  void on_down(Channel&, const Error& cause) override {
    {
      const std::lock_guard lock(mutex_);
      cause_ = cause;
    }
    ++downs;
  }

  std::vector<std::string> seen() const {
    const std::lock_guard lock(mutex_);
    return notices_;
  }
  std::size_t held() const {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }
  void release(const std::string& text) {
    std::vector<Responder> held;
    {
      const std::lock_guard lock(mutex_);
      held.swap(held_);
    }
    for (Responder& one : held) one.reply(bytes_of(text));
  }
  Error cause() const {
    const std::lock_guard lock(mutex_);
    return cause_;
  }

  std::atomic<bool> shut{false};
  std::atomic<int> requests{0};
  std::atomic<int> notices{0};
  std::atomic<int> downs{0};

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::string> notices_;
  std::vector<Responder> held_;
  Error cause_;
};

/// A folder of the test's own.
struct Folder {
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "link_test_XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path = name;
    EXPECT_FALSE(path.empty());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path;
};

inline Error an_error(std::string message) {
  return Error{
      .code = ErrorCode::kAborted, .message = std::move(message), .origin = {}, .causes = {}};
}

}  // namespace troupe::runtime::link_test
