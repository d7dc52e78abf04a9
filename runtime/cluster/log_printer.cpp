#include "runtime/cluster/log_printer.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace troupe::runtime {
namespace {

void write_to_standard_error(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace

LogPrinter::LogPrinter(std::function<void(std::string_view)> write, std::size_t bytes_max)
    : write_(write ? std::move(write) : write_to_standard_error),
      bytes_max_(bytes_max),
      thread_([this] { run(); }) {}

LogPrinter::~LogPrinter() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LogPrinter::add(std::string_view lines) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() + lines.size() > bytes_max_) {
      bytes_dropped_ += lines.size();
      return;
    }
    queue_ += lines;
  }
  changed_.notify_all();
}

void LogPrinter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || !queue_.empty() || bytes_dropped_ > 0; });
    std::string text = std::exchange(queue_, {});
    if (const std::uint64_t dropped = std::exchange(bytes_dropped_, 0); dropped > 0)
      text += fmt::format("[log] dropped {} bytes: more than can be printed\n", dropped);
    if (text.empty()) return;  // closing
    lock.unlock();
    write_(text);
    lock.lock();
  }
}

}  // namespace troupe::runtime
