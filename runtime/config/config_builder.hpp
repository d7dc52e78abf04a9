#pragma once

// Fills a Config from YAML and overrides; used by config_builder.cpp's factories only.
//
// Mistakes are collected, so that one run shows them all.
// **Threads:** one.
// **Invariants:** bounded work whatever the input: depth, node count, size and number of reported
// mistakes have limits (cyclic anchors and alias bombs end in an error).

#include "runtime/config/config.hpp"

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

class ConfigBuilder {
 public:
  explicit ConfigBuilder(const Schema& schema) : schema_(schema) {}

  void add_yaml(std::string_view text, const std::string& source);
  void add_override(const std::string& text);
  result<Config> finish();

 private:
  struct Walk;  // a YAML node and where it stands; defined with yaml-cpp in the .cpp

  void note(const std::string& place, std::string text);
  void walk(const Walk& at);
  void walk_map(const Walk& at);
  void read_leaf(const KeySpec& spec, const Walk& at);
  void read_open_leaf(const Walk& at);
  void note_unknown(const Walk& at);
  void store(const std::string& path, Value value, const std::string& place, bool from_override);
  void fill_defaults();
  void follow_fallbacks();
  bool open_path_is_free(const std::string& path, const std::string& place);

  const Schema& schema_;
  Config config_;
  std::set<std::string> seen_in_file_;
  std::vector<std::string> mistakes_;
  int mistakes_unshown_ = 0;
  int nodes_visited_ = 0;
  bool overflowed_ = false;
  std::int64_t open_order_ = 0;
};

}  // namespace troupe::runtime
