// Proves the safetensors reader and writer: round trips bit for bit, every kind of malformed file
// is one error that names file and tensor, conversions agree with a slow definition for every
// value.

#include "actors/model/safetensors.hpp"

#include "runtime/base/rng.hpp"
#include "tests/support/test_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using troupe::testing::TemporaryFolder;

std::string file_image(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t size = header.size();
  std::string image(reinterpret_cast<const char*>(&size), sizeof size);
  return image + header + std::string(data_bytes, '\x01');
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

struct Malformed {
  const char* name;
  const char* header;
  std::size_t data_bytes;
  ErrorCode code;
  std::vector<const char*> says;
};

class MalformedSafetensors : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedSafetensors, IsOneErrorThatNamesFileAndTensor) {
  const TemporaryFolder folder;
  troupe::testing::write_file(folder / "m.safetensors",
                              file_image(GetParam().header, GetParam().data_bytes));
  const auto file = SafetensorsFile::open(folder / "m.safetensors");
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, GetParam().code) << file.error().message;
  EXPECT_THAT(file.error().message, HasSubstr("m.safetensors"));
  for (const char* part : GetParam().says) EXPECT_THAT(file.error().message, HasSubstr(part));
}

constexpr auto kBad = ErrorCode::kCorrupt;
INSTANTIATE_TEST_SUITE_P(
    Kinds, MalformedSafetensors,
    ::testing::Values(
        Malformed{"overlap",
                  R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                      "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                  12,
                  kBad,
                  {"tensor b", "4..12", "overlap a", "0..8"}},
        Malformed{"same_bytes",
                  R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                      "b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                  8,
                  kBad,
                  {"tensor b", "overlap a"}},
        Malformed{"hole",
                  R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                      "b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
                  5,
                  kBad,
                  {"tensor b", "3", "2"}},
        Malformed{"hole_at_start",
                  R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                  3,
                  kBad,
                  {"tensor a", "1"}},
        Malformed{"rest_at_end",
                  R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                  9,
                  kBad,
                  {"9 bytes", "a ends at 2"}},
        Malformed{"data_without_tensors", "{}", 4, kBad, {"4 bytes"}},
        Malformed{"truncated",
                  R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})",
                  15,
                  kBad,
                  {"tensor a", "0..16", "15 bytes"}},
        Malformed{"out_of_range",
                  R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[18446744073709551613,
                   18446744073709551615]}})",
                  2,
                  kBad,
                  {"tensor a", "beyond"}},
        Malformed{"backwards",
                  R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})",
                  2,
                  kBad,
                  {"tensor a", "2..0"}},
        Malformed{"size_differs",
                  R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",
                  8,
                  kBad,
                  {"tensor a", "[3]", "12", "8"}},
        Malformed{"dtype_differs",
                  R"({"a":{"dtype":"F64","shape":[2],"data_offsets":[0,8]}})",
                  8,
                  kBad,
                  {"tensor a", "F64", "16"}},
        Malformed{"shape_overflow",
                  R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
                  0,
                  kBad,
                  {"tensor a", "overflow"}},
        Malformed{
            "shape_overflow_then_zero",
            R"({"a":{"dtype":"F32","shape":[9223372036854775807,9223372036854775807,0],"data_offsets":[0,0]}})",
            0,
            kBad,
            {"tensor a", "overflow"}},
        Malformed{"shape_negative",
                  R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
                  4,
                  kBad,
                  {"tensor a", "-1"}},
        Malformed{"shape_fraction",
                  R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})",
                  4,
                  kBad,
                  {"tensor a", "1.0"}},
        Malformed{"shape_missing",
                  R"({"a":{"dtype":"F32","data_offsets":[0,4]}})",
                  4,
                  kBad,
                  {"tensor a", "shape"}},
        Malformed{"offsets_missing",
                  R"({"a":{"dtype":"F32","shape":[1]}})",
                  4,
                  kBad,
                  {"tensor a", "data_offsets"}},
        Malformed{"offsets_negative",
                  R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})",
                  4,
                  kBad,
                  {"tensor a", "-4"}},
        Malformed{"offsets_three",
                  R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})",
                  4,
                  kBad,
                  {"tensor a", "[0,4,8]"}},
        Malformed{"dtype_unknown",
                  R"({"a":{"dtype":"FLOAT","shape":[1],"data_offsets":[0,4]}})",
                  4,
                  kBad,
                  {"tensor a", "FLOAT"}},
        Malformed{"dtype_number",
                  R"({"a":{"dtype":32,"shape":[1],"data_offsets":[0,4]}})",
                  4,
                  kBad,
                  {"tensor a", "dtype"}},
        Malformed{"dtype_f8",
                  R"({"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})",
                  4,
                  ErrorCode::kUnsupported,
                  {"tensor a", "F8_E4M3"}},
        Malformed{"entry_list", R"({"a":[1]})", 0, kBad, {"tensor a"}},
        Malformed{
            "doubled_name",
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],
                      "data_offsets":[1,2]}})",
            2,
            kBad,
            {"\"a\" appears twice"}},
        Malformed{
            "metadata_number", R"({"__metadata__":{"step":3}})", 0, kBad, {"__metadata__", "step"}},
        Malformed{"metadata_list", R"({"__metadata__":[]})", 0, kBad, {"__metadata__"}},
        Malformed{"no_brace", " {}", 0, kBad, {"brace"}},
        Malformed{"empty_header", "", 0, kBad, {"brace"}},
        Malformed{"cut_json", R"({"a":{"dtype":)", 0, kBad, {"JSON"}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Safetensors, RefusesHeadersThatAreTooLargeOrCutOff) {
  const auto message = [](const std::string& image) {
    const auto header = parse_safetensors(bytes_of(image), "x.safetensors");
    EXPECT_FALSE(header);
    return header ? std::string() : header.error().message;
  };
  const auto with_size = [](std::uint64_t size) {
    return std::string(reinterpret_cast<const char*>(&size), sizeof size) + "{}";
  };
  EXPECT_THAT(message(""), HasSubstr("0 bytes"));
  EXPECT_THAT(message("1234567"), HasSubstr("7 bytes"));
  EXPECT_THAT(message(with_size(3)), HasSubstr("header of 3 bytes"));
  EXPECT_THAT(message(with_size(100'000'000)), HasSubstr("header of 100000000 bytes in a file"));
  EXPECT_THAT(message(with_size(100'000'001)), HasSubstr("more than the 100000000"));
  EXPECT_THAT(message(with_size(~std::uint64_t{0})), HasSubstr("18446744073709551615"));
  EXPECT_TRUE(parse_safetensors(bytes_of(with_size(2)), "x"));
}

TEST(Safetensors, NeverCrashesOnDamagedFiles) {
  const std::string good = file_image(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
    "b":{"dtype":"BF16","shape":[1,3],"data_offsets":[8,14]},"__metadata__":{"k":"v"}}  )",
                                      14);
  ASSERT_TRUE(parse_safetensors(bytes_of(good), "x"));
  Rng rng(4);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = good;
    for (std::uint64_t i = rng.below(3); i < 3; ++i)
      damaged[rng.below(damaged.size())] = static_cast<char>(rng.below(256));
    if (rng.below(4) == 0) damaged.resize(rng.below(damaged.size()));
    const auto header = parse_safetensors(bytes_of(damaged), "x");
    if (!header) {
      ++refused;
      continue;
    }
    for (const TensorEntry& entry : header->entries)
      EXPECT_LE(header->buffer_offset + entry.end, damaged.size()) << "seed 4, round " << round;
  }
  EXPECT_GT(refused, 10000);
}

TEST(Safetensors, NamesFilesThatCannotBeOpened) {
  const TemporaryFolder folder;
  EXPECT_EQ(SafetensorsFile::open(folder / "none").error().code, ErrorCode::kNotFound);
  EXPECT_THAT(SafetensorsFile::open(folder / "none").error().message, HasSubstr("none"));
  EXPECT_EQ(SafetensorsFile::open(folder.path()).error().code, ErrorCode::kIo);
  troupe::testing::write_file(folder / "empty", "");
  EXPECT_EQ(SafetensorsFile::open(folder / "empty").error().code, ErrorCode::kCorrupt);
}

TEST(Safetensors, WritesAndReadsEveryTypeBitForBit) {
  const TemporaryFolder folder;
  const std::vector<float> floats = {1.5F,
                                     -0.0F,
                                     std::numeric_limits<float>::quiet_NaN(),
                                     std::numeric_limits<float>::denorm_min(),
                                     3e38F,
                                     7};
  const std::vector<double> doubles = {1.0 / 3};
  const std::vector<std::int64_t> longs = {-1, std::int64_t{1} << 62};
  const std::vector<std::int32_t> ints = {1, 2, 3};
  const std::vector<std::int16_t> shorts = {-3};
  const std::vector<std::int8_t> chars = {-3, 4, 5};
  const std::vector<std::uint8_t> bytes = {0, 1};
  const std::vector<TensorView> views = {{"u8", TensorType::kU8, {2}, bytes_of(bytes)},
                                         {"flags", TensorType::kBool, {2}, bytes_of(bytes)},
                                         {"i8", TensorType::kI8, {3}, bytes_of(chars)},
                                         {"i16", TensorType::kI16, {1}, bytes_of(shorts)},
                                         {"i32", TensorType::kI32, {3, 1}, bytes_of(ints)},
                                         {"i64", TensorType::kI64, {2}, bytes_of(longs)},
                                         {"f64", TensorType::kF64, {}, bytes_of(doubles)},
                                         {"w", TensorType::kF32, {2, 3}, bytes_of(floats)},
                                         {"none", TensorType::kF32, {0, 7}, {}},
                                         {"né \"w\"", TensorType::kF32, {6}, bytes_of(floats)}};
  ASSERT_TRUE(
      write_safetensors(folder / "t", views, {.metadata = {{"format", "pt"}, {"step", "3"}}}));
  const auto file = SafetensorsFile::open(folder / "t");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->entries().size(), views.size());
  EXPECT_EQ(file->metadata().at("step"), "3");
  for (const TensorView& view : views) {
    const TensorEntry* entry = file->find(view.name);
    ASSERT_NE(entry, nullptr) << view.name;
    EXPECT_EQ(entry->shape, view.shape);
    EXPECT_EQ(entry->type, view.type);
    EXPECT_TRUE(std::ranges::equal(file->bytes(*entry), view.bytes)) << view.name;
    // Element-aligned in the file, as other readers expect.
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file->bytes(*entry).data()) %
                  tensor_type_bytes(entry->type),
              0U);
  }
  EXPECT_EQ(*file->read<std::int64_t>("i64"), longs);
  EXPECT_EQ(*file->read<std::uint8_t>("flags"), bytes);
  EXPECT_EQ(file->read<float>("f64").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(file->read<float>("nothing").error().code, ErrorCode::kNotFound);
  std::vector<float> target(3);
  const auto converted = file->read_f32(*file->find("i32"), target);
  ASSERT_FALSE(converted);
  EXPECT_THAT(converted.error().message, HasSubstr("tensor i32"));
}

TEST(Safetensors, CopiesMisalignedTensors) {
  // A legal file of another writer: one byte first, then floats at an odd address.
  const TemporaryFolder folder;
  std::string image = file_image(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
    "b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]},"c":{"dtype":"BF16","shape":[1],"data_offsets":[9,11]}} )",
                                 11);
  const float values[2] = {2.5F, -7.0F};
  std::memcpy(image.data() + image.size() - 10, values, sizeof values);
  const std::uint16_t one = 0x3f80;
  std::memcpy(image.data() + image.size() - 2, &one, sizeof one);
  troupe::testing::write_file(folder / "t", image);
  const auto file = SafetensorsFile::open(folder / "t");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_THAT(*file->read<float>("b"), ElementsAre(2.5F, -7.0F));
  std::vector<float> target(2);
  ASSERT_TRUE(file->read_f32(*file->find("b"), target));
  EXPECT_THAT(target, ElementsAre(2.5F, -7.0F));
  ASSERT_TRUE(file->read_f32(*file->find("c"), std::span(target).first(1)));
  EXPECT_EQ(target[0], 1.0F);
}

TEST(Safetensors, NarrowsInChunksToTheNearestEvenValue) {
  const TemporaryFolder folder;
  std::vector<float> values(100'003);
  Rng rng(8);
  for (float& value : values) value = static_cast<float>(rng.normal());
  const std::vector<TensorView> views = {
      {"w", TensorType::kF32, {static_cast<std::int64_t>(values.size())}, bytes_of(values)}};
  for (const TensorType type : {TensorType::kBf16, TensorType::kF16}) {
    ASSERT_TRUE(write_safetensors(folder / "t", views, {.f32_as = type}));
    const auto file = SafetensorsFile::open(folder / "t");
    ASSERT_TRUE(file);
    ASSERT_EQ(file->find("w")->type, type);
    std::vector<float> read(values.size());
    ASSERT_TRUE(file->read_f32(*file->find("w"), read));
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(read[i], type == TensorType::kBf16 ? bf16_to_f32(f32_to_bf16(values[i]))
                                                   : f16_to_f32(f32_to_f16(values[i])));
  }
}

TEST(Safetensors, RefusesToWriteWhatItCouldNotRead) {
  const TemporaryFolder folder;
  const std::vector<float> floats = {1, 2};
  const auto message = [&](const std::vector<TensorView>& views) {
    const auto done = write_safetensors(folder / "t", views);
    EXPECT_FALSE(done);
    return done ? std::string() : done.error().message;
  };
  EXPECT_THAT(message({{"a", TensorType::kF32, {3}, bytes_of(floats)}}),
              HasSubstr("tensor a: 8 bytes"));
  EXPECT_THAT(message({{"a", TensorType::kF32, {-2, -1}, bytes_of(floats)}}),
              HasSubstr("tensor a"));
  EXPECT_THAT(message({{"", TensorType::kF32, {2}, bytes_of(floats)}}), HasSubstr("cannot name"));
  EXPECT_THAT(message({{"__metadata__", TensorType::kF32, {2}, bytes_of(floats)}}),
              HasSubstr("cannot name"));
  EXPECT_THAT(message({{"\xff", TensorType::kF32, {2}, bytes_of(floats)}}), HasSubstr("UTF-8"));
  EXPECT_THAT(message({{"a", TensorType::kF32, {2}, bytes_of(floats)},
                       {"a", TensorType::kF32, {2}, bytes_of(floats)}}),
              HasSubstr("tensor a is given twice"));
  EXPECT_FALSE(write_safetensors(folder / "t", {}, {.f32_as = TensorType::kI64}));
  EXPECT_FALSE(std::filesystem::exists(folder / "t"));
}

TEST(Safetensors, LeavesOldMappingsAloneWhenAFileIsReplaced) {
  const TemporaryFolder folder;
  std::vector<float> values = {1, 2, 3};
  const auto write = [&] {
    const std::vector<TensorView> views = {{"w", TensorType::kF32, {3}, bytes_of(values)}};
    ASSERT_TRUE(write_safetensors(folder / "t", views));
  };
  write();
  const auto old_file = SafetensorsFile::open(folder / "t");
  values = {4, 5, 6};
  write();
  EXPECT_THAT(*old_file->read<float>("w"), ElementsAre(1, 2, 3));
  EXPECT_THAT(*SafetensorsFile::open(folder / "t")->read<float>("w"), ElementsAre(4, 5, 6));
}

/// The value that 16 bits mean, from the definition of the format.
double meaning(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double fraction =
      static_cast<double>(bits & ((1U << fraction_bits) - 1U)) / std::ldexp(1.0, fraction_bits);
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1.0 + fraction, exponent - bias);
}

TEST(FloatConvert, UpcastsEveryValueExactly) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto narrow = static_cast<std::uint16_t>(bits);
    for (const bool brain : {true, false}) {
      const double wanted = brain ? meaning(bits, 8, 7) : meaning(bits, 5, 10);
      const float wide = brain ? bf16_to_f32(narrow) : f16_to_f32(narrow);
      if (std::isnan(wanted)) {
        EXPECT_TRUE(std::isnan(wide));
        continue;
      }
      EXPECT_EQ(static_cast<double>(wide), wanted) << bits;
      EXPECT_EQ(std::signbit(wide), (bits & 0x8000U) != 0);
      EXPECT_EQ(brain ? f32_to_bf16(wide) : f32_to_f16(wide), narrow);  // and back
    }
  }
}

TEST(FloatConvert, RoundsToTheNearestAndToEvenOnTies) {
  for (const bool brain : {true, false}) {
    const auto narrow = [&](float value) { return brain ? f32_to_bf16(value) : f32_to_f16(value); };
    const auto wide = [&](std::uint32_t bits) {
      return brain ? bf16_to_f32(static_cast<std::uint16_t>(bits))
                   : f16_to_f32(static_cast<std::uint16_t>(bits));
    };
    const std::uint32_t largest = brain ? 0x7f7f : 0x7bff;
    for (std::uint32_t bits = 0; bits < largest; ++bits) {
      const double low = wide(bits);
      const double high = wide(bits + 1);
      const auto middle = static_cast<float>((low + high) / 2);  // exact: fp32 has room for it
      EXPECT_EQ(narrow(middle), bits + (bits & 1U)) << bits;
      EXPECT_EQ(narrow(std::nextafter(middle, 0.0F)), bits);
      EXPECT_EQ(narrow(std::nextafter(middle, std::numeric_limits<float>::infinity())), bits + 1);
      EXPECT_EQ(narrow(-middle), (bits + (bits & 1U)) | 0x8000U);
    }
    EXPECT_EQ(narrow(std::numeric_limits<float>::infinity()), largest + 1);
    EXPECT_EQ(narrow(std::numeric_limits<float>::max()), largest + 1);
    EXPECT_EQ(narrow(-1e38F * 4), (largest + 1) | 0x8000U);
    // A NaN whose payload sits only in the bits that are cut off must stay a NaN.
    EXPECT_TRUE(std::isnan(wide(narrow(std::bit_cast<float>(0x7f800001U)))));
    EXPECT_TRUE(std::isnan(wide(narrow(std::numeric_limits<float>::quiet_NaN()))));
  }
  EXPECT_EQ(f32_to_f16(65519.0F), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0F), 0x7c00);
}

}  // namespace
}  // namespace troupe::actors
