// Proves that a checkpoint index comes back as written and that inconsistent, truncated or changed
// ones are refused with the entry named. Oracle: equality; with checksums on, every changed bit
// must be noticed.

#include "runtime/checkpoint/index_codec.hpp"

#include "tests/runtime/batch/batch_support.hpp"

#include <gmock/gmock.h>

#include <functional>

namespace troupe::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

CheckpointIndex sample() {
  CheckpointIndex index;
  index.step = 42;
  index.files = {{"data_0.bin", 1000}, {"data_1.bin", 64}};
  index.tensors["w"] = {DType::kF32, {2, 3}, {.file = 0, .offset = 0, .bytes = 24, .checksum = 7}};
  index.tensors["scalar"] = {DType::kF64, {}, {.file = 0, .offset = 64, .bytes = 8, .checksum = 8}};
  index.tensors["none"] = {
      DType::kF32, {0, 9}, {.file = 1, .offset = 64, .bytes = 0, .checksum = 0}};
  index.blobs["rng"] = {.file = 1, .offset = 0, .bytes = 64, .checksum = 9};
  index.states["cursor"] = "{\"row\": 1}";
  index.states[std::string("zero\0byte", 9)] = "null";
  return index;
}

TEST(CheckpointIndex, ComesBackAsWritten) {
  for (const CheckpointIndex& index : {sample(), CheckpointIndex{}}) {
    const auto bytes = encode_index(index);
    ASSERT_TRUE(bytes) << bytes.error().message;
    const auto back = decode_index(*bytes);
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(*back, index);
  }
}

TEST(CheckpointIndex, InconsistenciesNameTheEntryAndBothValues) {
  struct Case {
    std::function<void(CheckpointIndex&)> spoil;
    std::vector<std::string> named;
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::vector<Case> cases{
      {[](auto& i) { i.tensors["w"].section.bytes = 20; }, {"tensor w", "20 bytes", "[2, 3]"}},
      {[](auto& i) {
         i.tensors["w"].shape = {2, -3};
       },
       {"tensor w", "-3"}},
      {[](auto& i) {
         i.tensors["w"].shape = {kMost, kMost};
       },
       {"tensor w", "24 bytes"}},
      {[](auto& i) {
         i.tensors["w"].shape = {1 << 20, 1 << 20, 1 << 20, 1 << 20};
       },
       {"tensor w"}},
      {[](auto& i) { i.tensors["w"].shape.assign(17, 1); }, {"tensor w", "17 sides"}},
      {[](auto& i) {
         i.tensors["none"].section = {.file = 1, .offset = 60, .bytes = 4, .checksum = 0};
       },
       {"tensor none", "4 bytes"}},
      {[](auto& i) { i.tensors["w"].section.offset = 980; },
       {"tensor w", "980", "data_0.bin", "1000"}},
      {[](auto& i) { i.tensors["w"].section.offset = kMost; }, {"tensor w", "data_0.bin"}},
      {[](auto& i) { i.tensors["w"].section.offset = -1; }, {"tensor w", "-1"}},
      {[](auto& i) { i.blobs["rng"].file = 2; }, {"blob rng", "2 of 2"}},
      {[](auto& i) { i.tensors["scalar"].section.offset = 16; },
       {"w ends at 24", "scalar starts at 16"}},
      {[](auto& i) { i.files[0].name = "../data"; }, {"../data"}},
      {[](auto& i) { i.files[0].name = ".."; }, {"'..'"}},
      {[](auto& i) { i.files[0].name = ""; }, {"''"}},
      {[](auto& i) { i.files[1].name = "data_0.bin"; }, {"data_0.bin", "twice"}},
      {[](auto& i) { i.states["cursor"] = "{"; }, {"state cursor"}},
      {[](auto& i) { i.step = -1; }, {"step -1"}},
  };
  for (std::size_t c = 0; c < cases.size(); ++c) {
    SCOPED_TRACE(c);
    CheckpointIndex index = sample();
    cases[c].spoil(index);
    const auto bytes = encode_index(index);
    ASSERT_FALSE(bytes);
    EXPECT_EQ(bytes.error().code, ErrorCode::kInvalidArgument);
    for (const std::string& part : cases[c].named)
      EXPECT_THAT(bytes.error().message, HasSubstr(part));
  }
}

TEST(CheckpointIndex, TruncationsAndFlippedBitsAreNoticed) {
  std::vector<std::byte> bytes = *encode_index(sample());
  for (std::size_t size = 0; size < bytes.size(); ++size)
    ASSERT_EQ(decode_index(std::span(bytes).first(size)).error().code, ErrorCode::kCorrupt) << size;
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1U << (bit % 8));
    bytes[bit / 8] ^= mask;
    ASSERT_FALSE(decode_index(bytes)) << "byte " << bit / 8 << " bit " << bit % 8;
    const auto unchecked = decode_index(bytes, false);
    ASSERT_TRUE(!unchecked || encode_index(*unchecked)) << "accepted an inconsistent index";
    bytes[bit / 8] ^= mask;
  }
}

TEST(CheckpointIndex, ChangedBytesNeverCrash) {
  const std::vector<std::byte> original = *encode_index(sample());
  for_seeds(5000, [&](Rng& rng) {
    std::vector<std::byte> bytes = original;
    for (std::int64_t i = 1 + pick(rng, 4); i > 0; --i)
      bytes[static_cast<std::size_t>(pick(rng, std::ssize(bytes)))] =
          static_cast<std::byte>(rng.below(256));
    const auto index = decode_index(bytes, false);
    EXPECT_TRUE(index || index.error().code == ErrorCode::kCorrupt);
  });
}

}  // namespace
}  // namespace troupe::runtime
