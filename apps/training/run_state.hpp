#pragma once

// What a training run must remember besides the engines: counters, data cursor, KL coefficient.
//
// **Threads:** value types.
// **Invariants:** `from_json(to_json())` is the same state; together with the engines' states it
// makes a resumed run end with the bits of one that was never stopped.

#include "actors/algorithm/kl.hpp"
#include "actors/data/prompt_loader.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::apps {

struct RunState {
  std::string command;         ///< `train` or `sft`: whose state this is
  std::int64_t data_rows = 0;  ///< rows that the cursor walks over
  std::int64_t step = 0;       ///< steps done
  actors::DataCursor cursor;
  double kl_coefficient = 0;
  WeightVersion weight_version{0};
  std::int64_t actor_updates = 0;
  std::int64_t critic_updates = 0;
  bool operator==(const RunState&) const = default;

  std::string to_json() const;
  /// kCorrupt names the field.
  static result<RunState> from_json(std::string_view text);
};

}  // namespace troupe::apps
