#include "runtime/comm/collective_gloo.hpp"
