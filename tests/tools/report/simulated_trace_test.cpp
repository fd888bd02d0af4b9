// Timelines of predictions: they end when the prediction says.
#include "tools/report/simulated_trace.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "devices/cpu/cpu_device.h"
#include "tests/models/described_machine.h"
#include "tests/models/synthetic_model.h"
#include "tests/tuning/asking.h"

namespace shoal::tools {
namespace {

/// A model with eight experts of which a token uses two. A prompt of eight tokens has them brought to the devices.
class SimulatedTrace : public ::testing::Test {
 protected:
  void SetUp() override {
    models::SyntheticModel synthetic;
    synthetic.h.experts = 8, synthetic.h.experts_used = 2;
    const std::string path = synthetic.write();
    model_ = models::open_model(path);
    std::filesystem::remove(path);
    machine_.copy_latency = 1e-6;
    cpu::configure("devices=2,threads=1");
    choice_.groups = {{Registry::instance().find_device("CPU0"), Registry::instance().find_device("CPU1")}};
  }

  tuning::Chooser chooser(const tuning::Workload& work) const {
    tuning::Asked asked = tuning::asked_of(machine_, {.context = 32, .batch = 8}, {}, work);
    asked.placement.overrides = {{"_exps", "CPU"}};
    asked.placement.offload_batch = 4;
    return {*model_, asked};
  }
  std::vector<TraceEvent> trace(const tuning::Workload& work) const {
    tuning::Chooser asked = chooser(work);
    return simulated_trace(asked, choice_);
  }

  /// The end of the trace of a workload of one run, and of its prediction.
  void expect_same_end(const tuning::Workload& work) const {
    const tuning::Verdict predicted = chooser(work).judge(choice_);
    const double seconds = predicted.prompt ? predicted.prompt->seconds : predicted.generation->seconds;
    const std::vector<TraceEvent> events = trace(work);
    int64_t end = 0;
    for (const TraceEvent& event : events) end = std::max(end, event.end_ns);
    // Every event begins at a whole nanosecond.
    EXPECT_NEAR(static_cast<double>(end), seconds * 1e9, static_cast<double>(events.size()));
  }

  static constexpr tuning::Workload kPrompt{8, 0, 0}, kToken{0, 1, 5};
  std::unique_ptr<models::Model> model_;
  tuning::Choice choice_;
  machine::MachineModel machine_ = models::described_machine({1e-10, 1e-10});
};

TEST_F(SimulatedTrace, HasWhatARunOfAllDevicesCosts) {
  machine_.devices[0].run_seconds = 1e-4;
  expect_same_end(kToken);
  expect_same_end(kPrompt);
}

TEST_F(SimulatedTrace, BringsTheExpertsThatAreUsed) {
  machine_.copy_bandwidth = 1e8;
  expect_same_end(kPrompt);
  const std::vector<TraceEvent> events = trace(kPrompt);
  EXPECT_TRUE(std::any_of(events.begin(), events.end(), [](const TraceEvent& event) {
    return event.kind == TraceKind::kCopy && event.name.find("_exps") != std::string::npos;
  }));
}

TEST_F(SimulatedTrace, BringsTheResultsFromOtherMemory) {
  machine_.copy_bandwidth = 1e8;
  for (machine::DeviceModel& device : machine_.devices) device.type = DeviceType::kGpu;
  expect_same_end(kToken);
  const std::vector<TraceEvent> events = trace(kToken);
  EXPECT_EQ(events.back().row, "host");
  EXPECT_EQ(events.back().kind, TraceKind::kCopy);
  EXPECT_EQ(events.back().end_ns - events.back().begin_ns, 96 * 4 * 10) << "logits of 96 tokens, a byte in 10 ns";
}

}  // namespace
}  // namespace shoal::tools
