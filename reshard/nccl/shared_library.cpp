#include "reshard/nccl/shared_library.hpp"

#include <dlfcn.h>

namespace troupe::reshard::nccl {

result<SharedLibrary> SharedLibrary::open(std::string_view what,
                                          std::span<const std::string> names) {
  std::string said;
  for (const std::string& name : names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr)
      return SharedLibrary(handle, name);
    const char* reason = dlerror();
    said += fmt::format("{}{}", said.empty() ? "" : "; ", reason == nullptr ? name : reason);
  }
  return fail(ErrorCode::kNotFound, "no {} on this machine: {}", what,
              said.empty() ? "no name to look for" : said);
}

result<void*> SharedLibrary::symbol(const char* name) const {
  if (void* address = dlsym(handle_, name); address != nullptr) return address;
  return fail(ErrorCode::kUnsupported, "{}: has no symbol {}", name_, name);
}

}  // namespace troupe::reshard::nccl
