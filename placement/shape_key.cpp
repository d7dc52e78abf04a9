#include "placement/shape_key.hpp"

#include <cstdint>
#include <string_view>

namespace troupe::placement {
namespace {

void put(std::string& key, std::int64_t value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put(std::string& key, std::string_view text) {
  put(key, static_cast<std::int64_t>(text.size()));
  key.append(text);
}

void put(std::string& key, const Bundle& bundle) {
  put(key, bundle.resources.gpu.units);
  put(key, bundle.resources.cpu.units);
  put(key, bundle.resources.memory.value);
  put(key, static_cast<std::int64_t>(bundle.resources.named.size()));
  for (const auto& [name, amount] : bundle.resources.named) {
    put(key, name);
    put(key, amount.units);
  }
  put(key, static_cast<std::int64_t>(bundle.selectors.size()));
  for (const LabelSelector& selector : bundle.selectors) {
    put(key, selector.label);
    put(key, static_cast<std::int64_t>(selector.op));
    put(key, static_cast<std::int64_t>(selector.values.size()));
    for (const std::string& value : selector.values) put(key, value);
  }
}

}  // namespace

std::string shape_key(const GroupRequest& request) {
  std::string key;
  put(key,
      static_cast<std::int64_t>(request.strategy) * 16 + static_cast<std::int64_t>(request.level));
  put(key, request.per_domain_max);
  put(key, request.per_domain_exact);
  put(key, request.reserve_per_gpu.cpu.units);
  put(key, request.reserve_per_gpu.memory.value);
  for (std::size_t i = 0; i < request.bundles.size();) {
    std::size_t end = i + 1;  // runs of equal bundles, as most groups are one run
    while (end < request.bundles.size() && request.bundles[end] == request.bundles[i]) ++end;
    put(key, static_cast<std::int64_t>(end - i));
    put(key, request.bundles[i]);
    i = end;
  }
  return key;
}

}  // namespace troupe::placement
