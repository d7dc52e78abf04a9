#pragma once

// NCCL as it was found on this machine, or a clear word that there is none.
//
// Absence is a normal state: `open` answers kNotFound and its caller takes another transport.
// Ownership: shared by the communicators that call it.
// **Threads:** any; which calls may overlap is the communicator's business.
// **Invariants:** every entry point is bound; the version is one whose configuration we know.

#include "reshard/nccl/nccl_abi.hpp"
#include "runtime/base/result.hpp"

#include <memory>
#include <string>
#include <vector>

namespace troupe::reshard::nccl {

class NcclLibrary {
 public:
  /// kNotFound: no such library. kUnsupported: it lacks a symbol, or its version is out of range.
  static result<std::shared_ptr<const NcclLibrary>> open(const std::vector<std::string>& names = {
                                                             "libnccl.so.2", "libnccl.so"});
  /// Around calls that are linked or made by hand.
  static result<std::shared_ptr<const NcclLibrary>> from(const Calls& calls, std::string name);

  const Calls& calls() const { return calls_; }
  int version() const { return version_; }
  const std::string& name() const { return name_; }
  /// A new id, for one membership.
  result<UniqueId> unique_id() const;
  /// `invalid usage (nccl 5): …`, with the library's last words where it has some.
  std::string text_of(Code code, Comm* comm = nullptr) const;

 private:
  NcclLibrary(const Calls& calls, std::string name, int version)
      : calls_(calls), name_(std::move(name)), version_(version) {}
  Calls calls_;
  std::string name_;
  int version_;
};

/// `2.28.9`
std::string version_text(int version);

}  // namespace troupe::reshard::nccl
