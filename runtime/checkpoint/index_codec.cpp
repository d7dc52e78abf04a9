#include "runtime/checkpoint/index_codec.hpp"

#include "runtime/batch/codec_support.hpp"
#include "runtime/batch/durable_file.hpp"
#include "runtime/batch/frame.hpp"

#include <capnp/serialize.h>
#include <nlohmann/json.hpp>
#include <schemas/checkpoint.capnp.h>

#include <cstring>
#include <set>

namespace troupe::runtime {
namespace {

constexpr FrameFormat kFormat{.place = "checkpoint index", .magic = "TRPCKPT\n", .version = 1};
constexpr std::size_t kShapeMax = 16;

/// Sections of all files, to find two that overlap.
struct Placed {
  CheckpointSection section;
  std::string_view name;
};

result<void> check_section(const CheckpointIndex& index, const std::string& name,
                           const CheckpointSection& section) {
  if (section.file >= index.files.size())
    return fail(ErrorCode::kCorrupt, "checkpoint index: {}: in file {} of {}", name, section.file,
                index.files.size());
  const CheckpointFile& file = index.files[section.file];
  if (section.offset < 0 || section.bytes < 0 || section.offset > file.bytes ||
      section.bytes > file.bytes - section.offset)
    return fail(ErrorCode::kCorrupt, "checkpoint index: {}: {} bytes from {} of {} ({} bytes)",
                name, section.bytes, section.offset, file.name, file.bytes);
  return {};
}

result<void> check_tensor(const std::string& name, const CheckpointTensor& tensor) {
  if (tensor.shape.size() > kShapeMax)
    return fail(ErrorCode::kCorrupt, "checkpoint index: tensor {}: {} sides, wanted at most {}",
                name, tensor.shape.size(), kShapeMax);
  // Divide the bytes by each side instead of multiplying: no overflow. A side of 0 means no bytes.
  std::int64_t left = tensor.section.bytes;
  bool fits = left % dtype_bytes(tensor.dtype) == 0;
  left /= dtype_bytes(tensor.dtype);
  bool none = false;
  for (const std::int64_t side : tensor.shape) {
    if (side < 0)
      return fail(ErrorCode::kCorrupt, "checkpoint index: tensor {}: side {}", name, side);
    none = none || side == 0;
    if (side > 0) fits = fits && left % side == 0, left /= side;
  }
  if (none ? tensor.section.bytes != 0 : !fits || left != 1)
    return fail(ErrorCode::kCorrupt, "checkpoint index: tensor {}: {} bytes, shape is {} [{}]",
                name, tensor.section.bytes, dtype_name(tensor.dtype),
                fmt::join(tensor.shape, ", "));
  return {};
}

result<void> check_files(const CheckpointIndex& index) {
  std::set<std::string_view> names;
  for (const CheckpointFile& file : index.files) {
    const bool plain = !file.name.empty() && file.name.front() != '.' &&
                       file.name.find('/') == std::string::npos &&
                       file.name.find('\0') == std::string::npos;
    if (!plain)
      return fail(ErrorCode::kCorrupt, "checkpoint index: file name '{}' is not a plain name",
                  file.name);
    if (file.bytes < 0 || !names.insert(file.name).second)
      return fail(ErrorCode::kCorrupt, "checkpoint index: file {}: {} bytes, or comes twice",
                  file.name, file.bytes);
  }
  return {};
}

result<void> check_index(const CheckpointIndex& index) {
  if (index.step < 0)
    return fail(ErrorCode::kCorrupt, "checkpoint index: step {}, wanted 0 or more", index.step);
  TROUPE_TRY_VOID(check_files(index));
  std::vector<Placed> placed;
  for (const auto& [name, tensor] : index.tensors) {
    TROUPE_TRY_VOID(check_section(index, "tensor " + name, tensor.section));
    TROUPE_TRY_VOID(check_tensor(name, tensor));
    placed.push_back({tensor.section, name});
  }
  for (const auto& [name, section] : index.blobs) {
    TROUPE_TRY_VOID(check_section(index, "blob " + name, section));
    placed.push_back({section, name});
  }
  std::erase_if(placed, [](const Placed& one) { return one.section.bytes == 0; });
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.section.file, a.section.offset) <
           std::pair(b.section.file, b.section.offset);
  });
  for (std::size_t i = 1; i < placed.size(); ++i) {
    const CheckpointSection& before = placed[i - 1].section;
    const CheckpointSection& after = placed[i].section;
    if (before.file == after.file && before.offset + before.bytes > after.offset)
      return fail(ErrorCode::kCorrupt, "checkpoint index: {} ends at {} of {}, {} starts at {}",
                  placed[i - 1].name, before.offset + before.bytes, index.files[before.file].name,
                  placed[i].name, after.offset);
  }
  for (const auto& [name, json] : index.states) {
    if (!nlohmann::json::accept(json))
      return fail(ErrorCode::kCorrupt, "checkpoint index: state {}: not a json text: {}", name,
                  json.substr(0, 60));
  }
  return {};
}

void write_section(const CheckpointSection& section, schemas::Section::Builder out) {
  out.setOffset(static_cast<std::uint64_t>(section.offset));
  out.setBytes(static_cast<std::uint64_t>(section.bytes));
  out.setChecksum(section.checksum);
}

/// An unsigned size as a signed one; sizes past the signed range become -1, which no check allows.
std::int64_t size_of(std::uint64_t value) {
  return value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())
             ? -1
             : static_cast<std::int64_t>(value);
}

CheckpointSection read_section(std::uint32_t file, schemas::Section::Reader in) {
  return {.file = file,
          .offset = size_of(in.getOffset()),
          .bytes = size_of(in.getBytes()),
          .checksum = in.getChecksum()};
}

template <class Map>
result<void> add_unique(Map& map, std::string name, typename Map::mapped_type value,
                        std::string_view what) {
  const auto [place, added] = map.emplace(std::move(name), std::move(value));
  if (!added)
    return fail(ErrorCode::kCorrupt, "checkpoint index: {} {}: comes twice", what, place->first);
  return {};
}

result<CheckpointIndex> read_index(schemas::CheckpointIndex::Reader in) {
  CheckpointIndex index;
  index.step = in.getStep();
  for (const auto file : in.getFiles())
    index.files.push_back({text_of(file.getName()), size_of(file.getBytes())});
  for (const auto tensor : in.getTensors()) {
    std::string name = text_of(tensor.getName());
    const auto dtype = static_cast<unsigned>(tensor.getElementType());
    if (dtype > static_cast<unsigned>(DType::kBool))
      return fail(ErrorCode::kCorrupt, "checkpoint index: tensor {}: element type {}, wanted 0..5",
                  name, dtype);
    CheckpointTensor entry{.dtype = static_cast<DType>(dtype),
                           .shape = {},
                           .section = read_section(tensor.getFile(), tensor.getSection())};
    for (const std::int64_t side : tensor.getShape()) entry.shape.push_back(side);
    TROUPE_TRY_VOID(add_unique(index.tensors, std::move(name), std::move(entry), "tensor"));
  }
  for (const auto blob : in.getBlobs()) {
    TROUPE_TRY_VOID(add_unique(index.blobs, text_of(blob.getName()),
                               read_section(blob.getFile(), blob.getSection()), "blob"));
  }
  for (const auto state : in.getStates()) {
    TROUPE_TRY_VOID(
        add_unique(index.states, text_of(state.getName()), text_of(state.getJson()), "state"));
  }
  TROUPE_TRY_VOID(check_index(index));
  return index;
}

void write_index(const CheckpointIndex& index, schemas::CheckpointIndex::Builder out) {
  out.setStep(index.step);
  unsigned at = 0;
  auto files = out.initFiles(list_size(index.files.size()));
  for (const CheckpointFile& file : index.files) {
    files[at].setName(whole_text(file.name));
    files[at++].setBytes(static_cast<std::uint64_t>(file.bytes));
  }
  at = 0;
  auto tensors = out.initTensors(list_size(index.tensors.size()));
  for (const auto& [name, tensor] : index.tensors) {
    auto entry = tensors[at++];
    entry.setName(whole_text(name));
    entry.setElementType(static_cast<schemas::ElementType>(tensor.dtype));
    auto shape = entry.initShape(list_size(tensor.shape.size()));
    for (std::size_t i = 0; i < tensor.shape.size(); ++i)
      shape.set(static_cast<unsigned>(i), tensor.shape[i]);
    entry.setFile(tensor.section.file);
    write_section(tensor.section, entry.initSection());
  }
  at = 0;
  auto blobs = out.initBlobs(list_size(index.blobs.size()));
  for (const auto& [name, section] : index.blobs) {
    blobs[at].setName(whole_text(name));
    blobs[at].setFile(section.file);
    write_section(section, blobs[at++].initSection());
  }
  at = 0;
  auto states = out.initStates(list_size(index.states.size()));
  for (const auto& [name, json] : index.states) {
    states[at].setName(whole_text(name));
    states[at++].setJson(whole_text(json));
  }
}

}  // namespace

result<std::vector<std::byte>> encode_index(const CheckpointIndex& index) {
  if (result<void> consistent = check_index(index); !consistent) {
    Error error = std::move(consistent).error();
    error.code = ErrorCode::kInvalidArgument;
    return fail(std::move(error));
  }
  capnp::MallocMessageBuilder message;
  write_index(index, message.initRoot<schemas::CheckpointIndex>());
  const kj::Array<capnp::word> flat = capnp::messageToFlatArray(message);
  const std::span<const std::byte> header(reinterpret_cast<const std::byte*>(flat.begin()),
                                          flat.size() * sizeof(capnp::word));
  const std::int64_t bytes = kFramePrefixBytes + static_cast<std::int64_t>(header.size());
  if (bytes > kIndexBytesMax)
    return fail(ErrorCode::kInvalidArgument, "checkpoint index: {} bytes, wanted at most {}", bytes,
                kIndexBytesMax);
  std::vector<std::byte> frame(static_cast<std::size_t>(bytes));
  write_frame_prefix(kFormat, header, bytes, frame);
  std::memcpy(frame.data() + kFramePrefixBytes, header.data(), header.size());
  return frame;
}

result<CheckpointIndex> decode_index(std::span<const std::byte> frame, bool checksums) {
  TROUPE_TRY(const auto header, open_frame(kFormat, frame,
                                           {.frame_bytes_max = kIndexBytesMax,
                                            .header_bytes_max = kIndexBytesMax,
                                            .checksums = checksums}));
  if (kFramePrefixBytes + header.size() != frame.size())
    return fail(ErrorCode::kCorrupt, "checkpoint index: header ends at {} of {} bytes",
                kFramePrefixBytes + header.size(), frame.size());
  AlignedBytes aligned_header(header.size());
  std::memcpy(aligned_header.mutable_bytes().data(), header.data(), header.size());
  const auto bytes = std::as_const(aligned_header).bytes();
  return guarded_decode<CheckpointIndex>("checkpoint index", [&]() -> result<CheckpointIndex> {
    capnp::FlatArrayMessageReader message(words_of(bytes), reader_options(bytes.size()));
    TROUPE_TRY_VOID(check_end(message.getEnd(), bytes, "checkpoint index"));
    return read_index(message.getRoot<schemas::CheckpointIndex>());
  });
}

std::uint64_t claimed_index_bytes(std::span<const std::byte> frame) {
  return claimed_frame_bytes(frame);
}

}  // namespace troupe::runtime
