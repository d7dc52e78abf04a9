#pragma once

// CAF's I/O module: brokers and their middleman, beside runtime/caf.hpp. Only the socket driver of
// runtime/link includes it.
//
// For sources only. What is used is the same in 0.17.6 and 1.x: `spawn_broker`, scribes and
// doormen over given sockets, `configure_read`, `wr_buf`, `flush`, and the messages of brokers;
// BASP is not used.
// **Threads:** broker handlers run on the middleman's multiplexer thread and must not block.

#include "runtime/caf.hpp"

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wdeprecated-copy"
#endif
#include <caf/io/all.hpp>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

namespace troupe::runtime {

/// Loads the middleman into a configuration whose system is not made yet.
inline void load_middleman(caf::actor_system_config& config) {
#if TROUPE_CAF_1
  static const bool once = [] {
    caf::io::middleman::init_global_meta_objects();
    caf::core::init_global_meta_objects();
    return true;
  }();
  (void)once;
  config.load<caf::io::middleman>();
  config.set("caf.middleman.workers", std::size_t{0});
  config.set("caf.middleman.heartbeat-interval", caf::timespan{0});
  config.set("caf.middleman.connection-timeout", caf::timespan{0});
#else
  config.load<caf::io::middleman>();
  config.set("middleman.workers", std::size_t{0});
#endif
}

}  // namespace troupe::runtime
