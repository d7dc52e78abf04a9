#include "actors/roles/sharded_manifest.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace troupe::actors {
namespace {

using nlohmann::json;
using reshard::Box;

constexpr int kFormat = 1;

result<std::vector<std::int64_t>> integers(const json& value, std::string_view what) {
  const bool all = value.is_array() && std::ranges::all_of(value, [](const json& number) {
                     return number.is_number_integer();
                   });
  if (!all) return fail(ErrorCode::kCorrupt, "manifest: {} is not a list of integers", what);
  return value.get<std::vector<std::int64_t>>();
}

result<ManifestPiece> parse_piece(const json& value, const std::string& tensor) {
  if (!value.is_object() || !value.contains("box") || !value.contains("entry") ||
      !value.at("entry").is_string())
    return fail(ErrorCode::kCorrupt, "manifest: tensor {}: a piece without box or entry", tensor);
  TROUPE_TRY(const auto box, integers(value.at("box"), tensor + ": box"));
  if (box.size() != 4)
    return fail(ErrorCode::kCorrupt, "manifest: tensor {}: a box of {} numbers, wanted 4", tensor,
                box.size());
  return ManifestPiece{.box = {box[0], box[1], box[2], box[3]},
                       .entry = value.at("entry").get<std::string>()};
}

result<ManifestTensor> parse_tensor(const json& value, const std::string& name) {
  if (!value.is_object() || !value.contains("shape") || !value.contains("pieces") ||
      !value.at("pieces").is_array())
    return fail(ErrorCode::kCorrupt, "manifest: tensor {} without shape or pieces", name);
  ManifestTensor tensor;
  TROUPE_TRY(tensor.shape, integers(value.at("shape"), name + ": shape"));
  if (!is_state_shape(tensor.shape))
    return fail(ErrorCode::kCorrupt,
                "manifest: tensor {} has shape {}, wanted one or two positive sizes", name,
                shape_text(tensor.shape));
  for (const json& piece : value.at("pieces")) {
    TROUPE_TRY(ManifestPiece parsed, parse_piece(piece, name));
    tensor.pieces.push_back(std::move(parsed));
  }
  return tensor;
}

result<void> check_tensor(const std::string& name, const ManifestTensor& tensor,
                          std::string_view place) {
  const Box whole = whole_box(tensor.shape);
  std::vector<const ManifestPiece*> sorted;
  std::int64_t found = 0;
  for (const ManifestPiece& piece : tensor.pieces) {
    if (piece.box.empty() || !whole.contains(piece.box))
      return fail(ErrorCode::kCorrupt, "{}: tensor {}: box {} of entry {} is not inside {}", place,
                  name, box_text(piece.box), piece.entry, box_text(whole));
    found += piece.box.elements();
    sorted.push_back(&piece);
  }
  std::ranges::sort(sorted, {}, [](const ManifestPiece* piece) { return piece->box; });
  for (std::size_t i = 0; i < sorted.size(); ++i)
    for (std::size_t j = i + 1; j < sorted.size(); ++j) {
      if (sorted[j]->box.row_begin >= sorted[i]->box.row_end) break;
      const Box common = intersect(sorted[i]->box, sorted[j]->box);
      if (!common.empty())
        return fail(ErrorCode::kCorrupt, "{}: tensor {}: box {} is in entry {} and in entry {}",
                    place, name, box_text(common), sorted[i]->entry, sorted[j]->entry);
    }
  if (found == whole.elements()) return {};
  // Boxes do not overlap, so some row is short: name the first.
  for (std::int64_t row = 0; row < whole.row_end; ++row) {
    std::int64_t cols = 0;
    for (const ManifestPiece* piece : sorted)
      if (piece->box.row_begin <= row && row < piece->box.row_end) cols += piece->box.cols();
    if (cols < whole.cols())
      return fail(ErrorCode::kNotFound,
                  "{}: tensor {}: row {} has {} of {} numbers, {} of {} in all", place, name, row,
                  cols, whole.cols(), found, whole.elements());
  }
  return {};
}

}  // namespace

std::string ShardManifest::to_json() const {
  json all = json::object();
  for (const auto& [name, tensor] : tensors) {
    json pieces = json::array();
    for (const ManifestPiece& piece : tensor.pieces)
      pieces.push_back(
          {{"box",
            {piece.box.row_begin, piece.box.row_end, piece.box.col_begin, piece.box.col_end}},
           {"entry", piece.entry}});
    all[name] = {{"shape", tensor.shape}, {"pieces", std::move(pieces)}};
  }
  return json{{"format", kFormat}, {"tensors", std::move(all)}}.dump();
}

result<ShardManifest> ShardManifest::from_json(std::string_view text) {
  const json value = json::parse(text, nullptr, false);
  if (!value.is_object() || !value.contains("format") || !value.contains("tensors") ||
      !value.at("tensors").is_object())
    return fail(ErrorCode::kCorrupt, "manifest: {} bytes without format or tensors", text.size());
  if (value.at("format") != json(kFormat))
    return fail(ErrorCode::kUnsupported, "manifest: format {}, this build reads {}",
                value.at("format").dump(), kFormat);
  ShardManifest manifest;
  for (const auto& [name, tensor] : value.at("tensors").items()) {
    TROUPE_TRY(ManifestTensor parsed, parse_tensor(tensor, name));
    manifest.tensors.emplace(name, std::move(parsed));
  }
  return manifest;
}

std::vector<std::int64_t> entry_shape(std::span<const std::int64_t> whole, const Box& box) {
  if (whole.size() == 1) return {box.rows()};
  return {box.rows(), box.cols()};
}

std::string manifest_state(std::string_view role) { return std::string(role) + ".shards"; }

std::string piece_entry(std::string_view role, const StatePiece& piece) {
  return fmt::format("{}/{}@{}-{},{}-{}", role, piece.name, piece.box.row_begin, piece.box.row_end,
                     piece.box.col_begin, piece.box.col_end);
}

result<void> add_piece(ShardManifest& manifest, std::string_view role, const StatePiece& piece) {
  ManifestTensor& tensor = manifest.tensors[piece.name];
  if (tensor.shape.empty()) tensor.shape = piece.whole;
  if (tensor.shape != piece.whole)
    return fail(ErrorCode::kConflict, "manifest: tensor {}: one rank says shape {}, another {}",
                piece.name, shape_text(tensor.shape), shape_text(piece.whole));
  tensor.pieces.push_back({.box = piece.box, .entry = piece_entry(role, piece)});
  return {};
}

result<void> check_coverage(const ShardManifest& manifest, std::string_view place) {
  for (const auto& [name, tensor] : manifest.tensors)
    TROUPE_TRY_VOID(check_tensor(name, tensor, place));
  return {};
}

result<void> check_entries(const ShardManifest& manifest, const runtime::Checkpoint& checkpoint) {
  const runtime::CheckpointIndex& index = checkpoint.index();
  const std::string place = checkpoint.folder().string();
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const ManifestPiece& piece : tensor.pieces) {
      const auto entry = index.tensors.find(piece.entry);
      if (entry == index.tensors.end())
        return fail(ErrorCode::kNotFound, "{}: tensor {}: box {}: entry {} is in no file", place,
                    name, box_text(piece.box), piece.entry);
      const std::string& file = index.files[entry->second.section.file].name;
      const std::vector<std::int64_t> wanted = entry_shape(tensor.shape, piece.box);
      if (entry->second.shape != wanted || entry->second.dtype != runtime::DType::kF32)
        return fail(ErrorCode::kCorrupt,
                    "{}/{}: tensor {}: box {}: entry {} has shape {}, wanted f32 {}", place, file,
                    name, box_text(piece.box), piece.entry, shape_text(entry->second.shape),
                    shape_text(wanted));
    }
  }
  return {};
}

result<ShardManifest> read_manifest(const runtime::Checkpoint& checkpoint, std::string_view role) {
  TROUPE_TRY(const std::string text, checkpoint.state(manifest_state(role)));
  TROUPE_TRY(ShardManifest manifest, ShardManifest::from_json(text));
  TROUPE_TRY_VOID(check_coverage(manifest, checkpoint.folder().string()));
  TROUPE_TRY_VOID(check_entries(manifest, checkpoint));
  return manifest;
}

result<std::vector<float>> read_tensor(const runtime::Checkpoint& checkpoint, std::string_view role,
                                       const ShardManifest* manifest, const TensorShape& tensor) {
  if (manifest == nullptr) return checkpoint.tensor<float>(fmt::format("{}/{}", role, tensor.name));
  const auto found = manifest->tensors.find(tensor.name);
  if (found == manifest->tensors.end())
    return fail(ErrorCode::kNotFound, "{}: tensor {} {} is not in the manifest of {}",
                checkpoint.folder().string(), tensor.name, shape_text(tensor.shape), role);
  if (found->second.shape != tensor.shape)
    return fail(ErrorCode::kConflict, "{}: tensor {} has shape {}, wanted {}",
                checkpoint.folder().string(), tensor.name, shape_text(found->second.shape),
                shape_text(tensor.shape));
  std::vector<float> values(static_cast<std::size_t>(tensor.element_count()));
  for (const ManifestPiece& piece : found->second.pieces) {
    TROUPE_TRY(const std::vector<float> part, checkpoint.tensor<float>(piece.entry));
    copy_common(piece.box, part, whole_box(tensor.shape), values);
  }
  return values;
}

}  // namespace troupe::actors
