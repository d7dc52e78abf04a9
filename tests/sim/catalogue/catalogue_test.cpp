// Proves the catalogue: it has what it promises, takes users' entries, and refuses wrong ones by
// name, field and value.

#include "sim/catalogue/catalogue.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace troupe::sim {
namespace {

TEST(Catalogue, HasTheHardwareAndModelsThatPublishedTablesUse) {
  const Catalogue& catalogue = Catalogue::built_in();
  for (const char* name :
       {"a100-80g", "h100", "h800", "h200", "h20", "b200", "gb200", "mi300x", "l40s"})
    EXPECT_TRUE(catalogue.device(name)) << name;
  for (const char* name : {"llama-7b", "llama-70b", "llama-3.1-8b", "qwen2.5-7b", "qwen3-32b",
                           "qwen3-30b-a3b", "deepseek-v3", "kimi-k2"})
    EXPECT_TRUE(catalogue.model(name)) << name;
  for (const std::string& name : catalogue.models())
    EXPECT_FALSE(catalogue.model(name)->source.empty()) << name;
}

TEST(Catalogue, SuggestsTheNearestName) {
  const auto found = Catalogue::built_in().device("h1000");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kNotFound);
  EXPECT_NE(found.error().message.find("did you mean h100?"), std::string::npos)
      << found.error().to_string();
}

TEST(Catalogue, TakesUsersEntriesInPlaceOfItsOwn) {
  Catalogue catalogue = Catalogue::built_in();
  ASSERT_TRUE(
      catalogue.add("devices: {h100: {tflops: 500, hbm_gb: 64, hbm_tbs: 2, nvlink_gbs: 0, "
                    "pcie_gbs: 32, nic_gbits: 100, per_node: 4}}",
                    "mine.yaml"));
  EXPECT_EQ(catalogue.device("h100")->flops, 500e12);
  EXPECT_EQ(catalogue.device("h100")->nvlink_domain, 1);
  EXPECT_EQ(Catalogue::built_in().device("h100")->flops, 989e12);
}

TEST(Catalogue, RefusesWrongEntriesByTheirPlace) {
  struct Wrong {
    const char* yaml;
    const char* says;
  };
  const Wrong kWrong[] = {
      {"devices: {x: {tflops: 1, hbm_gb: 1, hbm_tbs: -1, nvlink_gbs: 0, pcie_gbs: 1, nic_gbits: "
       "1}}",
       "device x: hbm_tbs is -1000000000000"},
      {"devices: {x: {tflops: 1}}", "no field hbm_gb"},
      {"devices: {x: {tflops: 1, hbm_gb: 80, reported_gib: 791, hbm_tbs: 1, nvlink_gbs: 0, "
       "pcie_gbs: 1, nic_gbits: 1}}",
       "device x: reports 849.3 GB of its 80.0, wanted 0 (as many) to 88.0"},
      {"devices: {x: {tflops: 1, hbm_gb: 80, reported_gib: -1, hbm_tbs: 1, nvlink_gbs: 0, "
       "pcie_gbs: 1, nic_gbits: 1}}",
       "device x: reports -1.1 GB"},
      {"devices: {x: {tflops: 1, hbm_gb: 1, hbm_tbs: 1, nvlink_gbs: 9, pcie_gbs: 1, nic_gbits: 1, "
       "nvlink_domain: 4}}",
       "smaller than its node of 8"},
      {"devices: {x: {tflops: 1, hbm_gb: 1, hbm_tbs: 1, nvlink_gbs: 0, pcie_gbs: 1, nic_gbits: 1, "
       "color: 4}}",
       "mine.yaml: devices x: unknown field color"},
      {"models: {x: {source: me, vocab: 10, hidden: 8, intermediate: 8, layers: 1, heads: 3, "
       "kv_heads: 2, head_dim: 4}}",
       "3"},
      {"modles: {}", "unknown section modles"},
      {"models: [", "mine.yaml"},
      {"models: {x: {source: me, vocab: many}}", "mine.yaml"},
  };
  for (const Wrong& wrong : kWrong) {
    Catalogue catalogue = Catalogue::built_in();
    const auto added = catalogue.add(wrong.yaml, "mine.yaml");
    ASSERT_FALSE(added) << wrong.yaml;
    EXPECT_NE(added.error().to_string().find(wrong.says), std::string::npos)
        << added.error().to_string();
  }
}

}  // namespace
}  // namespace troupe::sim
