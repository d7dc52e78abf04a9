#pragma once

// Commands over the example configurations of simulated runs, as programs of their own.
//
// **Threads:** one.

#include "tests/support/test_files.hpp"
#include "tests/support/troupe_processes.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace troupe::testing {

/// The file of an example configuration.
inline std::string example(const std::string& name) {
  return std::string(TROUPE_SOURCE_DIR) + "/apps/troupe/config/simulate/" + name;
}

class SimulatedExample : public ::testing::Test {
 protected:
  /// `troupe WORDS`, for at most two minutes.
  Said run_troupe(std::vector<std::string> words) {
    words.insert(words.begin(), troupe_program());
    const std::string name = std::to_string(++runs_);
    Process process(words, {}, folder_ / (name + ".out"), folder_ / (name + ".err"));
    const int code = process.wait(std::chrono::seconds(120));
    return {.code = code, .out = process.out(), .err = process.err()};
  }

  TemporaryFolder folder_;

 private:
  int runs_ = 0;
};

}  // namespace troupe::testing
