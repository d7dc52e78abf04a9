#include "runtime/group/host_clock.hpp"

#include <fstream>

namespace troupe::runtime {

const std::string& host_boot_id() {
  static const std::string kId = [] {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string id;
    std::getline(file, id);
    return id;
  }();
  return kId;
}

}  // namespace troupe::runtime
