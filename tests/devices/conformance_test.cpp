// Runs the conformance suites on the built-in devices. The environment variable SHOAL_TEST_PLUGIN can name a plug-in.
// Then the suites also run on the first device of the plug-in.
#include "tests/devices/conformance.h"
#include "tests/support/plugin.h"

namespace shoal::test {
namespace {

std::vector<DeviceCase> cases() {
  const auto named = [](const char* name) { return [name] { return Registry::instance().find_device(name); }; };
  return {
      {"CPU_default", named("CPU0"), "", {}},
      {"CPU_1_thread", named("CPU0"), "threads=1", {}},
      {"CPU_2_threads", named("CPU0"), "threads=2", {}},
      {"NULL",
       named("NULL0"),
       "",
       {
           {"BackendSuite.ComputesAGraph", "runs nothing"},
           {"BackendSuite.QueuedWorkRunsInOrder", "runs nothing"},
           {"BackendSuite.RunsGraphAsTwoRanges", "runs nothing"},
           {"BackendSuite.GraphCanBePlannedRepeatedly", "runs nothing"},
           {"BackendSuite.WritesCacheRowsAndReadsThemThroughViews", "runs nothing"},
           {"BackendSuite.HostTasksRunInStreamOrder", "has no thread for host tasks"},
           {"BackendSuite.ReportsFirstFailureAndSkipsLaterWork", "has no thread for host tasks"},
           {"BackendSuite.AbortCallbackDoesNotClearFailures", "has no thread for host tasks"},
           {"BackendSuite.ComputeReturnsFailuresAsStatus", "has no thread for host tasks"},
           {"BackendSuite.RunsThousandsOfSmallTasks", "has no thread for host tasks"},
           {"BackendSuite.DestructorFinishesQueuedWork", "has no thread for host tasks"},
           {"BackendSuite.CopiesToAnotherFamilyWithoutBlockingTheHost", "has no events"},
           {"BackendSuite.CopiesFromAnotherFamilyWithoutBlockingTheHost", "has no events"},
           {"BackendSuite.FailedStreamDoesNotBlockReceiverOfItsCopies", "has no thread for host tasks"},
           {"PlanSuite.SegmentsRunOneByOne", "runs nothing"},
           {"PlanSuite.RunsSeveralSegmentsInOneCall", "runs nothing"},
           {"PlanSuite.PlansShareAnArena", "runs nothing"},
           {"PlanSuite.ArenaMayGrowWhilePlansUseIt", "runs nothing"},
           {"PlanSuite.AbortedRunStopsAfterAtMostOneNode", "runs nothing"},
           {"PlanSuite.PlanCanBeUpdatedForEqualTopology", "cannot update plans"},
           {"PlanSuite.PlanCannotBeUpdatedForOtherTopologies", "runs nothing"},
           {"PlanSuite.PlansOfRangesMustBeUpdatedInOrder", "cannot update plans"},
           {"EventSuite", "has no events"},
           {"LifetimeSuite.CachedPlanIsReplacedAfterWeightsMove", "runs nothing"},
           {"LifetimeSuite.QueuedWorkReportsFreedBuffer", "has no thread for host tasks"},
       }},
  };
}

std::vector<DeviceCase> plugin_cases() {
  const Device* device = plugin_device();
  DeviceCase one{device != nullptr ? device->reg().name() : "none", plugin_device, "", {}};
  if (device != nullptr && device->reg().name() == "SIMPLE") {
    one.exclusions = {{"PlanSuite.PlanCanBeUpdatedForEqualTopology", "cannot update plans"},
                      {"PlanSuite.PlansOfRangesMustBeUpdatedInOrder", "cannot update plans"}};
  }
  return {one};
}

SHOAL_INSTANTIATE_DEVICE_SUITES(Always, cases());
SHOAL_INSTANTIATE_DEVICE_SUITES(Plugin, plugin_cases());

}  // namespace
}  // namespace shoal::test
