// Proves how a command finds its cluster: options before environment before the head's own folder,
// wrong values refused by name, certificates chosen by name or by the host that is dialled; and
// that hosts become nodes of placement and bundles become cores and devices again.

#include "placement/cluster_access.hpp"

#include "apps/troupe/cluster_command.hpp"
#include "apps/troupe/head_state.hpp"
#include "placement/host_node.hpp"
#include "runtime/link/certificate.hpp"
#include "tests/support/test_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace troupe::placement {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::read_file;
using testing::TemporaryFolder;
using testing::write_file;

class Access : public ::testing::Test {
 protected:
  Access() {
    for (const char* name : {"TROUPE_ADDRESS", "TROUPE_TOKEN_FILE", "TROUPE_TLS", "TROUPE_STATE"})
      ::unsetenv(name);
    options_.state = folder_.path().string();
  }
  void write_private(const std::string& name, const std::string& text) {
    write_file(folder_ / name, text);
    std::filesystem::permissions(
        folder_ / name, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }
  TemporaryFolder folder_;
  AccessOptions options_;
};

TEST_F(Access, ComesFromOptionsThenEnvironmentThenTheHeadsFolder) {
  const auto nowhere = resolve_access(options_);
  ASSERT_FALSE(nowhere.has_value());
  EXPECT_EQ(nowhere.error().code, ErrorCode::kConfig);
  EXPECT_THAT(nowhere.error().to_string(), HasSubstr("TROUPE_ADDRESS"));
  write_file(folder_ / "address", "127.0.0.1:7000\n");
  write_private("token", std::string(64, 'b'));
  EXPECT_EQ(resolve_access(options_).value().address, "127.0.0.1:7000");
  EXPECT_EQ(resolve_access(options_).value().token, std::string(64, 'b'));
  write_private("other", std::string(64, 'c'));
  ::setenv("TROUPE_ADDRESS", "head:7001", 1);
  ::setenv("TROUPE_TOKEN_FILE", (folder_ / "other").c_str(), 1);
  EXPECT_EQ(resolve_access(options_).value().address, "head:7001");
  EXPECT_EQ(resolve_access(options_).value().token, std::string(64, 'c'));
  options_.address = "head:7002";
  options_.token_file = (folder_ / "token").string();
  EXPECT_EQ(resolve_access(options_).value().address, "head:7002");
  EXPECT_EQ(resolve_access(options_).value().token, std::string(64, 'b'));
  options_.address = "head";
  EXPECT_THAT(resolve_access(options_).error().to_string(), HasSubstr("'head'"));
  options_.address = "head:1";
  options_.token_file = (folder_ / "missing").string();
  EXPECT_THAT(resolve_access(options_).error().to_string(), HasSubstr("missing"));
  EXPECT_EQ(resolve_access(options_).error().code, ErrorCode::kConfig);
  EXPECT_EQ(default_state_folder(),
            (std::filesystem::path(std::getenv("HOME")) / ".troupe").string());
}

TEST_F(Access, ACertificateIsChosenByNameOrByTheHostThatIsDialled) {
  const std::string keys = (folder_ / "keys").string();
  ASSERT_TRUE(runtime::make_authority(keys));
  ASSERT_TRUE(runtime::make_certificate(keys, "a", {"10.0.0.1", "a.example"}));
  ASSERT_TRUE(runtime::make_certificate(keys, "b", {"10.0.0.2"}));
  const auto chosen = [&](const std::string& name, std::vector<std::string> names,
                          const std::string& host) {
    const auto files = choose_certificate(keys, name, names, host);
    return files ? std::filesystem::path(files->certificate).stem().string()
                 : files.error().message;
  };
  EXPECT_EQ(chosen("b", {"a"}, "10.0.0.1"), "b");
  EXPECT_EQ(chosen("", {"x", "b"}, "10.0.0.1"), "b");
  EXPECT_EQ(chosen("", {}, "10.0.0.2"), "b");
  EXPECT_EQ(chosen("", {}, "a.example"), "a");
  EXPECT_EQ(chosen("", {}, ""), "a");
  EXPECT_THAT(chosen("", {}, "10.0.0.3"),
              HasSubstr("no certificate is made out for 10.0.0.3; there are: a, b"));
  EXPECT_THAT(chosen("c", {}, ""), HasSubstr("no certificate c.pem; there are: a, b"));
  EXPECT_EQ(choose_certificate((folder_ / "none").string(), "", {}, "").error().code,
            ErrorCode::kConfig);
}

TEST(ListenOption, TakesHostPortOrBoth) {
  const runtime::ListenAddress defaults{"127.0.0.1", 7611};
  const auto parsed = [&](const std::string& text) {
    const auto address = parse_listen(text, defaults);
    return address ? address->host + " " + std::to_string(address->port) : address.error().message;
  };
  EXPECT_EQ(parsed(""), "127.0.0.1 7611");
  EXPECT_EQ(parsed("0.0.0.0"), "0.0.0.0 7611");
  EXPECT_EQ(parsed(":0"), "127.0.0.1 0");
  EXPECT_EQ(parsed("host:9"), "host 9");
  EXPECT_EQ(parsed("[::1]:9"), "::1 9");
  EXPECT_EQ(parsed("[::1]"), "::1 7611");
  EXPECT_THAT(parsed("host:port"), HasSubstr("'host:port'"));
  EXPECT_THAT(parsed("host:70000"), HasSubstr("'host:70000'"));
  EXPECT_EQ(local_address_towards("127.0.0.1:9").value(), "127.0.0.1");
}

runtime::HostInventory two_sockets() {
  runtime::HostInventory host;
  host.host = "h";
  host.cpus = 4;
  host.memory_bytes = 64;
  host.cores = {{.core = 0, .socket = 0},
                {.core = 1, .socket = 1},
                {.core = 2, .socket = 0},
                {.core = 3, .socket = 1}};
  runtime::HostDevice device;
  device.uuid = "GPU-a";
  device.numa_node = 1;
  device.socket = 1;
  device.fabric = "f";
  host.devices.push_back(device);
  host.nics = {{.name = "eth0", .kind = "ethernet", .numa_node = 0},
               {.name = "mlx5_1", .kind = "infiniband", .numa_node = 1}};
  host.labels = {{"zone", "x"}};
  host.rack = "r";
  return host;
}

TEST(HostNode, DescribesWhatTheHostHas) {
  const auto node = node_of_host(two_sockets(), "gpu-1").value();
  EXPECT_EQ(node.name, "gpu-1");
  EXPECT_EQ(node.sockets, 2);
  EXPECT_EQ(node.cores, 4);
  EXPECT_EQ(node.rack, "r");
  EXPECT_EQ(node.domain, "f");
  ASSERT_EQ(node.devices.size(), 1U);
  EXPECT_EQ(node.devices[0].socket, 1);
  EXPECT_EQ(node.devices[0].nic, "mlx5_1");
  EXPECT_EQ(node.labels.at("zone"), "x");
  auto limited = two_sockets();
  limited.cores.pop_back();
  limited.cpus = 3;
  EXPECT_EQ(node_of_host(limited, "n").value().sockets, 1) << "unequal sockets promise nothing";
  auto claimed = two_sockets();
  claimed.cpus = 16;
  EXPECT_EQ(node_of_host(claimed, "n").value().cores, 16);
  EXPECT_EQ(node_of_host(claimed, "").error().code, ErrorCode::kInvalidArgument);
}

TEST(HostNode, TurnsABundleBackIntoCoresAndDevices) {
  const auto host = two_sockets();
  BundlePlacement bundle;
  bundle.devices = {{.device = 0, .amount = Amount::whole(1)}};
  bundle.cores = {{.core = 1, .amount = Amount::whole(1)}, {.core = 2, .amount = Amount::whole(1)}};
  bundle.memory = Bytes{7};
  auto place = rank_place_on(host, bundle);
  EXPECT_THAT(place.cores, ElementsAre(2, 1)) << "in order of socket and number";
  EXPECT_THAT(place.devices, ElementsAre(0));
  EXPECT_THAT(place.visible, ElementsAre("GPU-a"));
  EXPECT_EQ(place.memory_max, Bytes{7});
  bundle.cores.push_back({.core = 9, .amount = Amount::whole(1)});
  EXPECT_THAT(rank_place_on(host, bundle).cores, IsEmpty()) << "a core that the host only claims";
  auto simulated = host;
  simulated.devices[0].simulated = true;
  EXPECT_THAT(rank_place_on(simulated, bundle).visible, IsEmpty());
}

}  // namespace
}  // namespace troupe::placement

namespace troupe::apps {
namespace {

using ::testing::HasSubstr;

TEST(HeadFolder, BelongsToOneHeadAtATimeAndForgetsItsAddressAtTheEnd) {
  testing::TemporaryFolder folder;
  const std::string state = (folder / "deep/state").string();
  {
    auto taken = HeadState::take(state);
    ASSERT_TRUE(taken.has_value());
    const auto second = HeadState::take(state);
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().code, ErrorCode::kConflict);
    EXPECT_THAT(second.error().message, HasSubstr("process " + std::to_string(::getpid())));
    ASSERT_TRUE(taken->publish("127.0.0.1:1"));
    EXPECT_EQ(testing::read_file(placement::address_file(state)), "127.0.0.1:1\n");
  }
  EXPECT_FALSE(std::filesystem::exists(placement::address_file(state)));
  EXPECT_TRUE(HeadState::take(state).has_value());
  testing::write_file(folder / "file", "");
  EXPECT_EQ(HeadState::take((folder / "file/x").string()).error().code, ErrorCode::kIo);
}

TEST(Tables, ColumnsAreAsWideAsTheyMustBe) {
  Table table({"NAME", "STATE", "WHY"});
  table.add({"a", "up", ""});
  table.add({"größer", "lost", "reset"});
  EXPECT_EQ(table.to_text(), "NAME    STATE  WHY\na       up\ngrößer  lost   reset\n");
}

TEST(Tables, AgesAreShort) {
  EXPECT_EQ(age_text(0.85), "850 ms");
  EXPECT_EQ(age_text(-1), "0 ms");
  EXPECT_EQ(age_text(12), "12 s");
  EXPECT_EQ(age_text(180), "3 m");
  EXPECT_EQ(age_text(9000), "2.5 h");
  EXPECT_EQ(age_text(400000), "5 d");
}

}  // namespace
}  // namespace troupe::apps
