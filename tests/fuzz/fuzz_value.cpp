// No bytes crash the decoder of values, and what it accepts encodes again to an equal value.

#include "runtime/wire/wire.hpp"

#include <cstdlib>

namespace {

using namespace troupe;
using namespace troupe::runtime;

enum class Kind { kOne, kTwo };

/// One of each kind that the wire has, and itself.
struct Shape {
  std::string name;
  Kind kind = Kind::kOne;
  std::optional<double> real;
  std::vector<std::int32_t> numbers;
  std::vector<bool> flags;
  std::vector<std::byte> bytes;
  std::map<std::string, std::pair<std::uint8_t, std::int64_t>> table;
  std::variant<std::monostate, bool, std::string> choice;
  Error error;
  std::vector<Shape> children;
  bool operator==(const Shape&) const = default;
  static constexpr auto fields() {
    return std::tuple{field("name", &Shape::name),   field("kind", &Shape::kind),
                      field("real", &Shape::real),   field("numbers", &Shape::numbers),
                      field("flags", &Shape::flags), field("bytes", &Shape::bytes),
                      field("table", &Shape::table), field("choice", &Shape::choice),
                      field("error", &Shape::error), field("children", &Shape::children)};
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto metrics = decode_value<Metrics>(bytes);
  if (metrics && !encode_value(*metrics)) std::abort();
  const auto shape = decode_value<Shape>(bytes);
  if (!shape) return 0;
  const auto again = encode_value(*shape);
  if (!again) std::abort();
  const auto back = decode_value<Shape>(*again);
  // A NaN is unequal to itself; the bytes tell.
  if (!back || encode_value(*back).value() != *again) std::abort();
  return 0;
}
