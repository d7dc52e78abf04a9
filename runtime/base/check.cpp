#include "runtime/base/check.hpp"

#include <string_view>

namespace troupe {

void throw_check_failure(const char* file, int line, const char* condition,
                         const std::string& message) {
  std::string_view path(file);
  const auto slash = path.find_last_of('/');
  if (slash != std::string_view::npos) path.remove_prefix(slash + 1);
  throw CheckFailure(fmt::format("{}:{}: check failed: {}: {}", path, line, condition, message));
}

}  // namespace troupe
