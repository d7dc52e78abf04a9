#pragma once

// The rollout service of a loop, whole: the class and its member templates.
//
// rollout_service_class.hpp says what it is.
// **Threads:** controller's thread.

#include "actors/loops/rollout_service_calls.hpp"
#include "actors/loops/rollout_service_class.hpp"
#include "actors/loops/rollout_service_steps.hpp"
