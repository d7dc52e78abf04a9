#pragma once

// The topology file of a host: what discovery cannot know or gets wrong (docs/node_agent.md).
//
// **Threads:** pure functions over files.
// **Invariants:** unknown keys and wrong types are kConfig with their place; what the file does not
// say stays as it was.

#include "runtime/base/result.hpp"
#include "runtime/cluster/host_inventory.hpp"

#include <string>

namespace troupe::runtime {

/// Reads `path` and changes `host` accordingly; `host` is unchanged when it fails.
result<void> apply_topology_file(const std::string& path, HostInventory& host);

/// The same for the text of a file; `path` is for messages.
result<void> apply_topology_text(const std::string& path, const std::string& text,
                                 HostInventory& host);

}  // namespace troupe::runtime
