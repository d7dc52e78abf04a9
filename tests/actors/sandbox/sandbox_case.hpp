#pragma once

// Shared by the sandbox tests: commands in shell and Python that do as their input says.
// **Threads:** one test, one thread.

#include "actors/sandbox/sandbox_pool.hpp"
#include "tests/support/test_files.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace troupe::actors {

/// Limits that let misbehaviour show within a second.
inline SandboxOptions tight_options(std::vector<std::string> command) {
  SandboxOptions options;
  options.name = "test sandbox";
  options.command = std::move(command);
  options.limits.sample_wall = std::chrono::milliseconds(1500);
  options.limits.sample_cpu = std::chrono::milliseconds(250);
  options.limits.start = std::chrono::seconds(20);
  options.limits.memory = mebibytes(256);
  options.limits.scratch = mebibytes(4);
  options.limits.answer = kibibytes(4);
  options.limits.processes = 16;
  options.workers = 1;
  options.samples_ahead = 4;
  return options;
}

/// Evaluates each line as Python and prints what it gives.
inline constexpr const char* kEvaluator = R"(
import sys, os, time, subprocess, threading, socket, signal
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
)";

inline SandboxOptions python_options(const char* program = kEvaluator) {
  return tight_options({"/usr/bin/python3", "-c", program});
}

inline std::unique_ptr<SandboxPool> open_pool(SandboxOptions options) {
  auto pool = SandboxPool::open(std::move(options));
  if (!pool) {
    ADD_FAILURE() << pool.error().to_string();
    return nullptr;
  }
  return std::move(*pool);
}

inline std::vector<SandboxAnswer> run_lines(SandboxPool& pool, std::vector<std::string> lines) {
  auto answers = pool.run(lines, Deadline::in(std::chrono::seconds(60)));
  if (!answers) {
    ADD_FAILURE() << answers.error().to_string();
    return std::vector<SandboxAnswer>(lines.size());
  }
  return std::move(*answers);
}

}  // namespace troupe::actors
