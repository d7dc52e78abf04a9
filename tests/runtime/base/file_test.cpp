// Proves that a replaced file is the old or the whole new one, and that readers refuse what is no
// regular file, is missing or is too large.

#include "runtime/base/file.hpp"

#include "tests/support/test_files.hpp"

#include <fcntl.h>
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

TEST(TextFile, WritesIntoPipesAndThroughLinksAndReplacesNeither) {
  const testing::TemporaryFolder folder;
  testing::write_file(folder / "real", "old");
  std::filesystem::create_symlink("real", folder / "link");
  ASSERT_TRUE(write_text_file(folder / "link", "new"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(*read_text_file(folder / "real"), "new");

  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(write_text_file(pipe, "x").error().code, ErrorCode::kIo) << "nobody reads";
  const Descriptor reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK));
  ASSERT_TRUE(write_text_file(pipe, "told"));
  char told[8] = {};
  EXPECT_EQ(::read(reader.value(), told, sizeof told), 4);
  EXPECT_STREQ(told, "told");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_EQ(AtomicFile::create(pipe).error().code, ErrorCode::kIo);
  const auto full = write_text_file("/dev/full", "x");
  ASSERT_FALSE(full);
  EXPECT_THAT(full.error().message, HasSubstr("/dev/full: cannot write"));
  EXPECT_EQ(write_text_file(folder.path(), "x").error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace troupe
