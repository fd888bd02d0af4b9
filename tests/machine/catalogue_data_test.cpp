#include "machine/catalogue_data.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "machine/catalogue.h"

namespace shoal::machine {
namespace {

using testing::StartsWith;
using testing::ThrowsMessage;

const std::string kGpusFile = "data/machines/gpus.json: ", kLinksFile = "data/machines/links.json: ";
const std::string kHostsFile = "data/machines/hosts.json: ";

/// The text with the first `old` in it replaced.
std::string edited(std::string_view text, const std::string& old, const std::string& by) {
  std::string out(text);
  const size_t at = out.find(old);
  EXPECT_NE(at, std::string::npos) << old;
  return at == std::string::npos ? out : out.replace(at, old.size(), by);
}

void refuses_gpus(const std::string& old, const std::string& by, const std::string& message) {
  const std::string text = edited(kGpusJson, old, by);
  EXPECT_THAT([&] { parse_catalogue(text, kHostsJson, kLinksJson); },
              ThrowsMessage<InvalidArgument>(StartsWith(kGpusFile + message)));
}

void refuses_hosts(const std::string& old, const std::string& by, const std::string& message) {
  const std::string text = edited(kHostsJson, old, by);
  EXPECT_THAT([&] { parse_catalogue(kGpusJson, text, kLinksJson); },
              ThrowsMessage<InvalidArgument>(StartsWith(kHostsFile + message)));
}

void refuses_links(const std::string& old, const std::string& by, const std::string& message) {
  const std::string text = edited(kLinksJson, old, by);
  EXPECT_THAT([&] { parse_catalogue(kGpusJson, kHostsJson, text); },
              ThrowsMessage<InvalidArgument>(StartsWith(kLinksFile + message)));
}

TEST(CatalogueData, RowsAreRead) {
  const std::string row = R"({"name": "H300", "generation": "Ada", "memory_mib": 1024, "bandwidth_gb_s": 7,
      "half_tflop_s": 8, "int8_top_s": 9, "processors": 10, "clock_ghz": 1.1, "nvlink_generation": 0,
      "nvlink_joined": 1, "pcie_generation": 6, "pcie_peers": false},)";
  const Catalogue read =
      parse_catalogue(edited(kGpusJson, R"("gpus": [)", R"("gpus": [)" + row), kHostsJson, kLinksJson);
  ASSERT_EQ(read.gpus.size(), catalogue().gpus.size() + 1);
  const Gpu& gpu = read.gpus.front();
  EXPECT_EQ(gpu.name, "H300");
  EXPECT_EQ(gpu.generation.plain_of_half, 0.85);
  EXPECT_EQ(gpu.memory_mib, 1024);
  EXPECT_EQ(gpu.pcie_generation, 6);
  EXPECT_FALSE(gpu.pcie_peers);
  EXPECT_TRUE(read.links.front().one_shot) << "NVLink";
  EXPECT_FALSE(read.links.back().two_shot) << "through the host";
}

TEST(CatalogueData, ErrorsNameFileRowAndKey) {
  refuses_gpus(R"("memory_mib": 143771, )", "", "gpus[0].memory_mib: expected a value, got nothing");
  refuses_gpus("81559", R"("80G")", "gpus[1].memory_mib: expected a positive number, got \"80G\"");
  refuses_gpus(R"("generation": "Hopper")", R"("generation": "Harper")",
               "gpus[0].generation: expected one of the generations Volta, Ampere, Ampere desktop, Ada, Ada server, "
               "Hopper, Blackwell, Blackwell desktop, got \"Harper\"");
  refuses_gpus(R"("pcie_peers": true)", R"("pcie_peers": 1)", "gpus[0].pcie_peers: expected true or false, got 1");
  refuses_gpus(R"("processors": 132)", R"("processors": 0.5)",
               "gpus[0].processors: expected a whole number from 1 to 1048576, got 0.5");
  refuses_gpus(R"("clock_ghz")", R"("clock_mhz")", "gpus[0].clock_mhz: unknown key; there are name, generation");
  refuses_gpus(R"("name": "H100")", R"("name": "H200")", "gpus[1].name: expected a name of its own, got H200 again");
  refuses_gpus(R"("name": "H100")", R"("name": "h200")", "gpus[1].name: expected a name of its own, got h200 again");
  refuses_gpus(R"("name": "H100")", R"("name": "H 100")", "gpus[1].name: expected a name without blanks and commas");
  refuses_gpus("81559", "1", "gpus[1].memory_mib: expected more than context_mib, got 1");
  refuses_gpus(R"("op_seconds": 3e-6, )", "", "common.op_seconds: expected a value, got nothing");
  refuses_gpus("0.30", "1.30", "generations[0].quantized_of_int8: expected a number above 0, at most 1, got 1.3");
  refuses_gpus("]", "", "no JSON, from line ");
  refuses_hosts(R"("memory_gib": 768, )", "", "hosts[0].memory_gib: expected a value, got nothing");
  refuses_hosts(R"("name": "EPYC7763")", R"("name": "epyc9654")",
                "hosts[1].name: expected a name of its own, got epyc9654 again");
  refuses_hosts(R"("cores": 96)", R"("cores": 0)", "hosts[0].cores: expected a whole number from 1 to 1048576, got 0");
  refuses_links(R"("latency_us": 3.4, )", "", "links[0].one_shot.latency_us: expected a value, got nothing");
  refuses_links(R"("name": ")", R"("name": "X)", "links[0].name: expected a name in small letters");
  refuses_links("nccl_ring", "ring", "links[0].ring: unknown key; there are name, copy_bandwidth_gb_s");
  refuses_links("one_shot", "two_shot", "the key \"two_shot\" is there twice in one object");
}

// A row whose link is missing would be found only by those who ask for that machine.
TEST(CatalogueData, EveryGpuHasItsLinks) {
  for (const Gpu& gpu : catalogue().gpus) {
    for (const char* link : {"", "-pcie", "-pcie-p2p", "-pcie-host"}) {
      EXPECT_NO_THROW(make_machine(gpu.name + "x2" + link)) << gpu.name << link;
    }
  }
}

}  // namespace
}  // namespace shoal::machine
