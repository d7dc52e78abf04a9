// Proves the number formats of GGUF: every value of random blocks is, bit for bit, the one that
// the numpy code of llama.cpp's gguf package gives (fixtures/dequantize.json, made by
// make_gguf_fixtures.py), at any alignment; sizes that are no whole blocks are refused.

#include "actors/model/dequantize.hpp"

#include "tests/support/test_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <bit>
#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using ::testing::HasSubstr;

std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

nlohmann::json fixture() {
  return nlohmann::json::parse(troupe::testing::read_file(
      std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/actors/model/fixtures/dequantize.json"));
}

std::vector<std::uint32_t> bits_of(std::span<const float> values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

TEST(Dequantize, GivesTheValuesOfTheReferenceBitForBit) {
  std::set<std::string> seen;
  for (const nlohmann::json& item : fixture()) {
    const auto type = ggml_type_of(item.at("number").get<std::uint32_t>());
    ASSERT_TRUE(type) << item.at("number");
    EXPECT_EQ(ggml_type_name(*type), item.at("type").get<std::string>());
    seen.emplace(ggml_type_name(*type));
    const std::string blocks = bytes_of_hex(item.at("blocks"));
    const std::string expected = bytes_of_hex(item.at("values"));
    std::vector<float> wanted(expected.size() / sizeof(float));
    std::memcpy(wanted.data(), expected.data(), expected.size());
    for (const std::size_t shift : {0U, 1U}) {
      const std::string moved = std::string(shift, 'x') + blocks;
      std::vector<float> values(wanted.size(), -1.0F);
      const auto done = dequantize(*type, std::as_bytes(std::span(moved)).subspan(shift), values);
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_EQ(bits_of(values), bits_of(wanted)) << ggml_type_name(*type);
    }
  }
  EXPECT_EQ(seen.size(), 13U) << "a format has no case";
}

TEST(Dequantize, RefusesWhatIsNotWholeBlocks) {
  const std::vector<std::byte> bytes(40);
  std::vector<float> values(64);
  EXPECT_TRUE(dequantize(GgmlType::kQ4_1, bytes, values));
  const auto short_target = dequantize(GgmlType::kQ4_1, bytes, std::span(values).first(63));
  ASSERT_FALSE(short_target);
  EXPECT_EQ(short_target.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(short_target.error().message, HasSubstr("40 bytes of Q4_1 are not 63 elements"));
  EXPECT_FALSE(dequantize(GgmlType::kQ4_1, std::span(bytes).first(39), values));
  EXPECT_FALSE(dequantize(GgmlType::kQ4_1, bytes, std::span(values).first(32)));
  EXPECT_TRUE(dequantize(GgmlType::kQ6_K, {}, {}));
}

TEST(Dequantize, KnowsTheNamesOfFormatsThatItDoesNotRead) {
  EXPECT_FALSE(ggml_type_of(23));
  EXPECT_EQ(foreign_ggml_type_name(23), "IQ4_XS");
  EXPECT_FALSE(ggml_type_of(4));
  EXPECT_EQ(foreign_ggml_type_name(4), "");
  EXPECT_EQ(foreign_ggml_type_name(2), "");
}

}  // namespace
}  // namespace troupe::actors
