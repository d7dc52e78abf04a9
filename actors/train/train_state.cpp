// Saving and restoring the engine: counters as JSON, weights and moments as exact f32 tensors.
#include "actors/train/train_engine_impl.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace troupe::actors {
namespace {

constexpr int kFormat = 1;
constexpr std::string_view kWeights = "weights/";
constexpr std::string_view kFirstMoment = "adam_m/";
constexpr std::string_view kSecondMoment = "adam_v/";

/// Adds views of one buffer's segments, named prefix + tensor.
void add_views(std::string_view prefix, std::span<const ParameterSegment> segments,
               std::span<const float> buffer, std::vector<NamedTensor>& out) {
  for (const ParameterSegment& segment : segments)
    out.push_back({std::string(prefix) + segment.name, segment.shape,
                   buffer.subspan(static_cast<std::size_t>(segment.offset),
                                  static_cast<std::size_t>(segment.count))});
}

struct Counters {
  std::int64_t steps = 0;
};

result<Counters> parse_counters(const std::string& text, bool trainable) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object())
    return fail(ErrorCode::kCorrupt, "train state: not a JSON object of {} bytes", text.size());
  const auto integer = [&](const char* key) -> result<std::int64_t> {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_integer())
      return fail(ErrorCode::kCorrupt, "train state: {} is missing or not an integer", key);
    return found->get<std::int64_t>();
  };
  TROUPE_TRY(const std::int64_t format, integer("format"));
  if (format != kFormat)
    return fail(ErrorCode::kUnsupported, "train state: format {}, this build reads {}", format,
                kFormat);
  TROUPE_TRY(const std::int64_t steps, integer("optimizer_steps"));
  if (steps < 0) return fail(ErrorCode::kCorrupt, "train state: optimizer_steps is {}", steps);
  const auto has_optimizer = json.find("has_optimizer");
  if (has_optimizer == json.end() || !has_optimizer->is_boolean())
    return fail(ErrorCode::kCorrupt, "train state: has_optimizer is missing or not a boolean");
  if (has_optimizer->get<bool>() != trainable)
    return fail(ErrorCode::kConflict,
                "train state: has_optimizer is {}, but this engine was created with trainable = {}",
                has_optimizer->get<bool>(), trainable);
  return Counters{.steps = steps};
}

}  // namespace

TrainState TrainEngine::state() const {
  FlatParameters& parameters = impl_->decoder->parameters();
  TrainState state;
  state.json = nlohmann::json{{"format", kFormat},
                              {"optimizer_steps", impl_->steps},
                              {"has_optimizer", impl_->options.trainable}}
                   .dump();
  add_views(kWeights, parameters.segments(), parameters.weights(), state.tensors);
  if (impl_->options.trainable) {
    add_views(kFirstMoment, parameters.segments(), impl_->first_moment, state.tensors);
    add_views(kSecondMoment, parameters.segments(), impl_->second_moment, state.tensors);
  }
  return state;
}

result<void> TrainEngine::load_state(const std::string& json,
                                     std::span<const NamedTensor> tensors) {
  TROUPE_TRY(const Counters counters, parse_counters(json, impl_->options.trainable));
  std::unordered_map<std::string_view, const NamedTensor*> by_name;
  for (const NamedTensor& tensor : tensors)
    if (!by_name.emplace(tensor.name, &tensor).second)
      return fail(ErrorCode::kCorrupt, "train state: tensor {} is there twice", tensor.name);
  const TrainState wanted = state();
  for (const NamedTensor& target : wanted.tensors) {
    const auto found = by_name.find(target.name);
    if (found == by_name.end())
      return fail(ErrorCode::kNotFound, "train state: tensor {} {} is missing", target.name,
                  shape_text(target.shape));
    if (found->second->shape != target.shape || found->second->data.size() != target.data.size())
      return fail(ErrorCode::kConflict,
                  "train state: tensor {} has shape {} ({} numbers), wanted {}", target.name,
                  shape_text(found->second->shape), found->second->data.size(),
                  shape_text(target.shape));
  }
  // Everything is there: from here nothing can fail.
  const auto restore = [&by_name](std::string_view prefix, const ParameterSegment& segment,
                                  std::span<float> buffer) {
    const std::string name = std::string(prefix) + segment.name;
    std::ranges::copy(by_name.at(name)->data, buffer.begin() + segment.offset);
  };
  FlatParameters& parameters = impl_->decoder->parameters();
  for (const ParameterSegment& segment : parameters.segments()) {
    restore(kWeights, segment, parameters.weights());
    if (!impl_->options.trainable) continue;
    restore(kFirstMoment, segment, impl_->first_moment);
    restore(kSecondMoment, segment, impl_->second_moment);
  }
  impl_->steps = counters.steps;
  return {};
}

}  // namespace troupe::actors
