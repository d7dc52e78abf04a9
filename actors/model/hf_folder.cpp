#include "actors/model/hf_folder.hpp"

#include "actors/text/strict_json.hpp"
#include "runtime/base/file.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace troupe::actors {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kHeadName = "lm_head.weight";

/// Tensors that a file may hold and that this decoder has no use for.
bool is_ignored(const ModelConfig& config, std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq") || (config.tie_embeddings && name == kHeadName);
}

/// All files of a model, and where each tensor is.
struct Checkpoint {
  std::vector<SafetensorsFile> files;
  struct Place {
    const SafetensorsFile* file;
    const TensorEntry* entry;
  };
  std::unordered_map<std::string, Place> places;

  /// Call when `files` is complete. Doubled tensors were refused before.
  void index_tensors() {
    for (const SafetensorsFile& file : files)
      for (const TensorEntry& entry : file.entries())
        places.emplace(entry.name, Place{&file, &entry});
  }
};

using WeightMap = std::map<std::string, std::string>;  // tensor → file name

/// The index names files of its own folder only.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

result<WeightMap> read_index(const fs::path& path) {
  TROUPE_TRY(const std::string text, read_text_file(path));
  TROUPE_TRY(const json document, parse_strict_json(text, path.string()));
  const json* map = nullptr;
  if (document.is_object())
    if (const auto found = document.find("weight_map"); found != document.end()) map = &*found;
  if (map == nullptr || !map->is_object())
    return fail(ErrorCode::kCorrupt, "{}: weight_map is missing or not an object", path.string());
  WeightMap weight_map;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>()))
      return fail(ErrorCode::kCorrupt, "{}: tensor {}: {} is not a file name", path.string(), name,
                  file.dump());
    weight_map.emplace(name, file.get<std::string>());
  }
  if (weight_map.empty())
    return fail(ErrorCode::kCorrupt, "{}: weight_map is empty", path.string());
  return weight_map;
}

/// Index and shards must say the same, both ways.
result<void> check_index(const fs::path& index_path, const WeightMap& weight_map,
                         const Checkpoint& checkpoint, const ModelConfig& config) {
  std::map<std::string, const SafetensorsFile*> by_name;
  for (const SafetensorsFile& file : checkpoint.files)
    by_name.emplace(file.path().filename().string(), &file);
  for (const auto& [tensor, file_name] : weight_map)
    if (by_name.at(file_name)->find(tensor) == nullptr)
      return fail(ErrorCode::kCorrupt, "{}: tensor {}: is not in {}", index_path.string(), tensor,
                  file_name);
  for (const auto& [file_name, file] : by_name) {
    for (const TensorEntry& entry : file->entries()) {
      const auto mapped = weight_map.find(entry.name);
      if (mapped == weight_map.end()) {
        if (is_ignored(config, entry.name)) continue;
        return fail(ErrorCode::kCorrupt, "{}: tensor {}: is not in {}", file->path().string(),
                    entry.name, kIndexName);
      }
      if (mapped->second != file_name)
        return fail(ErrorCode::kCorrupt, "{}: tensor {}: is also in {}, where {} puts it",
                    file->path().string(), entry.name, mapped->second, kIndexName);
    }
  }
  return {};
}

result<Checkpoint> open_checkpoint(const fs::path& folder, const ModelConfig& config) {
  Checkpoint checkpoint;
  const fs::path single = folder / kSingleName;
  const fs::path index_path = folder / kIndexName;
  if (fs::exists(single)) {
    TROUPE_TRY(SafetensorsFile file, SafetensorsFile::open(single));
    checkpoint.files.push_back(std::move(file));
  } else if (fs::exists(index_path)) {
    TROUPE_TRY(const WeightMap weight_map, read_index(index_path));
    std::map<std::string, std::string> first_tensor;  // file → a tensor of it, for the message
    for (const auto& [tensor, file_name] : weight_map) first_tensor.emplace(file_name, tensor);
    for (const auto& [file_name, tensor] : first_tensor) {
      auto file = SafetensorsFile::open(folder / file_name);
      if (!file && file.error().code == ErrorCode::kNotFound)
        return fail(ErrorCode::kNotFound, "{}: tensor {}: file {} does not exist",
                    index_path.string(), tensor, file_name);
      TROUPE_TRY(SafetensorsFile opened, std::move(file));
      checkpoint.files.push_back(std::move(opened));
    }
    TROUPE_TRY_VOID(check_index(index_path, weight_map, checkpoint, config));
  } else {
    return fail(ErrorCode::kNotFound, "{}: neither {} nor {} exists", folder.string(), kSingleName,
                kIndexName);
  }
  checkpoint.index_tensors();
  return checkpoint;
}

}  // namespace

result<WeightSet> load_hf_weights(const fs::path& folder, const ModelConfig& config) {
  TROUPE_TRY_VOID(config.validate());
  TROUPE_TRY(const Checkpoint checkpoint, open_checkpoint(folder, config));
  const std::vector<TensorShape> expected = expected_tensors(config);
  std::set<std::string_view> expected_names;
  // Everything is checked before a byte of the, perhaps many, gigabytes is read.
  for (const TensorShape& wanted : expected) {
    expected_names.insert(wanted.name);
    const auto found = checkpoint.places.find(wanted.name);
    if (found == checkpoint.places.end())
      return fail(ErrorCode::kNotFound, "{}: tensor {}: is missing, wanted with shape {}",
                  folder.string(), wanted.name, shape_text(wanted.shape));
    const auto& [file, entry] = found->second;
    if (entry->shape != wanted.shape)
      return fail(ErrorCode::kInvalidArgument, "{}: tensor {}: has shape {}, but {} is wanted",
                  file->path().string(), wanted.name, shape_text(entry->shape),
                  shape_text(wanted.shape));
  }
  for (const SafetensorsFile& file : checkpoint.files)
    for (const TensorEntry& entry : file.entries())
      if (!expected_names.contains(entry.name) && !is_ignored(config, entry.name))
        return fail(ErrorCode::kInvalidArgument,
                    "{}: tensor {}: shape {} is not part of a {} model with this config.json",
                    file.path().string(), entry.name, shape_text(entry.shape),
                    model_family_name(config.family));

  WeightSet weights = WeightSet::zeros(expected);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto& [file, entry] = checkpoint.places.at(expected[i].name);
    TROUPE_TRY_VOID(file->read_f32(*entry, weights.mutable_data(i)));
  }
  return weights;
}

result<void> check_tensors(const ModelConfig& config, std::span<const NamedTensor> tensors) {
  std::unordered_map<std::string_view, const NamedTensor*> given;
  for (const NamedTensor& tensor : tensors)
    if (!given.emplace(tensor.name, &tensor).second)
      return fail(ErrorCode::kInvalidArgument, "tensor {}: is given twice", tensor.name);
  const std::vector<TensorShape> expected = expected_tensors(config);
  std::set<std::string_view> names;
  for (const TensorShape& wanted : expected) {
    names.insert(wanted.name);
    const auto found = given.find(wanted.name);
    if (found == given.end())
      return fail(ErrorCode::kNotFound, "tensor {}: is missing, wanted with shape {}", wanted.name,
                  shape_text(wanted.shape));
    const NamedTensor& tensor = *found->second;
    if (tensor.shape != wanted.shape)
      return fail(ErrorCode::kInvalidArgument, "tensor {}: has shape {}, but {} is wanted",
                  wanted.name, shape_text(tensor.shape), shape_text(wanted.shape));
    if (std::cmp_not_equal(tensor.data.size(), wanted.element_count()))
      return fail(ErrorCode::kInvalidArgument, "tensor {}: {} values for shape {}", wanted.name,
                  tensor.data.size(), shape_text(wanted.shape));
  }
  for (const NamedTensor& tensor : tensors)
    if (!names.contains(tensor.name) && !is_ignored(config, tensor.name))
      return fail(ErrorCode::kInvalidArgument, "tensor {}: shape {} is not part of this {} model",
                  tensor.name, shape_text(tensor.shape), model_family_name(config.family));
  return {};
}

namespace {

TensorType tensor_type_of(WeightType type) {
  switch (type) {
    case WeightType::kBf16:
      return TensorType::kBf16;
    case WeightType::kF16:
      return TensorType::kF16;
    case WeightType::kF32:
      break;
  }
  return TensorType::kF32;
}

std::int64_t stored_bytes(const TensorView& tensor, TensorType type) {
  return static_cast<std::int64_t>(tensor.bytes.size() / sizeof(float) * tensor_type_bytes(type));
}

/// Greedy in canonical order: a new shard when the next tensor would not fit.
std::vector<std::vector<TensorView>> split_shards(std::vector<TensorView> views,
                                                  const HfSaveOptions& options) {
  const TensorType type = tensor_type_of(options.stored_type);
  std::vector<std::vector<TensorView>> shards(1);
  std::int64_t used = 0;
  for (TensorView& view : views) {
    const std::int64_t bytes = stored_bytes(view, type);
    if (!shards.back().empty() && used + bytes > options.max_shard_bytes) {
      shards.emplace_back();
      used = 0;
    }
    used += bytes;
    shards.back().push_back(std::move(view));
  }
  return shards;
}

/// `model-00001-of-00003.safetensors` and its like.
bool is_shard_name(std::string_view name) {
  constexpr std::string_view kForm = "model-#####-of-#####.safetensors";
  return std::equal(name.begin(), name.end(), kForm.begin(), kForm.end(), [](char c, char form) {
    return form == '#' ? c >= '0' && c <= '9' : c == form;
  });
}

result<void> remove_stale(const fs::path& folder, const std::set<std::string>& kept) {
  std::error_code error;
  std::vector<fs::path> stale;
  for (const auto& item : fs::directory_iterator(folder, error)) {
    const std::string name = item.path().filename().string();
    const bool is_weights = name == kSingleName || name == kIndexName || is_shard_name(name);
    if (is_weights && !kept.contains(name)) stale.push_back(item.path());
  }
  // The file that says which others count goes first.
  std::sort(stale.begin(), stale.end(), [](const fs::path& a, const fs::path& b) {
    return std::pair(is_shard_name(a.filename().string()), a) <
           std::pair(is_shard_name(b.filename().string()), b);
  });
  for (const fs::path& path : stale)
    if (fs::remove(path, error); error)
      return fail(ErrorCode::kIo, "{}: cannot remove: {}", path.string(), error.message());
  return {};
}

result<void> write_weights(const fs::path& folder, std::vector<TensorView> views,
                           const HfSaveOptions& options) {
  const SafetensorsWriteOptions write_options{.f32_as = tensor_type_of(options.stored_type)};
  const auto shards = split_shards(std::move(views), options);
  if (shards.size() == 1) {
    TROUPE_TRY_VOID(write_safetensors(folder / kSingleName, shards.front(), write_options));
    return remove_stale(folder, {std::string(kSingleName)});
  }
  std::set<std::string> kept = {std::string(kIndexName)};
  json weight_map = json::object();
  std::int64_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    TROUPE_TRY_VOID(write_safetensors(folder / name, shards[i], write_options));
    kept.insert(name);
    for (const TensorView& view : shards[i]) {
      weight_map[view.name] = name;
      total += stored_bytes(view, write_options.f32_as);
    }
  }
  const json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  TROUPE_TRY_VOID(write_text_file(folder / kIndexName, index.dump(2) + "\n"));
  return remove_stale(folder, kept);
}

result<void> copy_tokenizer_files(const fs::path& source, const fs::path& target) {
  std::error_code error;
  if (fs::equivalent(source, target, error)) return {};
  for (const std::string_view name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja",
        "chat_template.json"}) {
    if (!fs::exists(source / name)) continue;
    TROUPE_TRY(const std::string text, read_text_file(source / name));
    TROUPE_TRY_VOID(write_text_file(target / name, text));
  }
  return {};
}

}  // namespace

result<void> save_hf_folder(const fs::path& folder, const ModelConfig& config,
                            std::span<const NamedTensor> tensors, const HfSaveOptions& options) {
  TROUPE_TRY_VOID(config.validate());
  if (options.max_shard_bytes < 1)
    return fail(ErrorCode::kInvalidArgument, "{}: max_shard_bytes is {}, must be positive",
                folder.string(), options.max_shard_bytes);
  if (auto good = check_tensors(config, tensors); !good)
    return fail(good.error().code, "{}: {}", folder.string(), good.error().message);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return fail(ErrorCode::kIo, "{}: cannot create: {}", folder.string(), error.message());

  std::unordered_map<std::string_view, const NamedTensor*> given;
  for (const NamedTensor& tensor : tensors) given.emplace(tensor.name, &tensor);
  std::vector<TensorView> views;
  for (const TensorShape& wanted : expected_tensors(config))
    views.push_back({.name = wanted.name,
                     .type = TensorType::kF32,
                     .shape = wanted.shape,
                     .bytes = std::as_bytes(given.at(wanted.name)->data)});
  TROUPE_TRY_VOID(write_weights(folder, std::move(views), options));

  ModelConfig stored = config;
  stored.stored_type = options.stored_type;
  TROUPE_TRY_VOID(write_text_file(folder / "config.json", stored.to_json()));
  if (!config.stop_ids.empty())
    TROUPE_TRY_VOID(write_text_file(folder / "generation_config.json", config.generation_json()));
  if (options.tokenizer_folder)
    TROUPE_TRY_VOID(copy_tokenizer_files(*options.tokenizer_folder, folder));
  return {};
}

}  // namespace troupe::actors
