#include "placement/values_codec.hpp"

#include "runtime/batch/envelope_codec.hpp"

#include <algorithm>
#include <map>
#include <optional>

namespace troupe::placement {
namespace {

using runtime::list_size;
using runtime::text_of;
using runtime::whole_text;

using NamedAmounts = std::map<std::string, Amount>;

template <class Builder>
void write_named(const NamedAmounts& named, Builder out) {
  if (named.empty()) return;
  auto list = out.initNamed(list_size(named.size()));
  unsigned at = 0;
  for (const auto& [name, amount] : named) {
    list[at].setName(whole_text(name));
    list[at++].setUnits(amount.units);
  }
}

result<NamedAmounts> read_named(capnp::List<schemas::PlacementNamed>::Reader in) {
  TROUPE_TRY_VOID(check_count(in.size(), kNamedResourcesMax, "named resources"));
  NamedAmounts named;
  for (const auto entry : in) {
    if (!named.emplace(text_of(entry.getName()), Amount{entry.getUnits()}).second)
      return fail(ErrorCode::kCorrupt, "named resource {} comes twice", text_of(entry.getName()));
  }
  return named;
}

void write_selectors(const std::vector<LabelSelector>& selectors,
                     schemas::PlacementBundles::Builder out) {
  if (selectors.empty()) return;
  auto list = out.initSelectors(list_size(selectors.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    const LabelSelector& selector = selectors[i];
    list[i].setLabel(whole_text(selector.label));
    list[i].setOp(static_cast<std::uint8_t>(selector.op));
    auto values = list[i].initValues(list_size(selector.values.size()));
    for (unsigned v = 0; v < values.size(); ++v) values.set(v, whole_text(selector.values[v]));
  }
}

result<std::vector<LabelSelector>> read_selectors(
    capnp::List<schemas::PlacementSelector>::Reader in) {
  TROUPE_TRY_VOID(check_count(in.size(), kSelectorsMax, "selectors"));
  std::vector<LabelSelector> selectors;
  for (const auto entry : in) {
    TROUPE_TRY(const SelectorOp op,
               read_enum(entry.getOp(), SelectorOp::kAbsent, "selector operator"));
    LabelSelector selector{.label = text_of(entry.getLabel()), .op = op};
    for (const auto value : entry.getValues()) selector.values.push_back(text_of(value));
    selectors.push_back(std::move(selector));
  }
  return selectors;
}

/// Cores one after another with the same share.
struct CoreRun {
  CoreShare first;
  std::uint32_t count = 0;
};

std::vector<CoreRun> core_runs(const std::vector<CoreShare>& cores) {
  std::vector<CoreRun> runs;
  for (const CoreShare& share : cores) {
    if (!runs.empty()) {
      CoreRun& run = runs.back();
      const std::int64_t next = run.first.core + static_cast<std::int64_t>(run.count);
      if (next == share.core && run.first.amount == share.amount) {
        ++run.count;
        continue;
      }
    }
    runs.push_back({share, 1});
  }
  return runs;
}

void write_slot(const EpochSlot& entry, std::uint32_t node_name,
                schemas::PlacementSlot::Builder out) {
  const BundlePlacement& placement = entry.slot.placement;
  out.setSlot(entry.slot.slot);
  out.setBundle(placement.bundle);
  out.setNode(placement.node.value);
  out.setNodeName(node_name);
  out.setSocket(placement.socket);
  out.setMemory(placement.memory.value);
  out.setEpoch(entry.epoch.value);
  if (!placement.nic.empty()) out.setNic(whole_text(placement.nic));
  auto devices = out.initDevices(list_size(placement.devices.size()));
  for (unsigned i = 0; i < devices.size(); ++i) {
    devices[i].setDevice(placement.devices[i].device);
    devices[i].setUnits(placement.devices[i].amount.units);
  }
  const std::vector<CoreRun> runs = core_runs(placement.cores);
  auto cores = out.initCores(list_size(runs.size()));
  for (unsigned i = 0; i < cores.size(); ++i) {
    cores[i].setFirst(runs[i].first.core);
    cores[i].setCount(runs[i].count);
    cores[i].setUnits(runs[i].first.amount.units);
  }
  write_named(placement.named, out);
}

/// Cores in all slots of one message: runs are short on the wire and long in memory.
constexpr std::size_t kCoresPerMessageMax = std::size_t{1} << 20;

result<EpochSlot> read_slot(schemas::PlacementSlot::Reader in,
                            const std::vector<std::string>& names, std::size_t& cores_left) {
  if (in.getNodeName() >= names.size())
    return fail(ErrorCode::kCorrupt, "node name {} of {}", in.getNodeName(), names.size());
  EpochSlot entry{.epoch = Epoch{in.getEpoch()}, .slot = {.slot = in.getSlot(), .placement = {}}};
  BundlePlacement& placement = entry.slot.placement;
  placement.bundle = in.getBundle();
  placement.node = NodeId{in.getNode()};
  placement.node_name = names[in.getNodeName()];
  placement.socket = in.getSocket();
  placement.memory = Bytes{in.getMemory()};
  placement.nic = text_of(in.getNic());
  if (placement.bundle < 0 || placement.node.value < 0 || placement.memory.value < 0)
    return fail(ErrorCode::kCorrupt, "bundle {} on node {} with {} bytes", placement.bundle,
                placement.node.value, placement.memory.value);
  TROUPE_TRY_VOID(check_count(in.getDevices().size(), kDevicesPerNodeMax, "devices"));
  for (const auto device : in.getDevices())
    placement.devices.push_back({device.getDevice(), Amount{device.getUnits()}});
  for (const auto run : in.getCores()) {
    const std::int64_t end = std::int64_t{run.getFirst()} + run.getCount();
    if (run.getFirst() < 0 || end > kCoresMax || run.getCount() > cores_left)
      return fail(ErrorCode::kCorrupt, "cores {}..{} of at most {}", run.getFirst(), end,
                  kCoresMax);
    cores_left -= run.getCount();
    for (std::uint32_t i = 0; i < run.getCount(); ++i)
      placement.cores.push_back(
          {run.getFirst() + static_cast<std::int32_t>(i), Amount{run.getUnits()}});
  }
  TROUPE_TRY(placement.named, read_named(in.getNamed()));
  return entry;
}

result<std::vector<Affinity>> read_affinities(capnp::List<schemas::PlacementAffinity>::Reader in) {
  TROUPE_TRY_VOID(check_count(in.size(), kAffinitiesMax, "affinities"));
  std::vector<Affinity> affinities;
  for (const auto entry : in) {
    TROUPE_TRY(const Level level, read_enum(entry.getLevel(), Level::kDevice, "affinity level"));
    affinities.push_back({.group = text_of(entry.getGroup()),
                          .apart = entry.getApart(),
                          .level = level,
                          .strict = entry.getStrict()});
  }
  return affinities;
}

}  // namespace

result<void> check_count(std::size_t count, std::size_t most, std::string_view what) {
  if (count > most) return fail(ErrorCode::kCorrupt, "{} {}, wanted at most {}", count, what, most);
  return {};
}

result<Duration> read_span(std::int64_t nanoseconds, std::string_view what) {
  if (nanoseconds < 0) return fail(ErrorCode::kCorrupt, "{} of {} ns", what, nanoseconds);
  return Duration{nanoseconds};
}

void write_error(const Error& error, schemas::ErrorReply::Builder out, std::size_t depth) {
  const std::string code(error_code_name(error.code));
  out.setCode(whole_text(code));
  out.setMessage(whole_text(error.message));
  out.setGroup(whole_text(error.origin.group));
  if (error.origin.rank) out.setRank(error.origin.rank->value);
  if (error.origin.node) out.setNode(error.origin.node->value);
  if (depth >= runtime::kCauseDepthMax) return;
  auto causes = out.initCauses(list_size(std::min(error.causes.size(), runtime::kCausesMax)));
  for (unsigned i = 0; i < causes.size(); ++i) write_error(error.causes[i], causes[i], depth + 1);
}

result<Error> read_error(schemas::ErrorReply::Reader in, std::size_t depth) {
  const std::string code = text_of(in.getCode());
  const std::optional<ErrorCode> known = error_code_from_name(code);
  if (!known) return fail(ErrorCode::kCorrupt, "error code '{}' is unknown", code);
  Error error{.code = *known,
              .message = text_of(in.getMessage()),
              .origin = {.group = text_of(in.getGroup()), .rank = {}, .node = {}},
              .causes = {}};
  if (in.getRank() >= 0) error.origin.rank = RankId{in.getRank()};
  if (in.getNode() >= 0) error.origin.node = NodeId{in.getNode()};
  const auto causes = in.getCauses();
  TROUPE_TRY_VOID(check_count(
      causes.size(), depth < runtime::kCauseDepthMax ? runtime::kCausesMax : 0, "error causes"));
  for (const auto cause : causes) {
    TROUPE_TRY(Error decoded, read_error(cause, depth + 1));
    error.causes.push_back(std::move(decoded));
  }
  return error;
}

void write_owner(const Owner& owner, schemas::PlacementOwner::Builder out) {
  out.setName(whole_text(owner.name));
  out.setInstance(owner.instance);
}

result<Owner> read_owner(schemas::PlacementOwner::Reader in) {
  TROUPE_TRY_VOID(check_count(in.getName().size(), kNameBytesMax, "bytes of an owner's name"));
  return Owner{.name = text_of(in.getName()), .instance = in.getInstance()};
}

void write_terms(const GroupTerms& terms, schemas::PlacementTerms::Builder out) {
  out.setRepair(static_cast<std::uint8_t>(terms.repair));
  out.setDetached(terms.detached);
  out.setFeasibleWithin(terms.feasible_within.count());
}

result<GroupTerms> read_terms(schemas::PlacementTerms::Reader in) {
  TROUPE_TRY(const RepairPolicy repair,
             read_enum(in.getRepair(), RepairPolicy::kFailGroup, "repair policy"));
  TROUPE_TRY(const Duration within, read_span(in.getFeasibleWithin(), "feasible_within"));
  return GroupTerms{.repair = repair, .detached = in.getDetached(), .feasible_within = within};
}

void write_bundles(
    const std::vector<Bundle>& bundles,
    const std::function<capnp::List<schemas::PlacementBundles>::Builder(unsigned)>& init) {
  std::vector<std::pair<const Bundle*, std::uint32_t>> runs;
  for (const Bundle& bundle : bundles) {
    if (!runs.empty() && *runs.back().first == bundle) {
      ++runs.back().second;
    } else {
      runs.emplace_back(&bundle, 1);
    }
  }
  auto list = init(list_size(runs.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    const auto& [bundle, count] = runs[i];
    list[i].setCount(count);
    list[i].setGpu(bundle->resources.gpu.units);
    list[i].setCpu(bundle->resources.cpu.units);
    list[i].setMemory(bundle->resources.memory.value);
    write_named(bundle->resources.named, list[i]);
    write_selectors(bundle->selectors, list[i]);
  }
}

result<std::vector<Bundle>> read_bundles(capnp::List<schemas::PlacementBundles>::Reader in) {
  std::vector<Bundle> bundles;
  for (const auto run : in) {
    TROUPE_TRY_VOID(check_count(bundles.size() + run.getCount(), kBundlesMax, "bundles"));
    Bundle bundle{.resources = {.gpu = Amount{run.getGpu()},
                                .cpu = Amount{run.getCpu()},
                                .memory = Bytes{run.getMemory()},
                                .named = {}},
                  .selectors = {}};
    TROUPE_TRY(bundle.resources.named, read_named(run.getNamed()));
    TROUPE_TRY(bundle.selectors, read_selectors(run.getSelectors()));
    bundles.insert(bundles.end(), run.getCount(), bundle);
  }
  return bundles;
}

void write_request(const GroupRequest& request, schemas::PlacementRequest::Builder out) {
  out.setName(whole_text(request.name));
  write_bundles(request.bundles, [&out](unsigned count) { return out.initBundles(count); });
  out.setStrategy(static_cast<std::uint8_t>(request.strategy));
  out.setLevel(static_cast<std::uint8_t>(request.level));
  out.setPerDomainMax(request.per_domain_max);
  out.setPerDomainExact(request.per_domain_exact);
  out.setPriority(request.priority);
  out.setReserveCpu(request.reserve_per_gpu.cpu.units);
  out.setReserveMemory(request.reserve_per_gpu.memory.value);
  out.setMovable(request.movable);
  if (request.affinities.empty()) return;
  auto affinities = out.initAffinities(list_size(request.affinities.size()));
  for (unsigned i = 0; i < affinities.size(); ++i) {
    const Affinity& affinity = request.affinities[i];
    affinities[i].setGroup(whole_text(affinity.group));
    affinities[i].setApart(affinity.apart);
    affinities[i].setLevel(static_cast<std::uint8_t>(affinity.level));
    affinities[i].setStrict(affinity.strict);
  }
}

result<GroupRequest> read_request(schemas::PlacementRequest::Reader in) {
  GroupRequest request;
  request.name = text_of(in.getName());
  TROUPE_TRY(request.bundles, read_bundles(in.getBundles()));
  // Numbers out of range are kept: `validate` has an error of its own for them.
  request.strategy = static_cast<Strategy>(in.getStrategy());
  request.level = static_cast<Level>(in.getLevel());
  request.per_domain_max = in.getPerDomainMax();
  request.per_domain_exact = in.getPerDomainExact();
  request.priority = in.getPriority();
  request.reserve_per_gpu = {.cpu = Amount{in.getReserveCpu()},
                             .memory = Bytes{in.getReserveMemory()}};
  request.movable = in.getMovable();
  TROUPE_TRY(request.affinities, read_affinities(in.getAffinities()));
  return request;
}

void write_slots(const std::vector<EpochSlot>& slots, schemas::PlacementSlots::Builder out) {
  if (slots.empty()) return;
  std::map<std::string_view, std::uint32_t> index;
  std::vector<const std::string*> names;
  auto list = out.initSlots(list_size(slots.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    const std::string& name = slots[i].slot.placement.node_name;
    const auto [found, added] = index.emplace(name, static_cast<std::uint32_t>(names.size()));
    if (added) names.push_back(&name);
    write_slot(slots[i], found->second, list[i]);
  }
  auto table = out.initNodeNames(list_size(names.size()));
  for (unsigned i = 0; i < table.size(); ++i) table.set(i, whole_text(*names[i]));
}

result<std::vector<EpochSlot>> read_slots(schemas::PlacementSlots::Reader in) {
  TROUPE_TRY_VOID(check_count(in.getSlots().size(), kBundlesMax, "slots"));
  std::vector<std::string> names;
  for (const auto name : in.getNodeNames()) {
    TROUPE_TRY_VOID(check_count(name.size(), kNameBytesMax, "bytes of a node's name"));
    names.push_back(text_of(name));
  }
  std::vector<EpochSlot> slots;
  std::size_t cores_left = kCoresPerMessageMax;
  for (const auto slot : in.getSlots()) {
    TROUPE_TRY(EpochSlot entry, read_slot(slot, names, cores_left));
    slots.push_back(std::move(entry));
  }
  return slots;
}

void write_spec(const NodeSpec& spec, schemas::PlacementNodeSpec::Builder out) {
  out.setName(whole_text(spec.name));
  out.setRack(whole_text(spec.rack));
  out.setDomain(whole_text(spec.domain));
  out.setSockets(spec.sockets);
  out.setCores(spec.cores);
  out.setMemory(spec.memory.value);
  out.setDraining(spec.draining);
  write_named(spec.named, out);
  auto devices = out.initDevices(list_size(spec.devices.size()));
  for (unsigned i = 0; i < devices.size(); ++i) {
    devices[i].setSocket(spec.devices[i].socket);
    devices[i].setNic(whole_text(spec.devices[i].nic));
    devices[i].setFailed(spec.devices[i].failed);
  }
  auto labels = out.initLabels(list_size(spec.labels.size()));
  unsigned at = 0;
  for (const auto& [name, value] : spec.labels) {
    labels[at].setName(whole_text(name));
    labels[at++].setValue(whole_text(value));
  }
}

result<NodeSpec> read_spec(schemas::PlacementNodeSpec::Reader in) {
  NodeSpec spec;
  spec.name = text_of(in.getName());
  spec.rack = text_of(in.getRack());
  spec.domain = text_of(in.getDomain());
  spec.sockets = in.getSockets();
  spec.cores = in.getCores();
  spec.memory = Bytes{in.getMemory()};
  spec.draining = in.getDraining();
  TROUPE_TRY(spec.named, read_named(in.getNamed()));
  TROUPE_TRY_VOID(check_count(in.getDevices().size(), kDevicesPerNodeMax, "devices"));
  for (const auto device : in.getDevices())
    spec.devices.push_back({.socket = device.getSocket(),
                            .nic = text_of(device.getNic()),
                            .failed = device.getFailed()});
  for (const auto label : in.getLabels())
    spec.labels.emplace(text_of(label.getName()), text_of(label.getValue()));
  return spec;
}

}  // namespace troupe::placement
