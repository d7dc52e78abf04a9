#pragma once

// A shared library that may or may not be on this machine.
//
// Ownership: the handle is kept for the life of the process: libraries with threads of their own
// do not survive being unloaded.
// **Threads:** any.

#include "runtime/base/result.hpp"

#include <span>
#include <string>
#include <vector>

namespace troupe::reshard::nccl {

class SharedLibrary {
 public:
  /// Tries the names in order. kNotFound, with what the loader said of each, when there is none.
  static result<SharedLibrary> open(std::string_view what, std::span<const std::string> names);

  /// kUnsupported names the library and the symbol that it lacks.
  result<void*> symbol(const char* name) const;
  template <class Function>
  result<void> bind(Function*& function, const char* name) const {
    TROUPE_TRY(void* address, symbol(name));
    function = reinterpret_cast<Function*>(address);
    return {};
  }
  const std::string& name() const { return name_; }

 private:
  SharedLibrary(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  void* handle_;
  std::string name_;
};

}  // namespace troupe::reshard::nccl
