// Compares simulations with the published measurements in tests/data/published_figures.csv. The file explains its
// columns.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>

#include "machine/catalogue.h"
#include "tests/models/hollow_model.h"
#include "tests/support/temporary.h"
#include "tests/tuning/asking.h"
#include "tuning/sim_device.h"

namespace shoal::tuning {
namespace {

using namespace machine;
using namespace meta;
using namespace models;

constexpr const char* kFile = "/tests/data/published_figures.csv";
constexpr double kClose = 0.25;  // maximum error, relative to the published value
constexpr double kSame = 0.02;   // maximum error, relative to the simulated value in the file

using Row = std::vector<std::string>;

/// Splits a line into cells. Cells that contain commas are in quotation marks.
Row cells_of(const std::string& line) {
  Row cells(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

/// Returns the rows whose first cell is `kind`, without this cell.
std::vector<Row> rows_of(const std::string& kind) {
  std::ifstream file(std::string(SHOAL_SOURCE_DIR) + kFile);
  std::vector<Row> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kind + ",")) rows.push_back(cells_of(line.substr(kind.size() + 1)));
  }
  return rows;
}

double as_number(const std::string& text) {
  return std::stod(text);
}

/// Compares the values of a row. The last cell of the row gives the source. If the published and the simulated value
/// differ by more than kClose, the last cell also gives the reason.
void compare(const Row& row, double published, double simulated, double in_file) {
  const std::string what =
      fmt::format("{}: published {}, simulated {:.4g}", fmt::join(row, " | "), published, simulated);
  EXPECT_NEAR(simulated, in_file, kSame * in_file) << kFile << " is out of date: " << what;
  const double difference = std::abs(simulated / published - 1);
  if (row.back().find("explained") == std::string::npos) {
    EXPECT_LE(difference, kClose) << what;
  } else {
    EXPECT_GT(difference, kClose) << "no longer needs an explanation: " << what;
  }
}

TEST(Published, PredictedCollectiveTimesMatchPublishedTimes) {
  const auto rows = rows_of("all_reduce");
  ASSERT_GT(rows.size(), 30u);
  for (const Row& row : rows) {
    ASSERT_EQ(row.size(), 6u) << row.front();
    machine::MachineModel machine = machine::make_machine(row[0]);
    const bool by_nccl = row[1] == "NCCL";
    std::erase_if(machine.algorithms, [&](const machine::CollectiveAlgorithm& algorithm) {
      return algorithm.name.starts_with("nccl") != by_nccl;
    });
    ASSERT_FALSE(machine.algorithms.empty()) << row[0] << " has no peer access";
    std::vector<int> members(machine.devices.size());
    std::iota(members.begin(), members.end(), 0);
    const double seconds = machine.collective_seconds(Collective::kAllReduce, members, as_number(row[2]));
    compare(row, as_number(row[3]), seconds * 1e6, as_number(row[4]));
  }
}

/// Provides the models of the rows. The file of each model is written only once.
class Library {
 public:
  const Model& get(const std::string& name) {
    auto& model = models_[name];
    if (model != nullptr) return *model;
    const size_t space = name.rfind(' ');
    const std::map<std::string, std::array<int64_t, 6>> shapes{
        {"Llama 3 8B", {32, 4096, 14336, 32, 8, 128256}}, {"Llama 3 70B", {80, 8192, 28672, 64, 8, 128256}},
        {"Llama 2 7B", {32, 4096, 11008, 32, 32, 32000}}, {"Llama 2 70B", {80, 8192, 28672, 64, 8, 32000}},
        {"31B shape", {66, 5376, 21504, 42, 14, 262144}},
    };
    const std::map<std::string, DTypeOf> dtypes{
        {"Q4_K_M", q4_k_m}, {"Q4_0", q4_0()}, {"Q8_0", all_of(DType::kQ8_0)}, {"F16", all_of(DType::kF16)}};
    const auto& s = shapes.at(name.substr(0, space));
    HollowModel hollow(s[0], s[1], s[2], s[3], s[4], s[5]);
    hollow.dtype = dtypes.at(name.substr(space + 1));
    const std::string path = test::temporary(name + ".gguf");
    hollow.write(path);
    model = open_model(path);
    return *model;
  }

 private:
  std::map<std::string, std::unique_ptr<Model>> models_;
};

double simulated_rate(const Model& model, const std::string& machine_name, const std::string& split,
                      const std::string& test) {
  const machine::MachineModel machine = machine::make_machine(machine_name);
  Choice choice;
  choice.mode = split == "layer" ? SplitMode::kLayer : SplitMode::kTensor;
  std::vector<Device*> devices;
  for (const machine::DeviceModel& device : machine.devices) {
    devices.push_back(&sim::family().provide({device.name, device.identity, device.type, device.memory}));
  }
  if (split == "layer") {
    for (Device* device : devices) choice.groups.push_back({device});
  } else {
    choice.groups = {devices};
  }
  const int64_t tokens = std::stoll(test.substr(2));
  const bool is_prompt = test.starts_with("pp");
  const Workload workload{is_prompt ? tokens : 0, is_prompt ? 0 : tokens, 0};
  SessionOptions session;
  session.context = tokens;
  LoadOptions load;
  load.use_mapping = false;
  const Verdict prediction = judged(model, asked_of(machine, session, load, workload), choice);
  EXPECT_TRUE(prediction.fits) << machine_name;
  return is_prompt ? prediction.prompt->rate : prediction.generation->rate;
}

TEST(Published, PredictedTokenRatesMatchPublishedRates) {
  const auto rows = rows_of("model");
  ASSERT_GT(rows.size(), 30u);
  Library library;
  for (const Row& row : rows) {
    ASSERT_EQ(row.size(), 7u) << row.front();
    const double rate = simulated_rate(library.get(row[1]), row[0], row[2], row[3]);
    compare(row, as_number(row[4]), rate, as_number(row[5]));
  }
}

}  // namespace
}  // namespace shoal::tuning
