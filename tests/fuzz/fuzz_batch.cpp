// No bytes crash the batch decoder, and what it accepts can be read, taken apart, and encoded to
// bytes that decode to the same batch.

#include "runtime/batch/batch.hpp"
#include "tests/fuzz/frame_patch.hpp"

#include <cstdlib>

namespace {

using namespace troupe::runtime;

void must(bool held) {
  if (!held) std::abort();
}

void read_all(const Batch& batch) {
  std::uint64_t sum = 0;
  for (const auto& [name, column] : batch.columns()) {
    for (std::int64_t i = 0; i < std::min<std::int64_t>(column.rows(), 200); ++i) {
      for (const std::byte byte : column.row_bytes(i)) sum += static_cast<std::uint64_t>(byte);
      sum += column.describe_row(i).size();
    }
  }
  volatile std::uint64_t keep = sum;  // or the loop would be dropped
  (void)keep;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const DecodeLimits limits{.rows_max = 1 << 14, .checksums = false};
  (void)Batch::from_bytes(bytes);
  const auto batch = Batch::from_bytes(with_true_size(bytes), limits);
  if (!batch) return 0;
  read_all(*batch);
  const auto whole = Batch::concat(batch->split(3));
  must(whole && *whole == *batch);
  const auto again = batch->to_bytes();
  must(again.has_value());
  const auto back = Batch::from_bytes(*again, DecodeLimits{.rows_max = 1 << 14});
  must(back.has_value() && *back->to_bytes() == *again);
  return 0;
}
