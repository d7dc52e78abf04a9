// Proves that a replaced file is the old or the whole new one, and that readers refuse what is no
// regular file, is missing or is too large.

#include "runtime/base/file.hpp"

#include "tests/support/test_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

namespace troupe {
namespace {

using ::testing::HasSubstr;

TEST(AtomicFile, ShowsTheOldFileUntilItIsCommitted) {
  const testing::TemporaryFolder folder;
  ASSERT_TRUE(write_text_file(folder / "f", "old"));
  {
    auto file = AtomicFile::create(folder / "f");
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->write(std::as_bytes(std::span("new", 3))));
    EXPECT_EQ(*read_text_file(folder / "f"), "old");
  }  // dropped: no trace
  EXPECT_EQ(*read_text_file(folder / "f"), "old");
  ASSERT_TRUE(write_text_file(folder / "f", "new"));
  EXPECT_EQ(*read_text_file(folder / "f"), "new");
  const std::filesystem::directory_iterator items(folder.path());
  EXPECT_EQ(std::distance(begin(items), end(items)), 1);
}

TEST(AtomicFile, NamesFilesItCannotReadOrWrite) {
  const testing::TemporaryFolder folder;
  EXPECT_EQ(read_text_file(folder / "none").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(read_text_file(folder.path()).error().code, ErrorCode::kIo);
  EXPECT_THAT(write_text_file(folder / "no/such/f", "x").error().message, HasSubstr("no/such/f"));
  testing::write_file(folder / "big", "0123456789");
  EXPECT_EQ(read_text_file(folder / "big", 9).error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(read_text_file(folder / "big", 10));
}

TEST(TextFile, ReadsFilesWhoseSizeIsNotKnownAndRefusesPipes) {
  const auto status = read_text_file("/proc/self/status");  // says it has 0 bytes
  ASSERT_TRUE(status);
  EXPECT_THAT(*status, HasSubstr("Pid:"));
  EXPECT_EQ(read_text_file("/proc/self/status", 10).error().code, ErrorCode::kCorrupt);
  const testing::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(read_text_file(folder / "pipe").error().code, ErrorCode::kIo);  // and does not block
}

}  // namespace
}  // namespace troupe
