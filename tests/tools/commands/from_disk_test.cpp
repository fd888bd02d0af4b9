// Tests of messages about models that are larger than the memory of this machine. Each model file is sparse: a header
// and a hole.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "devices/cpu/topology.h"
#include "tests/models/hollow_model.h"
#include "tests/support/temporary.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

/// The machine has 2 GB/s of memory bandwidth and 1 GB/s of disk bandwidth.
constexpr const char* kMachine = R"({"version": 1, "devices": [
  {"name": "CPU0", "memory": 64e9, "bandwidth": 2e9, "efficiency": 1, "rates": {"default": 1e12}}]})";

struct FromDisk : ::testing::Test {
  FromDisk() { write(8192); }
  void write(int64_t context) const {
    // The weights are twice as large as the memory of this machine. Each of the 4 layers has 3 matrices of f32.
    constexpr int64_t kEmbd = 4096, kLayers = 4;
    const auto bytes = 2 * static_cast<int64_t>(cpu::node_memory(-1).total);
    const int64_t ff = (bytes / (4 * 3 * kLayers * kEmbd) / 256 + 1) * 256;
    models::HollowModel hollow(kLayers, kEmbd, ff, 32, 8, 1024);
    hollow.dtype = models::all_of(DType::kF32);
    hollow.h.context = context;
    hollow.write(file.path);
  }
  const test::TemporaryFile file{"larger_than_memory.gguf"}, machine{"from_disk.json", kMachine};
};

TEST_F(FromDisk, InfoReportsThatTheModelDoesNotFit) {
  const std::vector<std::string> command{"info", "-m", file.path, "--devices", "CPU0", "-c", "512"};
  const json fit = run_json(command)["fits"][0];
  EXPECT_EQ(fit["fits"], false);
  EXPECT_EQ(fit["from_disk"], true);
  EXPECT_GT(fit["needed"].get<size_t>(), std::filesystem::file_size(file.path) / 10 * 9);
  EXPECT_EQ(fit["missing"], fit["needed"].get<size_t>() - fit["memory"][0]["free"].get<size_t>());
  const std::string text = run(command).out;
  EXPECT_THAT(text, HasSubstr("does not fit         on CPU0: "));
  EXPECT_THAT(text, HasSubstr("the model runs slowly, because weights are read from the disk for every token"));
}

TEST_F(FromDisk, PlanPredictsReadsAtDiskSpeed) {
  const std::vector<std::string> command{"plan", "-m",  file.path,   "--devices",  "CPU0",
                                         "-c",   "512", "--machine", machine.path, "-p",
                                         "0",    "-n",  "16",        "--recommend"};
  const json plan = run_json(command);
  EXPECT_EQ(plan["fits"], false);
  EXPECT_EQ(plan["from_disk"], true);
  EXPECT_LT(plan["memory"][0]["margin"].get<int64_t>(), 0);
  for (const json& one : {plan["prediction"], plan["recommended"]}) {
    EXPECT_EQ(one["fits"], false);
    EXPECT_EQ(one["from_disk"], true);
    const double read = static_cast<double>(std::filesystem::file_size(file.path)) / 1e9;
    EXPECT_NEAR(one["generation"]["disk_seconds"].get<double>() / read, 1, 0.05);
    EXPECT_GT(one["generation"]["seconds"].get<double>() / 16, read);
  }
  EXPECT_THAT(plan["reason"].get<std::string>(), HasSubstr("nothing fits: CPU0 needs "));
  const std::string text = run(command).out;
  EXPECT_THAT(text, HasSubstr("does not fit, but runs: CPU0 has "));
  EXPECT_THAT(text, HasSubstr(" for reading weights from the disk\n"));
  EXPECT_THAT(text, HasSubstr("CPU0 is the fastest choice that runs, but weights are read from the disk"));
}

TEST_F(FromDisk, PlanShortensContextIfCachesDoNotFit) {
  const auto trained = static_cast<int64_t>(cpu::node_memory(-1).total / 16384);  // each token needs 16 KiB of cache
  write(trained);
  const std::vector<std::string> command{"plan", "-m", file.path, "--devices", "CPU0", "-c", "0"};
  EXPECT_THAT(run(command).err, HasSubstr(fmt::format(" instead of {}: ", trained)));
  const json plan = run_json(command);
  EXPECT_EQ(plan["from_disk"], true);
  EXPECT_LT(plan["context"].get<int64_t>(), trained);
}

}  // namespace
}  // namespace shoal::tools
