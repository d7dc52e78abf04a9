#include "runtime/comm/lane_interfaces.hpp"

#include "runtime/base/network.hpp"

#include <filesystem>
#include <system_error>

namespace troupe::runtime {

bool has_rdma_devices() {
  std::error_code failure;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", failure);
  return !failure && devices != std::filesystem::directory_iterator();
}

std::string lane_interfaces(const std::string& own_address) {
  return has_rdma_devices() ? std::string() : interface_of(own_address);
}

}  // namespace troupe::runtime
