#include "actors/text/strict_json.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {
namespace {

using nlohmann::json;

// The library's own tree builder overwrites a repeated key in silence; this one refuses it.
class StrictBuilder : public nlohmann::json_sax<json> {
 public:
  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    auto [place, inserted] = open_.back()->get_ref<json::object_t&>().emplace(name, nullptr);
    if (!inserted) {
      problem_ = fmt::format("key \"{}\" appears twice", name);
      return false;
    }
    slot_ = &place->second;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    std::string_view what = error.what();
    const std::size_t prefix = what.find("] ");
    if (prefix != std::string_view::npos) what.remove_prefix(prefix + 2);
    problem_ = fmt::format("not valid JSON: {}", what);
    return false;
  }

  json take_root() { return std::move(root_); }
  const std::string& problem() const { return problem_; }

 private:
  json& place_value(json value) {
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back()->is_object()) return *slot_ = std::move(value);
    auto& array = open_.back()->get_ref<json::array_t&>();
    return array.emplace_back(std::move(value));
  }
  bool add(json value) {
    place_value(std::move(value));
    return true;
  }
  bool open(json value) {
    if (open_.size() >= kJsonDepthMax) {
      problem_ = fmt::format("JSON nested deeper than {} levels", kJsonDepthMax);
      return false;
    }
    // Stays valid while it is open: its parent array grows only after it is closed.
    open_.push_back(&place_value(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  json root_;
  std::vector<json*> open_;
  json* slot_ = nullptr;
  std::string problem_;
};

}  // namespace

result<json> parse_strict_json(std::string_view text, std::string_view place) {
  StrictBuilder builder;
  if (!json::sax_parse(text.begin(), text.end(), &builder))
    return fail(ErrorCode::kCorrupt, "{}: {}", place, builder.problem());
  return builder.take_root();
}

}  // namespace troupe::actors
