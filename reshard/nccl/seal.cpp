#include "reshard/nccl/seal.hpp"

#include "reshard/execution/checksum.hpp"
#include "runtime/base/check.hpp"
#include "runtime/batch/checksum.hpp"

#include <cstring>

namespace troupe::reshard::nccl {

std::int64_t seal_bytes(const Message& message) {
  return static_cast<std::int64_t>(sizeof(SealHead) + message.cuts.size() * sizeof(std::uint64_t));
}

Seal make_seal(const PublicationPlan& plan, const SealHead& head, const Message& message,
               const Checks& checks, std::span<const std::byte> bytes) {
  Seal seal{.head = head, .sums = std::vector<std::uint64_t>(message.cuts.size(), 0)};
  seal.head.source = message.source;
  seal.head.target = message.target;
  seal.head.cuts = static_cast<std::uint32_t>(message.cuts.size());
  seal.head.bytes = message.bytes;
  seal.head.checks = (checks.chunk_crc ? 1U : 0U) | (checks.tensor_sums ? 2U : 0U);
  if (checks.chunk_crc) seal.head.crc = runtime::crc32c(bytes);
  if (!checks.tensor_sums) return seal;
  const std::byte* data = bytes.data();
  for (std::size_t i = 0; i < message.cuts.size(); ++i) {
    const Cut& cut = message.cuts[i];
    const TensorInfo& tensor = plan.tensor_of(plan.op(cut.op));
    const std::int64_t element = element_bytes(tensor.dtype);
    seal.sums[i] = sum_box(cut.box, tensor.cols, data, cut.box.cols(), element);
    data += cut.box.elements() * element;
  }
  return seal;
}

void write_seal(const Seal& seal, std::span<std::byte> into) {
  const std::size_t sums = seal.sums.size() * sizeof(std::uint64_t);
  TROUPE_CHECK(into.size() == sizeof(SealHead) + sums, "seal: {} bytes of room, wanted {}",
               into.size(), sizeof(SealHead) + sums);
  std::memcpy(into.data(), &seal.head, sizeof(SealHead));
  if (sums > 0) std::memcpy(into.data() + sizeof(SealHead), seal.sums.data(), sums);
}

Seal read_seal(std::span<const std::byte> from) {
  TROUPE_CHECK(from.size() >= sizeof(SealHead), "seal: {} bytes", from.size());
  Seal seal;
  std::memcpy(&seal.head, from.data(), sizeof(SealHead));
  seal.sums.resize((from.size() - sizeof(SealHead)) / sizeof(std::uint64_t));
  if (!seal.sums.empty())
    std::memcpy(seal.sums.data(), from.data() + sizeof(SealHead),
                seal.sums.size() * sizeof(std::uint64_t));
  return seal;
}

result<void> compare_seals(const Seal& came, const Seal& wanted, const std::string& place) {
  SealHead said = came.head;
  said.crc = wanted.head.crc;
  if (said != wanted.head)
    return fail(ErrorCode::kConflict,
                "{}: what came is sealed for membership {}, epoch {}, round {}, ranks {} to {}, "
                "{} bytes; wanted {}, {}, {}, {} to {}, {}",
                place, said.membership, said.epoch, said.round, said.source, said.target,
                said.bytes, wanted.head.membership, wanted.head.epoch, wanted.head.round,
                wanted.head.source, wanted.head.target, wanted.head.bytes);
  if (came.head.crc != wanted.head.crc)
    return fail(ErrorCode::kCorrupt, "{}: crc32c {:08x}, sent as {:08x}", place, wanted.head.crc,
                came.head.crc);
  return {};
}

}  // namespace troupe::reshard::nccl
