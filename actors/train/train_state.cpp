// Saving and restoring the engine: counters as JSON, weights and moments as exact f32 tensors,
// whole or as pieces; and where the weights lie.
#include "actors/train/train_engine_impl.hpp"
#include "runtime/base/check.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace troupe::actors {
namespace {

constexpr int kFormat = 1;

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

std::string_view sharding_name(Sharding sharding) {
  switch (sharding) {
    case Sharding::kNone:
      return "none";
    case Sharding::kZero1:
      return "zero1";
    case Sharding::kFsdp:
      return "fsdp";
  }
  return "?";
}

/// −1 for the embedding, l for layer l, L for what follows them.
std::int32_t layer_of(std::string_view name, const ModelConfig& config) {
  constexpr std::string_view kLayers = "model.layers.";
  if (name == kEmbedding) return -1;
  std::int32_t layer = static_cast<std::int32_t>(config.layer_count);
  if (name.starts_with(kLayers))
    std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
  return layer;
}

/// Whole tensors as pieces.
std::vector<StatePiece> whole_pieces(std::span<const NamedTensor> tensors) {
  std::vector<StatePiece> pieces;
  for (const NamedTensor& tensor : tensors)
    pieces.push_back({.name = tensor.name,
                      .whole = tensor.shape,
                      .box = whole_box(tensor.shape),
                      .data = tensor.data});
  return pieces;
}

}  // namespace

bool TrainEngine::is_whole() const {
  return !impl_->groups->place().cut() && !impl_->decoder->parameters().updates_are_cut();
}

std::string TrainEngine::state_json() const {
  nlohmann::json json{{"format", kFormat},
                      {"optimizer_steps", impl_->steps},
                      {"has_optimizer", impl_->options.trainable}};
  if (!is_whole()) {
    const MeshPlace& place = impl_->groups->place();
    const ParallelOptions& parallel = impl_->options.parallel;
    json["mesh"] = {{"pp", place.pp_size},
                    {"dp", place.dp_size},
                    {"tp", place.tp_size},
                    {"virtual_stages", parallel.virtual_stages},
                    {"sharding", sharding_name(parallel.sharding)},
                    {"shard_ranks", impl_->decoder->parameters().shard_ranks()}};
  }
  return json.dump();
}

TrainState TrainEngine::state() const {
  TROUPE_CHECK(is_whole(),
               "train engine: state() of a sharded engine; state_pieces() says what it holds");
  FlatParameters& parameters = impl_->decoder->parameters();
  TrainState state;
  state.json = state_json();
  add_views(kWeightPrefix, parameters.segments(), parameters.weights(), state.tensors);
  if (impl_->options.trainable) {
    add_views(kFirstMomentPrefix, parameters.segments(), impl_->first_moment, state.tensors);
    add_views(kSecondMomentPrefix, parameters.segments(), impl_->second_moment, state.tensors);
  }
  return state;
}

result<void> TrainEngine::load_state(const std::string& json,
                                     std::span<const NamedTensor> tensors) {
  if (!is_whole()) return load_pieces(json, whole_pieces(tensors));
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
    restore(kWeightPrefix, segment, parameters.weights());
    if (!impl_->options.trainable) continue;
    restore(kFirstMomentPrefix, segment, impl_->first_moment);
    restore(kSecondMomentPrefix, segment, impl_->second_moment);
  }
  impl_->steps = counters.steps;
  abandon_step();  // its gradients are of other weights
  return {};
}

std::vector<StatePiece> TrainEngine::weight_pieces() const {
  if (!impl_->shards->first_copy()) return {};
  FlatParameters& parameters = impl_->decoder->parameters();
  return pieces_of(kWeightPrefix, parameters.segments(), parameters.runs(),
                   &ParameterRun::weight_offset, parameters.weights(), true);
}

std::vector<StatePiece> TrainEngine::state_pieces() const {
  std::vector<StatePiece> pieces = weight_pieces();
  if (!impl_->options.trainable || !impl_->shards->first_copy()) return pieces;
  const FlatParameters& parameters = impl_->decoder->parameters();
  for (const auto& [prefix, buffer] : {std::pair(kFirstMomentPrefix, &impl_->first_moment),
                                       std::pair(kSecondMomentPrefix, &impl_->second_moment)}) {
    const auto more = pieces_of(prefix, parameters.segments(), parameters.runs(),
                                &ParameterRun::shard_offset, *buffer, true);
    pieces.insert(pieces.end(), more.begin(), more.end());
  }
  return pieces;
}

std::vector<StateTarget> TrainEngine::Impl::state_targets() {
  FlatParameters& parameters = decoder->parameters();
  std::vector<StateTarget> targets =
      targets_of(kWeightPrefix, parameters.segments(), parameters.weight_runs(),
                 &ParameterRun::weight_offset, parameters.weights());
  if (!options.trainable) return targets;
  for (const auto& [prefix, buffer] : {std::pair(kFirstMomentPrefix, &first_moment),
                                       std::pair(kSecondMomentPrefix, &second_moment)}) {
    const auto more = targets_of(prefix, parameters.segments(), parameters.runs(),
                                 &ParameterRun::shard_offset, *buffer);
    targets.insert(targets.end(), more.begin(), more.end());
  }
  return targets;
}

std::vector<StatePiece> TrainEngine::held_pieces() const {
  std::vector<StatePiece> pieces;
  for (StateTarget& target : impl_->state_targets()) pieces.push_back(std::move(target.piece));
  return pieces;
}

result<void> TrainEngine::load_pieces(const std::string& json, std::span<const StatePiece> pieces) {
  TROUPE_TRY(const Counters counters, parse_counters(json, impl_->options.trainable));
  TROUPE_TRY_VOID(fill_pieces(impl_->state_targets(), pieces));
  impl_->steps = counters.steps;
  abandon_step();  // its gradients are of other weights
  return {};
}

std::vector<reshard::TensorInfo> TrainEngine::tensors() const {
  std::vector<reshard::TensorInfo> out;
  for (const TensorShape& tensor : decoder_tensors(config(), impl_->critic())) {
    const reshard::Box box = whole_box(tensor.shape);
    out.push_back({.name = tensor.name,
                   .dtype = reshard::DType::kF32,
                   .rows = box.rows(),
                   .cols = box.cols(),
                   .layer = layer_of(tensor.name, config())});
  }
  return out;
}

reshard::RankLayout TrainEngine::layout() const {
  std::unordered_map<std::string, std::int32_t> index_of;
  for (const TensorShape& tensor : decoder_tensors(config(), impl_->critic()))
    index_of.emplace(tensor.name, static_cast<std::int32_t>(index_of.size()));
  const FlatParameters& parameters = impl_->decoder->parameters();
  const runtime::Collective* world = impl_->groups->world();
  reshard::RankLayout layout{.rank = world == nullptr ? 0 : world->rank(),
                             .node = 0,
                             .segments = {},
                             .buffer_elements = {parameters.stored_elements()}};
  for (const ParameterRun& run : parameters.weight_runs()) {
    const LocalTensor& tensor = parameters.segments()[run.segment].tensor;
    for (const RunBox& part : boxes_of(tensor, run.begin, run.count))
      layout.segments.push_back({.tensor = index_of.at(tensor.name),
                                 .box = part.box,
                                 .buffer = 0,
                                 .offset = run.weight_offset + part.begin,
                                 .row_stride = part.box.cols()});
  }
  return layout;
}

std::span<const std::span<const float>> TrainEngine::buffers() const {
  return {&impl_->weight_buffer, 1};
}

}  // namespace troupe::actors
