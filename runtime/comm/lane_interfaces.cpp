#include "runtime/comm/lane_interfaces.hpp"

#include "runtime/base/network.hpp"

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace troupe::runtime {

bool has_rdma_devices() {
  std::error_code failure;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", failure);
  return !failure && devices != std::filesystem::directory_iterator();
}

result<TransportLanes> lanes_of_environment() {
  const char* const value = std::getenv(kLanesVariable);
  const std::string_view word = value == nullptr ? "auto" : value;
  if (word == "tcp") return TransportLanes::kTcp;
  if (word == "auto" || word.empty()) return TransportLanes::kAuto;
  return fail(ErrorCode::kConfig, "{} is '{}', wanted auto or tcp", kLanesVariable, word);
}

std::string lane_interfaces(const std::string& own_address) {
  return has_rdma_devices() ? std::string() : interface_of(own_address);
}

}  // namespace troupe::runtime
