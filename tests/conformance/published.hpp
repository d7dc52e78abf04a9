#pragma once

// The published figures of `published.yaml`, as values.
//
// **Threads:** value types; reading is pure.
// **Invariants:** every field of the file is known and of its kind; models and devices are those of
// the catalogue.

#include "runtime/base/result.hpp"
#include "sim/calibration/fit.hpp"
#include "sim/cost/device_spec.hpp"
#include "sim/cost/model_spec.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace troupe::conformance {

/// Rows of one software in one version.
struct System {
  std::string name{};
  std::string title{};
  std::string source{};
  std::string fit_row{};
  std::vector<sim::Constant> constants{};
};

/// A run whose phases or steps were published. Fields as the file's heading says.
struct Row {
  std::string system{};
  std::string name{};
  sim::ModelSpec model{};
  sim::DeviceSpec device{};
  std::string mode{};
  int gpus = 0, rollout_gpus = 0, gen_tp = 1, tp = 1, pp = 1, cp = 1, ep = 1;
  int first_layers = 0, last_layers = 0;
  std::int64_t prompts = 0, group = 0, minibatch = 0, prompt = 0, mean = 0, cap = 0;
  std::int64_t micro_tokens = 0, sequences_max = 0, padded = 0, lead = 0;
  double sigma = 0, memory_share = 0;
  std::string recompute{}, sharding{};
  bool reference = false, offload = false, balanced = true, whole_tensors = false, packed = false,
       pinned = true;
  std::map<std::string, double> measured{};  ///< seconds by phase
};

struct Transition {
  std::string name{};
  sim::ModelSpec model{};
  int gpus = 0, tp = 1, pp = 1, gen_tp = 1;
  double measured = 0;
  bool read_off = false;
};

struct GenerationTp {
  std::string name{};
  sim::ModelSpec model{};
  std::vector<int> sizes{};
  int best = 0;
  double less = 0;
};

/// Training alone, with sequences of one length and experts that are chosen evenly.
struct Training {
  std::string name{};
  sim::ModelSpec model{};
  sim::DeviceSpec device{};
  int gpus = 0, pp = 1, virtual_stages = 1, ep = 1;
  std::int64_t batch = 0, micro_batch = 1, sequence = 0;
  double tokens_per_s = 0;  ///< of one device
};

struct Placement {
  sim::ModelSpec model{};
  int gpus = 0;
  std::string best{};
};

struct Tail {
  std::string name{};
  sim::ModelSpec model{};
  sim::DeviceSpec device{};
  int instances = 0, tp = 1;
  std::int64_t prompts = 0, group = 0, mean = 0, cap = 0;
  double sigma = 0, rollout = 0, tail = 0;
};

struct MemoryFact {
  std::string name{};
  sim::ModelSpec model{};
  sim::DeviceSpec device{};
  int gpus = 0, tp = 1, pp = 1, gen_tp = 1;
  std::string sharding{};
  bool offload = false, ppo = false, fits = false;
};

struct Published {
  std::vector<System> systems{};
  std::vector<Row> rows{};
  std::vector<Row> blind{};  ///< that no constant had been seen with
  std::vector<Transition> transitions{};
  std::vector<GenerationTp> generation_tp{};
  std::vector<Training> training{};
  std::vector<Placement> placements{};
  std::vector<Tail> tails{};
  std::vector<MemoryFact> memory{};
  std::vector<std::string> misses{};  ///< what misses, and why: for the page
};

/// kConfig naming the file, the entry and the field.
result<Published> read_published(const std::string& file);

}  // namespace troupe::conformance
