// The private authority and the token on disk: what is written can be used, is nobody else's to
// read, and is never overwritten.

#include "runtime/link/certificate.hpp"

#include "runtime/link/tls.hpp"
#include "runtime/link/token_file.hpp"
#include "tests/runtime/link/link_support.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace troupe::runtime {
namespace {

using namespace link_test;  // NOLINT: the support of these tests
using ::testing::HasSubstr;

unsigned mode_of(const std::string& path) {
  struct stat facts {};
  EXPECT_EQ(::stat(path.c_str(), &facts), 0) << path;
  return facts.st_mode & 0777U;
}

void write_text(const std::string& path, const std::string& text, unsigned mode) {
  std::ofstream(path) << text;
  ::chmod(path.c_str(), mode);
}

TEST(Certificate, MakesAnAuthorityAndCertificatesThatLoad) {
  const Folder folder;
  const std::string place = folder.path + "/pki";
  ASSERT_TRUE(make_authority(place));
  const auto files = make_certificate(place, "gpu-1", {"localhost", "127.0.0.1", "::1"});
  ASSERT_TRUE(files) << files.error().to_string();
  EXPECT_EQ(*files, TlsFiles::in_folder(place, "gpu-1"));
  EXPECT_EQ(mode_of(place), 0700U);
  EXPECT_EQ(mode_of(place + "/authority.key"), 0600U);
  EXPECT_EQ(mode_of(files->key), 0600U);
  EXPECT_EQ(mode_of(files->certificate), 0644U);
  EXPECT_TRUE(TlsContext::open(*files));
}

TEST(Certificate, OverwritesNothing) {
  const Folder folder;
  ASSERT_TRUE(make_authority(folder.path));
  EXPECT_EQ(make_authority(folder.path).error().code, ErrorCode::kAlreadyExists);
  ASSERT_TRUE(make_certificate(folder.path, "a", {"localhost"}));
  const auto again = make_certificate(folder.path, "a", {"localhost"});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(again.error().message, HasSubstr("a.key"));
  EXPECT_TRUE(TlsContext::open(TlsFiles::in_folder(folder.path, "a")));
}

TEST(Certificate, RefusesNamesHostsAndDaysThatMakeNoSense) {
  const Folder folder;
  EXPECT_EQ(make_certificate(folder.path, "a", {}).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(make_authority(folder.path));
  for (const std::string& name :
       {std::string(), std::string("../a"), std::string("a/b"), std::string("authority"),
        std::string(65, 'a'), std::string(".a")})
    EXPECT_EQ(make_certificate(folder.path, name, {}).error().code, ErrorCode::kInvalidArgument);
  for (const std::string& host : {std::string(), std::string("a,DNS:b"), std::string("a b")})
    EXPECT_EQ(make_certificate(folder.path, "b", {host}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(make_certificate(folder.path, "b", {}, 0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(folder.path + "/b.pem"));
}

TEST(TlsContext, NamesTheFileThatDoesNotLoad) {
  const Folder folder;
  ASSERT_TRUE(make_authority(folder.path));
  TlsFiles good = *make_certificate(folder.path, "a", {});
  const TlsFiles other = *make_certificate(folder.path, "b", {});
  const auto error_of = [](const TlsFiles& files) {
    const auto context = TlsContext::open(files);
    EXPECT_FALSE(context);
    EXPECT_EQ(context.error().code, ErrorCode::kConfig);
    return context.error().message;
  };
  TlsFiles wrong = good;
  wrong.key = other.key;
  EXPECT_THAT(error_of(wrong), HasSubstr("b.key"));
  wrong = good;
  wrong.authority = folder.path + "/none.pem";
  EXPECT_THAT(error_of(wrong), HasSubstr("none.pem"));
  wrong = good;
  wrong.authority.clear();
  EXPECT_THAT(error_of(wrong), HasSubstr("wanted all three"));
  ::chmod(good.key.c_str(), 0644);
  EXPECT_THAT(error_of(good), HasSubstr("lets others read it"));
}

TEST(TokenFile, IsMadeOnceAndReadAgain) {
  const Folder folder;
  const std::string path = folder.path + "/deep/token";
  EXPECT_EQ(read_token_file(path).error().code, ErrorCode::kNotFound);
  const auto token = read_or_make_token_file(path);
  ASSERT_TRUE(token) << token.error().to_string();
  EXPECT_EQ(token->size(), 64U);
  EXPECT_EQ(mode_of(path), 0600U);
  EXPECT_EQ(read_or_make_token_file(path), token);
  EXPECT_EQ(read_token_file(path), token);
  EXPECT_NE(*read_or_make_token_file(folder.path + "/other"), *token);
}

TEST(TokenFile, IsRefusedWhenOthersMayReadItOrItIsNoToken) {
  const Folder folder;
  const std::string path = folder.path + "/token";
  const std::string token(64, 'a');
  write_text(path, token + "\n", 0640);
  const auto open = read_or_make_token_file(path);
  ASSERT_FALSE(open);
  EXPECT_EQ(open.error().code, ErrorCode::kConfig);
  EXPECT_THAT(open.error().message, HasSubstr("mode 640"));
  EXPECT_THAT(open.error().message, testing::Not(HasSubstr("aaaa")));
  write_text(path, token, 0600);
  EXPECT_EQ(*read_token_file(path), token);
  for (const std::string& text :
       {std::string("short"), std::string(2000, 'a'),
        std::string(20, 'a') + " " + std::string(20, 'b'), std::string()}) {
    write_text(path, text, 0600);
    EXPECT_EQ(read_token_file(path).error().code, ErrorCode::kConfig);
  }
  EXPECT_EQ(read_token_file(folder.path).error().code, ErrorCode::kConfig);
}

}  // namespace
}  // namespace troupe::runtime
