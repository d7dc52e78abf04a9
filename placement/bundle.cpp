#include "placement/bundle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::placement {
namespace {

/// Names a bundle of a group, or a part of the group, when an error needs it.
struct Place {
  const GroupRequest& request;
  std::size_t bundle = 0;
  std::string_view what = {};

  std::string text() const {
    if (!what.empty()) return fmt::format("group {}: {}", request.name, what);
    return fmt::format("group {}: bundle {}", request.name, bundle);
  }
};

result<void> check_amount(Amount amount, const Place& place, std::string_view what) {
  if (amount < Amount{})
    return fail(ErrorCode::kInvalidArgument, "{}: {} is negative: {}", place.text(), what,
                to_string(amount));
  if (amount > kAmountMax)
    return fail(ErrorCode::kInvalidArgument, "{}: {} is {}, at most {}", place.text(), what,
                to_string(amount), to_string(kAmountMax));
  return {};
}

result<void> check_memory(Bytes memory, const Place& place, std::string_view what = "memory") {
  if (memory < Bytes{0})
    return fail(ErrorCode::kInvalidArgument, "{}: {} is negative: {} bytes", place.text(), what,
                memory.value);
  if (memory > kMemoryMax)
    return fail(ErrorCode::kInvalidArgument, "{}: {} is {} bytes, at most {}", place.text(), what,
                memory.value, kMemoryMax.value);
  return {};
}

result<void> check_selector(const LabelSelector& selector, const Place& place) {
  if (selector.op > SelectorOp::kAbsent)
    return fail(ErrorCode::kInvalidArgument, "{}: label {}: unknown selector operator {}",
                place.text(), selector.label, static_cast<int>(selector.op));
  if (selector.label.empty() || selector.label.size() > kNameBytesMax)
    return fail(ErrorCode::kInvalidArgument, "{}: a selector's label has {} bytes, want 1 to {}",
                place.text(), selector.label.size(), kNameBytesMax);
  const bool one = selector.op == SelectorOp::kEqual || selector.op == SelectorOp::kNotEqual;
  const bool none = selector.op == SelectorOp::kExists || selector.op == SelectorOp::kAbsent;
  const std::size_t count = selector.values.size();
  if ((one && count != 1) || (none && count != 0) || (!one && !none && count == 0))
    return fail(ErrorCode::kInvalidArgument, "{}: label {}: operator {} with {} values",
                place.text(), selector.label, selector_op_name(selector.op), count);
  return {};
}

result<void> check_level_holds(const GroupRequest& request, const Place& place) {
  const Amount gpu = request.bundles[place.bundle].resources.gpu;
  if (request.level != Level::kDevice) return {};
  if (gpu == Amount{})
    return fail(ErrorCode::kInvalidArgument, "{}: level device, but the bundle has no gpu",
                place.text());
  if (gpu > Amount::whole(1))
    return fail(ErrorCode::kInvalidArgument, "{}: level device, but the bundle has gpu {}",
                place.text(), to_string(gpu));
  return {};
}

result<void> check_named(const Resources& resources, const Place& place) {
  if (resources.named.size() > kNamedResourcesMax)
    return fail(ErrorCode::kInvalidArgument, "{}: {} named resources, at most {}", place.text(),
                resources.named.size(), kNamedResourcesMax);
  for (const auto& [name, amount] : resources.named) {
    if (name.empty() || name.size() > kNameBytesMax)
      return fail(ErrorCode::kInvalidArgument, "{}: a resource's name has {} bytes, want 1 to {}",
                  place.text(), name.size(), kNameBytesMax);
    TROUPE_TRY_VOID(check_amount(amount, place, name));
  }
  return {};
}

result<void> check_bundle(const GroupRequest& request, std::size_t index) {
  const Resources& resources = request.bundles[index].resources;
  const std::vector<LabelSelector>& selectors = request.bundles[index].selectors;
  const Place place{request, index};
  TROUPE_TRY_VOID(check_amount(resources.gpu, place, "gpu"));
  TROUPE_TRY_VOID(check_amount(resources.cpu, place, "cpu"));
  TROUPE_TRY_VOID(check_memory(resources.memory, place));
  if (resources.gpu > Amount::whole(1) && !resources.gpu.is_whole())
    return fail(ErrorCode::kInvalidArgument,
                "{}: gpu {}: above one device only whole numbers can be given", place.text(),
                to_string(resources.gpu));
  TROUPE_TRY_VOID(check_named(resources, place));
  if (resources.is_zero())
    return fail(ErrorCode::kInvalidArgument, "{}: asks for nothing", place.text());
  if (selectors.size() > kSelectorsMax)
    return fail(ErrorCode::kInvalidArgument, "{}: {} selectors, at most {}", place.text(),
                selectors.size(), kSelectorsMax);
  for (const LabelSelector& selector : selectors) TROUPE_TRY_VOID(check_selector(selector, place));
  TROUPE_TRY_VOID(check_level_holds(request, place));
  if (request.reserve_per_gpu == GpuReserve{}) return {};
  const Resources needs = needs_of(request, index);
  TROUPE_TRY_VOID(check_amount(needs.cpu, place, "cpu with the reserve of its gpus"));
  return check_memory(needs.memory, place, "memory with the reserve of its gpus");
}

result<void> check_per_domain(const GroupRequest& request) {
  const auto refuse = [&request](const std::string& why) {
    return fail(ErrorCode::kInvalidArgument, "group {}: {}", request.name, why);
  };
  const auto count = static_cast<std::int64_t>(request.bundles.size());
  const std::int32_t most = request.per_domain_max;
  const std::int32_t exact = request.per_domain_exact;
  if (most < 0) return refuse(fmt::format("per_domain_max is negative: {}", most));
  if (exact < 0) return refuse(fmt::format("per_domain_exact is negative: {}", exact));
  if (exact > 0 && count % exact != 0)
    return refuse(fmt::format("{} bundles do not divide into {} per domain", count, exact));
  if (exact > 0 && most > 0 && exact > most)
    return refuse(fmt::format("per_domain_exact {} is above per_domain_max {}", exact, most));
  const bool one_domain = request.strategy == Strategy::kStrictPack;
  if (one_domain && most > 0 && count > most)
    return refuse(
        fmt::format("STRICT_PACK of {} bundles contradicts per_domain_max {}", count, most));
  if (one_domain && exact > 0 && exact != count)
    return refuse(
        fmt::format("STRICT_PACK of {} bundles contradicts per_domain_exact {}", count, exact));
  return {};
}

result<void> check_affinities(const GroupRequest& request) {
  if (request.affinities.size() > kAffinitiesMax)
    return fail(ErrorCode::kInvalidArgument, "group {}: {} affinities, at most {}", request.name,
                request.affinities.size(), kAffinitiesMax);
  for (const Affinity& affinity : request.affinities) {
    if (affinity.group.empty() || affinity.group == request.name)
      return fail(ErrorCode::kInvalidArgument, "group {}: affinity to {}", request.name,
                  affinity.group.empty() ? "a group without name" : "itself");
    if (affinity.level > Level::kNode)
      return fail(ErrorCode::kInvalidArgument,
                  "group {}: affinity to {} at level {}: want rack, domain or node", request.name,
                  affinity.group, level_name(affinity.level));
  }
  return {};
}

template <class Shares>
std::string ranges(const Shares& shares) {
  std::string text;
  for (std::size_t i = 0; i < shares.size();) {
    std::size_t end = i + 1;
    while (end < shares.size() && shares[end].id == shares[end - 1].id + 1 && shares[end].whole &&
           shares[i].whole)
      ++end;
    if (!text.empty()) text += ',';
    text += end - i > 1 ? fmt::format("{}-{}", shares[i].id, shares[end - 1].id)
                        : fmt::format("{}", shares[i].id);
    if (!shares[i].whole) text += fmt::format("({})", shares[i].amount);
    i = end;
  }
  return text;
}

struct Part {
  std::int32_t id;
  bool whole;
  std::string amount;
};

}  // namespace

result<void> validate(const GroupRequest& request) {
  if (request.name.empty() || request.name.size() > kNameBytesMax)
    return fail(ErrorCode::kInvalidArgument, "group: the name has {} bytes, want 1 to {}",
                request.name.size(), kNameBytesMax);
  if (request.bundles.empty())
    return fail(ErrorCode::kInvalidArgument, "group {}: no bundles", request.name);
  if (request.bundles.size() > kBundlesMax)
    return fail(ErrorCode::kInvalidArgument, "group {}: {} bundles, at most {}", request.name,
                request.bundles.size(), kBundlesMax);
  if (request.strategy > Strategy::kStrictSpread)
    return fail(ErrorCode::kInvalidArgument, "group {}: unknown strategy {}", request.name,
                static_cast<int>(request.strategy));
  if (request.level > Level::kDevice)
    return fail(ErrorCode::kInvalidArgument, "group {}: unknown level {}", request.name,
                static_cast<int>(request.level));
  if (request.priority < -kPriorityMax || request.priority > kPriorityMax)
    return fail(ErrorCode::kInvalidArgument, "group {}: priority {}, want -{} to {}", request.name,
                request.priority, kPriorityMax, kPriorityMax);
  const Place reserve{request, 0, "reserve per gpu"};
  TROUPE_TRY_VOID(check_amount(request.reserve_per_gpu.cpu, reserve, "cpu"));
  TROUPE_TRY_VOID(check_memory(request.reserve_per_gpu.memory, reserve));
  for (std::size_t i = 0; i < request.bundles.size(); ++i) {
    const bool checked = i > 0 && request.bundles[i] == request.bundles[i - 1];
    if (!checked) TROUPE_TRY_VOID(check_bundle(request, i));
  }
  TROUPE_TRY_VOID(check_per_domain(request));
  return check_affinities(request);
}

Resources needs_of(const GroupRequest& request, std::size_t index) {
  Resources needs = request.bundles[index].resources;
  const GpuReserve& reserve = request.reserve_per_gpu;
  if (needs.gpu.units == 0 || (reserve.cpu.units == 0 && reserve.memory.value == 0)) return needs;
  // Products stay below 2^63 by division first: gpu is whole, or below one.
  const std::int64_t whole = needs.gpu.units / Amount::kUnitsPerOne;
  const std::int64_t part = needs.gpu.units % Amount::kUnitsPerOne;
  const auto share = [whole, part](std::int64_t each, std::int64_t limit) {
    if (whole > 0 && each > limit / whole) return limit + 1;  // validate refuses it
    const std::int64_t ones = Amount::kUnitsPerOne;
    const std::int64_t rest = each % ones * part;
    return each * whole + each / ones * part + (rest + ones - 1) / ones;
  };
  needs.cpu.units += share(reserve.cpu.units, kAmountMax.units);
  needs.memory.value += share(reserve.memory.value, kMemoryMax.value);
  return needs;
}

std::string to_string(const BundlePlacement& placement) {
  const auto parts = [](const auto& shares, auto id_of) {
    std::vector<Part> list;
    for (const auto& share : shares)
      list.push_back({id_of(share), share.amount == Amount::whole(1), to_string(share.amount)});
    return ranges(list);
  };
  std::string text = fmt::format("bundle {}: {} socket {}", placement.bundle, placement.node_name,
                                 placement.socket);
  if (!placement.devices.empty())
    text += " devices " + parts(placement.devices, [](const DeviceShare& s) { return s.device; });
  if (!placement.cores.empty())
    text += " cores " + parts(placement.cores, [](const CoreShare& s) { return s.core; });
  if (!placement.nic.empty()) text += " nic " + placement.nic;
  return text;
}

}  // namespace troupe::placement
