#pragma once

// Shared by the environment tests: a tokenizer of few characters, prompt rows, and turns.
// **Threads:** one test, one thread.

#include "actors/data/prompt_loader.hpp"
#include "actors/environment/environment_server.hpp"
#include "actors/text/byte_level_tokenizer.hpp"
#include "tests/support/test_files.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

inline Tokenizer few_characters() {
  testing::TemporaryFolder folder;
  ByteLevelOptions options;
  options.alphabet = "0123456789<>?-: guest";
  EXPECT_TRUE(write_byte_level_tokenizer(folder.path(), options).has_value());
  return std::move(Tokenizer::load(folder.path()).value());
}

inline runtime::Batch prompt_row(const Tokenizer& tokenizer, const std::string& prompt,
                                 const std::string& source, const std::string& truth,
                                 std::int64_t prompt_id = 5) {
  using runtime::Column;
  runtime::Batch row;
  const auto put = [&row](std::string_view name, Column column) {
    EXPECT_TRUE(row.set(std::string(name), std::move(column)).has_value());
  };
  put(column::kPromptIds, Column::dense(std::vector<std::int64_t>{prompt_id}));
  put(column::kPrompts,
      Column::jagged(std::vector<std::vector<std::int32_t>>{tokenizer.encode(prompt)}));
  put(column::kDataSource, Column::strings(std::vector<std::string>{source}));
  put(column::kGroundTruth, Column::strings(std::vector<std::string>{truth}));
  put(column::kExtraInfo, Column::json(std::vector<std::string>{"{}"}));
  return row;
}

inline EnvironmentTurn turn_of(const Tokenizer& tokenizer, const std::string& response,
                               std::vector<std::byte> state = {},
                               const std::string& source = "troupe/guess",
                               const std::string& truth = "7") {
  return {.group = 3,
          .sample_index = 1,
          .response = tokenizer.encode(response),
          .state = std::move(state),
          .row = prompt_row(tokenizer, "guess 0-9:", source, truth)};
}

inline EnvironmentServer server_of(const Tokenizer& tokenizer,
                                   const EnvironmentRegistry& environments,
                                   EnvironmentOptions options = {}) {
  auto server = EnvironmentServer::create(tokenizer, environments, std::move(options));
  EXPECT_TRUE(server.has_value()) << server.error().to_string();
  return std::move(server).value();
}

}  // namespace troupe::actors
