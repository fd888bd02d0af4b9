#include "machine/catalogue_data.h"

#include <gmock/gmock.h>

#include <set>

#include "machine/catalogue.h"

namespace shoal::machine {
namespace {

TEST(CatalogueData, ReadsEmbeddedRows) {
  const Gpu& gpu = catalogue().gpus.front();
  EXPECT_EQ(gpu.name, "H200");
  EXPECT_EQ(gpu.generation.plain_of_half, 0.35);
  EXPECT_EQ(gpu.memory_mib, 143771);
  EXPECT_EQ(gpu.pcie_generation, 5);
  EXPECT_TRUE(gpu.pcie_peers);
  EXPECT_TRUE(catalogue().links.front().one_shot) << "NVLink";
  EXPECT_FALSE(catalogue().links.back().two_shot) << "the last link goes through the host";
}

TEST(CatalogueData, NamesAreUniqueAndParsable) {
  std::set<std::string> names;
  const auto see = [&](std::string name) {
    EXPECT_EQ(name.find_first_of(" ,+"), std::string::npos) << name;
    for (char& c : name) c = static_cast<char>(std::tolower(c));
    EXPECT_TRUE(names.insert(name).second) << name << " again";
  };
  for (const Gpu& gpu : catalogue().gpus) see(gpu.name);
  for (const Host& host : catalogue().hosts) see(host.name);
  for (const Link& link : catalogue().links) see(link.name);
}

// Checks all GPUs. Without this test, a missing link row would cause an error only when a user names the GPU.
TEST(CatalogueData, EveryGpuHasDefaultAndPcieLinks) {
  for (const Gpu& gpu : catalogue().gpus) {
    EXPECT_GT(gpu.memory_mib, catalogue().common.context_mib);
    for (const char* link : {"", "-pcie", "-pcie-p2p", "-pcie-host"}) {
      EXPECT_NO_THROW(make_machine(gpu.name + "x2" + link)) << gpu.name << link;
    }
  }
}

}  // namespace
}  // namespace shoal::machine
