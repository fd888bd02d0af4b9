// Tests of shoal probe: the output, the saved measurements, and failures that do not change the file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/temporary.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// In this fixture, shoal uses a temporary machine file.
class ProbeCommand : public ::testing::Test {
 protected:
  void SetUp() override { setenv("SHOAL_MACHINE_FILE", file_.path.c_str(), 1); }
  void TearDown() override { unsetenv("SHOAL_MACHINE_FILE"); }

  /// Probes two devices with one thread each, as quickly as possible.
  static Finished probe(std::vector<std::string> more = {}) {
    std::vector<std::string> args{"probe", "--quick", "--devices", "CPU0,CPU1", "-t", "1"};
    args.insert(args.end(), more.begin(), more.end());
    return run(args, {.cpu_devices = "2"});
  }
  std::string text() const { return file_.text(); }
  /// Whether the text is the warning about other programs that ran during the measurement.
  static bool is_warning(const std::string& text) {
    return text.starts_with("shoal: warning: device measurements may be wrong, because ") &&
           text.ends_with(" on an idle machine\n") && std::count(text.begin(), text.end(), '\n') == 1;
  }
  /// Sets the field "disturbance" of all measured machines in the file.
  void set_disturbance(const std::string& what) const {
    json all = json::parse(text());
    for (json& entry : all["machines"]) entry["machine"]["disturbance"] = what;
    std::ofstream(file_.path) << all.dump();
  }

  const test::TemporaryFile file_{"machine.json"};
};

TEST_F(ProbeCommand, MeasuresOnceAndNamesTheFile) {
  const Finished first = probe({"--dtypes", "q8_0"});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_TRUE(first.err.empty() || is_warning(first.err)) << first.err;
  for (const char* part : {"device", "CPU0", "CPU1", "reads GB/s", "q8_0", "all_reduce", "measured in "}) {
    EXPECT_THAT(first.out, HasSubstr(part));
  }
  EXPECT_THAT(first.out, EndsWith("saved in " + file_.path + "\n"));
  const std::string kept = text();

  const Finished again = probe({"--dtypes", "q8_0"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("saved in " + file_.path + "; --force measures again"));
  EXPECT_EQ(text(), kept);

  const Finished one = run({"probe", "--devices", "CPU1", "-t", "1", "--dtypes", "Q8_0"}, {.cpu_devices = "2"});
  EXPECT_THAT(one.out, HasSubstr("; --force measures again")) << "CPU1 is one of the measured devices";
}

TEST_F(ProbeCommand, MeasuresAgainIfMeasurementsAreMissing) {
  ASSERT_EQ(probe({"--dtypes", "q8_0"}).code, 0);
  const std::string kept = text();
  EXPECT_THAT(probe({"--dtypes", "q4_0,q8_0"}).out, HasSubstr("saved in"));
  EXPECT_NE(text(), kept);
  EXPECT_THAT(probe({"--dtypes", "q4_0", "--force"}).out, HasSubstr("saved in"));
  EXPECT_THAT(run({"probe", "--quick", "--devices", "CPU0", "-t", "2", "--dtypes", "q4_0"}, {.cpu_devices = "2"}).out,
              HasSubstr("saved in"))
      << "the saved measurements have another number of threads";
}

TEST_F(ProbeCommand, PrintsJson) {
  const Finished done = probe({"--dtypes", "q8_0", "--output", "json"});
  ASSERT_EQ(done.code, 0) << done.err;
  const json all = json::parse(done.out);
  EXPECT_EQ(all["file"], file_.path);
  EXPECT_EQ(all["cached"], false);
  EXPECT_GT(all["seconds"].get<double>(), 0);
  EXPECT_EQ(all["machine"]["devices"].size(), 2u);
  EXPECT_GT(all["machine"]["devices"][0]["bandwidth"].get<double>(), 0);
  const json again = json::parse(probe({"--dtypes", "q8_0", "--output", "json"}).out);
  EXPECT_EQ(again["cached"], true);
  EXPECT_EQ(again["measured"], all["measured"]);
  EXPECT_EQ(again["machine"], all["machine"]);
}

TEST_F(ProbeCommand, RejectsUnknownTypesAndDevices) {
  const auto refused = [](const std::vector<std::string>& args) {
    const Finished done = run(args);
    EXPECT_EQ(done.code, 2) << done.err;
    EXPECT_THAT(done.err, StartsWith("shoal: error: "));
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1);
    return done.err;
  };
  EXPECT_THAT(refused({"probe", "--dtypes", "q9_0"}),
              HasSubstr("--dtypes must be one or more of f32, f16, bf16, q4_0"));
  EXPECT_THAT(refused({"probe", "--dtypes", "i32"}), HasSubstr("got 'i32'"));
  EXPECT_THAT(refused({"probe", "--devices", "CPU0+CPU1"}), HasSubstr("contains a group"));
  EXPECT_THAT(refused({"probe", "-t", "-1"}), HasSubstr("--threads"));
  const Finished unknown = run({"probe", "--devices", "CPU99"});
  EXPECT_NE(unknown.code, 0);
  EXPECT_THAT(unknown.err, HasSubstr("CPU99"));
  EXPECT_FALSE(file_.exists());
}

TEST_F(ProbeCommand, ReportsAnUnwritableFile) {
  setenv("SHOAL_MACHINE_FILE", "/proc/nowhere/machine.json", 1);
  const Finished done = probe({"--dtypes", "q8_0"});
  EXPECT_EQ(done.code, 1);
  EXPECT_THAT(done.err, HasSubstr("/proc/nowhere/machine.json: cannot be written"));
  EXPECT_THAT(done.err, HasSubstr("SHOAL_MACHINE_FILE"));
  EXPECT_EQ(done.out, "") << "the file is checked before the measurement";
}

TEST_F(ProbeCommand, RejectsAFolderAsMachineFile) {
  setenv("SHOAL_MACHINE_FILE", test::temporary("").c_str(), 1);
  const Finished done = probe({"--dtypes", "q8_0"});
  EXPECT_EQ(done.code, 1);
  EXPECT_THAT(done.err, HasSubstr("is not a regular file; set SHOAL_MACHINE_FILE to a regular file"));
  EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1);
}

TEST_F(ProbeCommand, UsesTheLatestMeasurements) {
  const std::vector<std::string> args{"probe", "--devices", "CPU0", "-t", "1", "--dtypes", "q8_0"};
  ASSERT_EQ(run(args, {.cpu_devices = "2"}).code, 0);
  ASSERT_EQ(probe({"--dtypes", "q8_0,q4_0"}).code, 0);
  const json machines = json::parse(text())["machines"];
  ASSERT_EQ(machines.size(), 2u);
  const std::string latest = machines[0]["measured"];
  EXPECT_THAT(run(args, {.cpu_devices = "2"}).out, HasSubstr("measured " + latest + ", saved in"));
}

TEST_F(ProbeCommand, WarnsOfDisturbedMeasurements) {
  ASSERT_EQ(probe({"--dtypes", "q8_0,f32"}).code, 0);
  set_disturbance("other programs kept 1.4 cores busy");
  const std::string begin =
      "shoal: warning: device measurements may be wrong, because other programs kept 1.4 cores busy during the "
      "measurement; run ";
  const Finished shown = probe({"--dtypes", "q8_0"});
  EXPECT_EQ(shown.err, begin + "`shoal probe --force` on an idle machine\n");
  EXPECT_THAT(shown.out, HasSubstr("; --force measures again"));

  const std::vector<std::string> plan{"plan", "-m", kModel, "--devices", "CPU0,CPU1", "-t", "1"};
  const std::string warning = begin + "`shoal probe --force --devices CPU0,CPU1 -t 1` on an idle machine\n";
  EXPECT_EQ(run(plan, {.cpu_devices = "2"}).err, warning);
  std::vector<std::string> with_shares = plan;
  with_shares.insert(with_shares.end(), {"-ts", "auto"});
  const Finished told = run(with_shares, {.cpu_devices = "2"});
  EXPECT_EQ(told.code, 0);
  EXPECT_THAT(told.err, StartsWith(warning + "shoal: tensor split "));
  EXPECT_EQ(std::count(told.err.begin(), told.err.end(), '\n'), 2) << told.err;

  set_disturbance("");
  EXPECT_EQ(run(plan, {.cpu_devices = "2"}).err, "");
}

TEST_F(ProbeCommand, InterruptLeavesMachineFileUnchanged) {
  ASSERT_EQ(probe({"--dtypes", "q8_0"}).code, 0);
  const std::string kept = text();
  // A probe of the slow devices would take many minutes. After the signal, the program finishes the current series of
  // measurements.
  setenv("SHOAL_CPU_SLOWDOWN", "20", 1);
  const Finished done = run_interrupted(
      {"probe", "--force", "--devices", "CPU0,CPU1,CPU2,CPU3"}, SIGINT, [](const Finished&) { return true; },
      std::chrono::seconds(120));
  unsetenv("SHOAL_CPU_SLOWDOWN");
  EXPECT_EQ(done.code, 130);
  EXPECT_FALSE(done.killed) << "the program should exit by itself";
  EXPECT_EQ(done.out, "");
  EXPECT_EQ(text(), kept);
}

}  // namespace
}  // namespace shoal::tools
