// Proves the GGUF reader: values of every kind and tensors of both versions come back; each kind of
// malformed file is one error that names the file, the place and both values; and no prefix and no
// changed byte of a good file is accepted with a range outside it.

#include "actors/model/gguf.hpp"

#include "runtime/base/rng.hpp"
#include "tests/support/gguf_image.hpp"
#include "tests/support/test_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using troupe::testing::GgufImage;
using troupe::testing::image_bytes;
using troupe::testing::raw;
using troupe::testing::raw_kind;
using troupe::testing::raw_text;
using troupe::testing::TemporaryFolder;

/// Two tensors, one of them in blocks.
GgufImage small() {
  GgufImage image;
  image.set("general.architecture", "llama").set("n", std::uint32_t{7});
  image.add_f32("a", {2, 3}, 1.5F);
  image.add({"b", {32, 2}, 8, std::string(68, '\1')});
  return image;
}

void expect_inside(const GgufHeader& header, std::size_t file_bytes) {
  std::uint64_t end = 0;
  for (const GgufTensor& tensor : header.tensors) {
    EXPECT_GE(tensor.offset, end);
    end = tensor.offset + tensor.bytes;
    EXPECT_LE(header.data_offset + end, file_bytes);
    EXPECT_EQ(tensor.bytes, static_cast<std::uint64_t>(tensor.element_count()) /
                                ggml_block_elements(tensor.type) * ggml_block_bytes(tensor.type));
  }
}

TEST(Gguf, ReadsTensorsOfBothVersionsRowMajor) {
  for (const std::uint32_t version : {2U, 3U}) {
    GgufImage image = small();
    image.version = version;
    const TemporaryFolder folder;
    troupe::testing::write_file(folder / "m.gguf", image.bytes());
    const auto file = GgufFile::open(folder / "m.gguf");
    ASSERT_TRUE(file) << file.error().message;
    ASSERT_EQ(file->tensors().size(), 2U);
    EXPECT_EQ(file->find("c"), nullptr);
    const GgufTensor* tensor = file->find("a");
    ASSERT_NE(tensor, nullptr);
    EXPECT_THAT(tensor->shape, ElementsAre(2, 3));
    std::vector<float> values(6);
    ASSERT_TRUE(file->read_f32(*tensor, values));
    EXPECT_THAT(values, ElementsAre(1.5F, 1.5F, 1.5F, 1.5F, 1.5F, 1.5F));
    EXPECT_THAT(file->find("b")->shape, ElementsAre(2, 32));
    const auto wrong = file->read_f32(*file->find("b"), values);
    ASSERT_FALSE(wrong);
    EXPECT_THAT(wrong.error().message, HasSubstr("m.gguf: tensor b: 68 bytes of Q8_0"));
  }
}

TEST(Gguf, ReadsMetadataOfEveryKind) {
  GgufImage image;
  image.set("u8", std::uint8_t{200}).set("i8", std::int8_t{-3}).set("u16", std::uint16_t{60000});
  image.set("i16", std::int16_t{-9}).set("u32", ~std::uint32_t{0}).set("i32", -5);
  image.set("u64", std::uint64_t{1} << 62).set("i64", std::int64_t{-1} << 62);
  image.set("f32", 1e-5F).set("f64", 0.25).set("yes", true).set("text", "a b");
  image.set_list<std::string>("texts", {"x", "", "yz"}).set_list<std::int32_t>("numbers", {3, -4});
  image.set_list<std::string>("none", {}).set("huge", ~std::uint64_t{0});
  image.set("nan", std::numeric_limits<float>::quiet_NaN());
  const std::string bytes = image.bytes();
  const auto header = parse_gguf(image_bytes(bytes), "m.gguf");
  ASSERT_TRUE(header) << header.error().message;
  const GgufMetadata& metadata = header->metadata;
  EXPECT_EQ(metadata.integer("u8"), 200);
  EXPECT_EQ(metadata.integer("i8"), -3);
  EXPECT_EQ(metadata.integer("u16"), 60000);
  EXPECT_EQ(metadata.integer("i16"), -9);
  EXPECT_EQ(metadata.integer("u32"), 4294967295);
  EXPECT_EQ(metadata.integer("i32"), -5);
  EXPECT_EQ(metadata.integer("u64"), std::int64_t{1} << 62);
  EXPECT_EQ(metadata.integer("i64"), -(std::int64_t{1} << 62));
  EXPECT_EQ(metadata.number("f32"), 1e-5) << "not 9.99999974e-06";
  EXPECT_EQ(metadata.number("f64"), 0.25);
  EXPECT_EQ(metadata.number("i32"), -5.0);
  EXPECT_EQ(metadata.flag("yes"), true);
  EXPECT_EQ(metadata.text("text"), "a b");
  EXPECT_THAT(*metadata.texts("texts"), ElementsAre("x", "", "yz"));
  EXPECT_THAT(*metadata.integers("numbers"), ElementsAre(3, -4));
  EXPECT_THAT(*metadata.texts("none"), IsEmpty());
  EXPECT_THAT(*metadata.texts("absent"), IsEmpty());
  EXPECT_EQ(metadata.integer("absent", 4), 4);
  EXPECT_EQ(metadata.number("absent", 0.5), 0.5);

  const auto says = [](const auto& outcome) {
    return outcome ? std::string("no error") : outcome.error().message;
  };
  EXPECT_EQ(says(metadata.integer("absent")), "m.gguf: key absent is missing");
  EXPECT_EQ(says(metadata.integer("text")),
            "m.gguf: key text is of kind string, wanted an integer of 63 bits");
  EXPECT_EQ(says(metadata.integer("huge")),
            "m.gguf: key huge is of kind u64, wanted an integer of 63 bits");
  EXPECT_EQ(says(metadata.number("nan")), "m.gguf: key nan is of kind f32, wanted a finite number");
  EXPECT_EQ(says(metadata.text("u8")), "m.gguf: key u8 is 200 (u8), wanted a string");
  EXPECT_EQ(says(metadata.flag("texts")),
            "m.gguf: key texts is an array of 3 string, wanted a bool");
  EXPECT_EQ(says(metadata.texts("numbers")),
            "m.gguf: key numbers is an array of 2 i32, wanted an array of strings");
  EXPECT_EQ(says(metadata.integers("texts")),
            "m.gguf: key texts is an array of 3 string, wanted an array of integers of 63 bits");
}

struct Malformed {
  const char* name;
  std::function<std::string()> image;
  ErrorCode code;
  std::vector<const char*> says;
};

std::string with_patch(std::string image, std::size_t at, const std::string& bytes) {
  return image.replace(at, bytes.size(), bytes);
}

std::string of_pairs(const std::string& pairs, std::uint64_t count) {
  return "GGUF" + raw(std::uint32_t{3}) + raw(std::uint64_t{0}) + raw(count) + pairs;
}

GgufImage with_tensor(GgufImage::Tensor tensor) {
  GgufImage image;
  image.add(std::move(tensor));
  return image;
}

/// Offset of the first tensor of an image without metadata, whose name has one letter and whose
/// shape has one size.
constexpr std::size_t kOffsetAt = 24 + 9 + 4 + 8 + 4;

class MalformedGguf : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedGguf, IsOneErrorThatNamesFileAndPlace) {
  const std::string bytes = GetParam().image();
  const auto header = parse_gguf(image_bytes(bytes), "m.gguf");
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().code, GetParam().code) << header.error().message;
  EXPECT_THAT(header.error().message, HasSubstr("m.gguf"));
  for (const char* part : GetParam().says) EXPECT_THAT(header.error().message, HasSubstr(part));
}

constexpr auto kBad = ErrorCode::kCorrupt;
constexpr auto kForeign = ErrorCode::kUnsupported;
const std::string kHuge = raw(~std::uint64_t{0});
INSTANTIATE_TEST_SUITE_P(
    Front, MalformedGguf,
    ::testing::Values(
        Malformed{
            "nothing", [] { return std::string(); }, kBad, {"byte 0", "4 bytes", "0 are left"}},
        Malformed{"magic", [] { return with_patch(small().bytes(), 0, "GGML"); }, kBad, {"GGUF"}},
        Malformed{"version_1",
                  [] { return with_patch(small().bytes(), 4, raw(1U)); },
                  kForeign,
                  {"version 1"}},
        Malformed{"version_4",
                  [] { return with_patch(small().bytes(), 4, raw(4U)); },
                  kBad,
                  {"version 4", "2 and 3"}},
        Malformed{"big_endian",
                  [] { return with_patch(small().bytes(), 4, raw(0x03000000U)); },
                  kForeign,
                  {"big-endian"}},
        Malformed{"many_tensors",
                  [] { return with_patch(small().bytes(), 8, kHuge); },
                  kBad,
                  {"byte 8", "number of tensors is 18446744073709551615", "at most"}},
        Malformed{"many_pairs",
                  [] { return with_patch(small().bytes(), 16, kHuge); },
                  kBad,
                  {"byte 16", "number of metadata pairs is 18446744073709551615"}},
        Malformed{"long_key",
                  [] { return of_pairs(raw(std::uint64_t{65536}) + std::string(70000, 'k'), 1); },
                  kBad,
                  {"a metadata key takes 65536 bytes, at most 65535"}},
        Malformed{"empty_key",
                  [] { return of_pairs(raw_text("") + raw(0U) + std::string(9, '\0'), 1); },
                  kBad,
                  {"byte 24", "a metadata key of 0 bytes"}},
        Malformed{"key_no_utf8",
                  [] { return of_pairs(raw_text("\xff") + raw(0U) + "x", 1); },
                  kBad,
                  {"not UTF-8"}},
        Malformed{"key_control",
                  [] { return of_pairs(raw_text("a\n") + raw(0U) + "x", 1); },
                  kBad,
                  {"control"}},
        Malformed{"kind",
                  [] { return of_pairs(raw_text("k") + raw(13U) + "x", 1); },
                  kBad,
                  {"byte 33", "key k has kind 13, wanted 0 to 12"}},
        Malformed{"twice",
                  [] { return small().append("n", raw(0U) + "x").bytes(); },
                  kBad,
                  {"key n appears twice"}},
        Malformed{"boolean",
                  [] { return of_pairs(raw_text("k") + raw(7U) + "\2", 1); },
                  kBad,
                  {"key k", "is 2"}},
        Malformed{"text_beyond",
                  [] { return of_pairs(raw_text("k") + raw(8U) + raw(std::uint64_t{9}) + "x", 1); },
                  kBad,
                  {"k takes 9 bytes, but 1 are left"}},
        Malformed{"text_huge",
                  [] { return of_pairs(raw_text("k") + raw(8U) + kHuge + "x", 1); },
                  kBad,
                  {"k takes 18446744073709551615 bytes, but 1 are left"}},
        Malformed{"array_huge",
                  [] { return of_pairs(raw_text("k") + raw(9U) + raw(10U) + kHuge + "x", 1); },
                  kBad,
                  {"the length of k is 18446744073709551615", "1 bytes left hold 0"}},
        Malformed{"array_beyond",
                  [] {
                    return of_pairs(
                        raw_text("k") + raw(9U) + raw(4U) + raw(std::uint64_t{2}) + "1234", 1);
                  },
                  kBad,
                  {"the length of k is 2", "4 bytes left hold 1"}},
        Malformed{"texts_beyond",
                  [] {
                    return of_pairs(raw_text("k") + raw(9U) + raw(8U) + raw(std::uint64_t{2}) +
                                        raw_text("12345678"),
                                    1);
                  },
                  kBad,
                  {"k takes 8 bytes, but 0 are left"}},
        Malformed{
            "nested",
            [] { return of_pairs(raw_text("k") + raw(9U) + raw(9U) + std::string(8, '\0'), 1); },
            kForeign,
            {"key k: arrays of arrays"}},
        Malformed{"alignment_0",
                  [] { return small().set("general.alignment", 0U).bytes(); },
                  kBad,
                  {"general.alignment is 0", "8 to 65536"}},
        Malformed{"alignment_48",
                  [] { return small().set("general.alignment", 48U).bytes(); },
                  kBad,
                  {"alignment is 48"}},
        Malformed{"alignment_text",
                  [] { return small().set("general.alignment", "x").bytes(); },
                  kBad,
                  {"general.alignment is of kind string"}}),
    [](const auto& kind) { return kind.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Tensors, MalformedGguf,
    ::testing::Values(
        Malformed{"twice",
                  [] { return small().add_f32("a", {1}, 0).bytes(); },
                  kBad,
                  {"tensor a: appears twice"}},
        Malformed{"long_name",
                  [] {
                    return with_tensor({std::string(65, 'n'), {1}, 0, "1234"}).bytes();
                  },
                  kBad,
                  {"a tensor name takes 65 bytes, at most 64"}},
        Malformed{"no_sizes",
                  [] {
                    return with_tensor({"a", {}, 0, "1234"}).bytes();
                  },
                  kBad,
                  {"tensor a: 0 dimensions"}},
        Malformed{"five_sizes",
                  [] {
                    return with_tensor({"a", {1, 1, 1, 1, 1}, 0, "1234"}).bytes();
                  },
                  kBad,
                  {"tensor a: 5 dimensions, wanted 1 to 4"}},
        Malformed{"size_0",
                  [] {
                    return with_tensor({"a", {3, 0}, 0, "1234"}).bytes();
                  },
                  kBad,
                  {"tensor a: size 0 of dimension 1"}},
        Malformed{"size_huge",
                  [] {
                    return with_tensor({"a", {~std::uint64_t{0}}, 0, "1234"}).bytes();
                  },
                  kBad,
                  {"tensor a: size 18446744073709551615"}},
        Malformed{"product_huge",
                  [] {
                    return with_tensor({"a", {1ULL << 32, 1ULL << 31}, 0, "1234"}).bytes();
                  },
                  kBad,
                  {"tensor a: size 2147483648 of dimension 1"}},
        Malformed{"bytes_huge",
                  [] {
                    return with_tensor({"a", {1ULL << 62}, 0, "1234"}).bytes();
                  },
                  kBad,
                  {"tensor a: the byte size of shape [4611686018427387904] of F32 overflows"}},
        Malformed{"type",
                  [] {
                    return with_tensor({"a", {1}, 4, "1234"}).bytes();
                  },
                  kBad,
                  {"tensor a: type 4 is unknown"}},
        Malformed{"foreign_type",
                  [] {
                    return with_tensor({"a", {256}, 23, "1234"}).bytes();
                  },
                  kForeign,
                  {"tensor a: type IQ4_XS"}},
        Malformed{"partial_block",
                  [] {
                    return with_tensor({"a", {48, 2}, 2, std::string(54, 'x')}).bytes();
                  },
                  kBad,
                  {"tensor a: rows of 48 are not whole blocks of Q4_0 of 32"}},
        Malformed{"beyond",
                  [] {
                    return with_tensor({"a", {9}, 0, "1234"}).bytes();
                  },
                  kBad,
                  {"tensor a: 36 bytes from 0 reach beyond the 32 bytes of data"}},
        Malformed{"offset",
                  [] {
                    return with_patch(with_tensor({"a", {1}, 0, "1234"}).bytes(), kOffsetAt,
                                      raw(std::uint64_t{32}));
                  },
                  kBad,
                  {"tensor a: begins at byte 32 of the data, wanted 0 after the start"}},
        Malformed{"offset_huge",
                  [] {
                    return with_patch(with_tensor({"a", {1}, 0, "1234"}).bytes(), kOffsetAt, kHuge);
                  },
                  kBad,
                  {"tensor a: begins at byte 18446744073709551615"}},
        Malformed{"overlap",
                  [] {
                    return with_patch(
                        with_tensor({"a", {1}, 0, "1234"}).add_f32("b", {1}, 0).bytes(),
                        kOffsetAt + 8 + 9 + 16, raw(std::uint64_t{0}));
                  },
                  kBad,
                  {"tensor b: begins at byte 0 of the data, wanted 32 after a"}},
        Malformed{"more_data",
                  [] { return small().bytes() + std::string(32, '\0'); },
                  kBad,
                  {"160 bytes of data, but the last tensor b ends at 100"}}),
    [](const auto& kind) { return kind.param.name; });

TEST(Gguf, TakesTheLastTensorWithoutItsPadding) {
  const std::string bytes = small().bytes();
  for (std::size_t cut = 0; cut <= 28; ++cut) {
    const std::string shorter = bytes.substr(0, bytes.size() - cut);
    const auto header = parse_gguf(image_bytes(shorter), "m.gguf");
    ASSERT_TRUE(header) << cut << " " << header.error().message;
    expect_inside(*header, shorter.size());
  }
}

TEST(Gguf, RefusesEveryPrefixThatLacksABlock) {
  const std::string bytes = small().bytes();
  for (std::size_t size = 0; size < bytes.size() - 28; ++size) {
    const std::string prefix = bytes.substr(0, size);
    EXPECT_FALSE(parse_gguf(image_bytes(prefix), "m.gguf")) << size;
  }
}

TEST(Gguf, NeverReachesOutsideWhateverBytesChange) {
  const std::string good = small().bytes();
  const std::uint64_t seed = 20261202;
  Rng rng(seed);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    const auto changes = 1 + rng.below(3);
    for (std::uint64_t i = 0; i < changes; ++i)
      bytes[rng.below(bytes.size())] = static_cast<char>(rng.below(256));
    const auto header = parse_gguf(image_bytes(bytes), "m.gguf");
    if (!header) {
      EXPECT_THAT(header.error().message, HasSubstr("m.gguf: ")) << "seed " << seed;
      continue;
    }
    ++accepted;
    expect_inside(*header, bytes.size());
  }
  EXPECT_GT(accepted, 100) << "seed " << seed;  // changes of data and of names do no harm
}

TEST(Gguf, SaysWhyAFileCannotBeOpened) {
  const TemporaryFolder folder;
  const auto absent = GgufFile::open(folder / "none.gguf");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(absent.error().message, HasSubstr("none.gguf"));
  const auto directory = GgufFile::open(folder.path());
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace troupe::actors
