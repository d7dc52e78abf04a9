// Proves that the files for Slurm and Kubernetes are ones that work, as far as one machine can: the
// batch script passes bash and shellcheck, and runs against stand-ins for `srun` and `scontrol`
// that start the tasks here with Slurm's environment; the manifests parse, and what they say to
// each other (ports, names, secrets, certificates) agrees.

#include "runtime/link/certificate_hosts.hpp"
#include "tests/support/troupe_processes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <map>
#include <string>
#include <vector>

namespace troupe {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::Process;
using testing::TemporaryFolder;

std::filesystem::path scripts() { return std::filesystem::path(TROUPE_SOURCE_DIR) / "scripts"; }

int run(const std::vector<std::string>& words, const TemporaryFolder& folder,
        std::string* out = nullptr, const Process::Environment& environment = {}) {
  Process process(words, environment, folder / "out", folder / "err");
  const int code = process.wait(60s);
  if (out != nullptr) *out = process.out() + process.err();
  return code;
}

void make_program(const std::filesystem::path& path, const std::string& text) {
  testing::write_file(path, text);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

TEST(SlurmScript, IsCleanShell) {
  const TemporaryFolder folder;
  const std::string script = (scripts() / "slurm/troupe.sbatch").string();
  std::string said;
  EXPECT_EQ(run({"bash", "-n", script}, folder, &said), 0) << said;
  if (run({"bash", "-c", "command -v shellcheck"}, folder) == 0) {
    EXPECT_EQ(run({"shellcheck", script}, folder, &said), 0) << said;
  }
}

/// Hosts of the stand-in; names that this machine resolves to itself.
class SlurmRun : public ::testing::Test {
 protected:
  SlurmRun() {
    std::filesystem::create_directories(folder_ / "bin");
    make_program(
        folder_ / "bin/scontrol",
        "#!/bin/bash\n[[ \"$1 $2\" == 'show hostnames' ]] && printf 'localhost\\n127.0.0.2\\n'\n");
    // As srun: one task on each host, each with its own name; ends when all have.
    make_program(folder_ / "bin/srun",
                 "#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nindex=0\n"
                 "for host in localhost 127.0.0.2; do\n"
                 "  SLURM_PROCID=$index SLURM_NODEID=$index SLURMD_NODENAME=$host \"$@\" &\n"
                 "  index=$((index + 1))\ndone\nwait\n");
    environment_ = {{"PATH", (folder_ / "bin").string() + ":" + std::getenv("PATH")},
                    {"TROUPE", testing::troupe_program()},
                    {"TROUPE_SHARED", folder_.path().string()},
                    {"TROUPE_DEVICES", "2"},
                    {"SLURM_JOB_ID", "7"},
                    {"SLURM_JOB_NODELIST", "node[1-2]"},
                    {"SLURM_NNODES", "2"}};
  }
  int submit(std::vector<std::string> words, std::string& said) {
    words.insert(words.begin(), {"bash", (scripts() / "slurm/troupe.sbatch").string()});
    return run(words, folder_, &said, environment_);
  }

  TemporaryFolder folder_;
  Process::Environment environment_;
};

TEST_F(SlurmRun, MakesAClusterOfTheAllocationRunsTheCommandAndCleansUp) {
  std::string said;
  EXPECT_EQ(submit({"list", "nodes", "--json"}, said), 0) << said;
  EXPECT_THAT(said, HasSubstr("\"total\": 2")) << said;
  EXPECT_THAT(said, HasSubstr("\"name\": \"127.0.0.2\"")) << said;
  EXPECT_THAT(said, HasSubstr("head stopped")) << said;
  EXPECT_FALSE(std::filesystem::exists(folder_ / ".troupe-7")) << "token and keys are gone";
}

TEST_F(SlurmRun, TheExitCodeIsThatOfTheCommand) {
  std::string said;
  EXPECT_EQ(submit({"explain", "ghost"}, said), 1) << said;
  EXPECT_THAT(said, HasSubstr("ghost"));
}

using Documents = std::map<std::string, YAML::Node>;

/// By kind and name.
Documents manifests() {
  Documents documents;
  for (const char* file : {"cluster.yaml", "train.yaml"}) {
    for (const YAML::Node& one :
         YAML::LoadAllFromFile((scripts() / "kubernetes" / file).string())) {
      EXPECT_TRUE(one["apiVersion"] && one["kind"]) << file;
      documents[one["kind"].as<std::string>() + " " + one["metadata"]["name"].as<std::string>()] =
          one;
    }
  }
  return documents;
}

std::vector<std::string> command_of(const YAML::Node& document) {
  return document["spec"]["template"]["spec"]["containers"][0]["command"]
      .as<std::vector<std::string>>();
}

std::string option(const std::vector<std::string>& command, const std::string& name) {
  for (std::size_t i = 0; i + 1 < command.size(); ++i) {
    if (command[i] == name) return command[i + 1];
  }
  return {};
}

TEST(KubernetesManifests, PartsFindEachOther) {
  Documents all = manifests();
  for (const char* name : {"Service troupe-head", "Service troupe-node", "StatefulSet troupe-head",
                           "StatefulSet troupe-node", "Job troupe-train"})
    ASSERT_TRUE(all.contains(name)) << name;
  const YAML::Node head = all["StatefulSet troupe-head"];
  const YAML::Node node = all["StatefulSet troupe-node"];
  const YAML::Node train = all["Job troupe-train"];
  const int port = all["Service troupe-head"]["spec"]["ports"][0]["port"].as<int>();
  EXPECT_EQ(port, 7611) << "the port that docs/cluster.md names";
  EXPECT_EQ(option(command_of(head), "--listen"), "0.0.0.0:7611");
  EXPECT_EQ(option(command_of(node), "--join"), "troupe-head:7611");
  EXPECT_THAT(command_of(train), Contains("cluster.address=troupe-head:7611"));
  EXPECT_EQ(head["spec"]["replicas"].as<int>(), 1) << "two heads would share a ledger";
  EXPECT_TRUE(head["spec"]["volumeClaimTemplates"]) << "the ledger outlives the pod";
  EXPECT_EQ(option(command_of(head), "--state"), "/state");
  EXPECT_THAT(command_of(train),
              Contains("trainer.nnodes=" + node["spec"]["replicas"].as<std::string>()));
  EXPECT_EQ(
      node["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
          .as<int>(),
      8);
  EXPECT_THAT(command_of(train), Contains("trainer.n_gpus_per_node=8"));
  // The head's selector, and the headless service over everything that ranks dial.
  EXPECT_EQ(all["Service troupe-head"]["spec"]["selector"]["app"].as<std::string>(),
            head["spec"]["template"]["metadata"]["labels"]["app"].as<std::string>());
  for (const YAML::Node& dialled : {node, train})
    EXPECT_EQ(dialled["spec"]["template"]["metadata"]["labels"]["member"].as<std::string>(),
              "troupe");
  EXPECT_EQ(all["Service troupe-node"]["spec"]["clusterIP"].as<std::string>(), "None");
  EXPECT_EQ(train["spec"]["template"]["spec"]["subdomain"].as<std::string>(), "troupe-node");
}

TEST(KubernetesManifests, SecretsAreOfOneOwnerAndCertificatesCoverWhatIsDialled) {
  for (auto& [name, document] : manifests()) {
    if (name.starts_with("Service")) continue;
    const YAML::Node pod = document["spec"]["template"]["spec"];
    EXPECT_THAT(pod["initContainers"][0]["command"][2].as<std::string>(), HasSubstr("umask 077"))
        << name;
    std::map<std::string, std::string> environment;
    for (const YAML::Node& one : pod["containers"][0]["env"])
      environment[one["name"].as<std::string>()] =
          one["value"] ? one["value"].as<std::string>() : "";
    EXPECT_EQ(environment["TROUPE_TOKEN_FILE"], "/access/token") << name;
    EXPECT_EQ(environment["TROUPE_TLS"], "/access") << name;
    EXPECT_EQ(pod["volumes"][0]["secret"]["secretName"].as<std::string>(), "troupe-access") << name;
  }
  // The commands in the head of cluster.yaml.
  const TemporaryFolder folder;
  const std::string keys = (folder / "certificates").string();
  const std::string troupe = testing::troupe_program();
  ASSERT_EQ(run({troupe, "cert", "make", "--authority", "--out", keys}, folder), 0);
  ASSERT_EQ(run({troupe, "cert", "make", "--name", "pods", "--host", "troupe-head", "--host",
                 "*.troupe-node.default.svc", "--out", keys},
                folder),
            0);
  for (const char* host : {"troupe-head", "troupe-node-0.troupe-node.default.svc",
                           "troupe-train.troupe-node.default.svc", "localhost"})
    EXPECT_EQ(runtime::certificate_covers(keys + "/pods.pem", host).value_or(false), true) << host;
  EXPECT_EQ(runtime::certificate_covers(keys + "/pods.pem", "evil.example").value_or(true), false);
}

}  // namespace
}  // namespace troupe
