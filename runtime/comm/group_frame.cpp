#include "runtime/comm/group_frame.hpp"

#include "runtime/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace troupe::runtime {
namespace {

constexpr std::size_t kFrameNameMax = 128;
constexpr std::uint32_t kMagic = 0x47505254;  // "TRPG"

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) : out_(out) {}
  template <class T>
  void number(T value) {
    put(&value, sizeof value);
  }
  void text(std::string_view value, std::size_t bytes_max) {
    value = value.substr(0, bytes_max);
    number(static_cast<std::uint32_t>(value.size()));
    put(value.data(), value.size());
  }
  void put(const void* data, std::size_t size) {
    TROUPE_CHECK(at_ + size <= out_.size(), "group frame: {} bytes, has {}", at_ + size,
                 out_.size());
    if (size > 0) std::memcpy(out_.data() + at_, data, size);
    at_ += size;
  }

 private:
  std::vector<std::byte>& out_;
  std::size_t at_ = 0;
};

/// After a fault every read gives zeros and `good` is false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  template <class T>
  T number() {
    T value{};
    get(&value, sizeof value);
    return value;
  }
  template <class T>
  T below(T limit) {
    const T value = number<T>();
    if (value >= limit) good_ = false;
    return good_ ? value : T{};
  }
  std::string text() {
    std::string value(below<std::uint32_t>(kFrameTextMax + 1), '\0');
    get(value.data(), value.size());
    return value;
  }
  void get(void* data, std::size_t size) {
    if (!good_ || size > in_.size()) {
      good_ = false;
      return;
    }
    if (size > 0) std::memcpy(data, in_.data(), size);
    in_ = in_.subspan(size);
  }
  bool good() const { return good_; }

 private:
  std::span<const std::byte> in_;
  bool good_ = true;
};

void write_error(Writer& out, const Error& error, int levels) {
  out.number(static_cast<std::uint8_t>(error.code));
  out.text(error.message, kFrameTextMax);
  out.text(error.origin.group, kFrameNameMax);
  out.number(error.origin.rank ? error.origin.rank->value : std::int32_t{-1});
  out.number(error.origin.node ? error.origin.node->value : std::int32_t{-1});
  const bool more = levels > 0 && !error.causes.empty();
  out.number(static_cast<std::uint8_t>(more));
  if (more) write_error(out, error.causes.front(), levels - 1);
}

Error read_error(Reader& in, int levels) {
  Error error;
  error.code = static_cast<ErrorCode>(
      in.below<std::uint8_t>(static_cast<std::uint8_t>(ErrorCode::kInternal) + 1));
  error.message = in.text();
  error.origin.group = in.text();
  if (const auto rank = in.number<std::int32_t>(); rank >= 0) error.origin.rank = RankId{rank};
  if (const auto node = in.number<std::int32_t>(); node >= 0) error.origin.node = NodeId{node};
  if (in.number<std::uint8_t>() == 0) return error;
  if (levels > 0 && in.good()) error.causes.push_back(read_error(in, levels - 1));
  return error;
}

}  // namespace

std::vector<std::byte> encode_group_frame(const GroupFrame& frame) {
  std::vector<std::byte> bytes(kGroupFrameBytes);
  Writer out(bytes);
  out.number(kMagic);
  out.number(static_cast<std::uint8_t>(frame.kind));
  out.number(frame.group);
  out.number(frame.received);
  out.number(frame.operation);
  out.number(static_cast<std::int32_t>(frame.rank));
  out.number(static_cast<std::int32_t>(frame.tag));
  out.number(frame.id);
  out.number(static_cast<std::uint8_t>(frame.call.kind));
  out.number(static_cast<std::uint8_t>(frame.call.type));
  out.number(static_cast<std::uint64_t>(frame.call.count));
  out.number(static_cast<std::uint8_t>(frame.call.op));
  out.number(static_cast<std::int32_t>(frame.call.root));
  out.number(static_cast<std::uint8_t>(frame.error.has_value()));
  if (frame.error) {
    write_error(out, *frame.error, kFrameCausesMax - 1);
  } else {
    out.number(static_cast<std::uint32_t>(frame.bytes.size()));
    out.put(frame.bytes.data(), frame.bytes.size());
  }
  return bytes;
}

result<GroupFrame> decode_group_frame(std::span<const std::byte> bytes) {
  Reader in(bytes);
  if (bytes.size() != kGroupFrameBytes || in.number<std::uint32_t>() != kMagic)
    return fail(ErrorCode::kCorrupt, "group frame: {} bytes that are none", bytes.size());
  GroupFrame frame;
  frame.kind = static_cast<GroupFrame::Kind>(
      in.below<std::uint8_t>(static_cast<std::uint8_t>(GroupFrame::Kind::kAbandon) + 1));
  frame.group = in.number<std::uint64_t>();
  frame.received = in.number<std::uint64_t>();
  frame.operation = in.number<std::uint64_t>();
  frame.rank = in.number<std::int32_t>();
  frame.tag = in.number<std::int32_t>();
  frame.id = in.number<std::uint64_t>();
  frame.call.kind = static_cast<OpKind>(in.below<std::uint8_t>(kOpKinds));
  frame.call.type = static_cast<ElementType>(in.below<std::uint8_t>(4));
  frame.call.count = static_cast<std::size_t>(in.number<std::uint64_t>());
  frame.call.op = static_cast<ReduceOp>(in.below<std::uint8_t>(4));
  frame.call.root = in.number<std::int32_t>();
  if (in.number<std::uint8_t>() != 0) {
    frame.error = read_error(in, kFrameCausesMax - 1);
  } else {
    frame.bytes.resize(in.below<std::uint32_t>(kInlineBytesMax + 1));
    in.get(frame.bytes.data(), frame.bytes.size());
  }
  if (!in.good()) return fail(ErrorCode::kCorrupt, "group frame: a field is out of range");
  return frame;
}

}  // namespace troupe::runtime
