// Proves what a command cannot do where the kernel gives namespaces: reach the network, write
// outside its folder, see or signal other processes, gain privileges, see hidden folders, inherit
// descriptors or variables. Skipped, loudly, where the kernel gives none.

#include "tests/actors/sandbox/sandbox_case.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

namespace troupe::actors {
namespace {

class SandboxIsolation : public ::testing::Test {
 protected:
  void SetUp() override {
    pool_ = open_pool(python_options());
    ASSERT_TRUE(pool_);
    if (!pool_->stats().isolated) GTEST_SKIP() << "no isolation here: " << pool_->stats().weakness;
  }
  std::string say(const std::string& line) {
    const SandboxAnswer answer = run_lines(*pool_, {line})[0];
    return answer.failure ? "failed: " + answer.detail : answer.line;
  }
  std::unique_ptr<SandboxPool> pool_;
};

TEST_F(SandboxIsolation, ThereIsNoNetwork) {
  EXPECT_EQ(say("socket.create_connection(('127.0.0.1', 22), 1)"), "OSError");
  EXPECT_EQ(say("socket.create_connection(('1.1.1.1', 53), 1)"), "OSError");
}

TEST_F(SandboxIsolation, OnlyItsOwnFolderCanBeWritten) {
  testing::TemporaryFolder folder;
  testing::write_file(folder / "mine", "x");
  EXPECT_EQ(say("open('" + (folder / "mine").string() + "', 'a')"), "OSError");
  EXPECT_EQ(say("open('" + (folder / "new").string() + "', 'w')"), "OSError");
  EXPECT_EQ(say("open('/proc/sys/kernel/hostname', 'w')"), "OSError");
  EXPECT_EQ(say("open('mine', 'w').write('abc')"), "3");
  EXPECT_EQ(say("open('more', 'wb').write(bytes(5 << 20))"), "OSError") << "its folder is bounded";
  EXPECT_EQ(testing::read_file(folder / "mine"), "x");
}

TEST_F(SandboxIsolation, ReadingOthersFilesIsPossibleUnlessTheyAreHidden) {
  testing::TemporaryFolder folder;
  testing::write_file(folder / "secret", "s3cret");
  const std::string line = "open('" + (folder / "secret").string() + "').read()";
  EXPECT_EQ(say(line), "s3cret") << "documented: files that this user can read can be read";
  SandboxOptions options = python_options();
  options.hidden_folders.push_back(folder.path());
  const auto hidden = open_pool(options);
  ASSERT_TRUE(hidden);
  EXPECT_EQ(run_lines(*hidden, {line})[0].line, "FileNotFoundError");
}

TEST_F(SandboxIsolation, ItSeesAndSignalsNoOtherProcess) {
  EXPECT_EQ(say("sorted(int(x) for x in os.listdir('/proc') if x.isdigit())"), "[1, 2]");
  EXPECT_EQ(say("os.kill(" + std::to_string(::getpid()) + ", 0)"), "ProcessLookupError");
  EXPECT_EQ(say("os.kill(1, signal.SIGKILL)"), "None") << "its watcher is out of reach";
  EXPECT_EQ(say("1"), "1");
}

TEST_F(SandboxIsolation, ItHasNoPrivilegesAndGetsNone) {
  EXPECT_NE(say("os.getuid()"), "0");
  EXPECT_EQ(say("[x for x in open('/proc/self/status') if 'CapEff' in x][0].split()[1]"),
            "0000000000000000");
  EXPECT_EQ(say("[x for x in open('/proc/self/status') if 'NoNewPrivs' in x][0].split()[1]"), "1");
  EXPECT_NE(say("subprocess.run(['unshare', '-Ur', 'true'], stderr=-3).returncode"), "0");
}

TEST_F(SandboxIsolation, NeitherDescriptorsNorVariablesComeAlong) {
  ::setenv("TROUPE_SECRET", "s3cret", 1);
  const int open_file = ::open("/etc/passwd", O_RDONLY);  // without O_CLOEXEC
  pool_ = open_pool(python_options());
  ASSERT_TRUE(pool_);
  EXPECT_EQ(say("os.environ.get('TROUPE_SECRET')"), "None");
  EXPECT_EQ(say("sorted(int(x) for x in os.listdir('/proc/self/fd'))"), "[0, 1, 2, 3]")
      << "3 is the listing itself";
  EXPECT_EQ(say("os.getcwd() == os.environ['HOME'] == os.environ['TMPDIR']"), "True");
  ::close(open_file);
  ::unsetenv("TROUPE_SECRET");
}

}  // namespace
}  // namespace troupe::actors
