#include "runtime/wire/wire_signature.hpp"

#include <fmt/format.h>

namespace troupe::runtime {

Error wire_error_at(Error error, std::string_view place, char separator) {
  std::string message;
  if (separator != '\0') message += separator;
  message += place;
  // What was raised elsewhere does not start with a path.
  const char next = error.message.empty() ? '\0' : error.message.front();
  if (next != '.' && next != '[' && next != ':') message += ": ";
  error.message.insert(0, message);
  return error;
}

Error wire_error_in(Error error, std::size_t i) {
  return wire_error_at(std::move(error), fmt::format("[{}]", i));
}

}  // namespace troupe::runtime
