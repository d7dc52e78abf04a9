#include "placement/json_read.hpp"

#include <fmt/format.h>

#include <utility>

namespace troupe::placement {

result<Json> parse_json_text(std::string_view text, std::string_view source) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    return fail(ErrorCode::kCorrupt, "{}: not JSON: {}", source, error.what());
  }
}

ObjectReader::ObjectReader(const Json& value, std::string place)
    : value_(&value), place_(std::move(place)) {
  if (!value.is_object()) {
    state_ = fail(ErrorCode::kCorrupt, "{}: want an object, found {}", place_, value.type_name());
    static const Json kEmpty = Json::object();
    value_ = &kEmpty;
  }
}

const Json* ObjectReader::find(const char* key) {
  known_.insert(key);
  const auto found = value_->find(key);
  return found == value_->end() ? nullptr : &*found;
}

void ObjectReader::refuse(const char* key, const std::string& why) {
  if (state_) state_ = fail(ErrorCode::kInvalidArgument, "{}.{}: {}", place_, key, why);
}

std::string ObjectReader::text(const char* key, std::string otherwise) {
  const Json* found = find(key);
  if (found == nullptr) return otherwise;
  if (found->is_string()) return found->get<std::string>();
  refuse(key, fmt::format("want a text, found {}", found->type_name()));
  return otherwise;
}

std::int64_t ObjectReader::integer(const char* key, std::int64_t otherwise, std::int64_t low,
                                   std::int64_t high) {
  const Json* found = find(key);
  if (found == nullptr) return otherwise;
  const bool fits = found->is_number_integer() &&
                    (!found->is_number_unsigned() ||
                     found->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX));
  const std::int64_t value = fits ? found->get<std::int64_t>() : 0;
  if (fits && value >= low && value <= high) return value;
  refuse(key, fmt::format("want a whole number from {} to {}, found {}", low, high,
                          found->dump().substr(0, 40)));
  return otherwise;
}

bool ObjectReader::boolean(const char* key, bool otherwise) {
  const Json* found = find(key);
  if (found == nullptr) return otherwise;
  if (found->is_boolean()) return found->get<bool>();
  refuse(key, fmt::format("want true or false, found {}", found->type_name()));
  return otherwise;
}

Amount ObjectReader::amount(const char* key) {
  const Json* found = find(key);
  if (found == nullptr) return {};
  if (!found->is_number()) {
    refuse(key, fmt::format("want a number, found {}", found->type_name()));
    return {};
  }
  auto parsed = parse_amount(found->get<double>(), key);
  if (parsed) return *parsed;
  refuse(key, parsed.error().message);
  return {};
}

Bytes ObjectReader::bytes(const char* key, Bytes otherwise) {
  return Bytes{integer(key, otherwise.value, 0, kMemoryMax.value)};
}

std::map<std::string, Amount> ObjectReader::amounts(const char* key) {
  std::map<std::string, Amount> out;
  const Json* found = find(key);
  if (found == nullptr) return out;
  if (!found->is_object()) {
    refuse(key, fmt::format("want an object, found {}", found->type_name()));
    return out;
  }
  for (const auto& [name, value] : found->items()) {
    if (!value.is_number()) {
      refuse(key, fmt::format("{}: want a number, found {}", name, value.type_name()));
      return out;
    }
    auto parsed = parse_amount(value.get<double>(), name);
    if (!parsed) {
      refuse(key, parsed.error().message);
      return out;
    }
    out.emplace(name, *parsed);
  }
  return out;
}

std::map<std::string, std::string> ObjectReader::texts(const char* key) {
  std::map<std::string, std::string> out;
  const Json* found = find(key);
  if (found == nullptr) return out;
  if (!found->is_object()) {
    refuse(key, fmt::format("want an object, found {}", found->type_name()));
    return out;
  }
  for (const auto& [name, value] : found->items()) {
    if (!value.is_string()) {
      refuse(key, fmt::format("{}: want a text, found {}", name, value.type_name()));
      return out;
    }
    out.emplace(name, value.get<std::string>());
  }
  return out;
}

std::vector<std::string> ObjectReader::text_list(const char* key) {
  std::vector<std::string> out;
  for_each(key, [&out](const Json& element, const std::string& place) -> result<void> {
    if (!element.is_string())
      return fail(ErrorCode::kInvalidArgument, "{}: want a text, found {}", place,
                  element.type_name());
    out.push_back(element.get<std::string>());
    return {};
  });
  return out;
}

void ObjectReader::for_each(
    const char* key, const std::function<result<void>(const Json&, const std::string&)>& each) {
  const Json* found = find(key);
  if (found == nullptr || !state_) return;
  if (!found->is_array()) {
    refuse(key, fmt::format("want a list, found {}", found->type_name()));
    return;
  }
  for (std::size_t i = 0; i < found->size() && state_; ++i)
    state_ = each((*found)[i], fmt::format("{}.{}[{}]", place_, key, i));
}

result<void> ObjectReader::finish() {
  if (!state_) return state_;
  for (const auto& [key, value] : value_->items()) {
    if (!known_.contains(key))
      return fail(ErrorCode::kInvalidArgument, "{}: unknown key '{}': want {}", place_, key,
                  fmt::join(known_, ", "));
  }
  return {};
}

}  // namespace troupe::placement
