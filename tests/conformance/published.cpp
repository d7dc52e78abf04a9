#include "tests/conformance/published.hpp"

#include "sim/catalogue/catalogue.hpp"

#include <yaml-cpp/yaml.h>

#include <set>
#include <utility>

namespace troupe::conformance {
namespace {

/// Fields of one entry, with those of its system behind them.
class Entry {
 public:
  Entry(YAML::Node node, YAML::Node defaults)
      : node_(std::move(node)), defaults_(std::move(defaults)) {}

  template <class T>
  void read(const char* field, T& into) {
    known_.insert(field);
    const YAML::Node found = at(field);
    if (found) into = found.as<T>();
  }
  template <class T>
  void require(const char* field, T& into) {
    if (!at(field)) throw YAML::Exception(node_.Mark(), std::string("no field ") + field);
    read(field, into);
  }
  template <class Find>
  auto named(const char* field, Find find) {
    std::string name;
    require(field, name);
    auto found = find(name);
    if (!found) throw YAML::Exception(node_.Mark(), found.error().message);
    return *found;
  }
  void require(const char* field, sim::ModelSpec& into) {
    into = named(field,
                 [](const std::string& name) { return sim::Catalogue::built_in().model(name); });
  }
  void require(const char* field, sim::DeviceSpec& into) {
    into = named(field,
                 [](const std::string& name) { return sim::Catalogue::built_in().device(name); });
  }
  void finish() const {
    for (const auto& pair : node_) {
      const auto name = pair.first.as<std::string>();
      if (!known_.contains(name)) throw YAML::Exception(pair.first.Mark(), "unknown field " + name);
    }
  }

 private:
  YAML::Node at(const char* field) const {
    // A constant node: look-ups of a mutable one add the field.
    const YAML::Node& node = node_;
    if (node[field]) return node[field];
    const YAML::Node& defaults = defaults_;
    return defaults.IsMap() ? defaults[field] : YAML::Node(YAML::NodeType::Undefined);
  }
  const YAML::Node node_;
  const YAML::Node defaults_;
  std::set<std::string> known_;
};

Row read_row(Entry& entry) {
  Row row;
  entry.require("system", row.system);
  entry.require("name", row.name);
  entry.require("model", row.model);
  entry.require("device", row.device);
  entry.require("mode", row.mode);
  const std::pair<const char*, int&> numbers[] = {
      {"gpus", row.gpus},     {"rollout_gpus", row.rollout_gpus},
      {"gen_tp", row.gen_tp}, {"tp", row.tp},
      {"pp", row.pp},         {"cp", row.cp},
      {"ep", row.ep}};
  for (const auto& [field, into] : numbers) entry.require(field, into);
  entry.read("first_layers", row.first_layers);
  entry.read("last_layers", row.last_layers);
  const std::pair<const char*, std::int64_t&> sizes[] = {{"prompts", row.prompts},
                                                         {"group", row.group},
                                                         {"minibatch", row.minibatch},
                                                         {"prompt", row.prompt},
                                                         {"mean", row.mean},
                                                         {"cap", row.cap},
                                                         {"micro_tokens", row.micro_tokens},
                                                         {"sequences_max", row.sequences_max},
                                                         {"padded", row.padded},
                                                         {"lead", row.lead}};
  for (const auto& [field, into] : sizes) entry.require(field, into);
  entry.require("sigma", row.sigma);
  entry.require("memory_share", row.memory_share);
  entry.require("recompute", row.recompute);
  entry.require("sharding", row.sharding);
  entry.require("reference", row.reference);
  entry.require("offload", row.offload);
  entry.require("balanced", row.balanced);
  entry.require("whole_tensors", row.whole_tensors);
  entry.require("packed", row.packed);
  entry.require("pinned", row.pinned);
  entry.require("measured", row.measured);
  entry.finish();
  return row;
}

Transition read_transition(Entry& entry) {
  Transition one;
  entry.require("name", one.name);
  entry.require("model", one.model);
  entry.require("gpus", one.gpus);
  entry.require("tp", one.tp);
  entry.require("pp", one.pp);
  entry.require("gen_tp", one.gen_tp);
  entry.require("measured", one.measured);
  entry.read("read_off", one.read_off);
  entry.finish();
  return one;
}

GenerationTp read_generation_tp(Entry& entry) {
  GenerationTp one;
  entry.require("name", one.name);
  entry.require("model", one.model);
  entry.require("sizes", one.sizes);
  entry.require("best", one.best);
  entry.require("less", one.less);
  entry.finish();
  return one;
}

Training read_training(Entry& entry) {
  Training one;
  entry.require("name", one.name);
  entry.require("model", one.model);
  entry.require("device", one.device);
  entry.require("gpus", one.gpus);
  entry.read("pp", one.pp);
  entry.read("virtual_stages", one.virtual_stages);
  entry.read("ep", one.ep);
  entry.require("batch", one.batch);
  entry.require("micro_batch", one.micro_batch);
  entry.require("sequence", one.sequence);
  entry.require("tokens_per_s", one.tokens_per_s);
  entry.finish();
  return one;
}

Placement read_placement(Entry& entry) {
  Placement one;
  entry.require("model", one.model);
  entry.require("gpus", one.gpus);
  entry.require("best", one.best);
  entry.finish();
  return one;
}

Tail read_tail(Entry& entry) {
  Tail one;
  entry.require("name", one.name);
  entry.require("model", one.model);
  entry.require("device", one.device);
  entry.require("instances", one.instances);
  entry.require("tp", one.tp);
  entry.require("prompts", one.prompts);
  entry.require("group", one.group);
  entry.require("mean", one.mean);
  entry.require("cap", one.cap);
  entry.require("sigma", one.sigma);
  entry.require("rollout", one.rollout);
  entry.require("tail", one.tail);
  entry.finish();
  return one;
}

MemoryFact read_memory(Entry& entry) {
  MemoryFact one;
  entry.require("name", one.name);
  entry.require("model", one.model);
  entry.require("device", one.device);
  entry.require("gpus", one.gpus);
  entry.require("tp", one.tp);
  entry.require("pp", one.pp);
  entry.require("gen_tp", one.gen_tp);
  entry.require("sharding", one.sharding);
  entry.read("offload", one.offload);
  entry.read("ppo", one.ppo);
  entry.require("fits", one.fits);
  entry.finish();
  return one;
}

System read_system(const std::string& name, const YAML::Node& node) {
  System system;
  system.name = name;
  system.title = node["title"].as<std::string>();
  system.source = node["source"].as<std::string>();
  system.fit_row = node["fit_row"].as<std::string>();
  for (const auto& constant : node["constants"].as<std::vector<std::string>>()) {
    const auto found = sim::constant_from_name(constant);
    if (!found) throw YAML::Exception(node.Mark(), found.error().message);
    system.constants.push_back(*found);
  }
  return system;
}

template <class T, class Read>
void read_all(const YAML::Node& list, std::vector<T>& into, Read read) {
  for (const auto& node : list) {
    Entry entry(node, YAML::Node());
    into.push_back(read(entry));
  }
}

}  // namespace

result<Published> read_published(const std::string& file) {
  Published all;
  try {
    const YAML::Node root = YAML::LoadFile(file);
    for (const auto& pair : root["systems"])
      all.systems.push_back(read_system(pair.first.as<std::string>(), pair.second));
    const auto read_rows = [&root](const char* list, std::vector<Row>& into) {
      for (const auto& node : root[list]) {
        Entry entry(node, root["systems"][node["system"].as<std::string>()]["defaults"]);
        into.push_back(read_row(entry));
      }
    };
    read_rows("rows", all.rows);
    read_rows("blind", all.blind);
    read_all(root["transitions"], all.transitions, read_transition);
    read_all(root["generation_tp"], all.generation_tp, read_generation_tp);
    read_all(root["training"], all.training, read_training);
    read_all(root["placements"], all.placements, read_placement);
    read_all(root["tails"], all.tails, read_tail);
    read_all(root["memory"], all.memory, read_memory);
    if (root["misses"]) all.misses = root["misses"].as<std::vector<std::string>>();
  } catch (const YAML::Exception& error) {
    return fail(ErrorCode::kConfig, "{}: {}", file, error.what());
  }
  return all;
}

}  // namespace troupe::conformance
