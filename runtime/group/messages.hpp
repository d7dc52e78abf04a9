#pragma once

// Messages of the actors behind a worker group. For sources only, like runtime/caf.hpp.
//
// **Threads:** values and counted pointers; they never leave the process.

#include "runtime/caf.hpp"
#include "runtime/group/call.hpp"
#include "runtime/group/group_options.hpp"

namespace troupe::runtime {

struct CallMessage {
  Ref<Call> call;
};
struct ErrorMessage {
  Error error;
};
struct StatusMessage {
  RankStatus status;
};

}  // namespace troupe::runtime

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::runtime::CallMessage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::runtime::ErrorMessage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::runtime::StatusMessage)

CAF_BEGIN_TYPE_ID_BLOCK(troupe, caf::first_custom_type_id)
TROUPE_CAF_LOCAL_TYPE(troupe, troupe::runtime::CallMessage)
TROUPE_CAF_LOCAL_TYPE(troupe, troupe::runtime::ErrorMessage)
TROUPE_CAF_LOCAL_TYPE(troupe, troupe::runtime::StatusMessage)
CAF_ADD_ATOM(troupe, troupe::runtime, submit_atom, "submit")
CAF_ADD_ATOM(troupe, troupe::runtime, status_atom, "status")
CAF_ADD_ATOM(troupe, troupe::runtime, heartbeat_atom, "heartbeat")
CAF_ADD_ATOM(troupe, troupe::runtime, abort_atom, "abort")
CAF_ADD_ATOM(troupe, troupe::runtime, kill_atom, "kill")
CAF_ADD_ATOM(troupe, troupe::runtime, watch_atom, "watch")
CAF_END_TYPE_ID_BLOCK(troupe)
