// Proves that NCCL and the CUDA runtime are found when they are there and that their absence, an
// old version and a missing symbol are clear errors; with the fake library, a library that lacks a
// symbol, names that do not exist, and, where they are installed, the real ones.

#include "tests/reshard/nccl/device_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::reshard::nccl::testing {
namespace {

using ::testing::HasSubstr;

TEST(NcclLibrary, AbsenceIsAResultThatSaysWhatWasTried) {
  const auto opened = NcclLibrary::open({"libnccl-nowhere.so.2", "/nowhere/libnccl.so"});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(opened.error().message, HasSubstr("no nccl on this machine"));
  EXPECT_THAT(opened.error().message, HasSubstr("libnccl-nowhere.so.2"));
  EXPECT_THAT(opened.error().message, HasSubstr("/nowhere/libnccl.so"));
  const auto cuda = CudaLibrary::open({"libcudart-nowhere.so"});
  ASSERT_FALSE(cuda);
  EXPECT_EQ(cuda.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(NcclLibrary::open({}).error().code, ErrorCode::kNotFound);
}

TEST(NcclLibrary, ALaterNameIsTakenWhenTheFirstIsMissing) {
  desk().reset({});
  const auto opened = NcclLibrary::open({"libnccl-nowhere.so.2", TROUPE_FAKE_DEVICE_LIBRARY});
  ASSERT_TRUE(opened) << opened.error().to_string();
  EXPECT_EQ((*opened)->version(), 22809);
  EXPECT_EQ((*opened)->name(), TROUPE_FAKE_DEVICE_LIBRARY);
}

TEST(NcclLibrary, AMissingSymbolIsNamed) {
  const auto opened = NcclLibrary::open({TROUPE_FAKE_INCOMPLETE_LIBRARY});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(opened.error().message, HasSubstr("ncclCommAbort"));
}

TEST(NcclLibrary, VersionsOutOfRangeAreRefusedByName) {
  for (const auto& [version, text] :
       std::vector<std::pair<int, std::string>>{{21705, "2.17.5"}, {30000, "3.0.0"}}) {
    desk().reset({.version = version});
    const auto opened = NcclLibrary::open(fake_name());
    ASSERT_FALSE(opened) << version;
    EXPECT_EQ(opened.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(opened.error().message, HasSubstr(text));
  }
  desk().reset({});
}

TEST(NcclLibrary, TheConfigurationFitsTheLoadedVersion) {
  EXPECT_EQ(config_for(22809).size, 80U);
  EXPECT_EQ(config_for(22703).size, 72U);
  EXPECT_EQ(config_for(21805).size, 48U);
  EXPECT_EQ(config_for(21805).version, 21805U);
  EXPECT_EQ(config_for(23007).version, 22809U) << "a newer library learns what we know";
  EXPECT_EQ(config_for(22809).blocking, 0);
  EXPECT_EQ(config_for(22809).min_ctas, kUndefined);
}

TEST(CudaLibrary, NoDeviceIsAResult) {
  desk().reset({.devices = 0});
  const auto cuda = CudaLibrary::open(fake_name());
  ASSERT_TRUE(cuda);
  const auto device = CudaDevice::open(*cuda, 0);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(device.error().to_string(), HasSubstr("no device is detected"));
  desk().reset({.devices = 2});
  const auto third = CudaDevice::open(*cuda, 2);
  ASSERT_FALSE(third);
  EXPECT_THAT(third.error().message, HasSubstr("device 2 of 2"));
  desk().reset({});
}

TEST(CudaLibrary, FakeDeviceMemoryIsOutOfTheHostsReach) {
  desk().reset({});
  const auto cuda = CudaLibrary::open(fake_name());
  const auto device = CudaDevice::open(*cuda, 0);
  ASSERT_TRUE(device);
  const auto buffer = (*device)->allocate(8);
  ASSERT_TRUE(buffer);
  const auto read = [&] {
    const std::byte* data = (*buffer)->bytes().data();
    return static_cast<int>(*data);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(std::exit(read()), "");
}

/// The library that is installed here, if any: its binary answers to our statement of it.
TEST(NcclLibrary, TheInstalledOneLoadsAndTellsItsVersion) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "200 MB of foreign code under a sanitizer";
#endif
  const auto opened = NcclLibrary::open(
      {"libnccl.so.2", "/usr/local/cuda/lib/libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"});
  if (!opened && opened.error().code == ErrorCode::kNotFound)
    GTEST_SKIP() << opened.error().message;
  ASSERT_TRUE(opened) << opened.error().to_string();
  EXPECT_GE((*opened)->version(), kVersionMin);
  EXPECT_THAT((*opened)->text_of(Code::kInvalidUsage), HasSubstr("invalid usage"));
  const auto cuda = CudaLibrary::open({"libcudart.so.13", "/usr/local/cuda/lib/libcudart.so.13",
                                       "/usr/local/cuda/lib64/libcudart.so"});
  if (!cuda) GTEST_SKIP() << cuda.error().message;
  if (const auto count = (*cuda)->device_count(); !count) {
    EXPECT_EQ(count.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(count.error().to_string(), HasSubstr("cuda "));
  }
}

}  // namespace
}  // namespace troupe::reshard::nccl::testing
