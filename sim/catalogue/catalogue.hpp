#pragma once

// Models and hardware by name: data files with their sources, built in and users' own.
//
// **Threads:** immutable once read.
// **Invariants:** every entry was checked when it was read; names are those of the files.

#include "runtime/base/result.hpp"
#include "sim/cost/device_spec.hpp"
#include "sim/cost/model_spec.hpp"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::sim {

class Catalogue {
 public:
  /// The files of this folder.
  static const Catalogue& built_in();
  /// Adds entries of `yaml` (sections `models`, `devices`); those of the same name are replaced.
  /// kConfig naming `source`, entry and field.
  result<void> add(std::string_view yaml, const std::string& source);

  /// kNotFound with the nearest name.
  result<ModelSpec> model(const std::string& name) const;
  result<DeviceSpec> device(const std::string& name) const;
  std::vector<std::string> models() const;
  std::vector<std::string> devices() const;

 private:
  std::map<std::string, ModelSpec> models_;
  std::map<std::string, DeviceSpec> devices_;
};

}  // namespace troupe::sim
