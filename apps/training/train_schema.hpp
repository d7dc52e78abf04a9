#pragma once

// Everything that a configuration of `troupe train`, `sft` and `eval` can say: keys, defaults,
// checks.
//
// Key names are verl's where the meaning is the same; where a key of verl's has no meaning here it
// is refused with the reason.
// **Threads:** pure.
// **Invariants:** one schema serves all commands, so one file does too; defaults pass all rules.

#include "runtime/config/schema.hpp"

#include <string>
#include <vector>

namespace troupe::apps {

/// Names that a program registered and that the configuration may then use. Aliases of a name count
/// as names.
struct TrainSchemaOptions {
  std::vector<std::string> advantages = {};     ///< beyond the built-in ones
  std::vector<std::string> policy_losses = {};  ///< beyond the built-in ones
  std::vector<std::string> rewards = {};        ///< all of them
};

runtime::Schema train_schema(const TrainSchemaOptions& options = {});

}  // namespace troupe::apps
