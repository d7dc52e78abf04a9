#pragma once

// Reading small JSON objects strictly: wrong types and unknown keys are errors that name the place.
//
// **Ownership:** a reader points into the JSON value; keep that alive.
// **Threads:** belongs to one owner. For the .cpp files of this folder.

#include "placement/resources.hpp"
#include "runtime/base/result.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::placement {

using Json = nlohmann::json;

/// kCorrupt with the source when the text is not one JSON value.
result<Json> parse_json_text(std::string_view text, std::string_view source);

/// One JSON object. The first error is kept and every later read gives its default.
class ObjectReader {
 public:
  /// `place` is `file.json: nodes[3]`.
  ObjectReader(const Json& value, std::string place);

  std::string text(const char* key, std::string otherwise = {});
  std::int64_t integer(const char* key, std::int64_t otherwise, std::int64_t low,
                       std::int64_t high);
  bool boolean(const char* key, bool otherwise);
  Amount amount(const char* key);
  Bytes bytes(const char* key, Bytes otherwise = {});
  std::map<std::string, Amount> amounts(const char* key);
  std::map<std::string, std::string> texts(const char* key);
  std::vector<std::string> text_list(const char* key);
  /// Calls `each(element, place)` for the elements of an array; missing: none.
  void for_each(const char* key,
                const std::function<result<void>(const Json&, const std::string&)>& each);
  /// The value of `key`, or null; counts as read.
  const Json* find(const char* key);
  void refuse(const char* key, const std::string& why);
  const std::string& place() const { return place_; }

  /// The first error, or an unknown key.
  result<void> finish();

 private:
  const Json* value_;
  std::string place_;
  std::set<std::string, std::less<>> known_;
  result<void> state_;
};

}  // namespace troupe::placement
