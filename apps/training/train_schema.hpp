#pragma once

// Everything that `troupe train`, `sft`, `eval` and `generate` can be told: keys, defaults, checks.
//
// Key names are verl's where the meaning is the same; where a key of verl's has no meaning here it
// is refused with the reason, so that nothing in a file is silently without effect.
// **Threads:** pure.
// **Invariants:** one schema serves all commands, so one file does too; defaults pass all rules.

#include "runtime/config/schema.hpp"

#include <string>
#include <vector>

namespace troupe::apps {

/// Names that a program registered and that the configuration may then use; the built-in ones are
/// always known. Aliases of a name count as names.
struct TrainSchemaOptions {
  std::vector<std::string> advantages = {};
  std::vector<std::string> policy_losses = {};
  std::vector<std::string> rewards = {};
};

runtime::Schema train_schema(const TrainSchemaOptions& options = {});

}  // namespace troupe::apps
