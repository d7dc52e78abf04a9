// The JSON form of a group request, for command lines, examples and tests.

#include "placement/bundle.hpp"
#include "placement/json_read.hpp"

#include <fmt/format.h>

#include <utility>

namespace troupe::placement {
namespace {

constexpr std::int64_t kCountMax = 1'000'000;  // `validate` has the true bounds

result<LabelSelector> parse_selector(const Json& value, const std::string& place) {
  ObjectReader reader(value, place);
  LabelSelector selector;
  selector.label = reader.text("label");
  const std::string op = reader.text("op", "=");
  selector.values = reader.text_list("values");
  if (const Json* one = reader.find("value"); one != nullptr)
    selector.values.push_back(reader.text("value"));
  TROUPE_TRY_VOID(reader.finish());
  auto parsed = parse_selector_op(op);
  if (!parsed) return fail(parsed.error().code, "{}.op: {}", place, parsed.error().message);
  selector.op = *parsed;
  return selector;
}

result<std::pair<Bundle, std::int64_t>> parse_bundle(const Json& value, const std::string& place) {
  ObjectReader reader(value, place);
  Bundle bundle;
  bundle.resources.gpu = reader.amount("gpu");
  bundle.resources.cpu = reader.amount("cpu");
  bundle.resources.memory = reader.bytes("memory");
  bundle.resources.named = reader.amounts("named");
  const std::int64_t count = reader.integer("count", 1, 1, static_cast<std::int64_t>(kBundlesMax));
  reader.for_each("selectors", [&bundle](const Json& element, const std::string& at) {
    auto selector = parse_selector(element, at);
    if (!selector) return result<void>(fail(std::move(selector).error()));
    bundle.selectors.push_back(std::move(*selector));
    return result<void>();
  });
  TROUPE_TRY_VOID(reader.finish());
  return std::pair{std::move(bundle), count};
}

result<Affinity> parse_affinity(const Json& value, const std::string& place) {
  ObjectReader reader(value, place);
  Affinity affinity;
  affinity.group = reader.text("group");
  affinity.apart = reader.boolean("apart", false);
  affinity.strict = reader.boolean("strict", true);
  const std::string level = reader.text("level", "node");
  TROUPE_TRY_VOID(reader.finish());
  auto parsed = parse_level(level);
  if (!parsed) return fail(parsed.error().code, "{}.level: {}", place, parsed.error().message);
  affinity.level = *parsed;
  return affinity;
}

void read_bundles(ObjectReader& reader, GroupRequest& request) {
  reader.for_each("bundles", [&request](const Json& value, const std::string& at) -> result<void> {
    TROUPE_TRY(auto entry, parse_bundle(value, at));
    const auto count = static_cast<std::size_t>(entry.second);
    if (request.bundles.size() + count > kBundlesMax)
      return fail(ErrorCode::kInvalidArgument, "{}: more than {} bundles", at, kBundlesMax);
    request.bundles.insert(request.bundles.end(), count, entry.first);
    return {};
  });
}

}  // namespace

result<GroupRequest> parse_group_request(std::string_view json, std::string_view source) {
  TROUPE_TRY(const Json root, parse_json_text(json, source));
  ObjectReader reader(root, std::string(source));
  GroupRequest request;
  request.name = reader.text("name");
  const std::string strategy = reader.text("strategy", "PACK");
  const std::string level = reader.text("level", "node");
  const auto number = [&reader](const char* key, std::int64_t low) {
    return static_cast<std::int32_t>(reader.integer(key, 0, low, kCountMax));
  };
  request.per_domain_max = number("per_domain_max", 0);
  request.per_domain_exact = number("per_domain_exact", 0);
  request.priority = number("priority", -kCountMax);
  request.movable = reader.boolean("movable", true);
  read_bundles(reader, request);
  reader.for_each("affinities", [&request](const Json& value, const std::string& at) {
    auto affinity = parse_affinity(value, at);
    if (!affinity) return result<void>(fail(std::move(affinity).error()));
    request.affinities.push_back(std::move(*affinity));
    return result<void>();
  });
  if (const Json* reserve = reader.find("reserve_per_gpu"); reserve != nullptr) {
    ObjectReader inner(*reserve, fmt::format("{}.reserve_per_gpu", source));
    request.reserve_per_gpu = {.cpu = inner.amount("cpu"), .memory = inner.bytes("memory")};
    TROUPE_TRY_VOID(inner.finish());
  }
  TROUPE_TRY_VOID(reader.finish());
  TROUPE_TRY(request.strategy, parse_strategy(strategy));
  TROUPE_TRY(request.level, parse_level(level));
  TROUPE_TRY_VOID(validate(request));
  return request;
}

}  // namespace troupe::placement
