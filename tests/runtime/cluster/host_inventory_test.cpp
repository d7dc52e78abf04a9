// Proves that discovery reads cores, sockets, limits of cgroup v1 and v2, cards and GPUs as the
// kernel and NVML tell them (trees of files and a library made for the test), that options and the
// topology file win, and that this machine, whatever it is, has a consistent inventory.

#include "runtime/cluster/host_inventory.hpp"

#include "runtime/cluster/cgroup.hpp"
#include "runtime/cluster/topology_file.hpp"
#include "tests/support/test_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace troupe::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class InventoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    put("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1 kB\n");
    put("proc/self/cgroup", "");
    put("proc/self/mountinfo", "");
    options_.sysfs_folder = folder_ / "sys";
    options_.proc_folder = folder_ / "proc";
    options_.nvml_library = "libno-such-library.so";
  }
  void put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void mount(const std::string& lines) { put("proc/self/mountinfo", lines); }
  HostInventory discover() {
    const auto host = discover_host(options_);
    EXPECT_TRUE(host) << host.error().to_string();
    return host.value_or(HostInventory());
  }

  troupe::testing::TemporaryFolder folder_;
  InventoryOptions options_;
};

TEST_F(InventoryTest, ThisMachineIsConsistent) {
  const auto host = discover_host();
  ASSERT_TRUE(host) << host.error().to_string();
  EXPECT_FALSE(host->host.empty());
  EXPECT_GE(host->cores.size(), 1U);
  EXPECT_GT(host->cpus, 0);
  EXPECT_LE(host->cpus, static_cast<double>(host->cores.size()));
  EXPECT_GT(host->memory_bytes, 100 << 20);
  const auto bytes = encode_value(*host);
  ASSERT_TRUE(bytes);
  EXPECT_EQ(decode_value<HostInventory>(*bytes).value(), *host);
}

TEST_F(InventoryTest, SocketsAndMemoryNodesAreRead) {
  put("sys/devices/system/cpu/cpu0/topology/physical_package_id", "1\n");
  put("sys/devices/system/cpu/cpu0/node3/meminfo", "");
  const HostInventory host = discover();
  ASSERT_FALSE(host.cores.empty());
  if (host.cores[0].core != 0) GTEST_SKIP() << "core 0 is not ours";
  EXPECT_EQ(host.cores[0], (HostCore{.core = 0, .socket = 1, .numa_node = 3}));
  EXPECT_EQ(host.memory_bytes, std::int64_t{16} << 30);
}

TEST_F(InventoryTest, LimitsOfCgroupV2AndItsAncestorsCount) {
  const std::string root = folder_ / "cg";
  mount("30 23 0:26 / " + root + " rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  put("proc/self/cgroup", "0::/job/task\n");
  put("cg/job/memory.max", "2147483648\n");
  put("cg/job/task/memory.max", "max\n");
  put("cg/job/task/cpu.max", "50000 100000\n");
  put("cg/job/task/cpuset.cpus.effective", "0\n");
  put("cg/job/task/memory.events", "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n");
  const HostInventory host = discover();
  EXPECT_EQ(host.memory_bytes, std::int64_t{2} << 30);
  EXPECT_DOUBLE_EQ(host.cpus, 0.5);
  EXPECT_LE(host.cores.size(), 1U);
  const Cgroups cgroups = Cgroups::of_this_process(options_.proc_folder);
  EXPECT_EQ(cgroups.oom_kills(), 2);
  EXPECT_EQ(cgroups.folder_of("memory"),
            (CgroupFolder{.mount = root, .folder = root + "/job/task", .v2 = true}));
}

TEST_F(InventoryTest, LimitsOfCgroupV1CountBesideAnEmptyV2) {
  const std::string root = folder_ / "cg";
  mount("30 23 0:26 / " + root + "/memory rw - cgroup cgroup rw,memory\n31 23 0:27 / " + root +
        "/cpu rw - cgroup cgroup rw,cpu,cpuacct\n32 23 0:28 / " + root +
        "/unified rw - cgroup2 cgroup2 rw\n");
  put("proc/self/cgroup", "4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n");
  put("cg/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("cg/memory/box/memory.limit_in_bytes", "1073741824\n");
  put("cg/memory/box/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
  put("cg/cpu/box/cpu.cfs_quota_us", "25000\n");
  put("cg/cpu/box/cpu.cfs_period_us", "100000\n");
  put("cg/unified/cgroup.procs", "");
  const HostInventory host = discover();
  EXPECT_EQ(host.memory_bytes, std::int64_t{1} << 30);
  EXPECT_DOUBLE_EQ(host.cpus, 0.25);
  EXPECT_EQ(Cgroups::of_this_process(options_.proc_folder).oom_kills(), 5);
}

TEST_F(InventoryTest, AContainersPathIsTakenBelowItsMount) {
  const std::string root = folder_ / "cg";
  mount("30 23 0:26 /docker/abc " + root + " rw - cgroup2 cgroup2 rw\n");
  put("cg/memory.max", "536870912\n");
  put("proc/self/cgroup", "0::/docker/abc\n");
  EXPECT_EQ(discover().memory_bytes, 512 << 20);
  put("proc/self/cgroup", "0::/../elsewhere/of/the/host\n");
  EXPECT_EQ(discover().memory_bytes, 512 << 20) << "the mount's own limit is all that can be seen";
}

TEST_F(InventoryTest, CardsAreListedAndBridgesAreNot) {
  put("sys/class/net/eth1/type", "1\n");
  put("sys/class/net/eth1/device/numa_node", "1\n");
  put("sys/class/net/eth1/speed", "100000\n");
  put("sys/class/net/ib0/type", "32\n");
  put("sys/class/net/ib0/device/numa_node", "-1\n");
  put("sys/class/net/lo/type", "772\n");
  put("sys/class/net/docker0/type", "1\n");
  const auto nics = discover().nics;
  ASSERT_THAT(nics, SizeIs(2));
  EXPECT_EQ(nics[0].name, "eth1");
  EXPECT_EQ(nics[0].kind, "ethernet");
  EXPECT_EQ(nics[0].numa_node, 1);
  EXPECT_EQ(nics[0].megabits_per_second, 100000);
  EXPECT_EQ(nics[1].kind, "infiniband");
  EXPECT_EQ(nics[1].numa_node, -1);
}

TEST_F(InventoryTest, SimulatedDevicesAreLabelledSo) {
  options_.devices_simulated = 4;
  const HostInventory host = discover();
  ASSERT_THAT(host.devices, SizeIs(4));
  for (int i = 0; i < 4; ++i) {
    const HostDevice& device = host.devices[static_cast<std::size_t>(i)];
    EXPECT_EQ(device.index, i);
    EXPECT_TRUE(device.simulated);
    EXPECT_EQ(device.model, "simulated");
    EXPECT_TRUE(device.uuid.empty());
    EXPECT_GT(device.memory_bytes, 0);
  }
  EXPECT_THAT(to_text(host), HasSubstr("4 simulated devices"));
}

TEST_F(InventoryTest, OptionsWinAndAreChecked) {
  options_.cpus = 64;
  options_.memory = gibibytes(5);
  options_.labels = {{"rack", "r7"}, {"zone", "b"}};
  const HostInventory host = discover();
  EXPECT_DOUBLE_EQ(host.cpus, 64);
  EXPECT_EQ(host.memory_bytes, std::int64_t{5} << 30);
  EXPECT_EQ(host.rack, "r7");
  EXPECT_EQ(host.labels.at("zone"), "b");
  EXPECT_THAT(host.devices, IsEmpty()) << "no NVML is normal";
  const auto refused = [](InventoryOptions options) { return discover_host(options).error().code; };
  InventoryOptions bad;
  bad.devices_simulated = -1;
  EXPECT_EQ(refused(bad), ErrorCode::kInvalidArgument);
  bad = {};
  bad.cpus = 0;
  EXPECT_EQ(refused(bad), ErrorCode::kInvalidArgument);
  bad = {};
  bad.memory = Bytes{0};
  EXPECT_EQ(refused(bad), ErrorCode::kInvalidArgument);
  bad = {};
  bad.topology_file = "/no/such/file";
  EXPECT_EQ(refused(bad), ErrorCode::kNotFound);
}

class DeviceTest : public InventoryTest {
 protected:
  void SetUp() override {
    InventoryTest::SetUp();
    options_.nvml_library = TROUPE_FAKE_NVML;
  }
  void TearDown() override { ::unsetenv("FAKE_NVML"); }
  std::vector<HostDevice> devices(const char* mode) {
    ::setenv("FAKE_NVML", mode, 1);
    const auto found = discover_devices(options_);
    EXPECT_TRUE(found) << found.error().to_string();
    return found.value_or(std::vector<HostDevice>());
  }
};

TEST_F(DeviceTest, NvmlDevicesHaveMemoryAddressAndFabric) {
  put("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
  const auto found = devices("3");
  ASSERT_THAT(found, SizeIs(3));
  EXPECT_EQ(found[1].model, "Fake GPU 80GB");
  EXPECT_EQ(found[1].uuid, "GPU-00000001");
  EXPECT_EQ(found[1].memory_bytes, std::int64_t{80} << 30);
  EXPECT_EQ(found[1].pci_address, "00000000:3B:00.0");
  EXPECT_EQ(found[1].numa_node, 1);
  EXPECT_EQ(found[0].numa_node, -1);
  EXPECT_EQ(found[0].fabric, "nvlink");
  EXPECT_EQ(found[2].fabric, "abababababababababababababababab.7");
  EXPECT_FALSE(found[0].simulated);
}

TEST_F(DeviceTest, NoDriverIsNormalAndABrokenOneIsNot) {
  EXPECT_THAT(devices("no-driver"), IsEmpty());
  EXPECT_THAT(devices("0"), IsEmpty());
  ::setenv("FAKE_NVML", "broken", 1);
  const auto broken = discover_devices(options_);
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code, ErrorCode::kIo);
  EXPECT_THAT(broken.error().message, HasSubstr("made up"));
  EXPECT_THAT(devices("2 lost"), SizeIs(1));
  options_.nvml_library = "libm.so.6";
  EXPECT_EQ(discover_devices(options_).error().code, ErrorCode::kUnsupported);
}

TEST_F(DeviceTest, VisibleDevicesAreRespectedInTheirOrder) {
  const auto visible = [this](const char* list) {
    options_.visible_devices = list;
    std::vector<std::string> uuids;
    for (const HostDevice& device : devices("4")) uuids.push_back(device.uuid);
    return uuids;
  };
  EXPECT_THAT(visible("2,0"), ElementsAre("GPU-00000002", "GPU-00000000"));
  EXPECT_THAT(visible("GPU-00000003"), ElementsAre("GPU-00000003"));
  EXPECT_THAT(visible("1,9,2"), ElementsAre("GPU-00000001")) << "ends at the first that is none";
  EXPECT_THAT(visible("1,1"), ElementsAre("GPU-00000001"));
  EXPECT_THAT(visible(""), IsEmpty());
  EXPECT_THAT(visible("-1"), IsEmpty());
  options_.visible_devices = "MIG-1234";
  EXPECT_EQ(discover_devices(options_).error().code, ErrorCode::kUnsupported);
}

TEST(CpuList, IsTheKernelsFormat) {
  EXPECT_THAT(parse_cpu_list("0-2,8,10-11").value(), ElementsAre(0, 1, 2, 8, 10, 11));
  EXPECT_THAT(parse_cpu_list("").value(), IsEmpty());
  for (const char* bad : {"a", "3-1", "1-", "-1", "0-99999", "1,,2", "1 2"})
    EXPECT_EQ(parse_cpu_list(bad).error().code, ErrorCode::kCorrupt) << bad;
}

TEST(TopologyFile, ChangesWhatItNamesAndNothingElse) {
  HostInventory host;
  host.cpus = 8;
  host.devices.resize(2);
  host.nics.push_back(HostNic{.name = "eth0", .kind = "ethernet"});
  const auto applied = apply_topology_text("t.json", R"({
    "rack": "r1", "memory_bytes": 1000, "labels": {"zone": "a"},
    "devices": [{"socket": 1, "fabric": "rack-nvl"}],
    "nics": [{"name": "ib0", "kind": "infiniband", "numa_node": 1}]})",
                                           host);
  ASSERT_TRUE(applied) << applied.error().to_string();
  EXPECT_EQ(host.rack, "r1");
  EXPECT_DOUBLE_EQ(host.cpus, 8);
  EXPECT_EQ(host.memory_bytes, 1000);
  EXPECT_EQ(host.devices[0].socket, 1);
  EXPECT_EQ(host.devices[0].fabric, "rack-nvl");
  EXPECT_EQ(host.devices[1].socket, -1);
  ASSERT_THAT(host.nics, SizeIs(1));
  EXPECT_EQ(host.nics[0].name, "ib0");
  EXPECT_EQ(host.labels.at("zone"), "a");
}

TEST(TopologyFile, RefusesMistakesWithTheirPlace) {
  HostInventory host;
  host.devices.resize(1);
  const HostInventory before = host;
  for (const auto& [text, place] : std::vector<std::pair<std::string, std::string>>{
           {"{", "t.json: not JSON"},
           {"[]", "t.json: wanted an object"},
           {R"({"rak": "r"})", "t.json: unknown key rak"},
           {R"({"rack": 1})", "t.json.rack: wanted a text"},
           {R"({"cpus": -1})", "t.json.cpus"},
           {R"({"memory_bytes": 1.5})", "t.json.memory_bytes"},
           {R"({"rack": "x", "devices": [{}, {}]})", "t.json.devices: 2 entries, this host has 1"},
           {R"({"devices": [{"socket": "0"}]})", "t.json.devices[0].socket"},
           {R"({"devices": [7]})", "t.json.devices[0]: wanted an object"},
           {R"({"nics": [{"kind": "ethernet"}]})", "t.json.nics[0]: name is missing"},
           {R"({"labels": {"a": 1}})", "t.json.labels"}}) {
    const auto refused = apply_topology_text("t.json", text, host);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code, ErrorCode::kConfig);
    EXPECT_THAT(refused.error().message, HasSubstr(place));
    EXPECT_EQ(host, before) << text;
  }
}

TEST(ChildCgroup, WritesItsLimitAndReadsItsKills) {
  troupe::testing::TemporaryFolder folder;  // stands for a delegated cgroup
  auto cgroup = ChildCgroup::create(folder / ".", "rank-1", mebibytes(64));
  ASSERT_TRUE(cgroup) << cgroup.error().to_string();
  EXPECT_EQ(troupe::testing::read_file(folder / "rank-1/memory.max"), "67108864");
  EXPECT_EQ((*cgroup)->oom_kills(), 0);
  std::ofstream(folder / "rank-1/memory.events") << "oom 1\noom_kill 4\n";
  EXPECT_EQ((*cgroup)->oom_kills(), 4);
  (*cgroup)->kill_all();
  EXPECT_EQ(troupe::testing::read_file(folder / "rank-1/cgroup.kill"), "1");
  EXPECT_EQ(ChildCgroup::create(folder / ".", "rank-1", {}).error().code, ErrorCode::kIo)
      << "taken";
}

}  // namespace
}  // namespace troupe::runtime
