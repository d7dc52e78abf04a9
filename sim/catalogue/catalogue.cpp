#include "sim/catalogue/catalogue.hpp"

#include "runtime/base/check.hpp"
#include "runtime/config/suggest.hpp"
#include "sim/catalogue/built_in_files.hpp"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <set>
#include <utility>

namespace troupe::sim {
namespace {

/// Reads the fields of one entry, once each, and complains about the rest.
class Entry {
 public:
  Entry(std::string place, YAML::Node node) : place_(std::move(place)), node_(std::move(node)) {}

  /// Throws YAML::Exception for what is no T; `fallback` where the field is absent.
  template <class T>
  T get(const char* field, T fallback) {
    known_.insert(field);
    const YAML::Node found = node_[field];
    return found ? found.as<T>() : fallback;
  }
  template <class T>
  T require(const char* field) {
    known_.insert(field);
    const YAML::Node found = node_[field];
    if (!found) throw YAML::Exception(node_.Mark(), fmt::format("no field {}", field));
    return found.as<T>();
  }
  result<void> expect_all_known() const {
    for (const auto& pair : node_) {
      const auto name = pair.first.as<std::string>();
      if (!known_.contains(name))
        return fail(ErrorCode::kConfig, "{}: unknown field {}", place_, name);
    }
    return {};
  }

 private:
  std::string place_;
  YAML::Node node_;
  std::set<std::string> known_;
};

ModelSpec read_model(const std::string& name, Entry& entry) {
  ModelSpec spec;
  spec.name = name;
  spec.source = entry.require<std::string>("source");
  reshard::ModelShape& s = spec.shape;
  s.dtype = reshard::DType::kBf16;
  s.vocab = entry.require<std::int64_t>("vocab");
  s.hidden = entry.require<std::int64_t>("hidden");
  s.intermediate = entry.require<std::int64_t>("intermediate");
  s.layers = entry.require<std::int64_t>("layers");
  s.heads = entry.require<std::int64_t>("heads");
  s.kv_heads = entry.require<std::int64_t>("kv_heads");
  s.head_dim = entry.require<std::int64_t>("head_dim");
  s.tied = entry.get("tied", false);
  s.qkv_bias = entry.get("qkv_bias", false);
  s.o_bias = entry.get("o_bias", false);
  s.mlp_bias = entry.get("mlp_bias", false);
  s.qk_norm = entry.get("qk_norm", false);
  s.expert.experts = entry.get<std::int64_t>("experts", 0);
  s.expert.intermediate = entry.get<std::int64_t>("expert_intermediate", 0);
  s.expert.shared_intermediate = entry.get<std::int64_t>("shared_intermediate", 0);
  s.expert.dense_layers = entry.get<std::int64_t>("dense_layers", 0);
  s.expert.router_bias = entry.get("router_bias", false);
  s.latent.q_rank = entry.get<std::int64_t>("q_rank", 0);
  s.latent.kv_rank = entry.get<std::int64_t>("kv_rank", 0);
  s.latent.nope_dim = entry.get<std::int64_t>("nope_dim", 0);
  s.latent.rope_dim = entry.get<std::int64_t>("rope_dim", 0);
  s.latent.v_dim = entry.get<std::int64_t>("v_dim", 0);
  spec.experts_per_token = entry.get<std::int64_t>("experts_per_token", 0);
  return spec;
}

DeviceSpec read_device(const std::string& name, Entry& entry) {
  DeviceSpec device;
  device.name = name;
  device.flops = entry.require<double>("tflops") * 1e12;
  device.memory_bytes = entry.require<double>("hbm_gb") * 1e9;
  device.reported_bytes = entry.get("reported_gib", 0.0) * 1024 * 1024 * 1024;
  device.memory_rate = entry.require<double>("hbm_tbs") * 1e12;
  device.nvlink_rate = entry.require<double>("nvlink_gbs") * 1e9 / 2;
  device.pcie_rate = entry.require<double>("pcie_gbs") * 1e9;
  device.nic_rate = entry.require<double>("nic_gbits") * 1e9 / 8;
  device.per_node = entry.get("per_node", 8);
  device.nvlink_domain = entry.get("nvlink_domain", device.nvlink_rate > 0 ? device.per_node : 1);
  device.price_per_hour = entry.get("price_per_hour", 0.0);
  device.generation = entry.get<std::string>("generation", "h100");
  return device;
}

template <class T>
result<T> find(const std::map<std::string, T>& all, const std::string& name, const char* kind,
               const std::vector<std::string>& names) {
  const auto found = all.find(name);
  if (found != all.end()) return found->second;
  const auto near = runtime::nearest_name(name, names);
  return fail(ErrorCode::kNotFound, "no {} {} in the catalogue{}", kind, name,
              near ? fmt::format(", did you mean {}?", *near)
                   : fmt::format(", it has {}", fmt::join(names, ", ")));
}

template <class T>
std::vector<std::string> names_of(const std::map<std::string, T>& all) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : all) names.push_back(name);
  return names;
}

}  // namespace

result<void> Catalogue::add(std::string_view yaml, const std::string& source) {
  try {
    const YAML::Node root = YAML::Load(std::string(yaml));
    for (const auto& section : root) {
      const auto kind = section.first.as<std::string>();
      if (kind != "models" && kind != "devices")
        return fail(ErrorCode::kConfig, "{}: unknown section {}, wanted models or devices", source,
                    kind);
      for (const auto& item : section.second) {
        const auto name = item.first.as<std::string>();
        Entry entry(fmt::format("{}: {} {}", source, kind, name), item.second);
        if (kind == "models") {
          ModelSpec spec = read_model(name, entry);
          TROUPE_TRY_VOID(entry.expect_all_known());
          TROUPE_TRY_VOID(spec.validate());
          models_.insert_or_assign(name, std::move(spec));
        } else {
          DeviceSpec device = read_device(name, entry);
          TROUPE_TRY_VOID(entry.expect_all_known());
          TROUPE_TRY_VOID(device.validate());
          devices_.insert_or_assign(name, std::move(device));
        }
      }
    }
  } catch (const YAML::Exception& error) {
    return fail(ErrorCode::kConfig, "{}: {}", source, error.what());
  }
  return {};
}

const Catalogue& Catalogue::built_in() {
  static const Catalogue catalogue = [] {
    Catalogue made;
    for (const auto& [name, text] : built_in_files()) {
      const auto added = made.add(text, std::string(name));
      TROUPE_CHECK(added.has_value(), "{}", added.error().to_string());
    }
    return made;
  }();
  return catalogue;
}

result<ModelSpec> Catalogue::model(const std::string& name) const {
  return find(models_, name, "model", models());
}
result<DeviceSpec> Catalogue::device(const std::string& name) const {
  return find(devices_, name, "device", devices());
}
std::vector<std::string> Catalogue::models() const { return names_of(models_); }
std::vector<std::string> Catalogue::devices() const { return names_of(devices_); }

}  // namespace troupe::sim
